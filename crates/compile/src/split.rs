//! Splits an SSA graph into delegates at its fallback calls.
//!
//! Every node has a level. It is at least the level of each node that it reads from, and above the
//! level of each kernel call that it reads from. The nodes of one level form one delegate. Between
//! two delegates run the kernel calls that depend on the first. Kernel calls that read only inputs
//! of the method and constants run before all delegates. A buffer belongs to one delegate, so all
//! nodes that read its old contents or produce its new contents share one level.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flambeau_ir::{Effect, Node, Role, Slot, Tid};
use flambeau_lower::{Origin, SsaGraph, SsaNode};

use crate::{Error, error::ProgramError, fallback::FallbackCall};

/// One delegate's share of an SSA graph.
#[derive(Debug)]
pub(crate) struct Part {
    /// The part's graph. Its results are the slots that other parts and kernels read.
    pub(crate) ssa: SsaGraph,
    pub(crate) level: usize,
    /// Numbers of its buffers in the whole graph.
    pub(crate) buffers: Vec<usize>,
}

/// Delegates and kernel calls, with the slots that pass between them.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) parts: Vec<Part>,
    /// By kernel call, the level of the delegate that it follows. `None` means before all
    /// delegates.
    pub(crate) levels: Vec<Option<usize>>,
    /// Argument numbers of slots that pass from one delegate to another.
    pub(crate) crossing: Vec<(u32, Slot)>,
}

/// Visits every slot of a node and of the chains that it runs.
fn walk(ssa: &SsaGraph, node: &Node, visit: &mut dyn FnMut(Role, Slot)) {
    node.walk(&mut |role, slot| visit(role, slot));
    for chain in node.chains() {
        for entry in ssa.chains.get(chain.0 as usize).into_iter().flatten() {
            walk(ssa, &entry.node, visit);
        }
    }
}

/// Marks main-chain nodes that read only constants. Each delegate gets its own copy of such nodes,
/// because passing their results between delegates would copy weights in every run.
fn free_nodes(ssa: &SsaGraph) -> Vec<bool> {
    let mut known: BTreeSet<Slot> = BTreeSet::new();
    let constant = |slot: &Slot| matches!(slot, Slot::Tensor(t) if ssa.constant(*t).is_some());
    let mut free = Vec::with_capacity(ssa.chains[0].len());
    for entry in &ssa.chains[0] {
        let mut only_constants = entry.node.effect() == Effect::Pure;
        let (mut reads, mut made) = (0, Vec::new());
        entry.node.walk(&mut |role, slot| match role {
            Role::Write => made.push(slot),
            _ => {
                reads += 1;
                only_constants &= constant(&slot) || known.contains(&slot);
            }
        });
        only_constants &= reads > 0;
        if only_constants {
            known.extend(made);
        }
        free.push(only_constants);
    }
    free
}

/// By kernel call, whether all its operands exist before any delegate runs.
fn early(ssa: &SsaGraph, fallbacks: &[FallbackCall]) -> Vec<bool> {
    let mut early: Vec<bool> = Vec::with_capacity(fallbacks.len());
    let made_by: HashMap<Tid, usize> =
        fallbacks.iter().enumerate().flat_map(|(i, call)| call.results.iter().map(move |t| (*t, i))).collect();
    for call in fallbacks {
        let is_there = |slot: &Slot| match slot {
            Slot::Value(v) => ssa.value_inputs.iter().any(|(_, input)| input == v),
            Slot::Tensor(t) => match (made_by.get(t), &ssa.tensors[t.0 as usize].origin) {
                (Some(&by), _) => early.get(by) == Some(&true),
                (None, origin) => matches!(origin, Origin::Constant(_) | Origin::Input(_)),
            },
        };
        let ready = !call.kernel.is_in_place() && call.reads().iter().all(is_there);
        early.push(ready);
    }
    early
}

struct Levels<'f> {
    ssa: &'f SsaGraph,
    fallbacks: &'f [FallbackCall],
    slots: HashMap<Slot, usize>,
    nodes: Vec<usize>,
    calls: Vec<usize>,
    early: Vec<bool>,
    buffers: Vec<usize>,
    changed: bool,
}

