//! Requests for scores.

use flambeau::{
    runners::embed::{INSTRUCTION, Tokens, truncate},
    text::Placed,
};
use serde_json::Value as Json;

use crate::{
    embeddings::request::{MAX_BYTES_A_TOKEN, MAX_TEXTS},
    encoder::ServedEncoder,
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Ignored fields. Long documents are always truncated.
const HARMLESS: &[&str] = &["priority", "truncate", "truncation", "user"];

const QUERY: &str = "query";
const DOCUMENTS: &str = "documents";
const TEXTS: &str = "texts";
const INPUT: &str = "input";

/// A ranking request.
#[derive(Debug)]
pub(crate) struct RerankRequest {
    query: String,
    pub(crate) documents: Documents,
    instruction: Option<String>,
    /// Maximum number of tokens per document.
    document_tokens: Option<usize>,
    /// Number of documents to return, if limited.
    pub(crate) most: Option<usize>,
    /// Whether the response includes the documents.
    pub(crate) returns: bool,
    /// Whether scores are returned raw, without the sigmoid.
    pub(crate) is_raw: bool,
}

/// Documents of a request.
#[derive(Debug)]
pub(crate) struct Documents {
    list: Vec<String>,
    /// Whether the field is called `texts` and the response is a bare list.
    pub(crate) is_bare: bool,
}

impl Documents {
    pub(crate) fn texts(&self) -> Vec<&str> {
        self.list.iter().map(String::as_str).collect()
    }
}

impl RerankRequest {
    /// Parses a request after `model` was taken. `returns` is the default for including documents.
    ///
    /// # Errors
    /// The error names the invalid or unsupported field.
    pub(crate) fn read(mut fields: Fields, returns: bool) -> Result<RerankRequest> {
        let query = fields.text(QUERY)?.ok_or_else(|| ApiError::value(QUERY, "`query` is missing"))?;
        let (texts, documents) = (fields.take(TEXTS), fields.take(DOCUMENTS));
        let (param, given) = match (documents, texts) {
            (Some(documents), None) => (DOCUMENTS, documents),
            (None, Some(texts)) => (TEXTS, texts),
            (None, None) => return Err(ApiError::value(DOCUMENTS, "`documents` is missing")),
            (Some(_), Some(_)) => return Err(ApiError::value(TEXTS, "`documents` and `texts` exclude each other")),
        };
        let documents = Documents { list: list(&given, param)?, is_bare: param == TEXTS };
        let flag = if documents.is_bare { fields.flag("return_text")?.or(Some(false)) } else { fields.flag("return_documents")? };
        let request = RerankRequest {
            query,
            instruction: fields.text("instruction")?,
            document_tokens: fields.count("max_tokens_per_doc", 1..=u32::MAX.into())?,
            most: fields.count("top_n", 1..=u32::MAX.into())?,
            returns: flag.unwrap_or(returns),
            is_raw: fields.flag("raw_scores")?.unwrap_or(false),
            documents,
        };
        fields.finish(HARMLESS)?;
        Ok(request)
    }
}

/// Parses texts: strings, or objects with a field `text`.
fn list(given: &Json, param: &str) -> Result<Vec<String>> {
    let text = |item: &Json| item.as_str().or_else(|| item["text"].as_str()).map(str::to_owned);
    let texts: Option<Vec<String>> = given.as_array().and_then(|list| list.iter().map(text).collect());
    let texts = texts.filter(|texts| (1..=MAX_TEXTS).contains(&texts.len()));
    texts.ok_or_else(|| wrong(param, &format!("a list of 1 to {MAX_TEXTS} texts"), given))
}

/// Tokens of the query paired with each document.
pub(crate) fn pairs(request: &RerankRequest, model: &ServedEncoder) -> Result<Vec<Tokens>> {
    let scoring = super::scoring(model)?;
    if request.instruction.is_some() && !scoring.takes_instruction() {
        return Err(ApiError::unsupported("instruction", "`instruction` is not supported: the model does not read one"));
    }
    let instruction = request.instruction.as_deref().unwrap_or(INSTRUCTION);
    let pair = |document: &String| {
        let document = match request.document_tokens {
            Some(most) => &*cut(model, document, most)?,
            None => document,
        };
        tokens_of_pair(model, [&request.query, document], instruction, [QUERY, DOCUMENTS])
    };
    request.documents.list.iter().map(pair).collect()
}

/// The first tokens of a document, at most this many.
fn cut<'a>(model: &ServedEncoder, document: &'a str, most: usize) -> Result<std::borrow::Cow<'a, str>> {
    let bounded = bounded(document, most);
    let bad = |error: flambeau::text::Error| ApiError::value(DOCUMENTS, error.to_string());
    let mut ids = model.tokenizer.encode_plain(bounded).map_err(bad)?;
    if ids.len() <= most {
        return Ok(bounded.into());
    }
    ids.truncate(most);
    Ok(model.tokenizer.decode(&ids, false).map_err(bad)?.into())
}

