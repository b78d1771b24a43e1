//! When each slot dies, worked out once at load.

use flambeau_ir::{Chain, Effect, Graph, Node, Role, Slot, SlotClass, Tid};
use smallvec::SmallVec;

/// A few slots.
pub(crate) type Slots = SmallVec<[Tid; 3]>;

/// The slots that die around one instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Deaths {
    /// Operands without a later reader that the node names once. The node may take them and
    /// overwrite their storage.
    pub(crate) dying: Slots,
    /// Slots to empty after the node.
    pub(crate) drops: Slots,
}

/// The slots that die at each instruction, by chain and instruction.
#[derive(Debug)]
pub(crate) struct Liveness {
    pub(crate) chains: Vec<Vec<Deaths>>,
}

/// Nodes that use a slot.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Nobody,
    One(usize),
    /// Several chains, or the call's caller: alive wherever another chain may run.
    Shared,
}

impl Liveness {
    /// Works out every chain in one pass over its instructions.
    ///
    /// The result is exact for a slot used by one chain: it lives from a write to the last read
    /// before the next write. A slot used by several chains also lives up to each instruction that
    /// runs another chain. It also lives past the end of its own chain, unless no chain runs that
    /// one. Constants always live, and buffers live past the end.
    pub(crate) fn new(graph: &Graph) -> Liveness {
        let slots = graph.slots.total() as usize;
        let mut is_called = vec![false; graph.chains.len()];
        for chain in graph.chains.iter().flatten().flat_map(Node::chains) {
            if let Some(called) = is_called.get_mut(chain.0 as usize) {
                *called = true;
            }
        }
        let mut walk = Walk {
            graph,
            owners: owners(graph),
            reads: vec![0; slots],
            kills: vec![0; slots],
            clock: 0,
            base: 0,
            call: 0,
            is_called: false,
        };
        Liveness { chains: graph.chains.iter().zip(is_called).map(|(chain, called)| walk.chain(chain, called)).collect() }
    }
}

fn owners(graph: &Graph) -> Vec<Owner> {
    let mut owners = vec![Owner::Nobody; graph.slots.total() as usize];
    for (index, chain) in graph.chains.iter().enumerate() {
        for node in chain {
            node.walk(&mut |_, slot| {
                if let Slot::Tensor(tid) = slot
                    && let Some(owner) = owners.get_mut(tid.0 as usize)
                {
                    *owner = match *owner {
                        Owner::Nobody => Owner::One(index),
                        Owner::One(i) if i == index => Owner::One(i),
                        _ => Owner::Shared,
                    };
                }
            });
        }
    }
    owners
}

