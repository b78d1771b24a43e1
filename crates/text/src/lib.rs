//! Text in and text out: tokenizers, incremental detokenising, chat templates, sampling, grammars,
//! stop strings.
//!
//! This crate does not depend on models or programs: its inputs and outputs are token ids, logits
//! and text. Files are passed as bytes, the clock and the seed as values; nothing reads the
//! environment.
//!
//! Every input may be hostile. Third-party tokenizer code runs behind a barrier that turns its
//! panics into errors, and chat templates run under limits on steps and bytes.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod decode_plan;
mod detokenize;
mod ends;
mod error;
mod gguf;
mod grammar;
mod model_file;
mod rng;
mod sampler;
mod stop;
mod template;
mod tokenizer;
mod tokenizer_core;
mod vocabulary;
mod word_piece;

pub use clock::Clock;
pub use config::{GenerationDefaults, SpecialTokens, TokenizerFiles};
pub use detokenize::DetokenizeStream;
pub use error::{ConfigFault, Error, GgufFault, LibraryError, ModelFileFault, Result, TemplateFault, TemplateLimit};
pub use gguf::GgufVocab;
pub use grammar::{Constraint, GrammarCompiler, check_schema, lark_rule, spaced};
pub use rng::Rng;
pub use sampler::{Sampler, SamplingParams, argmax, likeliest, log_probabilities};
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopMatcher, StopStep};
pub use template::{ChatInput, ChatTemplate, message};
pub use tokenizer::{Placed, Tokenizer};
pub use vocabulary::{ConvertedTokenizer, VOCABULARY_FILES, tokenizer_files};
