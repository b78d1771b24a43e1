//! Errors of compilation.

use flambeau_ir::{check::CheckError, engine::EngineError};
use flambeau_lower::{FormulaError, Refuse};
use flambeau_tensor::{DType, Shape};

use crate::report::{CallReport, Report};

/// Reason why a program was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Calls that cannot be expressed in nodes.
    #[error("{}", refusals(.calls))]
    Refused { calls: Vec<CallReport>, report: Box<Report> },
    /// The structure of the program is invalid.
    #[error("program: {0}")]
    Program(ProgramError),
    /// A quantization rule matches no weight.
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
    /// The inputs of linear layers could not be observed.
    #[error("calibration: {0}")]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Write(#[from] flambeau_wire::Error),
}

/// A defect of the whole program that prevents compilation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A parameter, buffer or constant without data.
    #[error("`{0}` has no data in the archive")]
    NoData(String),
    /// An input for which the graph states neither shape nor content.
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
    /// A buffer that would need memory in two delegates.
    #[error(
        "buffer `{0}` is read before a call that stays outside of the delegate and written after it, and cannot live in both; use \
         --require-full to see what stays outside"
    )]
    SplitBuffer(String),
    /// Fallback calls that depend on each other in a cycle.
    #[error("calls outside of delegates wait for each other")]
    Cycle,
    /// Tensors at their upper bounds exceed the largest memory of a plan.
    #[error(
        "tensors at their upper bounds need {arena} bytes or more, even if each size without a bound counts as {bound}; bound dynamic \
         sizes at export, as by `torch.export.Dim(\"h\", max=1024)`"
    )]
    Memory { arena: u64, bound: u32 },
    /// A value outside of any call, such as an output, cannot be expressed.
    #[error(transparent)]
    Value(#[from] Refuse),
}

/// Reason why a constant could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstantError {
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
    #[error(transparent)]
    Formula(#[from] FormulaError),
    /// The number of zero points differs from the number of scales.
    #[error("scales and zero points differ in number")]
    ZeroPoints,
    /// The scheme of a quantized weight has no such part.
    #[error("its scheme has no such part")]
    Part,
    /// The expression contradicts the constant's own type or shape.
    #[error("its expression gives {} {:?} instead of {} {:?}", .found.0, .found.1, .expected.0, .expected.1)]
    Type { found: Box<(DType, Shape)>, expected: Box<(DType, Shape)> },
}

/// Reason why constants could not be folded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// The nodes to fold do not form a valid graph.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The engine cannot load or run them.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine returned a different element type than inference.
    #[error("a folded constant has another type than inferred")]
    Type,
}

/// Reason why the inputs of linear layers could not be observed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// Calls that nodes cannot express.
    #[error("parts of the program run outside of its graph")]
    Parts,
    /// The engine cannot load or run the observed program.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An input of the method is missing.
    #[error("an input of the method is missing")]
    Inputs,
    /// The engine returned other results than the graph states.
    #[error("a result has another type or size than inferred")]
    Results,
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Program(error)
    }
}

/// Lists the first refusals in full and counts the rest.
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