/// Walks chains backwards. `clock` counts instructions; a slot lives if its youngest event since
/// `base` is a read.
struct Walk<'a> {
    graph: &'a Graph,
    owners: Vec<Owner>,
    reads: Vec<u64>,
    kills: Vec<u64>,
    clock: u64,
    /// Clock at the end of the chain; events before it belong to other chains.
    base: u64,
    /// Clock of the last visited instruction that runs another chain.
    call: u64,
    /// Whether another chain runs this one, so that more than outputs and buffers survives its end.
    is_called: bool,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Chain, is_called: bool) -> Vec<Deaths> {
        self.is_called = is_called;
        (self.base, self.call) = (self.clock, 0);
        let mut steps: Vec<Deaths> = chain.iter().rev().map(|node| self.step(node)).collect();
        steps.reverse();
        steps
    }

    /// Whether the slot's value is needed after the instruction being walked.
    fn lives(&self, tid: Tid) -> bool {
        let i = tid.0 as usize;
        let is_shared = self.owners[i] == Owner::Shared;
        let at_end = match self.graph.slots.class(tid) {
            Some(SlotClass::Constant) => return true,
            Some(SlotClass::Buffer | SlotClass::Output) => true,
            Some(SlotClass::Input) => self.is_called,
            _ => self.is_called && is_shared,
        };
        let used = self.reads[i].max(if is_shared { self.call } else { 0 });
        let killed = self.kills[i];
        if used.max(killed) <= self.base { at_end } else { used > killed }
    }

    fn step(&mut self, node: &Node) -> Deaths {
        let (mut reads, mut writes) = (Slots::new(), Slots::new());
        node.walk(&mut |role, slot| {
            if let Slot::Tensor(tid) = slot {
                if role != Role::Write {
                    reads.push(tid);
                }
                if role != Role::Read {
                    writes.push(tid);
                }
            }
        });
        let calls = node.effect() == Effect::RunsChains;
        let step = if calls { Deaths::default() } else { self.deaths(&reads, &writes) };
        // Events of one instruction, walking backwards: it kills the slots it writes, then needs
        // the slots it reads. An instruction that runs other chains may leave slots unwritten, so
        // it kills nothing.
        self.clock += 2;
        if calls {
            self.call = self.clock;
        } else {
            writes.iter().for_each(|t| self.kills[t.0 as usize] = self.clock - 1);
        }
        reads.iter().for_each(|t| self.reads[t.0 as usize] = self.clock);
        step
    }

    /// The slots that die at an instruction with these reads and writes.
    fn deaths(&self, reads: &Slots, writes: &Slots) -> Deaths {
        let mut step = Deaths::default();
        for &tid in writes {
            if !self.lives(tid) && !step.drops.contains(&tid) {
                step.drops.push(tid);
            }
        }
        for &tid in reads {
            let is_replaced = writes.contains(&tid) && self.graph.slots.class(tid) != Some(SlotClass::Constant);
            if !is_replaced && self.lives(tid) {
                continue;
            }
            if reads.iter().filter(|&&r| r == tid).count() == 1 {
                step.dying.push(tid);
            }
            if !is_replaced && !step.drops.contains(&tid) {
                step.drops.push(tid);
            }
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use flambeau_ir::{Add, ChainId, Exp, IdCopy, If, In, Int, Out, SlotCounts, Vid};

    use super::*;

    fn exp(x: u32, out: u32) -> Node {
        Exp { x: In(Tid(x)), out: Out(Tid(out)) }.into()
    }

    fn add(a: u32, b: u32, out: u32) -> Node {
        Add { a: In(Tid(a)), b: In(Tid(b)), out: Out(Tid(out)) }.into()
    }

    /// Slots: constant 0, input 1, output 2, buffer 3, temporaries from 4.
    fn check(chains: Vec<Chain>, chain: usize, expected: &[(&[u32], &[u32])]) {
        let slots = SlotCounts { constants: 1, inputs: 1, outputs: 1, buffers: 1, temps: 6 };
        let liveness = Liveness::new(&Graph { slots, values: 1, chains, ..Graph::default() });
        let got: Vec<(Vec<u32>, Vec<u32>)> = liveness.chains[chain]
            .iter()
            .map(|s| (s.dying.iter().map(|t| t.0).collect(), s.drops.iter().map(|t| t.0).collect()))
            .collect();
        let expected: Vec<(Vec<u32>, Vec<u32>)> = expected.iter().map(|(a, b)| (a.to_vec(), b.to_vec())).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn values_die_at_their_last_read() {
        check(
            vec![vec![exp(1, 4), add(4, 0, 5), add(5, 5, 4), exp(4, 2)]],
            0,
            &[(&[1], &[1]), (&[4], &[4]), (&[], &[5]), (&[4], &[4])],
        );
    }

    #[test]
    fn a_replaced_operand_dies_without_being_dropped() {
        check(vec![vec![add(3, 1, 3), exp(3, 2)]], 0, &[(&[3, 1], &[1]), (&[], &[])]);
    }

    #[test]
    fn results_that_nobody_reads_are_dropped() {
        check(vec![vec![exp(1, 4), exp(1, 4), exp(4, 2)]], 0, &[(&[], &[4]), (&[1], &[1]), (&[4], &[4])]);
    }

    #[test]
    fn slots_of_several_chains_live_until_the_last_call() {
        let call: Node = If { cond: Int::Vid(Vid(0)), then_chain_idx: ChainId(1), else_chain_idx: ChainId(2) }.into();
        let branch = |x| vec![exp(x, 6), exp(6, 5)];
        let main = vec![exp(1, 4), exp(4, 7), call, IdCopy { x: In(Tid(5)), out: Out(Tid(2)) }.into(), exp(4, 5)];
        let chains = vec![main, branch(4), branch(4)];
        check(chains.clone(), 0, &[(&[1], &[1]), (&[], &[7]), (&[], &[]), (&[5], &[5]), (&[4], &[5, 4])]);
        check(chains, 1, &[(&[], &[]), (&[], &[])]);
    }
}
