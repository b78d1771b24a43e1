//! Errors of reading bytes and of writing values.

/// Reason why bytes could not be read or values could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The identifier does not belong to the format.
    #[error("not {format}: bytes 4..8 are {found}, expected `{expected}`; was the right file given?")]
    Unrecognized { format: &'static str, found: String, expected: &'static str },

    /// The identifier or version belongs to another revision of the format.
    #[error("{format} has version `{found}`, this reader knows `{known}`; export the model again with ExecuTorch 1.x")]
    Version { format: &'static str, found: String, known: String },

    /// The bytes end before the announced length.
    #[error(
        "{format} is truncated: {what} ends at byte {expected}, but only {present} bytes are present; copy or export the file again"
    )]
    Truncated { format: &'static str, what: &'static str, expected: u64, present: u64 },

    /// A field violates the encoding.
    #[error("{format} is malformed at byte {offset}, `{path}`: {problem}; export the model again")]
    Malformed {
        format: &'static str,
        /// Byte offset in the file or payload.
        offset: u64,
        /// Path of the field from the root table.
        path: String,
        problem: String,
    },

    /// A field needs a feature that this reader does not support.
    #[error("{format} needs what is not supported at byte {offset}, `{path}`: {problem}")]
    Unsupported {
        format: &'static str,
        /// Byte offset in the file or payload.
        offset: u64,
        /// Path of the field from the root table.
        path: String,
        problem: String,
    },

    /// Values that can be decoded but do not form a valid program.
    #[error("invalid program at `{path}`: {problem}")]
    Invalid {
        /// Path of the value.
        path: String,
        problem: String,
    },

    /// A named limit of [`limits`](crate::limits) is exceeded.
    #[error("{format} exceeds the limit {limit} = {max} at `{path}`")]
    Limit { format: &'static str, limit: &'static str, max: u64, path: String },

    /// A blob's producer wrote a different number of bytes than announced.
    #[error("blob `{name}` announced {announced} bytes and wrote {written}")]
    BlobLength { name: String, announced: u64, written: u64 },

    /// Two blobs with different contents have the same key.
    #[error("key `{key}` is given twice with different contents; rename one of them")]
    KeyConflict { key: String },

    /// Writing to the output failed, or a blob's producer failed.
    #[error("writing failed: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    pub(crate) fn invalid(path: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Invalid { path: path.into(), problem: problem.into() }
    }

    /// Adds a leading path segment to the error.
    fn within(mut self, segment: &str) -> Error {
        if let Error::Malformed { path, .. }
        | Error::Unsupported { path, .. }
        | Error::Invalid { path, .. }
        | Error::Limit { path, .. } = &mut self
        {
            let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
            *path = format!("{segment}{dot}{path}");
        }
        self
    }
}

/// Adds a path segment to an error. The text is computed only for errors.
pub(crate) trait Within {
    fn within(self, segment: impl FnOnce() -> String) -> Self;
}

impl<T> Within for Result<T, Error> {
    fn within(self, segment: impl FnOnce() -> String) -> Self {
        self.map_err(|e| e.within(&segment()))
    }
}
