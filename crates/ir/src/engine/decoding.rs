//! Decoding with token sampling in the engine.

use super::{EngineError, Value};

/// Sampling of one token from logits `[V]`: temperature, then top-k, top-p and min-p. NaN counts as
/// −∞.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 selects the largest logit, and the lowest id on a tie.
    pub temperature: f32,
    /// Number of tokens kept. 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept, in (0, 1].
    pub top_p: f32,
    /// Least probability relative to the largest one, in [0, 1].
    pub min_p: f32,
    /// A random number in [0, 1) for inverse-transform sampling. It selects the token at which the
    /// cumulative probability exceeds it.
    pub uniform: f32,
}

/// One step of a language model that ends with a sampled token.
#[derive(Clone, Debug)]
pub struct DecodeStep {
    /// Arguments as for [`Session::run`](super::Session::run).
    pub inputs: Vec<Value>,
    /// Index of the input that the previous step's token replaces. `inputs` holds a tensor of one
    /// element there. The token takes its element type and shape.
    pub feedback: Option<usize>,
    /// Index of the result with the logits, in its last row along the last axis.
    pub logits: usize,
    pub sampling: Sampling,
}

/// Pipelined decoding: the device starts a step before the host reads the previous step's token.
pub trait PipelinedDecoding {
    /// Enqueues a step and returns at once. If the step fails, the call that receives its token
    /// reports the error.
    fn submit(&mut self, step: DecodeStep);

    /// Waits for the token of the oldest step in flight.
    ///
    /// # Errors
    /// The step failed, all its logits are −∞ or NaN, or no step is in flight.
    fn receive(&mut self) -> Result<u32, EngineError>;

    /// Drops the steps in flight. Their cache writes are after the positions of the received steps.
    /// A recurrent state is restored to its contents after the last received step.
    fn cancel(&mut self);
}
