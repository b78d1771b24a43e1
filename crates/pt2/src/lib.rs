//! Reads the archives that `torch.export.save` writes: program, symbolic sizes, signature, weights.
//!
//! [`Archive::open`] takes shared bytes (a mapped file, say) and [`Archive::program`] gives an [`Exported`]: plain data with
//! public fields, which is also what a model family builds without an archive. Stored members are slices of those bytes; a
//! weight is copied only where its strides or its compression demand it. Nothing in a pickle is executed: a small machine
//! knows the few constructors that tensors need and refuses every other by name.
//!
//! `Display` of [`Graph`] prints one call a line in the form in which PyTorch prints a graph.

#![forbid(unsafe_code)]

mod archive;
mod container;
mod convert;
mod error;
mod exported;
mod graph;
mod legacy;
mod metadata;
mod pickle;
mod print;
mod scalar;
mod schema;
mod symbolic;
mod weight;

pub mod limits;

pub use archive::Archive;
pub use error::{Error, GraphFault, Limited, MemberFault, TensorFault};
pub use exported::{Dialect, Exported, InputSpec, OutputSpec, Range, Signature};
pub use graph::{Argument, Graph, NamedArgument, Node, Passing, Subgraph, SymArg, TensorMeta};
pub use metadata::{Metadata, SourceLocation};
pub use pickle::{PickleFault, load_map};
pub use scalar::{Device, Layout, MemoryFormat, ScalarType};
pub use symbolic::{Comparison, ExpressionFault, SymBool, SymFloat, parse_bool, parse_int, parse_real};
pub use weight::{Attribute, ComputeError, Storage, Subclass, View, Weight};

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
