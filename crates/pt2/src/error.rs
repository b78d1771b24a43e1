use crate::{ComputeError, ExpressionFault, PickleFault, ScalarType};

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a ZIP file that can be used.
    #[error("not a readable zip archive: {0}")]
    Zip(String),
    /// A ZIP file, but not of this kind.
    #[error("not a torch.export archive: expected `<root>/archive_format` or a top-level `version`, found {found}")]
    NotAnArchive { found: String },
    /// The archive lacks a member.
    #[error("archive member `{0}` is missing")]
    MissingMember(String),
    /// A member's header or extent is wrong.
    #[error("archive member `{member}`: {what}")]
    Member { member: String, what: String },
    /// A member holds another value than this version of the format allows.
    #[error("archive member `{member}`: expected {expected}, found {found}")]
    Version { member: String, expected: &'static str, found: String },
    /// The archive has no such program.
    #[error("no program `{name}` in the archive, which has: {available}")]
    NoProgram { name: String, available: String },
    /// JSON that does not follow the schema.
    #[error("archive member `{member}`: {source}")]
    Json { member: String, source: serde_json::Error },
    /// A limit of [`crate::limits`] is exceeded.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit { what: String, found: u64, limit: u64 },
    /// A number of an enumeration that has no meaning.
    #[error("{what} {found} is not known")]
    Enumeration { what: &'static str, found: i64 },
    /// A symbolic expression that cannot be parsed.
    #[error("symbolic expression, byte {offset}: {fault} in `{text}`")]
    Expression { offset: usize, fault: ExpressionFault, text: String },
    /// The graph contradicts itself.
    #[error("graph: {0}")]
    Graph(String),
    /// A pickle that is malformed or asks for something that is not a tensor.
    #[error("pickle `{member}`, byte {offset}: {fault}")]
    Pickle { member: String, offset: usize, fault: PickleFault },
    /// A tensor whose extent does not fit its storage.
    #[error("tensor `{name}`: {what}")]
    Tensor { name: String, what: String },
    /// A storage whose bytes could not be computed.
    #[error("tensor `{name}`: {reason}")]
    Computed { name: String, reason: ComputeError },
    /// An element type that cannot be stored here.
    #[error("`{name}` has element type {dtype}, which is not supported")]
    ElementType { name: String, dtype: ScalarType },
    /// Something valid that this reader does not take.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    pub(crate) fn member(member: &str, what: impl Into<String>) -> Error {
        Error::Member { member: member.into(), what: what.into() }
    }

    pub(crate) fn tensor(name: &str, what: impl Into<String>) -> Error {
        Error::Tensor { name: name.into(), what: what.into() }
    }

    pub(crate) fn limit(what: impl Into<String>, found: impl TryInto<u64>, limit: impl TryInto<u64>) -> Error {
        Error::Limit { what: what.into(), found: found.try_into().unwrap_or(u64::MAX), limit: limit.try_into().unwrap_or(u64::MAX) }
    }
}
