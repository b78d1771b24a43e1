//! The entities of texts, such as names of persons and places.

use std::sync::Arc;

use axum::response::Response;
use flambeau::{
    runners::embed::{Entity, Tokens},
    text::Placed,
};
use serde_json::{Value as Json, json};

use super::{listed, request::placed_texts};
use crate::{
    app::App,
    embeddings::ServedEncoder,
    error::{ApiError, Result},
    json::Fields,
    keys::Caller,
};

/// Finds the entities of each text under `input`.
pub(super) async fn found(app: &App, caller: Caller, mut fields: Fields, model: Arc<ServedEncoder>) -> Result<Response> {
    let (place, handle) = (model.place()?, Arc::clone(&model));
    let read = move || placed_texts(&mut fields, &handle).and_then(|texts| fields.finish(&["user"]).map(|()| texts));
    let texts: Vec<Placed> = app.aside(read).await?;
    let ids: Vec<Tokens> = texts.iter().map(|text| Tokens::from(text.ids.clone())).collect();
    let rows = model.rows(app, caller, ids, place).await?;
    let failed = |_| ApiError::internal("the entities cannot be decoded");
    let tagging = model.worker.facts.tagging.as_ref().ok_or_else(|| ApiError::internal("the model labels no tokens"))?;
    let mut data = Vec::with_capacity(texts.len());
    for (index, (text, scores)) in texts.iter().zip(&rows).enumerate() {
        let entities = tagging.entities(text, scores, &model.tokenizer).map_err(failed)?;
        data.push(json!({ "index": index, "entities": entities.iter().map(entry).collect::<Json>() }));
    }
    Ok(listed("classify-", &model.name, &data.into(), texts.iter().map(|text| text.ids.len()).sum()))
}

fn entry(entity: &Entity) -> Json {
    let Entity { entity_group, score, word, start, end } = entity;
    json!({ "entity_group": entity_group, "score": score, "word": word, "start": start, "end": end })
}
