//! Tokenizers of text encoders: WordPiece and unigrams.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::{CONTROL, GgufVocab, SPACE_MARK};
use crate::{
    error::{Error, GgufFault, Result},
    word_piece::WordPiece,
};

impl GgufVocab {
    /// WordPiece, whose pieces at the beginning of a word are marked in the file. Text is in lower
    /// case, as in llama.cpp.
    pub(super) fn word_piece(&self) -> Map<String, Value> {
        let is_whole =
            |id: usize, token: &str| self.token_types.get(id) == Some(&CONTROL) || token.starts_with('[') && token.ends_with(']');
        let piece = |(id, token): (usize, &String)| match token.strip_prefix(SPACE_MARK) {
            Some(begin) => (begin.to_owned(), json!(id)),
            None if is_whole(id, token) => (token.clone(), json!(id)),
            None => (format!("##{token}"), json!(id)),
        };
        let vocab: Map<String, Value> = self.tokens.iter().enumerate().map(piece).collect();
        let unknown = self.unk.and_then(|id| self.tokens.get(id as usize)).map_or("[UNK]", String::as_str);
        WordPiece { vocab, unknown, divides_chinese: true, strips_accents: None, lowercases: true }.into_parts()
    }

    /// SentencePiece's unigrams with their scores.
    ///
    /// # Errors
    /// The file has no scores.
    pub(super) fn unigram(&self) -> Result<Map<String, Value>> {
        if self.scores.is_empty() {
            return Err(Error::Gguf(GgufFault::Unranked));
        }
        let vocab: Vec<Value> = self.tokens.iter().zip(&self.scores).map(|(token, score)| json!([token, score])).collect();
        let mut normalizers = Vec::new();
        if !self.charsmap.is_empty() {
            normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(&self.charsmap)}));
        }
        normalizers.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
        let scheme = if self.add_space_prefix.unwrap_or(true) { "always" } else { "never" };
        let words = json!({"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": scheme, "split": true});
        let mut root = Map::new();
        root.insert("normalizer".into(), json!({"type": "Sequence", "normalizers": normalizers}));
        root.insert("pre_tokenizer".into(), json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, words]}));
        root.insert("decoder".into(), words);
        root.insert("model".into(), json!({"type": "Unigram", "unk_id": self.unk, "vocab": vocab, "byte_fallback": false}));
        Ok(root)
    }

    /// Puts the tokens of an encoder around a text and between the texts of a pair.
    pub(super) fn encoder_post_processor(&self) -> Value {
        let token = |id: Option<u32>| id.and_then(|id| Some((id, self.tokens.get(id as usize)?)));
        let (first, last) = (token(self.cls.or(self.bos)), token(self.sep.or(self.eos)));
        let (Some((first, begin)), Some((last, end))) = (first, last) else { return Value::Null };
        let special = |text: &String, kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
        let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        // RoBERTa's tokenizers put two ends between texts, and give all tokens the first type.
        let (second, between) =
            if self.model == "t5" { (0, vec![special(end, 0), special(end, 0)]) } else { (1, vec![special(end, 0)]) };
        let single = json!([special(begin, 0), text("A", 0), special(end, 0)]);
        let mut pair = vec![special(begin, 0), text("A", 0)];
        pair.extend(between);
        pair.extend([text("B", second), special(end, second)]);
        let entry = |text: &String, id: u32| json!({"id": text, "ids": [id], "tokens": [text]});
        let mut tokens = Map::new();
        tokens.insert(begin.clone(), entry(begin, first));
        tokens.insert(end.clone(), entry(end, last));
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
    }
}
