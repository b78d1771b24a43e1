//! The seam between programs and engines: two object-safe traits, and nothing else crosses.

mod binding;
mod profile;
mod shared;

use std::sync::Arc;

use flambeau_tensor::{Bytes, Tensor};

pub use self::{
    binding::{BoundInput, bind_inputs, check_supported, constants_of},
    profile::Profile,
    shared::{SharedState, StateMap, StateMapGuard, shared_name},
};

use crate::Checked;

/// An argument or result of a delegate call.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Tensor),
    Int(i32),
}

/// Where a program's constants come from.
pub trait Constants {
    /// The bytes stored under a key, shared with their source.
    fn get(&self, key: &str) -> Option<Bytes>;
}

/// What an engine may be told when it loads a program.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Cache of `UpdateAndAttend` nodes; absent if the program has none.
    pub kv_cache: Option<KvCacheConfig>,
    /// State in common with whatever else is loaded with it; `None`: each session has buffers and a cache of its own.
    pub shared: Option<SharedState>,
}

/// Configuration of the cache behind `UpdateAndAttend` nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCacheConfig {
    /// Positions that the cache can hold.
    pub capacity: usize,
    /// One entry per layer.
    pub layers: Vec<KvLayer>,
    /// Storage type of keys and values.
    pub dtype: flambeau_tensor::DType,
    /// Most positions written by one step; bounds the storage of windowed layers. `None`: the window.
    pub max_write: Option<usize>,
}

/// One layer of a [`KvCacheConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayer {
    /// Positions that stay visible; `None` keeps all.
    pub window: Option<usize>,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// An engine's failure, as text for people; `unsupported` lists nodes that it lacks.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine has no implementation of some of the program's nodes.
    #[error("the {engine} engine does not implement {}", .nodes.join(", "))]
    Unsupported { engine: &'static str, nodes: Vec<String> },
    /// A constant is missing or has the wrong length.
    #[error("constant `{key}`: {what}")]
    Constant { key: String, what: String },
    /// The device has no room for the program: what it needs, has and may hold.
    #[error("out of memory: {0}")]
    Memory(String),
    /// The call's arguments do not fit the program.
    #[error("{0}")]
    Arguments(String),
    /// A node failed.
    #[error("chain {chain}, instruction {instruction} ({node}): {what}")]
    Node { chain: u32, instruction: u32, node: &'static str, what: String },
}

/// What one step of a measured run took.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The nodes that the step ran.
    pub name: Arc<str>,
    /// Nanoseconds from the session's loading to the step's begin.
    pub start: u64,
    /// Nanoseconds that the step took.
    pub time: u64,
    /// Bytes of operands and results, each counted once.
    pub bytes: u64,
    /// Floating-point operations of products; 0 where a step is none.
    pub flops: u64,
}

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
    /// As [`Session::run`] takes them.
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

    /// Drops the steps in flight. What they wrote to caches lies behind the positions of the steps received.
    fn cancel(&mut self);
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
}

/// A loaded graph with its mutable buffers: its own, or those that its [`LoadOptions::shared`] holds.
pub trait Session: Send {
    /// Runs the main chain. `inputs` and the result are in the order of the graph's input and output maps; results have the
    /// element types of the graph's metadata.
    ///
    /// # Errors
    /// After an error, buffers may be partly updated.
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError>;

    /// As [`run`](Self::run), for a caller that reads only the last entry of each result along its second-to-last axis, as one
    /// does who wants the logits of the next token. An engine may leave the others out; that axis then has size 1.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn run_last(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.run(inputs)
    }

    /// Pipelined decoding, if the engine samples on its device and the graph is [rewindable](crate::Graph::is_rewindable).
    fn pipelined(&mut self) -> Option<&mut dyn PipelinedDecoding> {
        None
    }

    /// Sets every mutable buffer and cache back to what loading left.
    fn reset(&mut self);

    /// Time per node since the last call, if the session was asked to measure: (node name, calls, nanoseconds).
    fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        Vec::new()
    }

    /// Every step since the last call, if the session was asked to measure and measures steps. A session may give up the
    /// latest ones when there are very many.
    fn take_spans(&mut self) -> Vec<Span> {
        Vec::new()
    }
}
