//! `/v1/embeddings`: vectors of texts.

mod answer;
pub(crate) mod request;

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::Request, response::Response};
use flambeau::runners::embed::shorten;

pub use self::answer::EmbeddingList;
use self::{answer::VectorFormat, request::EmbeddingRequest};
use crate::{
    app::App,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    http::body,
    json::Fields,
    keys::Caller,
    reply,
};

/// Vectors of texts, with the number of tokens.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    pub(crate) list: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

/// Computes the requested vectors and returns the requested encoding.
///
/// # Errors
/// Fails if the request is invalid or too many requests wait.
async fn compute_in_form(app: &App, caller: Caller, model: &Arc<ServedEncoder>, fields: Fields) -> Result<(Vectors, VectorFormat)> {
    let place = model.place()?;
    let encoder = Arc::clone(model);
    let EmbeddingRequest { texts, form, dimensions } =
        app.offload(move || EmbeddingRequest::read(fields, &encoder.tokenizer, &encoder.worker.facts)).await?;
    let tokens = texts.iter().map(|text| text.ids.len()).sum();
    let mut list = app.rows(model, caller, texts, place).await?;
    if let Some(size) = dimensions {
        list.iter_mut().for_each(|vector| shorten(vector, size));
    }
    Ok((Vectors { list, tokens }, form))
}

/// Computes the vectors of a request in OpenAI's format.
///
/// # Errors
/// Fails as [`compute_in_form`] does.
pub(crate) async fn compute(app: &App, caller: Caller, model: Arc<ServedEncoder>, fields: Fields) -> Result<Vectors> {
    compute_in_form(app, caller, &model, fields).await.map(|(vectors, _)| vectors)
}

/// `POST /v1/embeddings`: returns a vector for each text.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let body = body::read(request, &app.config).await?;
    let mut fields = app.parse(body).await?;
    let model = app.models.find_encoder(fields.text("model")?.as_deref()).await?;
    let (Vectors { list, tokens }, form) = compute_in_form(&app, caller, &model, fields).await?;
    let work = move || {
        serde_json::to_string(&EmbeddingList::new(&model.name, &list, form, tokens))
            .map_err(|_| ApiError::internal("the answer cannot be written"))
    };
    Ok(reply::json_text(app.offload(work).await?))
}