impl Levels<'_> {
    fn level(&self, slot: Slot) -> usize {
        self.slots.get(&slot).copied().unwrap_or(0)
    }

    fn raise(&mut self, slot: Slot, level: usize) {
        let old = self.slots.entry(slot).or_insert(0);
        self.changed |= *old < level;
        *old = level.max(*old);
    }

    /// Updates all levels once. Levels never decrease.
    fn pass(&mut self) {
        let ssa = self.ssa;
        for (i, entry) in ssa.chains[0].iter().enumerate() {
            let mut level = self.nodes[i];
            walk(ssa, &entry.node, &mut |role, slot| {
                if role != Role::Write {
                    level = level.max(self.level(slot));
                }
            });
            self.changed |= level > self.nodes[i];
            self.nodes[i] = level;
            let mut written = Vec::new();
            walk(ssa, &entry.node, &mut |role, slot| written.extend((role != Role::Read).then_some(slot)));
            written.into_iter().for_each(|slot| self.raise(slot, level));
        }
        for (i, call) in self.fallbacks.iter().enumerate() {
            self.calls[i] = call.reads().into_iter().map(|s| self.level(s)).fold(self.calls[i], usize::max);
            if call.kernel.is_in_place() {
                // Readers of the old contents run first. Calls of one level run in the program's
                // order.
                let earlier = self.calls[..i].iter();
                let last = self.nodes.iter().chain(&self.buffers).chain(earlier).copied().max().unwrap_or(0);
                self.changed |= last > self.calls[i];
                self.calls[i] = self.calls[i].max(last);
            }
            let after = if self.early[i] { 0 } else { self.calls[i] + 1 };
            call.results.iter().for_each(|t| self.raise(Slot::Tensor(*t), after));
        }
        for (b, &(before, after)) in ssa.buffers.iter().enumerate() {
            let mut level = self.level(Slot::Tensor(before)).max(self.level(Slot::Tensor(after)));
            for (i, entry) in ssa.chains[0].iter().enumerate() {
                walk(ssa, &entry.node, &mut |role, slot| {
                    let involved = (role != Role::Write && slot == Slot::Tensor(before))
                        || (role != Role::Read && slot == Slot::Tensor(after));
                    if involved {
                        level = level.max(self.nodes[i]);
                    }
                });
            }
            self.raise(Slot::Tensor(before), level);
            self.buffers[b] = level;
            let maker = ssa.chains[0].iter().position(|e| writes(ssa, &e.node, after));
            if let Some(i) = maker {
                self.changed |= self.nodes[i] < level;
                self.nodes[i] = self.nodes[i].max(level);
            }
        }
    }
}

fn writes(ssa: &SsaGraph, node: &Node, t: Tid) -> bool {
    let mut found = false;
    walk(ssa, node, &mut |role, slot| found |= role != Role::Read && slot == Slot::Tensor(t));
    found
}

/// Splits an SSA graph at its fallback calls. Arguments that pass between delegates are numbered
/// from `first` on.
///
/// # Errors
/// If a buffer would belong to two delegates, or if fallback calls form a cycle.
pub(crate) fn split(ssa: &SsaGraph, fallbacks: &[FallbackCall], names: &[String], first: u32) -> Result<Split, Error> {
    let mut levels = Levels {
        ssa,
        fallbacks,
        slots: HashMap::new(),
        nodes: vec![0; ssa.chains[0].len()],
        calls: vec![0; fallbacks.len()],
        early: early(ssa, fallbacks),
        buffers: vec![0; ssa.buffers.len()],
        changed: true,
    };
    while std::mem::take(&mut levels.changed) {
        levels.pass();
        if let Some(b) = levels.buffers.iter().position(|&l| l > fallbacks.len()) {
            return Err(ProgramError::SplitBuffer(names.get(b).cloned().unwrap_or_default()).into());
        }
        if levels.nodes.iter().any(|&l| l > fallbacks.len()) {
            return Err(ProgramError::Cycle.into());
        }
    }
    let free = free_nodes(ssa);
    let mut nodes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, &level) in levels.nodes.iter().enumerate().filter(|(i, _)| !free[*i]) {
        nodes.entry(level).or_default().push(i);
    }
    for (b, &(before, after)) in ssa.buffers.iter().enumerate() {
        if before != after {
            nodes.entry(levels.buffers[b]).or_default();
        }
    }
    let needed = needed_by_kernels(ssa, fallbacks);
    if needed.iter().any(|slot| is_written_by_free(ssa, &free, *slot)) {
        nodes.entry(0).or_default();
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut crossing: Vec<(u32, Slot)> = Vec::new();
    let shares: Vec<Share> = nodes
        .iter()
        .map(|(&level, nodes)| {
            let asked: BTreeSet<Slot> = if level == 0 { needed.clone() } else { BTreeSet::new() };
            let nodes = with_free(ssa, &free, nodes, asked);
            Share::new(ssa, level, &nodes, &levels.buffers)
        })
        .collect();
    for (i, share) in shares.iter().enumerate() {
        let others = shares.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| s);
        let read: BTreeSet<Slot> = others.flat_map(|s| s.reads.iter().copied()).chain(needed.iter().copied()).collect();
        let own = |s: &Slot| !is_written_by_free(ssa, &free, *s) || (share.level == 0 && needed.contains(s));
        let mut results: Vec<Slot> = share.makes.iter().copied().filter(|s| read.contains(s) && own(s)).collect();
        results.dedup();
        for &slot in &results {
            crossing.push((first + crossing.len() as u32, slot));
        }
        parts.push(share.part(ssa, results, &crossing));
    }
    let calls = levels.calls.into_iter().zip(levels.early).map(|(level, early)| (!early).then_some(level)).collect();
    Ok(Split { parts, levels: calls, crossing })
}

