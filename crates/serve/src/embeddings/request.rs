//! An embedding request.

use flambeau::runners::embed::{Prompt, Tokens, truncate};
use flambeau::text::Tokenizer;
use serde_json::Value as Json;

use super::answer::VectorFormat;
use crate::{
    encoder::Facts,
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Maximum number of texts per request: OpenAI's limit.
pub(crate) const MAX_TEXTS: usize = 2048;

/// Maximum number of text bytes per token of the model's limit: longer than any word, short enough
/// to cut quickly.
pub(crate) const MAX_BYTES_A_TOKEN: usize = 64;

/// Ignored fields.
const HARMLESS: &[&str] = &["user"];

const INPUT: &str = "input";

/// An embedding request.
#[derive(Debug)]
pub(crate) struct EmbeddingRequest {
    /// The tokens of each text.
    pub(crate) texts: Vec<Tokens>,
    pub(crate) form: VectorFormat,
    /// Number of elements to return, if reduced.
    pub(crate) dimensions: Option<usize>,
}

impl EmbeddingRequest {
    /// Parses a request after `model` was taken.
    ///
    /// # Errors
    /// The error names the invalid or unsupported field.
    pub(crate) fn read(mut fields: Fields, tokenizer: &Tokenizer, facts: &Facts) -> Result<EmbeddingRequest> {
        let input = fields.take(INPUT).ok_or_else(|| ApiError::value(INPUT, "`input` is missing"))?;
        let form = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => VectorFormat::Float,
            Some("base64") => VectorFormat::Base64,
            Some(other) => return Err(wrong("encoding_format", "float or base64", &other.into())),
        };
        let dimensions = fields.count("dimensions", 1..=facts.dimension.max(1) as u64)?;
        let Prompt { text: prompt, task } = prompt(&mut fields, facts)?;
        let truncates = fields.flag("truncate")?.unwrap_or(false);
        fields.finish(HARMLESS)?;
        let reader = InputReader { tokenizer, facts, truncates, prompt: &prompt };
        let texts = match input {
            Json::String(text) => vec![reader.text(&text)?],
            Json::Array(list) if list.first().is_some_and(Json::is_number) => vec![reader.tokens(&list)?],
            Json::Array(list) if (1..=MAX_TEXTS).contains(&list.len()) => {
                list.iter().map(|item| reader.item(item)).collect::<Result<_>>()?
            }
            Json::Array(list) => {
                return Err(ApiError::value(INPUT, format!("`input` must be 1 to {MAX_TEXTS} texts, found {}", list.len())));
            }
            other => return Err(expected(&other)),
        };
        let texts = texts.into_iter().map(|ids| Tokens { task, ..Tokens::from(ids) }).collect();
        Ok(EmbeddingRequest { texts, form, dimensions })
    }
}

/// The prompt before every text: one of the model's by name, or the client's own.
fn prompt(fields: &mut Fields, facts: &Facts) -> Result<Prompt> {
    let (own, name) = (fields.text("prompt")?, fields.text("prompt_name")?);
    if own.is_some() && name.is_some() {
        return Err(ApiError::value("prompt_name", "`prompt` and `prompt_name` exclude each other"));
    }
    let Some(name) = name else { return Ok(own.map_or_else(|| facts.prompts.default_prompt(), Prompt::from)) };
    facts.prompts.named(&name).ok_or_else(|| {
        let known: Vec<&str> = facts.prompts.texts().keys().map(String::as_str).collect();
        let known = if known.is_empty() { "no name: the model has no prompts".into() } else { known.join(", ") };
        wrong("prompt_name", &known, &name.into())
    })
}

fn expected(found: &Json) -> ApiError {
    wrong(INPUT, "a text, a list of texts, a list of tokens, or a list of such lists", found)
}

struct InputReader<'a> {
    tokenizer: &'a Tokenizer,
    facts: &'a Facts,
    truncates: bool,
    /// Prefix of every text.
    prompt: &'a str,
}

impl InputReader<'_> {
    fn item(&self, item: &Json) -> Result<Vec<u32>> {
        match item {
            Json::String(text) => self.text(text),
            Json::Array(list) => self.tokens(list),
            other => Err(expected(other)),
        }
    }

    fn text(&self, text: &str) -> Result<Vec<u32>> {
        if text.is_empty() {
            return Err(ApiError::value(INPUT, "`input` has an empty text"));
        }
        let whole = [self.prompt, text].concat();
        let (text, most) = (whole.as_str(), self.facts.max_tokens.saturating_mul(MAX_BYTES_A_TOKEN));
        let text = match text.len() > most {
            // Text beyond the limit is not tokenized.
            true if self.truncates => &text[..text.floor_char_boundary(most)],
            true => return Err(self.too_long(&format!("{} bytes", text.len()))),
            false => text,
        };
        let ids = self.tokenizer.encode(text, true).map_err(|error| ApiError::value(INPUT, error.to_string()))?;
        self.fitting(ids)
    }

    /// Checks token ids and keeps them unchanged. Clients add special tokens themselves.
    fn tokens(&self, list: &[Json]) -> Result<Vec<u32>> {
        let vocabulary = self.facts.vocabulary;
        let id = |value: &Json| {
            let id = value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
            id.ok_or_else(|| wrong(INPUT, &format!("tokens below {vocabulary}"), value))
        };
        if list.is_empty() {
            return Err(ApiError::value(INPUT, "`input` has an empty list of tokens"));
        }
        self.fitting(list.iter().map(id).collect::<Result<_>>()?)
    }

    fn fitting(&self, mut ids: Vec<u32>) -> Result<Vec<u32>> {
        if self.truncates {
            truncate(&mut ids, self.facts.max_tokens, self.tokenizer);
        }
        if ids.len() > self.facts.max_tokens { Err(self.too_long(&format!("{} tokens", ids.len()))) } else { Ok(ids) }
    }

    fn too_long(&self, found: &str) -> ApiError {
        let message = format!(
            "a text has {found}, and the model takes at most {} tokens; `truncate` leaves out what is too much",
            self.facts.max_tokens
        );
        let mut error = ApiError::too_long(message);
        error.param = Some(INPUT.into());
        error
    }
}
