//! Errors of generation.

use std::any::Any;

use flambeau_runtime::Outcome;
use flambeau_tensor::DType;

use crate::Result;

/// Error of loading a model or of a generation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Loading or running the program failed.
    #[error(transparent)]
    Runtime(#[from] flambeau_runtime::Error),

    /// Tokenizing or sampling failed.
    #[error(transparent)]
    Text(#[from] flambeau_text::Error),

    /// The method does not have the signature of a supported language model.
    #[error("method `{method}` is no language model: {what}")]
    Signature { method: String, what: String },

    /// The method's output is not a row of logits.
    #[error("method `{method}` gave {found}, expected logits [.., V] in a float type")]
    Logits { method: String, found: String },

    /// The method's output is not a token.
    #[error("method `{method}` gave {found}, expected a token")]
    Token { method: String, found: String },

    /// The program samples tokens itself and does not support the requested sampling.
    #[error("method `{method}` draws tokens itself and takes {what}")]
    Sampling { method: String, what: &'static str },

    /// The model cannot verify draft tokens.
    #[error("method `{method}` {what}, so that guesses cannot be judged")]
    NoGuesses { method: String, what: &'static str },

    /// Every logit is NaN or minus infinity.
    #[error("none of the {found} logits can be chosen: each is NaN or minus infinity{}", computed_in(*.dtype))]
    NoLogits { found: usize, dtype: Option<DType> },

    /// The prompt alone is longer than the context.
    #[error("the prompt has {prompt} tokens, and the model's context holds {context}")]
    PromptTooLong { prompt: usize, context: usize },

    /// The program is not a supported text encoder.
    #[error("the program makes no vectors or scores of texts: {0}")]
    NoEncoder(String),

    /// The program is not a supported speech model.
    #[error("the program is no {family}: {what}")]
    NoSpeechModel { family: &'static str, what: String },

    /// The model does not support the language.
    #[error("the model does not know the language `{found}`: {expected}")]
    Language { found: String, expected: String },

    /// The model cannot translate.
    #[error("the model cannot translate: it writes down what is said in its own language")]
    NoTranslation,

    /// The model does not support the requested option.
    #[error("a {family} takes no {option}")]
    NoSuchSetting { family: &'static str, option: &'static str },

    /// The generation may need more tokens than the limit of all running generations.
    #[error("the prompt and its answer may come to {tokens} tokens, and no more than {limit} are computed at the same time")]
    TooManyTokens { tokens: usize, limit: usize },

    /// The queue of waiting generations is full.
    #[error("{waiting} requests are waiting already")]
    Busy { waiting: usize },

    /// The code of a generation panicked.
    #[error("an internal error ended the generation: {what}")]
    Panicked { what: String },

    /// The request chooses more adapters than the program applies.
    #[error("the request scales {found} adapters, and the model has {expected}")]
    Adapters { found: usize, expected: usize },

    /// The sequence holds text of other adapters.
    #[error("the sequence holds text that other adapters computed")]
    OtherAdapters,

    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,

    /// Text cannot be cut into windows of this length.
    #[error("a window of {length} tokens does not fit: it takes at least 4, and the text has {tokens}")]
    Window { length: usize, tokens: usize },

    /// A token of the text is outside the model's vocabulary.
    #[error("token {token} of the text is outside of the model's vocabulary of {vocabulary}: is the tokenizer that of the model?")]
    OutsideVocabulary { token: u32, vocabulary: usize },

    /// Two models with different vocabularies cannot be compared.
    #[error("the models have vocabularies of {model} and {reference} tokens: only models of one vocabulary can be compared")]
    Vocabularies { model: usize, reference: usize },
}

/// Converts the outcome of a caught run: a panic becomes [`Error::Panicked`].
pub(crate) fn settled<T, E: Into<Error>>(outcome: Outcome<T, E>) -> Result<T> {
    outcome.map_err(|payload| Error::Panicked { what: message(&*payload) })?.map_err(Into::into)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Hint for invalid logits: the element type of the activations.
fn computed_in(dtype: Option<DType>) -> String {
    match dtype {
        Some(DType::F16) => "; the model computes in f16, whose numbers end at 65504, and some models need more".into(),
        Some(dtype) => format!("; the model computes in {dtype}"),
        None => String::new(),
    }
}
