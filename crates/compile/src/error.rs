//! What can go wrong between an exported program and a file.

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
    Program(String),
    #[error(transparent)]
    Archive(#[from] flambeau_pt2::Error),
    /// A constant could not be made.
    #[error("weight `{name}`: {what}")]
    Weight { name: String, what: String },
    /// The compiler produced a graph that its own checker refuses.
    #[error("the compiled graph is not valid: {0}")]
    Check(String),
    /// Folding constants failed.
    #[error("folding constants: {0}")]
    Fold(String),
    #[error(transparent)]
    Write(#[from] flambeau_wire::Error),
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
