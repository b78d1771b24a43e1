//! Runs of several sessions at once.
//!
//! Sessions of one graph whose inputs have the same sizes go through its nodes side by side, in one run of the device. A node that takes
//! rows [apart](crate::rows) runs once, on the rows of all of them, so that it reads a weight once; all others, such as attention over a
//! session's cache, run for each. What such a run does not take, runs alone: sessions with other inputs, programs with state outside of
//! slots, and sessions that share buffers with each other.
//!
//! Nothing is computed before the whole run is built. If that fails, as for a session whose cache is full, everything is as it was, and each
//! runs alone, so that one that fails leaves the others alone.

mod lanes;
mod results;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use flambeau_ir::{
    Effect,
    engine::{EngineError, Outcome, Run, Value, bind_inputs},
};

use crate::{
    owner::Owner,
    session::{MlxSession, State},
};
use lanes::Lanes;

/// What a session of a run brings to the device's thread.
struct Member {
    /// Which of the runs it is.
    number: usize,
    state: Arc<Mutex<Option<Box<State>>>>,
    inputs: Vec<Value>,
}

/// How the run of a member ended.
type Ended = (usize, Result<Vec<Value>, EngineError>);

/// [`Session::run_last`](flambeau_ir::engine::Session::run_last) of each; outcomes are in the order of the runs. Counts those that are one run
/// for several.
pub(crate) fn run_last_of_each(owner: &Arc<Owner>, joined_runs: &Arc<AtomicU64>, runs: &mut [Run<'_>]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = runs.iter().map(|_| None).collect();
    if runs.len() > 1 {
        let member = |(number, run): (usize, &Run<'_>)| {
            let session: &dyn Any = &*run.session;
            let state = session.downcast_ref::<MlxSession>()?.state_on(owner)?;
            Some(Member { number, state, inputs: run.inputs.to_vec() })
        };
        let members: Vec<Member> = runs.iter().enumerate().filter_map(member).collect();
        let count = Arc::clone(joined_runs);
        for (number, result) in owner.queue.call(move || run_groups(&members, &count)).unwrap_or_default() {
            outcomes[number] = Some(Ok(result));
        }
    }
    runs.iter_mut().zip(outcomes).map(|(run, outcome)| outcome.unwrap_or_else(|| run.alone())).collect()
}

/// A member whose state is held.
struct Held<'a> {
    member: &'a Member,
    state: MutexGuard<'a, Option<Box<State>>>,
}

/// Runs all members that stand beside others; the rest is left out.
fn run_groups(members: &[Member], joined_runs: &AtomicU64) -> Vec<Ended> {
    let mut groups: Vec<Vec<Held<'_>>> = Vec::new();
    for member in members {
        let Ok(state) = member.state.lock() else { continue };
        let held = Held { member, state };
        if !held.state.as_ref().is_some_and(|state| can_join(state, &member.inputs)) {
            continue;
        }
        match groups.iter_mut().find(|group| group.iter().all(|other| stand_together(other, &held))) {
            Some(group) => group.push(held),
            None => groups.push(vec![held]),
        }
    }
    let mut ended = Vec::new();
    for group in groups.iter_mut().filter(|group| group.len() > 1) {
        let results = run_group(group);
        joined_runs.fetch_add(u64::from(!results.is_empty()), Ordering::Relaxed);
        ended.extend(results);
    }
    ended
}

/// Whether a run can be one of several at all.
fn can_join(state: &State, inputs: &[Value]) -> bool {
    let graph = &state.machine.graph;
    let is_sound = bind_inputs(graph, inputs).is_ok_and(|mut bound| bound.all(|input| input.is_ok()));
    let lies_in_slots = |effect| !matches!(effect, Effect::Stateful | Effect::Random(None));
    is_sound && state.machine.profile.is_none() && graph.chains.iter().flatten().all(|node| lies_in_slots(node.effect()))
}

/// Whether two runs differ in nothing but what their slots hold.
fn stand_together(one: &Held<'_>, other: &Held<'_>) -> bool {
    let (Some(a), Some(b)) = (&*one.state, &*other.state) else { return false };
    let is_like = |pair: (&Value, &Value)| match pair {
        (Value::Tensor(a), Value::Tensor(b)) => a.shape() == b.shape(),
        (Value::Int(_), Value::Int(_)) => true,
        _ => false,
    };
    let (inputs, others) = (&one.member.inputs, &other.member.inputs);
    Arc::ptr_eq(&a.machine.graph, &b.machine.graph)
        && a.has_constants_of(b)
        && !a.shares_with(b)
        && inputs.len() == others.len()
        && inputs.iter().zip(others).all(is_like)
}

fn run_group(group: &mut [Held<'_>]) -> Vec<Ended> {
    let numbers: Vec<usize> = group.iter().map(|held| held.member.number).collect();
    let inputs: Vec<&[Value]> = group.iter().map(|held| &held.member.inputs[..]).collect();
    let states: Vec<&mut State> = group.iter_mut().filter_map(|held| held.state.as_deref_mut()).collect();
    let results = Holding { states, inputs, at: 0 }.run();
    numbers.into_iter().zip(results.into_iter().flatten()).collect()
}

/// Sessions, up to `at` with the buffers that they share with others.
struct Holding<'a> {
    states: Vec<&'a mut State>,
    inputs: Vec<&'a [Value]>,
    at: usize,
}

impl Holding<'_> {
    /// Runs the sessions when all of them hold what they share; `None` if each is to run alone.
    fn run(&mut self) -> Option<Vec<Result<Vec<Value>, EngineError>>> {
        let at = self.at;
        let Some(state) = self.states.get_mut(at) else { return self.compute() };
        let shared = state.take_shared();
        let go_on = |all: &mut Self| {
            all.at = at + 1;
            let results = all.run();
            all.at = at;
            results
        };
        let results = match &shared {
            Some(shared) => shared.with(self, |all| &mut all.states[all.at].machine, go_on),
            None => go_on(self),
        };
        self.states[at].put_shared(shared);
        results
    }

    fn compute(&mut self) -> Option<Vec<Result<Vec<Value>, EngineError>>> {
        let mut lanes = Lanes::new(&mut self.states);
        let built = catch_unwind(AssertUnwindSafe(|| lanes.build(&self.inputs)));
        let Ok(Ok(built)) = built else {
            lanes.take_back();
            return None;
        };
        drop(lanes);
        let results = built.compute(&self.states);
        if results.is_err() {
            self.states.iter_mut().for_each(|state| state.settle());
        }
        Some(match results {
            Ok(results) => results.into_iter().map(Ok).collect(),
            Err(error) => self.states.iter().map(|_| Err(error.clone().into())).collect(),
        })
    }
}
