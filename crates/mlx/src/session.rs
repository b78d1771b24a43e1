//! Sessions as callers see them. They hand their state to the device's thread for each run.

use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use flambeau_ir::engine::{DecodeStep, EngineError, Outcome, PipelinedDecoding, Profile, Run, Session, Span, Steps, Value};

use crate::{
    batch::{self, Batches},
    owner::Owner,
    state::{State, StateHandle, Wanted, on},
};

/// A session of the MLX engine. Its state lives on the device's thread.
#[derive(Debug)]
pub(crate) struct MlxSession {
    owner: Arc<Owner>,
    batches: Arc<Batches>,
    state: StateHandle,
    can_pipeline: bool,
}

impl MlxSession {
    pub(crate) fn new(owner: Arc<Owner>, batches: Arc<Batches>, state: Box<State>) -> MlxSession {
        let can_pipeline = state.can_take_back() && state.machine.profile.is_none();
        MlxSession { owner, batches, state: Arc::new(Mutex::new(Some(state))), can_pipeline }
    }

    /// The state, if it is on the owner's device.
    pub(crate) fn state_on(&self, owner: &Arc<Owner>) -> Option<StateHandle> {
        Arc::ptr_eq(&self.owner, owner).then(|| Arc::clone(&self.state))
    }

    /// Runs `f` on the state, on the device's thread, behind the steps that are submitted.
    pub(crate) fn with_state<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        self.call(move |batches, state| {
            batches.queue().flush(state, &batches.joined_runs);
            on(state, f)
        })
    }

    /// Runs `f` on the device's thread.
    pub(crate) fn call<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&Batches, &StateHandle) -> Option<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (batches, state) = (Arc::clone(&self.batches), Arc::clone(&self.state));
        let done = self.owner.queue.call(move || f(&batches, &state));
        done.ok()
            .flatten()
            .ok_or_else(|| EngineError::Arguments("an earlier run of this session panicked; load the program again".into()))
    }

    /// As [`MlxSession::call`], without waiting.
    pub(crate) fn post(&mut self, f: impl FnOnce(&Batches, &StateHandle) + Send + 'static) {
        let (batches, state) = (Arc::clone(&self.batches), Arc::clone(&self.state));
        self.owner.queue.post(move || f(&batches, &state));
    }
}

impl Session for MlxSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let inputs = inputs.to_vec();
        self.with_state(move |state| state.run(&inputs, Wanted::All))?
    }

    fn run_last(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let inputs = inputs.to_vec();
        self.with_state(move |state| state.run(&inputs, Wanted::Last))?
    }

    fn pipelined(&mut self) -> Option<&mut dyn PipelinedDecoding> {
        if self.can_pipeline { Some(self) } else { None }
    }

    fn reset(&mut self) {
        // A session without state reports this when it runs.
        let _ = self.call(|batches, state| {
            batches.queue().forget(state);
            on(state, State::reset)
        });
    }

    fn steps(&self) -> Option<Steps> {
        let state = Arc::clone(&self.state);
        self.owner.queue.call(move || on(&state, |state| state.main.steps(&state.machine.graph))).ok().flatten()
    }

    fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        let taken = self.with_state(|state| state.machine.profile.as_mut().map(Profile::take_nodes));
        taken.ok().flatten().unwrap_or_default()
    }

    fn take_spans(&mut self) -> Vec<Span> {
        self.with_state(|state| state.machine.profile.as_mut().map(Profile::take_spans)).ok().flatten().unwrap_or_default()
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        self.post(|batches, state| {
            batches.queue().forget(state);
            let state = state.lock().unwrap_or_else(|e| e.into_inner()).take();
            state.into_iter().for_each(|mut state| state.wait_for_launches());
        });
    }
}

impl PipelinedDecoding for MlxSession {
    fn submit(&mut self, step: DecodeStep) {
        self.post(|batches, state| batches.queue().submit(state, step, &batches.joined_runs));
    }

    fn receive(&mut self) -> Result<u32, EngineError> {
        self.call(|batches, state| {
            let mut queue = batches.queue();
            queue.build_next(state, &batches.joined_runs);
            let (token, is_last) = on(state, |state| (state.receive(), state.in_flight.steps.is_empty()))?;
            if is_last {
                queue.rest(state);
            }
            Some(token)
        })?
    }

    fn cancel(&mut self) {
        self.post(|batches, state| {
            batches.queue().forget(state);
            // A session without state reports this to its next waiting caller.
            on(state, State::take_back).unwrap_or_default();
        });
    }
}

/// [`Session::run_last`] of each; outcomes are in the order of the runs.
pub(crate) fn run_last_of_each(owner: &Arc<Owner>, batches: &Arc<Batches>, runs: &mut [Run<'_>]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = runs.iter().map(|_| None).collect();
    if runs.len() > 1 {
        let member = |(number, run): (usize, &Run<'_>)| {
            let session: &dyn Any = &*run.session;
            let state = session.downcast_ref::<MlxSession>()?.state_on(owner)?;
            Some((number, (state, run.inputs.to_vec())))
        };
        let (numbers, members): (Vec<usize>, Vec<_>) = runs.iter().enumerate().filter_map(member).unzip();
        for (at, result) in batch::run_last(owner, batches, members) {
            outcomes[numbers[at]] = Some(Ok(result));
        }
    }
    runs.iter_mut().zip(outcomes).map(|(run, outcome)| outcome.unwrap_or_else(|| run.run_separately())).collect()
}
