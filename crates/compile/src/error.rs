//! What can go wrong between an exported program and a file.

use flambeau_ir::{check::CheckError, engine::EngineError};
use flambeau_lower::{FormulaError, Refuse};
use flambeau_tensor::{DType, Shape};

use crate::report::{CallReport, Report};

/// Why a program was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Calls that cannot be expressed in nodes.
    #[error("{}", refusals(.calls))]
    Refused { calls: Vec<CallReport>, report: Box<Report> },
    /// The program's own structure.
    #[error("program: {0}")]
    Program(ProgramError),
    /// A rule of quantization is about no weight.
    #[error("no weight is called `{0}`, as a rule of quantization says")]
    Rule(String),
    #[error(transparent)]
    Archive(#[from] flambeau_pt2::Error),
    /// A constant could not be computed.
    #[error("weight `{name}`: {reason}")]
    Weight { name: String, reason: ConstantError },
    /// The compiler produced a graph that its own checker refuses.
    #[error("the compiled graph is not valid: {0}")]
    Check(CheckError),
    /// Folding constants failed.
    #[error("folding constants: {0}")]
    Fold(FoldError),
    #[error(transparent)]
    Write(#[from] flambeau_wire::Error),
}

/// What about a program as a whole cannot be compiled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A parameter, buffer or constant without data.
    #[error("`{0}` has no data in the archive")]
    NoData(String),
    /// An input of which the graph says neither shape nor content.
    #[error("nothing is known of input `{0}`")]
    UnknownInput(String),
    /// An output that no call produces.
    #[error("output `{0}` has no value")]
    NoValue(String),
    /// A buffer that the signature writes to without reading it.
    #[error("the mutated buffer `{0}` is not an input")]
    NotAnInput(String),
    /// A constant names a weight that was never added.
    #[error("weight {0} does not exist")]
    NoWeight(usize),
    /// A buffer that two delegates would have to hold.
    #[error(
        "buffer `{0}` is read before a call that stays outside of the delegate and written after it, and cannot live in both; use \
         --require-full to see what stays outside"
    )]
    SplitBuffer(String),
    /// Fallback calls of which each needs the other's result.
    #[error("calls outside of delegates wait for each other")]
    Cycle,
    /// Tensors at their upper bounds need more memory than any plan may have.
    #[error(
        "tensors at their upper bounds need {arena} bytes or more, even if each size without a bound counts as {bound}; bound dynamic \
         sizes at export, as by `torch.export.Dim(\"h\", max=1024)`"
    )]
    Memory { arena: u64, bound: u32 },
    /// A value that is needed outside of any call cannot be expressed.
    #[error(transparent)]
    Value(#[from] Refuse),
}

/// Why a constant could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstantError {
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
    #[error(transparent)]
    Formula(#[from] FormulaError),
    /// There is not one zero point for each scale.
    #[error("scales and zero points differ in number")]
    ZeroPoints,
    /// The expression contradicts the constant's own type or shape.
    #[error("its expression gives {} {:?} instead of {} {:?}", .found.0, .found.1, .expected.0, .expected.1)]
    Type { found: Box<(DType, Shape)>, expected: Box<(DType, Shape)> },
}

/// Why constants could not be folded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// The nodes to fold are no valid graph.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The engine cannot load or run them.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine gave another element type than inference.
    #[error("a folded constant has another type than inferred")]
    Type,
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Program(error)
    }
}

/// The first refusals in full, the rest as a count.
fn refusals(calls: &[CallReport]) -> String {
    const SHOWN: usize = 8;
    let mut text = format!("{} calls cannot be expressed in MLX nodes:", calls.len());
    for call in calls.iter().take(SHOWN) {
        text.push_str(&format!("\n  {call}"));
    }
    if calls.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more", calls.len() - SHOWN));
    }
    text
}
