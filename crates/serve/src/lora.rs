//! LoRA adapters, selected by requests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use flambeau::runners::llm::{AdapterFacts, Adapters};
use serde_json::{Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::wrong,
};

/// A model's adapters with their default scales, initially 0.
#[derive(Debug)]
pub(crate) struct Lora {
    adapters: Vec<AdapterFacts>,
    general: Mutex<Adapters>,
}

impl Lora {
    pub(crate) fn new(adapters: Vec<AdapterFacts>) -> Lora {
        Lora { adapters, general: Mutex::default() }
    }

    fn general(&self) -> MutexGuard<'_, Adapters> {
        self.general.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scales for a request: the adapter with this index at its default scale, or all default
    /// scales.
    pub(crate) fn request_scales(&self, adapter: Option<usize>) -> Adapters {
        let Some(at) = adapter else { return self.general().clone() };
        let scale = |(i, adapter): (usize, &AdapterFacts)| if i == at { adapter.scale } else { 0.0 };
        Adapters::new(&self.adapters.iter().enumerate().map(scale).collect::<Vec<_>>())
    }

    /// Parses scales in llama.cpp's format: a list of objects with `id` and `scale`. Omitted
    /// adapters get scale 0.
    ///
    /// # Errors
    /// Fails if an entry is malformed or names an unknown adapter.
    pub(crate) fn read(&self, list: &[Json]) -> Result<Adapters> {
        let mut scales = vec![0.0; self.adapters.len()];
        for entry in list {
            let id = entry["id"].as_u64().and_then(|id| usize::try_from(id).ok());
            let scale = entry["scale"].as_f64().map(|scale| scale as f32).filter(|scale| scale.is_finite());
            let (Some(id), Some(scale)) = (id, scale) else {
                return Err(wrong("lora", "a list of objects with a whole number `id` and a number `scale`", entry));
            };
            let missing = || ApiError::value("lora", format!("there is no adapter {id}; GET /lora-adapters lists them"));
            *scales.get_mut(id).ok_or_else(missing)? = scale;
        }
        Ok(Adapters::new(&scales))
    }

    /// The adapters with their default scales, in llama.cpp's format.
    pub(crate) fn to_json(&self) -> Json {
        let general = self.general().clone();
        let scale = |i: usize| general.scales().get(i).copied().unwrap_or(0.0);
        let entry = |(i, adapter): (usize, &AdapterFacts)| json!({ "id": i, "path": adapter.name, "scale": scale(i) });
        self.adapters.iter().enumerate().map(entry).collect()
    }

    /// Sets the default scales.
    pub(crate) fn set(&self, adapters: Adapters) {
        *self.general() = adapters;
    }
}
