//! The entities of texts, such as names of persons and places.

use std::sync::Arc;

use axum::response::Response;
use flambeau::{runners::embed::Tokens, text::Placed};
use serde_json::Value as Json;

use super::{answer::entities_entry, listed, request::placed_texts, scored};
use crate::{
    app::App,
    encoder::ServedEncoder,
    error::{ApiError, Result},
    json::Fields,
    keys::Caller,
};

/// Finds the entities of each text under `input`.
pub(super) async fn found(app: &App, caller: Caller, fields: Fields, model: Arc<ServedEncoder>) -> Result<Response> {
    let read = |fields: &mut Fields, model: &ServedEncoder| {
        let texts: Vec<Placed> = placed_texts(fields, model)?;
        let ids = texts.iter().map(|text| Tokens::from(text.ids.clone())).collect();
        Ok((ids, texts))
    };
    let scored = scored(app, caller, (fields, model), read).await?;
    let decode = move || {
        let tagging = scored.model.worker.facts.tagging.as_ref();
        let tagging = tagging.ok_or_else(|| ApiError::internal("the model labels no tokens"))?;
        let failed = |_| ApiError::internal("the entities cannot be decoded");
        let rows = scored.texts.iter().zip(&scored.rows).enumerate();
        let entries = rows.map(|(index, (text, scores))| {
            let entities = tagging.entities(text, scores, &scored.model.tokenizer).map_err(failed)?;
            Ok(entities_entry(index, &entities))
        });
        let data = entries.collect::<Result<Json>>()?;
        Ok(listed("classify-", &scored.model.name, &data, scored.tokens))
    };
    app.offload(decode).await
}
