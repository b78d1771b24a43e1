//! Pipelined decoding of several sessions: steps that are submitted close together are one run.
//!
//! If one session decodes, its steps are built at once. If several decode, a step waits until each
//! session has submitted one, or until a caller asks for its token. Then the oldest waiting step of
//! each session is built. The device meanwhile computes the previous steps, so this wait does not
//! delay tokens.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use flambeau_ir::engine::{DecodeStep, EngineError, Sampling, Value};

use super::{Held, Member, build, groups, run::DeviceTokens, settled, with_states};
use crate::{
    error::Result,
    ffi::Array,
    pipelined::sample_rows,
    state::{State, StateHandle, on},
    tokens::{Submitted, Token, Tokens},
};

/// The decoding sessions in the order of their start, each with its waiting steps.
#[derive(Debug, Default)]
pub(crate) struct StepQueue {
    decoding: Vec<(StateHandle, VecDeque<DecodeStep>)>,
}

impl StepQueue {
    fn position(&self, state: &StateHandle) -> Option<usize> {
        self.decoding.iter().position(|(other, _)| Arc::ptr_eq(other, state))
    }

    /// Queues a step of a session.
    pub(crate) fn submit(&mut self, state: &StateHandle, step: DecodeStep, joined_runs: &AtomicU64) {
        let at = self.position(state).unwrap_or_else(|| {
            self.decoding.push((Arc::clone(state), VecDeque::new()));
            self.decoding.len() - 1
        });
        self.decoding[at].1.push_back(step);
        if self.decoding.iter().all(|(_, steps)| !steps.is_empty()) {
            self.build(joined_runs);
        }
    }

    /// Builds steps until one of the session's is in flight, if it has any.
    pub(crate) fn build_next(&mut self, state: &StateHandle, joined_runs: &AtomicU64) {
        let is_in_flight = || on(state, |state| !state.in_flight.steps.is_empty()) != Some(false);
        if !is_in_flight() && self.waits(state) {
            self.build(joined_runs);
        }
    }

    /// Builds all steps of a session.
    pub(crate) fn flush(&mut self, state: &StateHandle, joined_runs: &AtomicU64) {
        while self.waits(state) {
            self.build(joined_runs);
        }
    }

    /// Builds all steps.
    pub(crate) fn flush_all(&mut self, joined_runs: &AtomicU64) {
        while self.decoding.iter().any(|(_, steps)| !steps.is_empty()) {
            self.build(joined_runs);
        }
    }

    fn waits(&self, state: &StateHandle) -> bool {
        self.position(state).is_some_and(|at| !self.decoding[at].1.is_empty())
    }

    /// A session has received all that it submitted; others wait for it no longer.
    pub(crate) fn rest(&mut self, state: &StateHandle) {
        if !self.waits(state) {
            self.forget(state);
        }
    }

    /// Drops a session's steps.
    pub(crate) fn forget(&mut self, state: &StateHandle) {
        self.decoding.retain(|(other, _)| !Arc::ptr_eq(other, state));
    }

    /// Builds the oldest step of each session that has one.
    fn build(&mut self, joined_runs: &AtomicU64) {
        let (mut members, mut steps) = (Vec::new(), Vec::new());
        for (state, waiting) in &mut self.decoding {
            if let Some(step) = waiting.pop_front() {
                members.push(Member { state: Arc::clone(state), inputs: step.inputs.clone() });
                steps.push(step);
            }
        }
        let mut is_built = vec![false; steps.len()];
        let groups = if steps.len() > 1 { groups(&members) } else { Vec::new() };
        for mut group in groups {
            let places: Vec<usize> = group.iter().map(|held| held.at).collect();
            let own: Vec<&DecodeStep> = places.iter().map(|&at| &steps[at]).collect();
            if build_group(&mut group, &own) {
                joined_runs.fetch_add(1, Ordering::Relaxed);
                places.into_iter().for_each(|at| is_built[at] = true);
            }
        }
        for ((member, step), _) in members.iter().zip(&steps).zip(is_built).filter(|(_, is_built)| !is_built) {
            // A session without state reports this to its next waiting caller.
            on(&member.state, |state| state.enqueue(step)).unwrap_or_default();
        }
    }
}

/// Enqueues a step of each session of a group as one run; returns `false` and leaves every session
/// unchanged if each has to run alone.
fn build_group(group: &mut [Held<'_>], steps: &[&DecodeStep]) -> bool {
    with_states(group, |states, inputs| {
        let Some((before, tokens)) = submit(states, inputs, steps) else { return false };
        for ((row, state), before) in states.iter_mut().enumerate().zip(before) {
            let row = |tokens: &Arc<Mutex<Tokens>>| Token::Row(Arc::clone(tokens), row);
            state.in_flight.last = tokens.as_ref().ok().map(row);
            let token = tokens.as_ref().map(row).map_err(|error| EngineError::from(error.clone()));
            state.in_flight.steps.push_back(Submitted { token, before });
        }
        true
    })
}

/// The carried states before the step, by session, and the tokens.
type Enqueued = (Vec<Vec<(flambeau_ir::Tid, crate::values::Slot)>>, Result<Arc<Mutex<Tokens>>>);

fn submit(states: &mut [&mut State], inputs: &[&[Value]], steps: &[&DecodeStep]) -> Option<Enqueued> {
    let logits = steps[0].logits;
    let before = states.iter().map(|state| state.carried()).collect::<Result<Vec<_>>>().ok()?;
    let tokens = feedback(states, inputs, steps)?;
    if steps.iter().any(|step| step.logits != logits) {
        return None;
    }
    let built = build(states, inputs, tokens)?;
    let how: Vec<&Sampling> = steps.iter().map(|step| &step.sampling).collect();
    let tokens = built.submit(states, logits, |rows| sample_rows(rows, &how));
    let tokens = tokens.map(|all| Arc::new(Mutex::new(Tokens { all, host: None })));
    Some((before, tokens.map_err(|error| settled(states, error))))
}

/// The tokens that the steps take from those before them; `None` if one cannot.
fn feedback(states: &[&mut State], inputs: &[&[Value]], steps: &[&DecodeStep]) -> Option<Option<DeviceTokens>> {
    if steps.iter().all(|step| step.feedback.is_none()) {
        return Some(None);
    }
    let input = steps.iter().find_map(|step| step.feedback)?;
    if steps.iter().any(|step| step.feedback.is_some_and(|other| other != input)) {
        return None;
    }
    let each = states.iter().zip(inputs).zip(steps).map(|((state, inputs), step)| match step.feedback {
        Some(input) => state.feedback(input, inputs).ok().map(Some),
        None => Some(None),
    });
    let each = each.collect::<Option<Vec<_>>>()?;
    Some(Some(DeviceTokens { input, each, rows: rows_of(states, steps) }))
}

/// The tokens of the step before, if these sessions drew them together, in this order.
fn rows_of(states: &[&mut State], steps: &[&DecodeStep]) -> Option<Array> {
    let Some(Token::Row(tokens, 0)) = &states[0].in_flight.last else { return None };
    let is_next = |(i, state): (usize, &&mut State)| matches!(&state.in_flight.last, Some(Token::Row(other, row)) if Arc::ptr_eq(other, tokens) && *row == i);
    let all = tokens.lock().unwrap_or_else(|e| e.into_inner()).all.share().ok()?;
    let is_whole = all.spec().is_ok_and(|(_, shape)| shape[..] == [states.len()]);
    let takes_them = steps.iter().all(|step| step.feedback.is_some());
    (is_whole && takes_them && states.iter().enumerate().all(is_next)).then_some(all)
}
