//! Runs of a graph node by node.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    ops::Range,
    sync::Arc,
};

use flambeau_ir::{
    Checked, Effect, Graph, MetaDim, Node, Role, Slot, SlotClass, Tid,
    decompose::decompose,
    engine::{
        BoundInput, Constants, Engine, EngineError, KvCacheConfig, LoadOptions, Session, SharedState, Value, bind_inputs,
        constants_of,
    },
};
use flambeau_tensor::{Bytes, Tensor, cast};

use super::part::{Contents, Part};

/// A run after one of its nodes.
pub struct NodeRun<'a> {
    /// Number of the graph, in the order in which the engine loaded them. A method's delegates come
    /// first.
    pub graph_number: usize,
    pub graph: &'a Checked,
    /// Position of the node in the main chain.
    pub instruction: usize,
    pub node: &'a Node,
    /// The node as a graph of its own.
    pub part: &'a Part,
    /// Constants of the graph by name.
    pub constants: &'a dyn Constants,
    /// Arguments and results of the part.
    pub inputs: &'a [Value],
    pub results: &'a [Value],
}

impl fmt::Debug for NodeRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeRun").field("instruction", &self.instruction).field("node", self.node).finish_non_exhaustive()
    }
}

/// A run of a graph after its last node.
#[derive(Debug)]
pub struct GraphRun<'a> {
    pub graph_number: usize,
    pub graph: &'a Checked,
    /// Contents of the slots before the first node.
    pub before: &'a Contents,
    pub walk: &'a Walk,
}

/// Receives the results of every node of a run.
pub trait Observer: Send {
    /// A main chain begins to run.
    fn begin(&mut self) {}

