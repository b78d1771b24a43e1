//! Tokens that are matched whole in a text.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config::token_text;

/// Properties of such a token, with their defaults.
const PROPERTIES: [&str; 4] = ["single_word", "lstrip", "rstrip", "normalized"];

/// Added and special tokens by id.
pub(super) struct Added {
    tokens: BTreeMap<u64, Value>,
    ids: BTreeMap<String, u64>,
    /// Id of the next token outside the vocabulary.
    next: u64,
}

impl Added {
    /// Collects the tokens of the vocabulary, of both configs and of `added_tokens.json`.
    pub(super) fn new(
        vocab: &Map<String, Value>,
        config: &Map<String, Value>,
        special: &Map<String, Value>,
        listed: &Map<String, Value>,
    ) -> Added {
        let stored: BTreeMap<String, u64> = vocab.iter().filter_map(|(text, id)| Some((text.clone(), id.as_u64()?))).collect();
        let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
        let decoder = decoder.into_iter().flatten().filter_map(|(id, token)| Some((id.parse::<u64>().ok()?, token)));
        let decoder: Vec<_> = decoder.collect();
        let listed: Vec<_> = listed.iter().filter_map(|(text, id)| Some((id.as_u64()?, text))).collect();
        let known = stored.values().copied().chain(decoder.iter().map(|(id, _)| *id)).chain(listed.iter().map(|(id, _)| *id));
        let next = known.max().map_or(0, |id| id.saturating_add(1));
        let mut added = Added { tokens: BTreeMap::new(), ids: stored, next };
        for (id, token) in decoder {
            let is_special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            added.insert(Some(id), token, is_special);
        }
        for (id, text) in listed {
            added.insert(Some(id), &json!(text), false);
        }
        for map in [config, special] {
            let roles = map.iter().filter(|(key, _)| key.ends_with("_token")).map(|(_, token)| token);
            let others = map.get("additional_special_tokens").and_then(Value::as_array).into_iter().flatten();
            roles.chain(others).for_each(|token| added.insert(None, token, true));
        }
        added
    }

    /// The id of a token.
    pub(super) fn id(&self, text: &str) -> Option<u64> {
        self.ids.get(text).copied()
    }

    /// The tokens in order, as `tokenizer.json` lists them.
    pub(super) fn list(&self) -> Value {
        self.tokens.values().cloned().collect()
    }

    /// Adds a token, or makes a known one special. A token without an id follows all others.
    fn insert(&mut self, id: Option<u64>, token: &Value, is_special: bool) {
        let Some(text) = token_text(Some(token)).filter(|text| !text.is_empty()) else { return };
        let id = id.or_else(|| self.id(text)).unwrap_or(self.next);
        self.next = self.next.max(id.saturating_add(1));
        self.ids.insert(text.to_owned(), id);
        if let Some(known) = self.tokens.get_mut(&id) {
            if is_special {
                known["special"] = json!(true);
            }
            return;
        }
        let mut entry = json!({"id": id, "content": text, "special": is_special});
        for property in PROPERTIES {
            let default = property == "normalized" && !is_special;
            entry[property] = json!(token.get(property).and_then(Value::as_bool).unwrap_or(default));
        }
        self.tokens.insert(id, entry);
    }
}
