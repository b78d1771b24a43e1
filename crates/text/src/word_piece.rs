//! BERT's WordPiece as `tokenizer.json` states it.

use serde_json::{Map, Value, json};

/// A vocabulary, and the changes to a text before it is divided.
pub(crate) struct WordPiece<'a> {
    /// Pieces with their numbers. Pieces inside a word begin with `##`.
    pub(crate) vocab: Map<String, Value>,
    /// The token of unknown words.
    pub(crate) unknown: &'a str,
    /// Whether Chinese characters are words of their own.
    pub(crate) divides_chinese: bool,
    /// Whether accents are removed; by default if the text becomes lower case.
    pub(crate) strips_accents: Option<bool>,
    pub(crate) lowercases: bool,
}

impl WordPiece<'_> {
    /// Normalizer, pre-tokenizer, decoder and model.
    pub(crate) fn into_parts(self) -> Map<String, Value> {
        let normalizer = json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": self.divides_chinese,
            "strip_accents": self.strips_accents, "lowercase": self.lowercases,
        });
        let model = json!({
            "type": "WordPiece", "unk_token": self.unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": self.vocab,
        });
        let mut parts = Map::new();
        parts.insert("normalizer".into(), normalizer);
        parts.insert("pre_tokenizer".into(), json!({"type": "BertPreTokenizer"}));
        parts.insert("decoder".into(), json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
        parts.insert("model".into(), model);
        parts
    }
}
