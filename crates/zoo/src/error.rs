/// Reason why a checkpoint cannot be read or built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GGUF file violates its format at the byte offset.
    #[error("gguf, byte {offset}: {what}")]
    Gguf { offset: usize, what: String },
    /// Parts of a split GGUF file do not belong together.
    #[error("part {part} of a split GGUF file: {what}")]
    Part { part: usize, what: String },
    /// The `.nemo` file violates its format.
    #[error(".nemo file: {0}")]
    Nemo(String),
    /// A limit of [`crate::limits`] is exceeded.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit { what: &'static str, found: u64, limit: u64 },
    /// The folder lacks a file.
    #[error("the folder has no {0}")]
    MissingFile(String),
    /// A file of the folder cannot be used.
    #[error("file `{file}`: {what}")]
    File { file: String, what: String },
    /// A config or metadata key is missing or has an unsupported value.
    #[error("key `{key}`: expected {expected}, found {found}")]
    Key { key: String, expected: String, found: String },
    /// The model family is not supported.
    #[error("model family `{found}` is not supported: expected one of {supported}")]
    Family { found: String, supported: String },
    /// The checkpoint lacks a tensor.
    #[error("tensor `{0}` is missing in the checkpoint")]
    MissingTensor(String),
    /// A tensor does not match the config.
    #[error("tensor `{name}`: expected {expected}, found {found}")]
    Tensor { name: String, expected: String, found: String },
    /// An option is out of range for this model.
    #[error("option {option}: expected {expected}, found {found}")]
    Option { option: &'static str, expected: String, found: String },
    /// The program is inconsistent.
    #[error(transparent)]
    Graph(#[from] flambeau_pt2::Error),
}

impl Error {
    pub(crate) fn key(key: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Error {
        Error::Key { key: key.into(), expected: expected.into(), found: found.to_string() }
    }

    pub(crate) fn tensor(name: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::Tensor { name: name.into(), expected: expected.into(), found: found.into() }
    }

    pub(crate) fn file(file: &str, what: impl ToString) -> Error {
        Error::File { file: file.into(), what: what.to_string() }
    }

    pub(crate) fn limit(what: &'static str, found: u64, limit: u64) -> Error {
        Error::Limit { what, found, limit }
    }
}
