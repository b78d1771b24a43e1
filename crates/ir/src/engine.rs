//! The interface between programs and engines.
//!
//! It has four object-safe traits. An [`Engine`] loads a checked graph and its [`Constants`] into a
//! [`Session`], and [may run](Engine::run_last_of_each) several sessions as one. A session that
//! samples tokens on its device also offers [`PipelinedDecoding`]. They exchange plain data:
//! values, options, shared state, measurements. The module also holds shared parts of engines:
//! [binding inputs](bind_inputs), [errors of nodes](OpError), [shared buffers](SharedBuffers) and
//! [profiles](Profile).

mod batch;
mod binding;
mod buffers;
mod decoding;
mod error;
mod profile;
mod shared;
mod state;
mod steps;

use std::{any::Any, sync::Arc};

use flambeau_tensor::{Bytes, Tensor};

pub use self::{
    batch::{Outcome, Run},
    binding::{BoundInput, bind_inputs, check_supported, constants_of},
    buffers::{Keeper, SharedBuffers},
    decoding::{DecodeStep, PipelinedDecoding, Sampling},
    error::{At, EngineError, OpError},
    profile::{Clock, Profile, Span},
    shared::{SharedState, StateMap, StateMapGuard, StateMismatch, shared_name},
    state::StatePart,
    steps::{FusedRegion, NodeByNode, Steps},
};

pub use crate::kv::{KvCacheConfig, KvLayer};

use crate::Checked;

/// An argument or result of a delegate call.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Tensor),
    Int(i32),
}

/// Source of a program's constants.
pub trait Constants {
    /// The bytes stored under a key, shared with their source.
    fn get(&self, key: &str) -> Option<Bytes>;
}

/// The constants of a program without constants.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoConstants;

impl Constants for NoConstants {
    fn get(&self, _key: &str) -> Option<Bytes> {
        None
    }
}

/// Options for loading a program.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Cache of `UpdateAndAttend` nodes. Absent if the program has none.
    pub kv_cache: Option<KvCacheConfig>,
    /// State shared with all sessions loaded with it. `None` means that each session has separate
    /// buffers and a separate cache.
    pub shared: Option<SharedState>,
}

/// Runs checked graphs.
pub trait Engine: Send + Sync {
    /// Name on the command line.
    fn name(&self) -> &'static str;

    /// Prepares a graph: binds constants, plans, runs the init chain.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] names every node that the engine lacks, before anything runs.
    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError>;

    /// Calls [`Session::run_last`] for each run and returns outcomes in the same order. This engine
    /// must have loaded the sessions. A run that fails or panics does not affect the others. An
    /// engine may compute sessions of one graph together, and read each weight once. By default,
    /// they run one after another.
    fn run_last_of_each(&self, runs: &mut [Run<'_>]) -> Vec<Outcome> {
        runs.iter_mut().map(Run::run_separately).collect()
    }
}

/// A loaded graph with its mutable buffers, or with buffers in its [`LoadOptions::shared`].
pub trait Session: Any + Send {
    /// Runs the main chain. `inputs` and the result are in the order of the graph's input and
    /// output maps. Results have the element types of the graph's metadata.
    ///
    /// # Errors
    /// After an error, buffers may be partly updated.
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError>;

    /// As [`run`](Self::run), for callers that read only the last entry of each result along its
    /// second-to-last axis, such as the logits of the next token. An engine may omit the other
    /// entries. The axis then has size 1.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn run_last(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.run(inputs)
    }

    /// Pipelined decoding, if the engine samples on its device and can cancel steps of the graph.
    fn pipelined(&mut self) -> Option<&mut dyn PipelinedDecoding> {
        None
    }

    /// Resets every mutable buffer and cache to its contents after loading.
    fn reset(&mut self);

    /// Copies parts of the mutable buffers, in order. `None` if the engine does not support it.
    fn read_state(&mut self, _parts: &[StatePart]) -> Option<Result<Vec<Tensor>, EngineError>> {
        None
    }

    /// Writes copies from [`read_state`](Self::read_state) back into the parts.
    ///
    /// # Errors
    /// A copy has another type or shape than its part, or the engine does not support it.
    fn write_state(&mut self, _parts: &[(StatePart, &Tensor)]) -> Result<(), EngineError> {
        Err(EngineError::Arguments("this engine takes no copies of state".into()))
    }

    /// Counts of planned, fused and single steps of all runs, if the engine counts them.
    fn steps(&self) -> Option<Steps> {
        None
    }

    /// Time per kind of node since the last call, if measuring is on: (node name, calls,
    /// nanoseconds).
    fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        Vec::new()
    }

    /// Measured steps since the last call, if measuring is on and the session measures steps. A
    /// session may drop the latest steps if there are very many.
    fn take_spans(&mut self) -> Vec<Span> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session with only the required methods.
    struct Plain;

    impl Session for Plain {
        fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
            Ok(inputs.to_vec())
        }

        fn reset(&mut self) {}
    }

    /// An engine that loads nothing.
    struct Bare;

    impl Engine for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }

        fn load(&self, _: Arc<Checked>, _: &dyn Constants, _: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
            Ok(Box::new(Plain))
        }
    }

    /// A session that panics if it gets inputs.
    struct Fragile;

    impl Session for Fragile {
        fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
            assert!(inputs.is_empty(), "too much");
            Err(EngineError::Arguments("too little".into()))
        }

        fn reset(&mut self) {}
    }

    #[test]
    fn each_run_among_others_ends_by_itself() {
        let (mut sessions, inputs) = ([Fragile, Fragile], [Value::Int(1)]);
        let [first, last] = &mut sessions;
        let mut runs = [
            Run { session: first, inputs: &inputs },
            Run { session: &mut Plain, inputs: &inputs },
            Run { session: last, inputs: &[] },
        ];
        let outcomes = Bare.run_last_of_each(&mut runs);
        assert!(outcomes[0].is_err() && matches!(&outcomes[1], Ok(Ok(results)) if results.len() == 1));
        assert!(matches!(&outcomes[2], Ok(Err(error)) if error.to_string() == "too little"));
    }

    #[test]
    fn sessions_measure_and_pipeline_only_where_an_engine_says_so() {
        let mut session = Plain;
        assert!(session.run_last(&[Value::Int(1)]).is_ok_and(|results| results.len() == 1));
        assert!(session.pipelined().is_none());
        assert!(session.read_state(&[]).is_none() && session.write_state(&[]).is_err());
        assert_eq!((session.steps(), session.take_profile(), session.take_spans()), (None, vec![], vec![]));
    }
}
