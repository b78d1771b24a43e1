//! Runs of several sessions at once.
//!
//! Sessions of one graph with inputs of the same sizes run the same steps. At a step that
//! multiplies by weights (a meeting), the rows of all sessions are multiplied together, and a
//! weight is read once. Between meetings each session runs on one thread, so all threads are busy
//! and no session waits for another's small steps. With fewer sessions than threads, all threads
//! share each long step, one session after the other. Results are bit-identical to separate runs:
//! products of few rows are computed row by row
//! ([`layers_of_each`](flambeau_kernels::linear::layers_of_each)), and nothing depends on the
//! number of threads.
//!
//! Sessions lock their shared buffers for the whole run, so other sessions that share these buffers
//! wait. Two sessions that share buffers with each other do not run together.
//!
//! A session that fails or panics drops out; the others continue.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use flambeau_ir::engine::{EngineError, Outcome, Profile, Run, StateMap, Value};
use flambeau_kernels::Pool;
use smallvec::SmallVec;

use crate::{
    error::Result,
    plan::{LayersCall, Meeting},
    session::{CpuSession, Ongoing},
};

/// The state of a session's run.
enum Going {
    On,
    Ended(Outcome),
}

/// A session among others.
struct Member<'a> {
    /// Index of the run.
    number: usize,
    session: &'a mut CpuSession,
    inputs: &'a [Value],
    /// The first of the members that take the same steps.
    group: usize,
    going: Going,
}

