//! Runs of several sessions at once.
//!
//! Sessions of one graph with inputs of the same sizes share one run of the device. A node that
//! treats [rows independently](crate::rows) runs once on the rows of all sessions, so it reads a
//! weight once. Other nodes, such as attention over a session's cache, run once per session. These
//! sessions run alone: sessions with other input sizes, with state outside of slots, or with
//! buffers shared among each other.
//!
//! Nothing is computed before the whole run is built. If building fails, for instance because a
//! session's cache is full, all state is restored and each session runs alone. A failing session
//! then does not affect the others.

mod fused;
mod queue;
mod results;
mod run;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use flambeau_ir::{
    Effect,
    engine::{EngineError, Value, bind_inputs},
};

use crate::{
    fused::{MAX_ROWS, Plan},
    owner::Owner,
    state::{State, StateHandle},
};
pub(crate) use queue::StepQueue;
use results::Built;
use run::BatchRun;

/// The joint runs of an engine's sessions.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// Number of joint runs.
    pub(crate) joined_runs: AtomicU64,
    /// Steps of pipelined decoding. Only the device's thread uses them.
    queue: Mutex<StepQueue>,
}

impl Batches {
    pub(crate) fn queue(&self) -> MutexGuard<'_, StepQueue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A session's state and inputs for a joint run.
struct Member {
    state: StateHandle,
    inputs: Vec<Value>,
}

/// [`Session::run_last`](flambeau_ir::engine::Session::run_last) of each session that can run with
/// others. Returns results with the index of their member.
pub(crate) fn run_last(
    owner: &Owner,
    batches: &Arc<Batches>,
    members: Vec<(StateHandle, Vec<Value>)>,
) -> Vec<(usize, Result<Vec<Value>, EngineError>)> {
    let members: Vec<Member> = members.into_iter().map(|(state, inputs)| Member { state, inputs }).collect();
    let batches = Arc::clone(batches);
    let run = move || {
        batches.queue().flush_all(&batches.joined_runs);
        run_groups(&members, &batches.joined_runs)
    };
    owner.queue.call(run).unwrap_or_default()
}

/// A member with its locked state and its index.
struct Held<'a> {
    at: usize,
    member: &'a Member,
    state: MutexGuard<'a, Option<Box<State>>>,
}

/// Groups of members that can run jointly; the other members are left out.
fn groups(members: &[Member]) -> Vec<Vec<Held<'_>>> {
    let mut groups: Vec<Vec<Held<'_>>> = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let Ok(state) = member.state.lock() else { continue };
        let held = Held { at, member, state };
        if !held.state.as_ref().is_some_and(|state| can_join(state, &member.inputs)) {
            continue;
        }
        let takes = |group: &&mut Vec<Held<'_>>| {
            group.len() < MAX_ROWS
                && group.first().is_some_and(|first| are_alike(first, &held))
                && !group.iter().any(|other| share(other, &held))
        };
        match groups.iter_mut().find(takes) {
            Some(group) => group.push(held),
            None => groups.push(vec![held]),
        }
    }
    groups.retain(|group| group.len() >= min_sequences(group));
    groups
}

