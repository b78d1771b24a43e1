//! Errors of opening, loading and running programs.

use std::{fmt, io, path::PathBuf};

use flambeau_ir::{
    CheckError,
    engine::{EngineError, StateMismatch},
};
use flambeau_lower::Refuse;

use crate::Value;

/// Reason why a program cannot be opened, loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    /// A file of `size` bytes cannot be locked in memory.
    #[error("cannot lock the {} MiB of {} in memory: {source}", size.div_ceil(1 << 20), path.display())]
    Lock { path: PathBuf, size: usize, source: io::Error },

    /// A file is invalid.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: flambeau_wire::Error },

    /// Bytes without a path are invalid.
    #[error(transparent)]
    Wire(#[from] flambeau_wire::Error),

    /// There is no method with this name.
    #[error("no method `{name}`; the program has {found}")]
    NoMethod { name: String, found: String },

    /// A method needs an unsupported feature. Other methods of its program may run.
    #[error("method `{method}` cannot run here: {reason}")]
    Unsupported { method: String, reason: String },

    /// A method needs a backend other than MLX.
    #[error("method `{method}` is delegated to {id}, which cannot run here; only {} can", crate::MLX_BACKEND)]
    ForeignDelegate { method: String, id: String },

    /// A method plans memory on another device than the host.
    #[error("method `{method}` plans memory on device {kind}:{index}, which is not available here")]
    Device { method: String, kind: &'static str, index: i8 },

    /// A delegate's payload cannot be decoded.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Payload { method: String, delegate: usize, source: flambeau_wire::Error },

    /// The checker refuses a delegate's graph.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Graph { method: String, delegate: usize, source: CheckError },

    /// The engine refuses a delegate.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Load { method: String, delegate: usize, source: EngineError },

    /// An initial value of a method cannot be loaded.
    #[error("method `{method}`, value {value}: {source}")]
    Value { method: String, value: usize, source: ConstantError },

    /// State shared with other methods has a different layout in them.
    #[error("method `{method}`: {source}")]
    Shared { method: String, source: StateMismatch },

    /// State cannot be saved or restored.
    #[error("state of method `{method}`: {what}")]
    State { method: String, what: String },

    /// An instruction cannot be prepared.
    #[error("method `{method}`, {place}: {source}")]
    Prepare { method: String, place: Place, source: Box<InstructionError> },

    /// The number of arguments is wrong.
    #[error("method `{method}` takes {expected} inputs, found {found}")]
    ArgumentCount { method: String, expected: usize, found: usize },

    /// An argument has the wrong kind, type or shape.
    #[error("method `{method}`, input {index}{name}: expected {expected}, found {found}")]
    Argument {
        method: String,
        index: usize,
        /// Empty, or the input's name in parentheses.
        name: String,
        expected: String,
        found: String,
    },

    /// An instruction failed.
    #[error("method `{method}`, {place}: {source}")]
    Run { method: String, place: Place, source: Box<InstructionError> },

    /// A run ended without a result.
    #[error("method `{method}`, output {output}: nothing sets it")]
    NoOutput { method: String, output: usize },

    /// The results of the runs take too much memory to keep.
    #[error("method `{method}`: the results of its runs take over {room} bytes, which is the size of the debug buffer")]
    NoRoom { method: String, room: usize },

    /// A method that keeps its results cannot share state.
    #[error("method `{method}`: results cannot be recorded while methods share state")]
    KeepsShared { method: String },

    /// A run exceeded the limit on instructions.
    #[error("method `{method}` ran over {max} instructions without an end")]
    Endless { method: String, max: u64 },

    /// There is no engine with this name.
    #[error("no engine `{name}`; there are {known}")]
    NoEngine { name: String, known: String },
}

/// Position of an instruction in a method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub chain: usize,
    pub instruction: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {}, instruction {}", self.chain, self.instruction)
    }
}

/// Reason why a value of the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConstantError {
    #[error("constant tensors in the dim order {0:?} are not supported")]
    DimOrder(Vec<u8>),
    #[error("the data of `{}` lies in a .ptd file; give it with the program", .0.escape_debug())]
    NoData(String),
    #[error("external data `{}`: expected {expected}, found {found}", key.escape_debug())]
    Layout { key: String, expected: String, found: String },
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
}

/// Reason why an instruction cannot be prepared or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstructionError {
    #[error("value {0} is read before anything is written to it")]
    Unset(u32),
    #[error("value {value} is {found}, expected {expected}")]
    Kind { value: u32, found: String, expected: &'static str },
    #[error("the condition is {0}, expected a boolean")]
    Condition(String),
    #[error("delegate {delegate} takes {inputs} inputs and {outputs} outputs, found {found} arguments")]
    DelegateArity { delegate: u32, inputs: usize, outputs: usize, found: usize },
    #[error("delegate {delegate} cannot take {found}")]
    DelegateArgument { delegate: u32, found: String },
    #[error("delegate {delegate} gave {found} results, expected {expected}")]
    DelegateResults { delegate: u32, found: usize, expected: usize },
    #[error("delegate {delegate}: {source}")]
    Delegate { delegate: u32, source: EngineError },
    #[error("operator `{}`: {source}", operator.escape_debug())]
    Operator { operator: String, source: OperatorError },
    #[error("the method cannot pipeline")]
    NotPipelined,
    #[error("the first output is no result")]
    NoLogits,
    #[error("the input that takes the token is unused")]
    UnusedInput,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
}

/// Reason why a kernel call cannot be prepared or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    #[error(transparent)]
    Refused(#[from] Refuse),
    #[error("its results are not repeated")]
    Unrepeated,
    #[error("its result is {0}, expected tensors")]
    ResultKind(String),
    #[error("it gives {found} tensors, and {expected} are expected")]
    ResultCount { found: usize, expected: usize },
    #[error("its constant `{}` has to be computed", .0.escape_debug())]
    Constant(String),
    #[error("its arguments are {0}")]
    Arguments(String),
    #[error("axis {axis} of rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("the sizes {0:?} are no shape")]
    NoShape(Vec<i64>),
    #[error(transparent)]
    Host(#[from] flambeau_host::Error),
    #[error("division by zero")]
    DivisionByZero,
    #[error("the item of a tensor of {0} elements")]
    Item(usize),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
}

impl OperatorError {
    /// The error for arguments of kinds that the operator does not accept.
    pub(crate) fn of_arguments(args: &[&Value]) -> OperatorError {
        OperatorError::Arguments(args.iter().map(|arg| arg.describe()).collect::<Vec<_>>().join(", "))
    }
}
