//! Errors of text processing.

use std::fmt;

/// An error of the tokenizer library.
pub type LibraryError = Box<dyn std::error::Error + Send + Sync>;

/// Everything that this crate refuses, with the place and the reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.json` (or a tokenizer built from another format) is not one that can be loaded.
    #[error("tokenizer cannot be loaded: {0}")]
    Tokenizer(LibraryError),
    /// A JSON file next to the tokenizer is malformed.
    #[error("{file}: {fault}")]
    Config {
        /// Name of the file.
        file: &'static str,
        fault: ConfigFault,
    },
    /// Tokenizer metadata of a GGUF file is inconsistent.
    #[error("GGUF tokenizer: {0}")]
    Gguf(GgufFault),
    /// The GGUF file names a pre-tokenizer that is not known.
    #[error("GGUF tokenizer: pre-tokenizer {found:?} is not known (known: {}); pass the model's tokenizer.json instead", .known.join(", "))]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        found: String,
        /// The names that are known.
        known: Vec<&'static str>,
    },
    /// A `tokenizer.model` or `tekken.json` is not one that can be read.
    #[error("{format} tokenizer: {fault}")]
    ModelFile {
        /// The format that it seems to have.
        format: &'static str,
        fault: ModelFileFault,
    },
    /// A grammar or a schema cannot be compiled or followed.
    #[error("grammar: {0}")]
    Grammar(String),
    /// Text could not be turned into token ids.
    #[error("text cannot be encoded: {0}")]
    Encode(LibraryError),
    /// Token ids could not be turned into text.
    #[error("token ids cannot be decoded: {0}")]
    Decode(LibraryError),
    /// The chat template does not compile.
    #[error("chat template does not compile: {0}")]
    TemplateSyntax(TemplateFault),
    /// The chat template failed, or refused the conversation by `raise_exception`.
    #[error("chat template failed: {0}")]
    TemplateRender(TemplateFault),
    /// The chat template exceeded one of its limits.
    #[error("chat template exceeds the limit of {limit}{}", .fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default())]
    TemplateLimit {
        limit: TemplateLimit,
        /// The template's failure at run time; `None` if it was refused before it ran.
        fault: Option<TemplateFault>,
    },
    /// The model has no template of the requested name.
    #[error("no chat template is named {wanted:?} (found: {})", .found.join(", "))]
    NoSuchTemplate {
        /// The requested name.
        wanted: String,
        /// The names that exist.
        found: Vec<String>,
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
    /// More stop strings than are taken.
    #[error("{found} stop strings given, at most {limit} are taken")]
    StopStrings {
        /// Number of stop strings.
        found: usize,
        /// Largest number.
        limit: usize,
    },
    /// A stop string is empty or too long.
    #[error("stop string {index}: expected 1 to {limit} bytes, found {found}")]
    StopString {
        /// Position in the list.
        index: usize,
        /// Its length in bytes.
        found: usize,
        /// Largest length.
        limit: usize,
    },
}

/// Reason why a JSON file is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    #[error("expected a JSON object")]
    NotAnObject,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reason why the tokenizer of a GGUF file cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    #[error("expected model gpt2, llama, gemma4, bert or t5, found {0:?}")]
    Model(String),
    #[error("expected 1 to 2^32 - 1 tokens, found {0}")]
    TokenCount(usize),
    #[error("expected as many entries in {list} as the {tokens} tokens, found {found}")]
    Length { list: &'static str, tokens: usize, found: usize },
    #[error("{role} token id is {id}, expected less than {tokens}")]
    TokenId { role: &'static str, id: u32, tokens: usize },
    #[error("merge {rank} is {merge:?}, expected two pieces with one space between")]
    Merge { rank: usize, merge: String },
    #[error("merge {rank} is {merge:?}, but {piece:?} is no token")]
    MergedPiece { rank: usize, merge: String, piece: String },
    #[error("expected scores or merges for model llama, found neither")]
    Unranked,
    #[error("token {id} has {chars} characters, at most {limit} are taken")]
    LongToken { id: usize, chars: usize, limit: usize },
    /// The library refuses the tokenizer that the lists describe.
    #[error(transparent)]
    Library(LibraryError),
}

/// Reason why a `tokenizer.model` or `tekken.json` is unreadable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileFault {
    #[error("byte {at}: {what}")]
    Bytes { at: usize, what: &'static str },
    #[error("line {line}: expected a token in base64, a space and its rank")]
    Line { line: usize },
    #[error("token {rank}: {what}")]
    Token { rank: usize, what: &'static str },
    #[error("expected {expected}, found {found}")]
    Form { expected: &'static str, found: String },
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The file's lists are inconsistent.
    #[error(transparent)]
    Vocabulary(Box<Error>),
}

/// The template engine's message and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    pub message: String,
    /// Line of the template, from 1 on.
    pub line: Option<usize>,
}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.line.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}

/// A limit on chat templates, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateLimit {
    #[error("{0} bytes of source")]
    Source(usize),
    #[error("{0} operators in one tag")]
    Operators(usize),
    #[error("{0} elif branches")]
    Branches(usize),
    #[error("{0} repetitions of a constant")]
    Repetitions(u64),
    #[error("{0} steps")]
    Steps(u64),
    /// Text that is made, in a value and altogether, and items of a list.
    #[error("{value} bytes of text or {items} items in a value, {total} bytes in all")]
    Values { value: u64, items: usize, total: u64 },
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