fn is_written_by_free(ssa: &SsaGraph, free: &[bool], slot: Slot) -> bool {
    let Slot::Tensor(t) = slot else { return false };
    ssa.chains[0].iter().zip(free).any(|(e, free)| *free && writes(ssa, &e.node, t))
}

/// The nodes in order, with the free nodes that they or `asked` need.
fn with_free(ssa: &SsaGraph, free: &[bool], nodes: &[usize], asked: BTreeSet<Slot>) -> Vec<usize> {
    let mut wanted = asked;
    let mut all: Vec<usize> = nodes.to_vec();
    let reads = |i: usize, wanted: &mut BTreeSet<Slot>| {
        walk(ssa, &ssa.chains[0][i].node, &mut |role, slot| {
            if role != Role::Write {
                wanted.insert(slot);
            }
        });
    };
    nodes.iter().for_each(|&i| reads(i, &mut wanted));
    for i in (0..free.len()).rev().filter(|&i| free[i]) {
        let mut needed = false;
        walk(ssa, &ssa.chains[0][i].node, &mut |role, slot| needed |= role != Role::Read && wanted.contains(&slot));
        if needed {
            all.push(i);
            reads(i, &mut wanted);
        }
    }
    all.sort_unstable();
    all
}

/// Slots that kernel calls and the method's caller need.
fn needed_by_kernels(ssa: &SsaGraph, fallbacks: &[FallbackCall]) -> BTreeSet<Slot> {
    ssa.results.iter().copied().chain(fallbacks.iter().flat_map(FallbackCall::reads)).collect()
}

/// The nodes, operands and results of one delegate.
struct Share {
    level: usize,
    nodes: Vec<SsaNode>,
    buffers: Vec<usize>,
    reads: BTreeSet<Slot>,
    /// In order of production, old contents of buffers first.
    makes: Vec<Slot>,
}

impl Share {
    fn new(ssa: &SsaGraph, level: usize, nodes: &[usize], buffer_levels: &[usize]) -> Share {
        let buffers: Vec<usize> = (0..ssa.buffers.len()).filter(|&b| buffer_levels[b] == level).collect();
        let mut reads: BTreeSet<Slot> = buffers.iter().map(|&b| Slot::Tensor(ssa.buffers[b].1)).collect();
        let mut seen = BTreeSet::new();
        let mut makes = Vec::new();
        let own = buffers.iter().map(|&b| Slot::Tensor(ssa.buffers[b].0));
        makes.extend(own.filter(|s| seen.insert(*s)));
        for &i in nodes {
            walk(ssa, &ssa.chains[0][i].node, &mut |role, slot| {
                if role != Role::Write {
                    reads.insert(slot);
                }
                if role != Role::Read && seen.insert(slot) {
                    makes.push(slot);
                }
            });
        }
        Share { level, nodes: nodes.iter().map(|&i| ssa.chains[0][i].clone()).collect(), buffers, reads, makes }
    }

    fn part(&self, ssa: &SsaGraph, results: Vec<Slot>, crossing: &[(u32, Slot)]) -> Part {
        let mut reached = BTreeSet::new();
        let mut stack: Vec<&Node> = self.nodes.iter().map(|e| &e.node).collect();
        while let Some(node) = stack.pop() {
            for chain in node.chains().into_iter().filter(|c| reached.insert(c.0 as usize)).collect::<Vec<_>>() {
                stack.extend(ssa.chains.get(chain.0 as usize).into_iter().flatten().map(|e| &e.node));
            }
        }
        let chain = |i: usize| match i {
            0 => self.nodes.clone(),
            i if reached.contains(&i) => ssa.chains[i].clone(),
            _ => Vec::new(),
        };
        let mut tensors = ssa.tensors.clone();
        let mut value_inputs = ssa.value_inputs.clone();
        let made: BTreeSet<Slot> = self.makes.iter().copied().collect();
        for &(number, slot) in crossing.iter().filter(|(_, s)| !made.contains(s)) {
            match slot {
                Slot::Tensor(t) => tensors[t.0 as usize].origin = Origin::Input(number),
                Slot::Value(v) => value_inputs.push((number, v)),
            }
        }
        let part = SsaGraph {
            chains: (0..ssa.chains.len()).map(chain).collect(),
            tensors,
            values: ssa.values.clone(),
            results,
            buffers: self.buffers.iter().map(|&b| ssa.buffers[b]).collect(),
            value_inputs,
            ranges: ssa.ranges.clone(),
        };
        Part { ssa: part, level: self.level, buffers: self.buffers.clone() }
    }
}