    /// A node of a main chain has run.
    ///
    /// # Errors
    /// An error ends the run.
    fn node(&mut self, run: &NodeRun<'_>) -> Result<(), EngineError>;

    /// A graph has run.
    ///
    /// # Errors
    /// An error is the run's error.
    fn graph(&mut self, _run: &GraphRun<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// The last reader of each result of a main chain.
#[derive(Debug, Default)]
struct Uses {
    /// By writing node and slot, the last reader of the result. `usize::MAX` for results that
    /// outlive the run.
    last: HashMap<(usize, Slot), usize>,
    /// Results of nodes that run chains, where a branch may leave the slot without contents.
    unset: HashSet<(usize, Slot)>,
    /// By node, the slots that nothing reads later.
    dying: Vec<Vec<Slot>>,
}

impl Uses {
    fn of(graph: &Checked) -> Uses {
        let nodes = &graph.chains[graph.main as usize];
        let mut writer: HashMap<Slot, usize> = HashMap::new();
        let mut uses = Uses { unset: unset_results(graph), dying: vec![Vec::new(); nodes.len()], ..Uses::default() };
        let mut last_touch: HashMap<Slot, usize> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
            slots_of(graph, node, &mut |role, slot, may_skip| {
                if role != Role::Write || may_skip {
                    reads.insert(slot);
                }
                if role != Role::Read {
                    writes.insert(slot);
                }
            });
            for slot in &reads {
                if let Some(&by) = writer.get(slot) {
                    uses.last.insert((by, *slot), at);
                }
            }
            for slot in &writes {
                writer.insert(*slot, at);
            }
            for slot in reads.into_iter().chain(writes) {
                last_touch.insert(slot, at);
            }
        }
        let lasting = graph.outputs.iter().copied().chain(graph.buffers.iter().map(|&tid| Slot::Tensor(tid)));
        let lasting: BTreeSet<Slot> = lasting.collect();
        for slot in &lasting {
            if let Some(&by) = writer.get(slot) {
                uses.last.insert((by, *slot), usize::MAX);
            }
        }
        let mut touched: Vec<(Slot, usize)> = last_touch.into_iter().filter(|(slot, _)| !lasting.contains(slot)).collect();
        touched.sort_unstable();
        for (slot, at) in touched {
            uses.dying[at].push(slot);
        }
        uses
    }

    /// Whether a node at or after `at` reads what node `by` wrote to a slot.
    fn is_read_from(&self, at: usize, by: usize, slot: Slot) -> bool {
        !self.unset.contains(&(by, slot)) && self.last.get(&(by, slot)).is_some_and(|&last| last >= at)
    }
}

/// Slots without contents after a node of the main chain that runs chains, by node and slot.
fn unset_results(graph: &Checked) -> HashSet<(usize, Slot)> {
    let main = graph.main as usize;
    let mut unset = HashSet::new();
    graph.visit_places(&mut |chain, at, _, env| {
        let before = at.checked_sub(1).filter(|_| chain == main).and_then(|before| Some((before, graph.chains[main].get(before)?)));
        let Some((before, node)) = before.filter(|(_, node)| !node.chains().is_empty()) else { return };
        slots_of(graph, node, &mut |role, slot, _| {
            let is_set = match slot {
                Slot::Tensor(tid) => env.get(tid).is_some(),
                Slot::Value(vid) => env.get_value(vid).is_some(),
            };
            if role != Role::Read && !is_set {
                unset.insert((before, slot));
            }
        });
    });
    unset
}

/// Calls `f` on the slots of a node and of the chains that it runs. The last argument is whether
/// the access may be skipped.
fn slots_of(graph: &Graph, node: &Node, f: &mut dyn FnMut(Role, Slot, bool)) {
    node.walk(&mut |role, slot| f(role, slot, false));
    for chain in node.chains() {
        for inner in graph.chains.get(chain.0 as usize).into_iter().flatten() {
            slots_of(graph, inner, &mut |role, slot, _| f(role, slot, true));
        }
    }
}

/// For each node of a main chain, the later nodes that read its results, in order. Nodes of
/// branches and loop bodies count as part of the node that runs them.
pub fn readers(graph: &Graph) -> Vec<Vec<usize>> {
    let nodes = graph.chains.get(graph.main as usize).map(Vec::as_slice).unwrap_or_default();
    let mut writer: HashMap<Slot, usize> = HashMap::new();
    let mut readers = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        let mut writes = Vec::new();
        slots_of(graph, node, &mut |role, slot, may_skip| {
            if (role != Role::Write || may_skip)
                && let Some(&by) = writer.get(&slot)
                && readers[by].last() != Some(&at)
            {
                readers[by].push(at);
            }
            if role != Role::Read {
                writes.push(slot);
            }
        });
        writer.extend(writes.into_iter().map(|slot| (slot, at)));
    }
    readers
}

/// A graph that runs node by node. Fused nodes run in their decomposed form.
#[derive(Debug)]
pub struct Walk {
    graph: Arc<Checked>,
    uses: Uses,
    constants: ConstantMap,
    engine: Hidden<Arc<dyn Engine>>,
    /// The cache of its nodes with state.
    cache: LoadOptions,
    /// Parts of nodes with their sessions, for the latest contents.
    prepared: HashMap<(usize, usize), Prepared>,
}

/// A node that is ready to run.
#[derive(Debug)]
struct Prepared {
    part: Part,
    session: Hidden<Box<dyn Session>>,
}

/// Called with a node's position, the node, its part, and the part's arguments and results.
type See<'a> = dyn FnMut(usize, &Node, &Part, &[Value], &[Value]) -> Result<(), EngineError> + 'a;

/// A value that prints as its type.
pub(super) struct Hidden<T>(pub(super) T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<T>())
    }
}

/// Constants by name, shared with their file.
#[derive(Clone, Debug, Default)]
pub(super) struct ConstantMap(HashMap<String, Bytes>);

impl Constants for ConstantMap {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.0.get(key).cloned()
    }
}

impl Walk {
    /// Prepares a graph.
    ///
    /// # Errors
    /// A constant is missing.
    pub(super) fn new(
        graph: Arc<Checked>,
        constants: &dyn Constants,
        engine: Arc<dyn Engine>,
        kv_cache: Option<KvCacheConfig>,
    ) -> Result<Walk, EngineError> {
        constants_of(&graph, constants)?;
        let names = graph.names.iter().filter(|(_, slot)| is_of(&graph, *slot, SlotClass::Constant));
        let held = names.filter_map(|(name, _)| Some((name.clone(), constants.get(name)?))).collect();
        let uses = Uses::of(&graph);
        let cache = own_cache(kv_cache);
        Ok(Walk { graph, uses, constants: ConstantMap(held), engine: Hidden(engine), cache, prepared: HashMap::new() })
    }

