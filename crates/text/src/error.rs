//! What can go wrong with text.

/// Everything that this crate refuses, with the place and the reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.json` (or a tokenizer built from another format) is not one that can be loaded.
    #[error("tokenizer cannot be loaded: {0}")]
    Tokenizer(String),
    /// A JSON file next to the tokenizer is malformed.
    #[error("{file}: {reason}")]
    Config {
        /// Name of the file.
        file: &'static str,
        /// What was expected and found.
        reason: String,
    },
    /// Tokenizer metadata of a GGUF file is inconsistent.
    #[error("GGUF tokenizer: {0}")]
    Gguf(String),
    /// The GGUF file names a pre-tokenizer that is not known.
    #[error("GGUF tokenizer: pre-tokenizer {found:?} is not known (known: {known}); pass the model's tokenizer.json instead")]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        found: String,
        /// The names that are known.
        known: String,
    },
    /// Text could not be turned into token ids.
    #[error("text cannot be encoded: {0}")]
    Encode(String),
    /// Token ids could not be turned into text.
    #[error("token ids cannot be decoded: {0}")]
    Decode(String),
    /// The chat template does not compile.
    #[error("chat template does not compile: {0}")]
    TemplateSyntax(String),
    /// The chat template failed, or refused the conversation by `raise_exception`.
    #[error("chat template failed: {0}")]
    TemplateRender(String),
    /// The chat template exceeded one of its limits.
    #[error("chat template exceeds the limit of {limit}")]
    TemplateLimit {
        /// Which limit, with its value.
        limit: String,
    },
    /// The model has no template of the requested name.
    #[error("no chat template is named {wanted:?} (found: {found})")]
    NoSuchTemplate {
        /// The requested name.
        wanted: String,
        /// The names that exist.
        found: String,
    },
    /// A sampling parameter is out of its range.
    #[error("sampling parameter {name} is {found}, expected {expected}")]
    SamplingParameter {
        /// Name of the parameter.
        name: &'static str,
        /// Its value as text.
        found: String,
        /// The permitted range.
        expected: &'static str,
    },
    /// No token can be chosen: the logits are empty or all are NaN or −∞.
    #[error("none of the {found} logits can be chosen: each is NaN or minus infinity")]
    NoCandidate {
        /// Number of logits.
        found: usize,
    },
    /// A stop string cannot be used.
    #[error("stop string {index}: {reason}")]
    StopString {
        /// Position in the list.
        index: usize,
        /// Why not.
        reason: String,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