/// Minimum number of sequences for which a joint run is expected to be faster than separate runs.
/// If a single step is few launches, it takes about as long as building a joint step takes the
/// host.
fn min_sequences(group: &[Held<'_>]) -> usize {
    let plan = group.first().and_then(|held| held.state.as_ref()?.main.plan.as_ref());
    if plan.is_some_and(Plan::takes_layers) { 4 } else { 2 }
}

/// Runs the groups of members. Returns each result with the member's index.
fn run_groups(members: &[Member], joined_runs: &AtomicU64) -> Vec<(usize, Result<Vec<Value>, EngineError>)> {
    let mut ended = Vec::new();
    for mut group in groups(members) {
        let places: Vec<usize> = group.iter().map(|held| held.at).collect();
        let results = with_states(&mut group, |states, inputs| {
            let built = build(states, inputs, None)?;
            let results = built.compute(states);
            Some(results.map_err(|error| EngineError::from(settled(states, error))))
        });
        let Some(results) = results else { continue };
        joined_runs.fetch_add(1, Ordering::Relaxed);
        match results {
            Ok(results) => ended.extend(places.into_iter().zip(results.into_iter().map(Ok))),
            Err(error) => ended.extend(places.into_iter().map(|at| (at, Err(error.clone())))),
        }
    }
    ended
}

/// Recovers every session's buffers and returns the error.
fn settled<E>(states: &mut [&mut State], error: E) -> E {
    states.iter_mut().for_each(|state| state.settle());
    error
}

/// The joint run as arrays that MLX has not computed yet. Returns `None` and leaves every session
/// unchanged if each has to run alone.
fn build(states: &mut [&mut State], inputs: &[&[Value]], tokens: Option<run::DeviceTokens>) -> Option<Built> {
    let mut run = BatchRun::new(states);
    match catch_unwind(AssertUnwindSafe(|| run.build(inputs, tokens))) {
        Ok(Ok(built)) => Some(built),
        Ok(Err(_)) | Err(_) => {
            run.take_back();
            None
        }
    }
}

/// Whether a run can be one of several at all.
fn can_join(state: &State, inputs: &[Value]) -> bool {
    let graph = &state.machine.graph;
    let is_sound = bind_inputs(graph, inputs).is_ok_and(|mut bound| bound.all(|input| input.is_ok()));
    let lies_in_slots = |effect| !matches!(effect, Effect::Stateful | Effect::Random(None));
    is_sound && state.machine.profile.is_none() && graph.chains.iter().flatten().all(|node| lies_in_slots(node.effect()))
}

/// Whether the sessions of two runs share buffers with each other.
fn share(one: &Held<'_>, other: &Held<'_>) -> bool {
    matches!((&*one.state, &*other.state), (Some(a), Some(b)) if a.shares_with(b))
}

/// Whether two runs differ only in their slots' contents.
fn are_alike(one: &Held<'_>, other: &Held<'_>) -> bool {
    let (Some(a), Some(b)) = (&*one.state, &*other.state) else { return false };
    let is_like = |pair: (&Value, &Value)| match pair {
        (Value::Tensor(a), Value::Tensor(b)) => a.shape() == b.shape(),
        (Value::Int(_), Value::Int(_)) => true,
        _ => false,
    };
    let (inputs, others) = (&one.member.inputs, &other.member.inputs);
    Arc::ptr_eq(&a.machine.graph, &b.machine.graph)
        && a.has_constants_of(b)
        && inputs.len() == others.len()
        && inputs.iter().zip(others).all(is_like)
}

/// Calls `f` with the states and inputs of a group, while they hold all buffers that they share
/// with other sessions.
fn with_states<T>(group: &mut [Held<'_>], f: impl FnOnce(&mut [&mut State], &[&[Value]]) -> T) -> T {
    let inputs: Vec<&[Value]> = group.iter().map(|held| &held.member.inputs[..]).collect();
    let states: Vec<&mut State> = group.iter_mut().filter_map(|held| held.state.as_deref_mut()).collect();
    BufferLease { states, at: 0 }.run(|states| f(states, &inputs))
}

/// Sessions, up to `at` with the buffers that they share with others.
struct BufferLease<'a> {
    states: Vec<&'a mut State>,
    at: usize,
}

impl<'a> BufferLease<'a> {
    /// Calls `f` once all members have locked their shared buffers.
    fn run<T>(&mut self, f: impl FnOnce(&mut [&'a mut State]) -> T) -> T {
        let mut f = Some(f);
        let mut result = None;
        self.hold(&mut |states| result = f.take().map(|f| f(states)));
        result.expect("the innermost call runs it")
    }

    fn hold(&mut self, f: &mut dyn FnMut(&mut [&'a mut State])) {
        let at = self.at;
        let Some(state) = self.states.get_mut(at) else { return f(&mut self.states) };
        let shared = state.take_shared();
        let mut go_on = |all: &mut Self| {
            all.at = at + 1;
            all.hold(f);
            all.at = at;
        };
        match &shared {
            Some(shared) => shared.with(self, |all| &mut all.states[all.at].machine, go_on),
            None => go_on(self),
        }
        self.states[at].put_shared(shared);
    }
}
