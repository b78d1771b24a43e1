//! The choice of a model's adapters for a text.

use std::{fmt, sync::Arc};

use flambeau_runtime::{Program, Value};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

/// An adapter that a program applies at run time.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFacts {
    pub name: String,
    /// Default scale, a factor on the adapter's own strength.
    pub scale: f32,
}

impl AdapterFacts {
    /// Reads the constant method `get_lora_adapters`; empty for programs without adapters.
    pub(crate) fn of(program: &Program) -> Vec<AdapterFacts> {
        let text = program.constant("get_lora_adapters").and_then(|values| match values.first() {
            Some(Value::String(text)) => serde_json::from_str::<Json>(text).ok(),
            _ => None,
        });
        let list = text.as_ref().and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let read = |entry: &Json| {
            let scale = entry["scale"].as_f64().filter(|scale| scale.is_finite()).unwrap_or(1.0) as f32;
            entry["name"].as_str().map(|name| AdapterFacts { name: name.to_owned(), scale })
        };
        list.iter().filter_map(read).collect()
    }
}

/// Scales of a model's adapters, in the program's order. The default is the base model.
///
/// The contents of caches depend on them, so texts with different scales share no caches.
#[derive(Clone, Default)]
pub struct Adapters(Option<Arc<[f32]>>);

const BASE: &Adapters = &Adapters(None);

impl Adapters {
    /// Adapters with these scales: 0 leaves an adapter out, and 1 applies it as trained.
    pub fn new(scales: &[f32]) -> Adapters {
        Adapters(scales.iter().any(|&scale| scale != 0.0).then(|| scales.into()))
    }

    /// Whether all adapters are left out.
    pub fn is_base(&self) -> bool {
        self.0.is_none()
    }

    /// The scales; empty for the base model.
    pub fn scales(&self) -> &[f32] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The scales of a model with `count` adapters.
    pub(super) fn of_model(&self, count: usize) -> Vec<f32> {
        let mut scales = self.scales().to_vec();
        scales.resize(count, 0.0);
        scales
    }

    /// A model's fingerprint with these adapters.
    pub(super) fn fingerprint(&self, model: [u8; 32]) -> [u8; 32] {
        if self.is_base() {
            return model;
        }
        let mut hash = Sha256::new();
        hash.update(model);
        self.scales().iter().for_each(|scale| hash.update(scale.to_le_bytes()));
        hash.finalize().into()
    }
}

impl PartialEq for Adapters {
    fn eq(&self, other: &Adapters) -> bool {
        self.scales() == other.scales()
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapters").field(&self.scales()).finish()
    }
}

/// A text as a key of caches: their contents depend on its tokens and adapters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a> {
    pub(super) adapters: &'a Adapters,
    pub(super) ids: &'a [u32],
}

impl<'a> From<&'a [u32]> for Text<'a> {
    /// A text of the base model.
    fn from(ids: &'a [u32]) -> Text<'a> {
        Text { adapters: BASE, ids }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_model_is_one_choice_however_it_is_written() {
        assert!(Adapters::new(&[0.0, -0.0]).is_base() && Adapters::new(&[]) == Adapters::default());
        let [one, other] = [[1.0, 0.0], [0.0, 1.0]].map(|scales| Adapters::new(&scales));
        assert!(one != other && one == one.clone());
        assert_eq!((one.of_model(2), Adapters::default().of_model(2)), (vec![1.0, 0.0], vec![0.0, 0.0]));
        let prints = [&Adapters::default(), &one, &other].map(|adapters| adapters.fingerprint([7; 32]));
        assert!(prints[0] == [7; 32] && prints[1] != prints[0] && prints[1] != prints[2]);
    }
}
