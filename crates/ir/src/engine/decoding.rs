//! Language models whose tokens the engine samples.

use super::{EngineError, Value};

/// How to sample one token from logits `[V]`: temperature, then top-k, top-p and min-p, in that order. NaN counts as −∞.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit, the lowest id on a tie.
    pub temperature: f32,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept, in (0, 1].
    pub top_p: f32,
    /// Least probability in units of the largest one, in [0, 1].
    pub min_p: f32,
    /// A random number in [0, 1) for inverse-transform sampling: the token at which the cumulative probability exceeds it.
    pub uniform: f32,
}

/// One step of a language model that ends with a sampled token.
#[derive(Clone, Debug)]
pub struct DecodeStep {
    /// As [`Session::run`](super::Session::run) takes them.
    pub inputs: Vec<Value>,
    /// The input that the token of the previous step replaces. `inputs` holds a tensor of one element there, whose element type and
    /// shape the token takes.
    pub feedback: Option<usize>,
    /// The result whose last row along the last axis holds the logits.
    pub logits: usize,
    pub sampling: Sampling,
}

/// Decoding in which the device starts a step before the host has read the token of the previous one.
pub trait PipelinedDecoding {
    /// Enqueues a step and returns at once. If the step fails, the call that receives its token reports the error.
    fn submit(&mut self, step: DecodeStep);

    /// Waits for the token of the oldest step that is still in flight.
    ///
    /// # Errors
    /// The step failed, none of its logits exceeds −∞, or no step is in flight.
    fn receive(&mut self) -> Result<u32, EngineError>;

    /// Drops the steps in flight. What they wrote to caches lies behind the positions of the steps received; a state that runs carry on is that
    /// after the last of those.
    fn cancel(&mut self);
}
