//! `/v1/rerank`, `/v1/score` and `/v1/classify`: scores of texts and of pairs of texts.

mod answer;
mod entities;
mod request;

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::Request, response::Response};
use flambeau::runners::embed::{Scoring, Tokens, probabilities};
use serde_json::{Value as Json, json};

pub use self::answer::{RerankList, entities_entry, label_entry};
use self::request::{RerankRequest, input_texts, pairs, scored_pairs};
use crate::{
    app::App,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    http::body,
    ids::unique_id,
    json::Fields,
    keys::Caller,
    openapi::BodyKind,
    reply,
};

/// Request bodies.
pub(crate) const DOCUMENTS: BodyKind = BodyKind::Object(&["query", "documents"]);
pub(crate) const PAIRS: BodyKind = BodyKind::Object(&["queries", "documents"]);

/// `POST /v1/rerank`: ranks documents by relevance, in the format shared by Jina, vLLM and
/// llama.cpp. With `texts` instead of `documents`, it uses the format of text-embeddings-inference.
pub(crate) async fn rerank(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let (list, request, model) = ranked(&app, caller, request, true).await?;
    let texts = request.returns.then(|| request.documents.texts());
    if request.documents.is_bare {
        let entry = |(index, score): (usize, f32)| match &texts {
            Some(texts) => json!({ "index": index, "score": score, "text": texts[index] }),
            None => json!({ "index": index, "score": score }),
        };
        let all = RerankList::new(&model.name, &list.scores, None, request.most, list.tokens);
        return Ok(reply::json(&all.order().map(entry).collect::<Json>()));
    }
    let list = RerankList::new(&model.name, &list.scores, texts.as_deref(), request.most, list.tokens);
    let mut answer = serde_json::to_value(&list).map_err(|_| ApiError::internal("the answer cannot be written"))?;
    answer["id"] = unique_id("rerank-").into();
    Ok(reply::json(&answer))
}

/// `POST /v2/rerank`: ranks documents by relevance, in Cohere's format.
pub(crate) async fn rerank_cohere(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let (list, request, model) = ranked(&app, caller, request, false).await?;
    let texts = request.returns.then(|| request.documents.texts());
    let ranked = RerankList::new(&model.name, &list.scores, texts.as_deref(), request.most, list.tokens);
    let results = serde_json::to_value(&ranked).map_err(|_| ApiError::internal("the answer cannot be written"))?;
    Ok(reply::json(&json!({
        "id": unique_id("rerank-"),
        "results": results["results"],
        "meta": { "api_version": { "version": "2" }, "tokens": { "input_tokens": list.tokens } },
    })))
}

/// `POST /v1/score`: returns the relevance of each text to its query, in vLLM's format.
pub(crate) async fn score(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let read = |fields: &mut Fields, model: &ServedEncoder| Ok((scored_pairs(fields, model)?, ()));
    let scored = scored(&app, caller, opened(&app, request).await?, read).await?;
    let scoring = scoring(&scored.model)?;
    Ok(scored.list("score-", |index, scores| json!({ "index": index, "object": "score", "score": scoring.relevance(scores) })))
}

/// `POST /v1/classify`: returns the label of each text and the probabilities of all labels, in
/// vLLM's format. A classifier of tokens returns the entities of each text.
pub(crate) async fn classify(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let (fields, model) = opened(&app, request).await?;
    if model.worker.facts.tagging.is_some() {
        return entities::found(&app, caller, fields, model).await;
    }
    let read = |fields: &mut Fields, model: &ServedEncoder| Ok((input_texts(fields, model)?, ()));
    let scored = scored(&app, caller, (fields, model), read).await?;
    let labels = scoring(&scored.model)?.labels();
    Ok(scored.list("classify-", |index, scores| label_entry(index, labels, &probabilities(scores))))
}

/// Scores of a request's texts, with the number of input tokens.
struct Scored<T> {
    model: Arc<ServedEncoder>,
    /// The rest of the request.
    texts: T,
    rows: Vec<Vec<f32>>,
    tokens: usize,
}

/// Computes the scores of the texts that `read` extracts from a request, with its other results.
async fn scored<T: Send + 'static>(
    app: &App,
    caller: Caller,
    (mut fields, model): (Fields, Arc<ServedEncoder>),
    read: impl FnOnce(&mut Fields, &ServedEncoder) -> Result<(Vec<Tokens>, T)> + Send + 'static,
) -> Result<Scored<T>> {
    let (place, handle) = (model.place()?, Arc::clone(&model));
    let read = move || read(&mut fields, &handle).and_then(|read| fields.finish(&["user"]).map(|()| read));
    let (ids, texts) = app.offload(read).await?;
    let tokens = count(&ids);
    let rows = app.rows(&model, caller, ids, place).await?;
    Ok(Scored { model, texts, rows, tokens })
}

impl Scored<()> {
    /// Response in vLLM's format with one entry per text.
    fn list(&self, prefix: &str, entry: impl Fn(usize, &[f32]) -> Json) -> Response {
        let data = self.rows.iter().enumerate().map(|(index, scores)| entry(index, scores)).collect();
        listed(prefix, &self.model.name, &data, self.tokens)
    }
}

/// A response in vLLM's format, with the number of input tokens.
fn listed(prefix: &str, model: &str, data: &Json, tokens: usize) -> Response {
    reply::json(&json!({
        "id": unique_id(prefix),
        "object": "list",
        "model": model,
        "data": data,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    }))
}

/// Relevance of documents, and the number of input tokens.
struct Ranked {
    scores: Vec<f32>,
    tokens: usize,
}

/// Parses a ranking request and computes the relevance of its documents.
async fn ranked(
    app: &App,
    caller: Caller,
    request: Request<Body>,
    returns: bool,
) -> Result<(Ranked, RerankRequest, Arc<ServedEncoder>)> {
    let (fields, model) = opened(app, request).await?;
    let scoring = scoring(&model)?;
    if !scoring.ranks() {
        let message =
            format!("the model {:?} has {} labels; only models with one or two can rank", model.name, scoring.labels().len());
        return Err(ApiError::value("model", message));
    }
    let (place, handle) = (model.place()?, Arc::clone(&model));
    let work = move || {
        let request = RerankRequest::read(fields, returns)?;
        let texts = pairs(&request, &handle)?;
        Ok((request, texts))
    };
    let (request, texts): (RerankRequest, Vec<Tokens>) = app.offload(work).await?;
    let tokens = count(&texts);
    let scores = app.rows(&model, caller, texts, place).await?;
    let of = |scores: &Vec<f32>| match (request.is_raw, &scores[..]) {
        (true, [one]) => *one,
        (true, [no, yes]) => yes - no,
        _ => scoring.relevance(scores),
    };
    let scores = scores.iter().map(of).collect();
    Ok((Ranked { scores, tokens }, request, Arc::clone(&model)))
}

/// Fields of a request and its classifier.
async fn opened(app: &App, request: Request<Body>) -> Result<(Fields, Arc<ServedEncoder>)> {
    let body = body::read(request, &app.config).await?;
    let mut fields = app.parse(body).await?;
    let model = app.models.find_classifier(fields.text("model")?.as_deref()).await?;
    Ok((fields, model))
}

fn scoring(model: &ServedEncoder) -> Result<&Scoring> {
    let message = || format!("the model {:?} labels tokens; use /v1/classify", model.name);
    model.worker.facts.scoring.as_ref().ok_or_else(|| ApiError::value("model", message()))
}

fn count(texts: &[Tokens]) -> usize {
    texts.iter().map(|text| text.ids.len()).sum()
}