/// [`Session::run_last`](flambeau_ir::engine::Session::run_last) of each; outcomes are in the order
/// of the runs.
pub(crate) fn run_last_of_each(pool: &Pool, runs: &mut [Run<'_>]) -> Vec<Outcome> {
    if let [run] = runs {
        return vec![run.run_separately()];
    }
    let mut outcomes: Vec<Option<Outcome>> = runs.iter().map(|_| None).collect();
    let (mut members, mut rest) = (Vec::with_capacity(runs.len()), Vec::new());
    for (number, run) in runs.iter_mut().enumerate() {
        let session: &dyn Any = &*run.session;
        let fits = |session: &CpuSession| {
            session.is_planned() && members.iter().all(|other: &Member<'_>| other.session.is_independent_of(session))
        };
        if !session.downcast_ref::<CpuSession>().is_some_and(fits) {
            rest.push((number, run));
            continue;
        }
        let (session, inputs): (&mut dyn Any, _) = (&mut *run.session, run.inputs);
        let session = session.downcast_mut::<CpuSession>();
        members.extend(session.map(|session| Member { number, session, inputs, group: number, going: Going::On }));
    }
    // Locks are taken in one order, so they cannot deadlock.
    members.sort_by_key(Member::order);
    BufferLease { members: &mut members, at: 0 }.run(pool);
    for Member { number, going, .. } in members {
        if let Going::Ended(outcome) = going {
            outcomes[number] = Some(outcome);
        }
    }
    for (number, run) in rest {
        outcomes[number] = Some(run.run_separately());
    }
    outcomes.into_iter().flatten().collect()
}

/// Members, up to `at` with the buffers that they share.
struct BufferLease<'m, 'a> {
    members: &'m mut Vec<Member<'a>>,
    at: usize,
}

impl BufferLease<'_, '_> {
    /// Runs the members once all of them have locked their shared buffers.
    fn run(&mut self, pool: &Pool) {
        let at = self.at;
        let Some(member) = self.members.get_mut(at) else { return run(pool, self.members) };
        let shared = member.session.shared.take();
        let go_on = |all: &mut Self| {
            all.at = at + 1;
            all.run(pool);
            all.at = at;
        };
        match &shared {
            Some(shared) => shared.with(self, |all| &mut all.members[all.at].session.machine, go_on),
            None => go_on(self),
        }
        self.members[at].session.shared = shared;
    }
}

fn run(pool: &Pool, members: &mut [Member<'_>]) {
    each(pool, members, |session, inputs| session.begin(inputs));
    for i in 0..members.len() {
        members[i].group = (0..i).find(|&j| members[i].is_like(&members[j])).map_or(i, |j| members[j].group);
    }
    members.sort_by_key(|member| member.group);
    members.chunk_by_mut(|a, b| a.group == b.group).for_each(|group| walk(pool, group));
    pool.run_chunks(members, 1, |_, members| members.iter_mut().for_each(Member::end));
    members.sort_by_key(Member::order);
}

impl Member<'_> {
    /// The order of locking: address of the session's shared buffers, then index of the run.
    fn order(&self) -> (Option<*const StateMap>, usize) {
        (self.session.state.as_ref().map(Arc::as_ptr), self.number)
    }

    fn goes_on(&self) -> bool {
        matches!(self.going, Going::On)
    }

    /// Whether both take the same steps.
    fn is_like(&self, other: &Member<'_>) -> bool {
        let (a, b) = (&self.session.machine.graph, &other.session.machine.graph);
        let are_plans_alike = matches!((self.session.plan(), other.session.plan()), (Some(a), Some(b)) if a.is_like(b));
        self.goes_on() && other.goes_on() && Arc::ptr_eq(a, b) && are_plans_alike
    }

    /// Runs `step` unless the session has ended.
    fn go(&mut self, step: impl FnOnce(&mut CpuSession) -> Result<(), EngineError>) {
        if self.goes_on() {
            let result = guarded(|| step(self.session));
            self.note(result);
        }
    }

    /// Runs steps of the session's plan.
    fn take(&mut self, step: impl FnOnce(Ongoing<'_>) -> Result<()>) {
        self.go(|session| session.ongoing().map_or(Ok(()), step).map_err(EngineError::from));
    }

    fn note(&mut self, result: thread::Result<Result<(), EngineError>>) {
        self.going = match result {
            Ok(Ok(())) => Going::On,
            Ok(Err(error)) => Going::Ended(guarded(|| self.session.end(Err(error)))),
            // After a panic the session's state is not used again.
            Err(payload) => Going::Ended(Err(payload)),
        };
    }

    fn end(&mut self) {
        if self.goes_on() {
            self.going = Going::Ended(guarded(|| self.session.end(Ok(()))));
        }
    }
}

/// Runs `step` for each member on one thread, or on all threads if there is only one member.
fn each(pool: &Pool, members: &mut [Member<'_>], step: impl Fn(&mut CpuSession, &[Value]) -> Result<(), EngineError> + Sync) {
    if let [member] = members {
        let inputs = member.inputs;
        return member.go(|session| step(session, inputs));
    }
    pool.run_chunks(members, 1, |_, members| {
        for member in members {
            let inputs = member.inputs;
            member.go(|session| session.on_one_thread(|session| step(session, inputs)));
        }
    });
}

/// Runs all steps of members with alike plans.
fn walk(pool: &Pool, members: &mut [Member<'_>]) {
    let Some(plan) = members.first().and_then(|member| member.session.plan()) else { return };
    let (meetings, len) = (plan.meetings().to_vec(), plan.len());
    // The first pending step, and whether the step before it has layers with bound storage.
    let (mut from, mut is_bound) = (0, false);
    for (at, meeting) in meetings {
        let is_long = |member: &Member<'_>| member.session.plan().is_some_and(|plan| plan.is_long(at));
        if meeting == Meeting::Work && (members.len() >= pool.threads() || !members.iter().any(is_long)) {
            continue;
        }
        go_to(pool, members, (from, is_bound), (at, meeting == Meeting::Layers));
        match meeting {
            Meeting::Layers => layers(pool, members, at),
            Meeting::Work => members.iter_mut().for_each(|member| member.take(|(plan, m, w)| plan.take(at..at + 1, m, w))),
        }
        (from, is_bound) = (at + 1, meeting == Meeting::Layers);
    }
    go_to(pool, members, (from, is_bound), (len, false));
}

/// Runs each member from one meeting to the next. Each member's thread also binds a meeting's
/// layers before it and unbinds them after it.
fn go_to(pool: &Pool, members: &mut [Member<'_>], (from, was_bound): (usize, bool), (to, binds): (usize, bool)) {
    let go = |session: &mut CpuSession| {
        let Some((plan, m, w)) = session.ongoing() else { return Ok(()) };
        if was_bound {
            plan.unbind_layers(from - 1, w);
        }
        plan.take(from..to, m, w)?;
        if binds {
            plan.bind_layers(to, m, w)?;
        }
        Ok(())
    };
    if from < to {
        each(pool, members, |session, _| go(session));
    } else {
        members.iter_mut().for_each(|member| member.go(go));
    }
}

/// Computes the layers of a step of all members.
fn layers(pool: &Pool, members: &mut [Member<'_>], at: usize) {
    let first = members.iter().find(|member| member.goes_on());
    let start = first.and_then(|member| member.session.machine.profile.as_ref().map(Profile::now));
    let going = members.iter_mut().filter(|member| member.goes_on());
    let mut calls: SmallVec<[LayersCall<'_>; 8]> = going.filter_map(|member| member.session.ongoing()?.0.layers(at)).collect();
    let count = calls.len();
    let went_well = matches!(guarded(|| LayersCall::run_each(pool, &mut calls)), Ok(Ok(())));
    drop(calls);
    if !went_well {
        // Separate computation shows which member failed.
        members.iter_mut().for_each(|member| member.take(|(plan, m, w)| plan.run_layers(at, m, w)));
    }
    if let Some((plan, m, _)) = members.iter_mut().find(|member| member.goes_on()).and_then(|member| member.session.ongoing()) {
        plan.took_for(count, at, start, m);
    }
}

fn guarded<T>(work: impl FnOnce() -> T) -> thread::Result<T> {
    catch_unwind(AssertUnwindSafe(work))
}
