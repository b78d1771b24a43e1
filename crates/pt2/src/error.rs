use std::{fmt, io};

use flambeau_tensor::{DType, Expr};

use crate::{ComputeError, ExpressionFault, Layout, PickleFault, ScalarType};

/// Reason why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a usable ZIP file.
    #[error("not a readable zip archive: {0}")]
    Zip(io::Error),
    /// A ZIP file that is not a `torch.export` archive.
    #[error("not a torch.export archive: expected `<root>/archive_format` or a top-level `version`, found {}", shown(.first))]
    NotAnArchive {
        /// The archive's first member.
        first: Option<String>,
    },
    /// The archive lacks a member.
    #[error("archive member `{0}` is missing")]
    MissingMember(String),
    /// A member's header or extent is wrong.
    #[error("archive member `{member}`: {fault}")]
    Member { member: String, fault: MemberFault },
    /// A member holds a value that this version of the format does not allow.
    #[error("archive member `{member}`: expected {expected}, found {found}")]
    Version { member: String, expected: &'static str, found: String },
    /// The archive has no program with this name.
    #[error("no program `{name}` in the archive, which has: {}", .available.join(", "))]
    NoProgram { name: String, available: Vec<String> },
    /// The archive has no program, or several.
    #[error("expected one program in the archive, found {}: {}", .available.len(), .available.join(", "))]
    NotOneProgram { available: Vec<String> },
    /// JSON that violates the schema.
    #[error("archive member `{member}`: {source}")]
    Json { member: String, source: serde_json::Error },
    /// A limit of [`crate::limits`] is exceeded.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit { what: Limited, found: u64, limit: u64 },
    /// An unknown number of an enumeration.
    #[error("{what} {found} is not known")]
    Enumeration { what: &'static str, found: i64 },
    /// A symbolic expression that cannot be parsed.
    #[error("symbolic expression, byte {offset}: {fault} in `{text}`")]
    Expression { offset: usize, fault: ExpressionFault, text: String },
    /// The graph is inconsistent.
    #[error("graph: {0}")]
    Graph(GraphFault),
    /// A pickle that is malformed or holds something other than tensors.
    #[error("pickle `{member}`, byte {offset}: {fault}")]
    Pickle { member: String, offset: usize, fault: PickleFault },
    /// A tensor that is inconsistent with itself or with its storage.
    #[error("tensor `{name}`: {fault}")]
    Tensor { name: String, fault: TensorFault },
    /// The bytes of a storage could not be computed.
    #[error("tensor `{name}`: {reason}")]
    Computed { name: String, reason: ComputeError },
    /// An unsupported element type.
    #[error("`{name}` has element type {dtype}, which is not supported")]
    ElementType { name: String, dtype: ScalarType },
    /// A tensor that is not strided.
    #[error("tensor `{name}` has layout {layout}, expected torch.strided")]
    Layout { name: String, layout: Layout },
    /// A constant that is not a tensor.
    #[error("constant `{0}` is a script or Python object, which cannot be compiled")]
    Object(String),
    /// A tensor subclass was read as a plain tensor.
    #[error("a {0} has no elements of its own, only fields")]
    NoElements(String),
}

fn shown(first: &Option<String>) -> String {
    first.as_ref().map_or_else(|| "an empty archive".to_owned(), |name| format!("first member `{name}`"))
}

/// Faults of a member of an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberFault {
    #[error(transparent)]
    Zip(#[from] io::Error),
    #[error("is encrypted")]
    Encrypted,
    #[error("{0} bytes do not fit the address space")]
    TooLarge(u64),
    /// Compressed by an unsupported method with this name.
    #[error("expected stored or deflated data, found method {0}")]
    Compression(String),
    #[error("header at byte {0} is outside of the file")]
    HeaderOutside(u64),
    #[error("no local header at byte {0}")]
    NoHeader(u64),
    #[error("{len} bytes at byte {start} pass the end of the file, {end}")]
    Outside { start: usize, len: usize, end: usize },
    #[error("expected {expected} bytes, found {found}")]
    Length { expected: usize, found: usize },
    #[error("expected little-endian storages")]
    ByteOrder,
}

/// Quantities bounded by [`crate::limits`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limited {
    /// Bytes of a symbolic expression.
    ExpressionBytes,
    /// Operands of a symbolic expression.
    ExpressionOperands,
    /// Bytes of all members of an archive, once inflated.
    ArchiveBytes,
    /// Bytes of a JSON member.
    JsonBytes(String),
    /// Bytes of a compressed member, once inflated.
    InflatedBytes(String),
    /// Bytes of a pickle.
    PickleBytes(String),
    /// Bytes of a tensor whose elements overlap in its storage.
    RepeatingBytes(String),
    /// Axes of a tensor.
    Rank,
    /// Graphs inside of graphs.
    Nesting,
    /// Nodes of a program.
    Nodes,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limited::ExpressionBytes => f.write_str("bytes of a symbolic expression"),
            Limited::ExpressionOperands => f.write_str("operands of a symbolic expression"),
            Limited::ArchiveBytes => f.write_str("bytes of all members"),
            Limited::JsonBytes(member) => write!(f, "bytes of `{member}`"),
            Limited::InflatedBytes(member) => write!(f, "inflated bytes of member `{member}`"),
            Limited::PickleBytes(member) => write!(f, "bytes of pickle `{member}`"),
            Limited::RepeatingBytes(tensor) => write!(f, "bytes of repeating tensor `{tensor}`"),
            Limited::Rank => f.write_str("dims of a tensor"),
            Limited::Nesting => f.write_str("graphs inside of graphs"),
            Limited::Nodes => f.write_str("nodes of a program"),
        }
    }
}