    /// Empties the cache of nodes with state.
    pub(super) fn forget(&mut self) {
        self.cache = own_cache(self.cache.kv_cache.take());
        self.prepared.clear();
    }

    /// Constants of the graph by name.
    pub(super) fn constants(&self) -> &ConstantMap {
        &self.constants
    }

    /// Contents of buffers, and of constants that the init chain wrote.
    pub(super) fn initial(&mut self) -> Result<Contents, EngineError> {
        let mut contents = Contents::default();
        for &tid in &self.graph.buffers {
            contents.tensors.insert(tid, zeros(&self.graph, tid)?);
        }
        let graph = Arc::clone(&self.graph);
        if let Some(init) = graph.init {
            for at in 0..graph.chains[init as usize].len() {
                let part = Part::of(&graph, init as usize, at..at + 1, &contents, &|_| true)?;
                let (_, results) = run_part(&self.engine.0, &self.constants, &part, &contents)?;
                part.outputs.iter().zip(results).for_each(|(&slot, value)| contents.set(slot, value));
            }
        }
        contents.tensors.retain(|&tid, _| [SlotClass::Buffer, SlotClass::Constant].map(Some).contains(&graph.slots.class(tid)));
        contents.values.clear();
        Ok(contents)
    }

    /// Runs the main chain up to node `end`, and calls `see` after each node.
    pub(super) fn run(&mut self, contents: &mut Contents, end: usize, see: &mut See<'_>) -> Result<(), EngineError> {
        let graph = Arc::clone(&self.graph);
        let main = graph.main as usize;
        for (at, node) in graph.chains[main].iter().enumerate().take(end) {
            let has_chains = !node.chains().is_empty();
            let uses = &self.uses;
            let wanted = |slot: Slot| !has_chains || uses.is_read_from(at, at, slot);
            let place = |error: EngineError| at_node(error, main, at, node);
            let part = Part::of(&graph, main, at..at + 1, contents, &wanted).map_err(place)?;
            let prepared = self.prepare(main, at, part).map_err(place)?;
            let inputs = prepared.part.arguments(contents);
            let results = prepared.session.0.run(&inputs).map_err(place)?;
            for (&slot, value) in prepared.part.outputs.iter().zip(&results) {
                contents.set(slot, value.clone());
            }
            let part = prepared.part.clone();
            for &slot in &self.uses.dying[at] {
                contents.unset(slot);
            }
            see(at, node, &part, &inputs, &results)?;
        }
        Ok(())
    }

    fn prepare(&mut self, chain: usize, at: usize, part: Part) -> Result<&mut Prepared, EngineError> {
        let key = (chain, at);
        if self.prepared.get(&key).is_none_or(|known| **known.part.graph != **part.graph) {
            let graph = decompose(&part.graph, &|_| true).map_or_else(|_| Arc::clone(&part.graph), Arc::new);
            let options = if keeps_state(&graph) { self.cache.clone() } else { LoadOptions::default() };
            let session = self.engine.0.load(graph, &self.constants, &options)?;
            self.prepared.insert(key, Prepared { part, session: Hidden(session) });
        }
        self.prepared.get_mut(&key).ok_or_else(|| EngineError::Arguments("a node was not prepared".into()))
    }

    /// Nodes as one part. Its outputs are the results with later readers.
    ///
    /// # Errors
    /// As [`Part::of`].
    pub fn cut(&self, before: &Contents, nodes: Range<usize>) -> Result<Part, EngineError> {
        let main = self.graph.main as usize;
        let mut writer: HashMap<Slot, usize> = HashMap::new();
        let chain = self.graph.chains[main].iter().enumerate();
        for (at, node) in chain.skip(nodes.start).take(nodes.len()) {
            slots_of(&self.graph, node, &mut |role, slot, _| {
                if role != Role::Read {
                    writer.insert(slot, at);
                }
            });
        }
        let wanted = |slot: Slot| writer.get(&slot).is_some_and(|&by| self.uses.is_read_from(nodes.end, by, slot));
        Part::of(&self.graph, main, nodes.clone(), before, &wanted)
    }