/// A prefix of a text that covers at least `tokens` tokens.
fn bounded(text: &str, tokens: usize) -> &str {
    &text[..text.floor_char_boundary(tokens.saturating_mul(MAX_BYTES_A_TOKEN).min(text.len()))]
}

fn tokens_of_pair(model: &ServedEncoder, [query, document]: [&str; 2], instruction: &str, params: [&str; 2]) -> Result<Tokens> {
    let scoring = super::scoring(model)?;
    let most = scoring.max_tokens();
    if query.is_empty() {
        return Err(ApiError::value(params[0], format!("`{}` has an empty text", params[0])));
    }
    let texts = [bounded(query, most), bounded(document, most)];
    scoring.pair(&model.tokenizer, texts, instruction, most).map_err(|error| ApiError::value(params[1], error.to_string()))
}

/// Tokens of the pairs to score: `queries` with `documents`, or `text_1` with `text_2`. A single
/// text is paired with each text of the other list.
pub(crate) fn scored_pairs(fields: &mut Fields, model: &ServedEncoder) -> Result<Vec<Tokens>> {
    let mut one_of = |names: [&'static str; 2]| {
        let given = names.map(|name| (name, fields.take(name)));
        let given = given.into_iter().find_map(|(name, value)| Some((name, value?)));
        let (name, value) = given.ok_or_else(|| ApiError::value(names[0], format!("`{}` is missing", names[0])))?;
        let value = if value.is_array() { value } else { Json::Array(vec![value]) };
        Ok::<_, ApiError>((name, list(&value, name)?))
    };
    let (first, mut queries) = one_of(["queries", "text_1"])?;
    let (second, mut documents) = one_of([DOCUMENTS, "text_2"])?;
    let most = queries.len().max(documents.len());
    for list in [&mut queries, &mut documents] {
        if let [one] = &list[..] {
            *list = vec![one.clone(); most];
        }
    }
    if queries.len() != documents.len() {
        let message = format!("`{first}` has {} texts and `{second}` has {}", queries.len(), documents.len());
        return Err(ApiError::value(second, message));
    }
    let pair = |(query, document): (&String, &String)| tokens_of_pair(model, [query, document], INSTRUCTION, [first, second]);
    queries.iter().zip(&documents).map(pair).collect()
}

/// Tokens of the texts in `input`.
pub(crate) fn input_texts(fields: &mut Fields, model: &ServedEncoder) -> Result<Vec<Tokens>> {
    let most = super::scoring(model)?.max_tokens();
    let tokens = |text: &String| {
        let ids = model.tokenizer.encode(bounded(text, most), true);
        let mut ids = ids.map_err(|error| ApiError::value(INPUT, error.to_string()))?;
        truncate(&mut ids, most, &model.tokenizer);
        not_empty(&ids)?;
        Ok(Tokens::from(ids))
    };
    inputs(fields)?.iter().map(tokens).collect()
}

/// The tokens of the texts under `input`, with their places.
pub(crate) fn placed_texts(fields: &mut Fields, model: &ServedEncoder) -> Result<Vec<Placed>> {
    let most = model.worker.facts.max_tokens;
    let tokens = |text: &String| {
        let placed = model.tokenizer.encode_with_places(bounded(text, most));
        let mut placed = placed.map_err(|error| ApiError::value(INPUT, error.to_string()))?;
        placed.truncate(most);
        not_empty(&placed.ids)?;
        Ok(placed)
    };
    inputs(fields)?.iter().map(tokens).collect()
}

/// The texts under `input`.
fn inputs(fields: &mut Fields) -> Result<Vec<String>> {
    let value = fields.take(INPUT).ok_or_else(|| ApiError::value(INPUT, "`input` is missing"))?;
    list(&if value.is_array() { value } else { Json::Array(vec![value]) }, INPUT)
}

fn not_empty(ids: &[u32]) -> Result<()> {
    if ids.is_empty() { Err(ApiError::value(INPUT, "`input` has an empty text")) } else { Ok(()) }
}
