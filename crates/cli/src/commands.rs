//! The subcommands.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod compile;
pub(crate) mod completions;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod transcribe;