    /// Sets the inputs of a run.
    pub(super) fn bind(&self, inputs: &[Value], contents: &mut Contents) -> Result<(), EngineError> {
        for input in bind_inputs(&self.graph, inputs)? {
            match input? {
                BoundInput::Tensor(tid, tensor) => contents.set(Slot::Tensor(tid), Value::Tensor(tensor.clone())),
                BoundInput::Int(vid, value) => contents.set(Slot::Value(vid), Value::Int(value)),
            }
        }
        Ok(())
    }

    /// The results of a run, in the types of the metadata.
    pub(super) fn results(&self, contents: &Contents) -> Result<Vec<Value>, EngineError> {
        let result = |&slot: &Slot| {
            let unset = || EngineError::Arguments(format!("{slot} is not set when the run ends"));
            match (slot, contents.get(slot).ok_or_else(unset)?) {
                (Slot::Tensor(tid), Value::Tensor(tensor)) => {
                    let dtype = self.graph.meta.get(tid.0 as usize).map_or(tensor.dtype(), |meta| meta.dtype);
                    cast(&tensor, dtype).map(Value::Tensor).map_err(|error| EngineError::Arguments(error.to_string()))
                }
                (_, value) => Ok(value),
            }
        };
        self.graph.outputs.iter().map(result).collect()
    }

    pub(super) fn graph(&self) -> &Arc<Checked> {
        &self.graph
    }

    /// Runs the nodes before `end` anew, and returns the contents of the slots after them. The
    /// graph has no nodes with state.
    ///
    /// # Errors
    /// As the engine that runs single nodes.
    pub fn replay(&self, before: &Contents, end: usize) -> Result<Contents, EngineError> {
        let mut walk = Walk::new(Arc::clone(&self.graph), &self.constants, Arc::clone(&self.engine.0), None)?;
        let mut contents = before.clone();
        walk.run(&mut contents, end, &mut |_, _, _, _, _| Ok(()))?;
        Ok(contents)
    }
}

impl Part {
    /// The part's arguments.
    pub fn arguments(&self, contents: &Contents) -> Vec<Value> {
        self.inputs.iter().filter_map(|&slot| contents.get(slot)).collect()
    }
}

/// Runs a part on an engine. Returns its arguments and results.
///
/// # Errors
/// As the engine.
pub fn run_part(
    engine: &Arc<dyn Engine>,
    constants: &dyn Constants,
    part: &Part,
    contents: &Contents,
) -> Result<(Vec<Value>, Vec<Value>), EngineError> {
    let inputs = part.arguments(contents);
    let results = engine.load(Arc::clone(&part.graph), constants, &LoadOptions::default())?.run(&inputs)?;
    Ok((inputs, results))
}

/// Whether nodes keep state outside of the graph.
pub(super) fn keeps_state(graph: &Graph) -> bool {
    graph.chains.iter().flatten().any(|node| node.effect() == Effect::Stateful)
}

/// Options for nodes that share an empty cache of their own, whatever the sizes of their operands.
pub(super) fn own_cache(kv_cache: Option<KvCacheConfig>) -> LoadOptions {
    LoadOptions { shared: kv_cache.is_some().then(SharedState::default), kv_cache }
}

fn is_of(graph: &Checked, slot: Slot, class: SlotClass) -> bool {
    matches!(slot, Slot::Tensor(tid) if graph.slots.class(tid) == Some(class))
}

fn zeros(graph: &Checked, tid: Tid) -> Result<Tensor, EngineError> {
    let fail = || EngineError::Arguments(format!("mutable buffer {tid} has no static shape"));
    let meta = graph.meta.get(tid.0 as usize).ok_or_else(fail)?;
    let size = |dim: &MetaDim| match dim {
        MetaDim::Static(size) => Some(*size as usize),
        MetaDim::Dynamic { .. } => None,
    };
    let shape: Vec<usize> = meta.shape.iter().map(size).collect::<Option<_>>().ok_or_else(fail)?;
    Tensor::zeros(meta.dtype, &shape).map_err(|_| fail())
}

/// The error of a part with the node's place in the whole graph.
fn at_node(error: EngineError, chain: usize, at: usize, node: &Node) -> EngineError {
    let what = match error {
        EngineError::Node { what, .. } => what,
        other => other.to_string(),
    };
    EngineError::Node { chain: chain as u32, instruction: at as u32, node: node.name(), what }
}
