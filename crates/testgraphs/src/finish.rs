//! Conversion of provisional slots to the slots of a graph.

use std::collections::HashMap;

use flambeau_ir::{Checked, Graph, Node, Slot, SlotCounts, SlotRef, TensorMeta, Tid, Vid, check, engine::Value};

use crate::{Generator, RandomGraph, Source};

impl Generator {
    /// The graph with its arguments. `None` without results, or if the checker refuses the graph,
    /// because it knows less about sizes.
    pub(crate) fn finish(self) -> Option<RandomGraph> {
        let results = self.results();
        if results.is_empty() {
            return None;
        }
        let (graph, _) = self.graph(&results)?;
        let (every, numbers) = self.graph(&self.written().collect::<Vec<_>>())?;
        let tensors = self.inputs().filter_map(|t| match &self.tensors[t as usize] {
            Source::Input(tensor) => Some(Value::Tensor(tensor.clone())),
            Source::Node => None,
        });
        let arguments = tensors.chain(self.values.iter().flatten().map(|&v| Value::Int(v))).collect();
        let tainted = results.iter().map(|&t| self.tainted.contains(&Tid(t))).collect();
        let results = results.iter().map(|&t| numbers.get(&Tid(t)).copied()).collect::<Option<_>>()?;
        Some(RandomGraph { graph, every, inputs: arguments, tainted, rounding: self.rounding, results })
    }

    fn inputs(&self) -> impl Iterator<Item = u32> {
        (0..self.tensors.len() as u32).filter(|&t| matches!(self.tensors[t as usize], Source::Input(_)))
    }

    /// A graph with these results, and its number of each provisional slot.
    fn graph(&self, results: &[u32]) -> Option<(Checked, HashMap<Tid, Tid>)> {
        let inputs: Vec<u32> = self.inputs().collect();
        let mut numbers: HashMap<Tid, Tid> = HashMap::new();
        for &t in inputs.iter().chain(results) {
            numbers.insert(Tid(t), Tid(numbers.len() as u32));
        }
        let fixed = numbers.len() as u32;
        let temps = self.number_temps(&mut numbers, fixed);
        let mut chains = self.chains.clone();
        for node in chains.iter_mut().flatten() {
            node.walk_mut(&mut |_, slot| {
                if let SlotRef::Tensor(t) = slot {
                    *t = numbers.get(t).copied().unwrap_or(*t);
                }
            });
        }
        let values = (0..self.values.len() as u32).filter(|&v| self.values[v as usize].is_some());
        let meta = inputs.iter().chain(results).map(|&t| {
            let spec = self.env.get(Tid(t))?;
            let shape: Vec<u32> = spec.shape()?.iter().map(|&n| n as u32).collect();
            Some(TensorMeta::fixed(spec.dtype, &shape))
        });
        let graph = Graph {
            slots: SlotCounts { inputs: inputs.len() as u32, outputs: results.len() as u32, temps, ..SlotCounts::default() },
            values: self.values.len() as u32,
            chains,
            inputs: (0..inputs.len() as u32).map(|i| Slot::Tensor(Tid(i))).chain(values.map(|v| Slot::Value(Vid(v)))).collect(),
            outputs: (inputs.len() as u32..fixed).map(|i| Slot::Tensor(Tid(i))).collect(),
            meta: meta.collect::<Option<_>>()?,
            ..Graph::default()
        };
        Some((check(graph).ok()?, numbers))
    }

    /// Slots that nodes write.
    fn written(&self) -> impl Iterator<Item = u32> {
        let is_written =
            |t: &u32| matches!(self.tensors[*t as usize], Source::Node) && self.env.get(Tid(*t)).and_then(|s| s.shape()).is_some();
        (0..self.tensors.len() as u32).filter(is_written)
    }

    /// Slots that nodes write and no node reads, and a random part of the other written slots.
    fn results(&self) -> Vec<u32> {
        let mut rng = self.rng.clone();
        self.written().filter(|&t| !self.read.contains(&Tid(t)) || rng.usize(..4) == 0).collect()
    }

    /// Assigns numbers to the remaining slots; a number is reused after the last read. Returns the
    /// count of numbers.
    fn number_temps(&self, numbers: &mut HashMap<Tid, Tid>, first: u32) -> u32 {
        let mut last: HashMap<Tid, usize> = HashMap::new();
        // Branches run at their node, so slots in branches stay live from start to end.
        let mut everywhere = Vec::new();
        for (chain, nodes) in self.chains.iter().enumerate() {
            for (at, node) in nodes.iter().enumerate() {
                touch(node, &mut |t| if chain == 0 { _ = last.insert(t, at) } else { everywhere.push(t) });
            }
        }
        let (mut count, mut free) = (0, Vec::new());
        for &t in &everywhere {
            numbers.entry(t).or_insert_with(|| {
                count += 1;
                Tid(first + count - 1)
            });
        }
        for (at, node) in self.chains[0].iter().enumerate() {
            touch(node, &mut |t| {
                numbers.entry(t).or_insert_with(|| {
                    free.pop().unwrap_or_else(|| {
                        count += 1;
                        Tid(first + count - 1)
                    })
                });
            });
            touch(node, &mut |t| {
                if last.get(&t) == Some(&at) && numbers[&t].0 >= first && !everywhere.contains(&t) && !free.contains(&numbers[&t]) {
                    free.push(numbers[&t]);
                }
            });
        }
        count
    }
}

fn touch(node: &Node, f: &mut dyn FnMut(Tid)) {
    node.walk(&mut |_, slot| {
        if let Slot::Tensor(t) = slot {
            f(t);
        }
    });
}