/// Inconsistencies of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphFault {
    #[error("nothing is known of tensor value `{0}`")]
    Unknown(String),
    #[error("nothing is known of tensor value `{value}` of {user}")]
    UnknownOperand { value: String, user: String },
    #[error("value `{value}` of {by} is defined twice")]
    Redefined { value: String, by: String },
    #[error("value `{value}` is used by {user} before it is defined")]
    Undefined { value: String, user: String },
    #[error("the signature describes {specs} {what}, the graph has {values}")]
    Signature { what: &'static str, specs: usize, values: usize },
}

/// Inconsistencies of a tensor or its storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// A size, a stride or an offset that is negative or not a number.
    #[error("expected a {what}, found {found}")]
    NotNumber { what: &'static str, found: Expr },
    /// The archive was saved with fake tensors.
    #[error("the archive has only its shape, as PyTorch writes of fake tensors")]
    Absent,
    #[error("{sizes} sizes but {strides} strides")]
    Rank { sizes: usize, strides: usize },
    #[error("shape {0:?} is too large")]
    TooLarge(Vec<usize>),
    #[error("{dtype} view of shape {shape:?}, strides {strides:?}, offset {offset} reaches byte {end} of a storage of {len}")]
    Outside { dtype: DType, shape: Vec<usize>, strides: Vec<usize>, offset: usize, end: usize, len: usize },
    #[error("expected {expected} computed bytes, found {found}")]
    Computed { expected: usize, found: usize },
    #[error(transparent)]
    Elements(#[from] flambeau_tensor::Error),
}

impl Error {
    pub(crate) fn member(member: &str, fault: MemberFault) -> Error {
        Error::Member { member: member.into(), fault }
    }

    pub(crate) fn tensor(name: &str, fault: TensorFault) -> Error {
        Error::Tensor { name: name.into(), fault }
    }

    pub(crate) fn limit(what: Limited, found: impl TryInto<u64>, limit: impl TryInto<u64>) -> Error {
        Error::Limit { what, found: found.try_into().unwrap_or(u64::MAX), limit: limit.try_into().unwrap_or(u64::MAX) }
    }
}
