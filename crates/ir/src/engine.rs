//! The seam between programs and engines: two object-safe traits, and nothing else crosses.

use std::sync::Arc;

use flambeau_tensor::{Bytes, Tensor};

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

/// A loaded graph with its own mutable buffers.
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
