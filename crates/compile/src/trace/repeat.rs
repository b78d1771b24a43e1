//! Loops with a data-dependent number of steps. They become nested loops with a fixed number of
//! steps, which do nothing once the condition is false.
//!
//! Each level has [`STEPS`] steps, guarded by a branch. After the last active step, a level costs
//! at most `STEPS` tests, not `STEPS` to the power of the levels.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, Loop, OutMeta, Refuse};
use flambeau_pt2::{Graph, Node};
use flambeau_tensor::{DType, Expr};

use super::{Binding, Trace, conditions::refuse};
use crate::{Error, report::Outcome};

/// Number of nested levels, and of steps per level. A loop ends after 2^36 steps, which take hours,
/// even if its condition is still true.
const LEVELS: usize = 9;
const STEPS: i64 = 16;

/// A loop with a condition.
pub(super) struct Repeat<'a> {
    pub(super) node: &'a Node,
    pub(super) condition: &'a Graph,
    pub(super) body: &'a Graph,
    /// Names of values that condition and body read but do not change.
    pub(super) additional: Vec<&'a str>,
}

type Carried = Result<Result<Vec<Tid>, Refuse>, Error>;

impl<'a> Trace<'a> {
    /// Traces the loop with `init` as initial state, and binds the final state to the results.
    pub(super) fn repeat(&mut self, repeat: &Repeat<'a>, init: &[Tid]) -> Result<(), Error> {
        let node = repeat.node;
        let done = self.in_chain(node, |trace| {
            let flag = match trace.verdict(repeat, ".before", init)? {
                Ok(flag) => flag,
                Err(reason) => return Ok(Err(reason)),
            };
            let state: Vec<Tid> = init.iter().copied().chain([flag]).collect();
            trace.level(repeat, LEVELS, &state)
        })?;
        match done {
            Ok(state) => {
                for (name, tid) in node.output_names().into_iter().zip(state) {
                    let value = self.memory.new_base(tid);
                    self.names.bind(name, Binding::Tensor(value));
                }
                self.report(node, Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
        Ok(())
    }

    /// The outputs of one sub-graph for the carried state.
    fn outputs(&mut self, repeat: &Repeat<'a>, part: &str, graph: &'a Graph, state: &[Tid]) -> Carried {
        let mut operands: Vec<Binding<'a>> = state.iter().map(|&t| Binding::Tensor(self.memory.new_base(t))).collect();
        operands.extend(repeat.additional.iter().map(|name| self.names.operand(name)));
        let results = self.run_body(repeat.node, part, graph, operands)?;
        Ok(results.into_iter().map(|value| self.tensor_of(value)).collect())
    }

    /// Lowers the condition: whether the loop continues.
    fn verdict(&mut self, repeat: &Repeat<'a>, part: &str, state: &[Tid]) -> Result<Result<Tid, Refuse>, Error> {
        let outputs = self.outputs(repeat, part, repeat.condition, state)?;
        Ok(outputs.and_then(|outputs| match outputs[..] {
            [flag] => Ok(flag),
            _ => refuse("its condition is not one truth value"),
        }))
    }

    /// Lowers the steps of one level. `state` is the carried state, followed by the flag that the
    /// loop continues.
    fn level(&mut self, repeat: &Repeat<'a>, level: usize, state: &[Tid]) -> Carried {
        if level == 0 {
            return self.one_step(repeat, &state[..state.len() - 1]);
        }
        let begun = self.counter().and_then(|counter| Loop::begin(&mut self.lower, &[counter], 0, state));
        let frame = match begun {
            Ok(frame) => frame,
            Err(reason) => return Ok(Err(reason)),
        };
        let carried = frame.carried.clone();
        let done = self.guarded(repeat, level, &carried)?;
        let ended = match done {
            Ok(next) => frame.end(&mut self.lower, &next, &[]),
            Err(reason) => {
                frame.abandon(&mut self.lower);
                Err(reason)
            }
        };
        Ok(ended.map(|_| carried))
    }

    /// Lowers one step of a level: runs the inner level if the loop continues, else passes the
    /// state on unchanged.
    fn guarded(&mut self, repeat: &Repeat<'a>, level: usize, state: &[Tid]) -> Carried {
        let slots: Vec<Tid> = state
            .iter()
            .map(|&t| {
                let spec = self.lower.spec(t).clone();
                self.lower.slot(spec, flambeau_lower::Origin::Node)
            })
            .collect();
        let copy = |trace: &mut Self, from: &[Tid]| {
            from.iter().zip(&slots).try_for_each(|(&from, &to)| {
                let (found, expected) = (trace.lower.spec(from), trace.lower.spec(to));
                if found.dtype != expected.dtype || found.rank() != expected.rank() {
                    return refuse("a step gives something of another type or shape than it gets");
                }
                trace.lower.copy(from, to)
            })
        };
        let then = self.lower.open_chain();
        let inner = self.level(repeat, level - 1, state)?;
        let copied = inner.and_then(|inner| copy(self, &inner));
        self.lower.close_chain();
        let otherwise = self.lower.open_chain();
        let copied = copied.and_then(|()| copy(self, state));
        self.lower.close_chain();
        let flag = state.last().copied().ok_or_else(|| Refuse::Missing("condition".to_owned()));
        let branched = copied.and(flag).and_then(|flag| self.lower.branch(flag, then, otherwise));
        Ok(branched.map(|()| slots))
    }

    fn one_step(&mut self, repeat: &Repeat<'a>, state: &[Tid]) -> Carried {
        let next = match self.outputs(repeat, ".body", repeat.body, state)? {
            Ok(next) => next,
            Err(reason) => return Ok(Err(reason)),
        };
        let flag = self.verdict(repeat, ".condition", &next)?;
        Ok(flag.map(|flag| next.into_iter().chain([flag]).collect()))
    }

    fn counter(&mut self) -> Result<Tid, Refuse> {
        let outputs = vec![OutMeta { dtype: DType::I32, dims: vec![Expr::Int(STEPS)], used: true }];
        let args = vec![("end".to_owned(), Arg::Int(Expr::Int(STEPS)))];
        let call = Call { target: "aten.arange.default".to_owned(), args, outputs };
        match self.lower.call(&call, self.calls.len() as u32)?.first() {
            Some(Item::Tensor(counter)) => Ok(*counter),
            _ => refuse("a count has no result"),
        }
    }
}
