//! What can go wrong between a file and its results.

use std::{io, path::PathBuf};

use flambeau_ir::{CheckError, engine::EngineError};

/// Why a program cannot be opened, loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    /// A file's bytes are not what they should be.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: flambeau_wire::Error },

    /// Bytes that came without a path are not what they should be.
    #[error(transparent)]
    Wire(#[from] flambeau_wire::Error),

    /// There is no method of that name.
    #[error("no method `{name}`; the program has {found}")]
    NoMethod { name: String, found: String },

    /// A method needs a backend other than MLX.
    #[error("method `{method}` is delegated to {id}, which cannot run here; only {} can", crate::MLX_BACKEND)]
    ForeignDelegate { method: String, id: String },

    /// A delegate's payload cannot be decoded.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Payload { method: String, delegate: usize, source: flambeau_wire::Error },

    /// A delegate's graph breaks the rules.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Graph { method: String, delegate: usize, source: CheckError },

    /// The engine refuses a delegate.
    #[error("method `{method}`, delegate {delegate}: {source}")]
    Load { method: String, delegate: usize, source: EngineError },

    /// A method cannot be loaded for another reason.
    #[error("method `{method}`{place}: {what}")]
    Method {
        method: String,
        /// Empty, or a comma and the chain and instruction.
        place: String,
        what: String,
    },

    /// The number of arguments is wrong.
    #[error("method `{method}` takes {expected} inputs, found {found}")]
    ArgumentCount { method: String, expected: usize, found: usize },

    /// An argument does not fit.
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
    #[error("method `{method}`, chain {chain}, instruction {instruction}: {what}")]
    Run { method: String, chain: usize, instruction: usize, what: String },

    /// A run executed more instructions than any sane program needs.
    #[error("method `{method}` ran over {max} instructions without an end")]
    Endless { method: String, max: u64 },

    /// There is no engine of that name.
    #[error("no engine `{name}`; there are {known}")]
    NoEngine { name: String, known: String },
}
