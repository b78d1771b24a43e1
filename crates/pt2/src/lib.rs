//! Reads the archives that `torch.export.save` writes: program, symbolic sizes, signature, weights.
//!
//! [`Archive::open`] takes shared bytes, such as a mapped file, and [`Archive::program`] returns an
//! [`Exported`]. This is plain data with public fields, so model families can also build it without
//! an archive. Stored members are slices of the shared bytes. A weight is copied only if its
//! strides or its compression require it. Nothing in a pickle is executed. A small machine supports
//! the few constructors of tensors and refuses all others by name.
//!
//! `Display` of [`Graph`] prints one call per line, in PyTorch's form.

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

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
