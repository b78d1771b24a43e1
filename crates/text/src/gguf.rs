//! Tokenizers out of GGUF metadata.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::config::SpecialTokens;
use crate::ends;
use crate::error::{Error, GgufFault, Result};

use self::pre_tokenizers::{Cut, PRE_TOKENIZERS, PreTokenizer};

mod encoders;
mod pre_tokenizers;

/// The `tokenizer.ggml.*` metadata of a GGUF file. Missing keys are empty lists or `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `model`: `gpt2` (byte-level BPE with merges), `llama` (SentencePiece BPE with scores),
    /// `gemma4` (the same with merges), `bert` (WordPiece) or `t5` (SentencePiece's unigrams).
    pub model: String,
    /// `pre`: kind of pre-tokenizer, only used by `gpt2`.
    pub pre: Option<String>,
    /// `tokens` `[V]`: text of each id.
    pub tokens: Vec<String>,
    /// `scores` `[V]`: the larger, the earlier a piece is merged; needed by `llama` without merges.
    pub scores: Vec<f32>,
    /// `token_type` `[V]`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `merges`: pairs as `left right`, in order of rank.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id` and `eom_token_id`: ids that end a turn or a message.
    pub other_eos: Vec<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`, only used by `llama` and `t5`.
    pub add_space_prefix: Option<bool>,
    /// `cls_token_id` and `seperator_token_id` (in this spelling): tokens around texts of encoders.
    pub cls: Option<u32>,
    pub sep: Option<u32>,
    /// `precompiled_charsmap`: SentencePiece's map of characters, only used by `t5`.
    pub charsmap: Vec<u8>,
    /// `tokenizer.chat_template`, a Jinja text; tokenizers do not read it.
    pub chat_template: Option<String>,
}

/// Kinds of tokens.
pub(crate) const NORMAL: i32 = 1;
pub(crate) const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Longest piece, in characters, for which merges are derived: each has as many splits as
/// characters.
const MAX_PIECE_CHARS: usize = 1024;

/// SentencePiece's mark for a space.
const SPACE_MARK: &str = "\u{2581}";

impl GgufVocab {
    /// The same tokenizer as a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// The model or pre-tokenizer kind is not known, or the lists do not fit together.
    pub(crate) fn to_tokenizer_json(&self) -> Result<Vec<u8>> {
        self.check_lengths()?;
        let vocab = self.vocab();
        match self.model.as_str() {
            "gpt2" => {
                let kind = self.pre_tokenizer()?;
                self.finished(self.byte_level(&vocab, &kind.cut, kind.whole_words)?)
            }
            "llama" | "gemma4" => self.finished(self.sentence_piece(&vocab)?),
            "bert" => self.finished(self.word_piece()),
            "t5" => self.finished(self.unigram()?),
            other => Err(Error::Gguf(GgufFault::Model(other.to_owned()))),
        }
    }

    /// The same for byte-level BPE of text that `pattern` cuts, where a whole word in the
    /// vocabulary is taken unmerged.
    ///
    /// # Errors
    /// The lists do not fit together.
    pub(crate) fn to_tokenizer_json_cut_by(&self, pattern: &str) -> Result<Vec<u8>> {
        self.check_lengths()?;
        self.finished(self.byte_level(&self.vocab(), &Cut::Regex(pattern), true)?)
    }

    fn finished(&self, mut root: Map<String, Value>) -> Result<Vec<u8>> {
        root.insert("added_tokens".into(), self.added_tokens());
        root.insert("post_processor".into(), self.post_processor()?);
        root.insert("version".into(), json!("1.0"));
        Ok(Value::Object(root).to_string().into_bytes())
    }

    /// The special tokens by role.
    pub(crate) fn special_tokens(&self) -> SpecialTokens {
        let text = |id: Option<u32>| self.tokens.get(id? as usize).cloned();
        let mut special = SpecialTokens {
            bos: text(self.bos),
            eos: text(self.eos),
            unk: text(self.unk),
            pad: text(self.pad),
            bos_id: self.bos,
            eos_ids: Vec::new(),
        };
        special.add_eos(self.end_ids());
        special
    }

    /// Ids that end generation: first the file's own ids, then the known end-of-turn tokens.
    pub fn end_ids(&self) -> Vec<u32> {
        let stated = self.eos.into_iter().chain(self.other_eos.iter().copied());
        let vocab = self.vocab();
        let mut ids: Vec<u32> = Vec::new();
        for id in stated.chain(ends::of_turns(|text| vocab.get(text).copied())) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    fn check_lengths(&self) -> Result<()> {
        let v = self.tokens.len();
        if v == 0 || u32::try_from(v).is_err() {
            return Err(Error::Gguf(GgufFault::TokenCount(v)));
        }
        for (list, found) in [("token_type", self.token_types.len()), ("scores", self.scores.len())] {
            if found != 0 && found != v {
                return Err(Error::Gguf(GgufFault::Length { list, tokens: v, found }));
            }
        }
        for (role, id) in [("bos", self.bos), ("eos", self.eos), ("unknown", self.unk), ("padding", self.pad)] {
            if let Some(id) = id.filter(|&id| id as usize >= v) {
                return Err(Error::Gguf(GgufFault::TokenId { role, id, tokens: v }));
            }
        }
        Ok(())
    }

    /// Id of each text; of equal texts the first counts.
    fn vocab(&self) -> HashMap<&str, u32> {
        let mut vocab = HashMap::with_capacity(self.tokens.len());
        for (token, id) in self.tokens.iter().zip(0u32..) {
            vocab.entry(token.as_str()).or_insert(id);
        }
        vocab
    }

    /// The model part of `tokenizer.json`, in order of ids.
    fn model_json(&self, merges: Vec<Value>, vocab: &HashMap<&str, u32>, options: Value) -> Value {
        let mut model = json!({ "type": "BPE" });
        for (key, value) in options.as_object().into_iter().flatten() {
            model[key] = value.clone();
        }
        let kept = self.tokens.iter().zip(0u32..).filter(|(token, id)| vocab.get(token.as_str()) == Some(id));
        model["vocab"] = Value::Object(kept.map(|(token, id)| (token.clone(), json!(id))).collect());
        model["merges"] = Value::Array(merges);
        model
    }

    /// The pre-tokenizer named by `pre`.
    fn pre_tokenizer(&self) -> Result<&'static PreTokenizer> {
        let pre = self.pre.as_deref().filter(|pre| !pre.is_empty()).unwrap_or("default");
        PRE_TOKENIZERS.iter().find(|kind| kind.names.contains(&pre)).ok_or_else(|| {
            let known = PRE_TOKENIZERS.iter().flat_map(|kind| kind.names.iter().copied()).collect();
            Error::UnknownPreTokenizer { found: pre.to_owned(), known }
        })
    }

    fn byte_level(&self, vocab: &HashMap<&str, u32>, cut: &Cut<'_>, whole_words: bool) -> Result<Map<String, Value>> {
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let steps = match cut {
            Cut::Gpt2 => vec![bytes(true)],
            Cut::DigitsGpt2 => vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)],
            Cut::Regex(regex) => vec![split(regex), bytes(false)],
            Cut::Regexes(list) => list.iter().map(|regex| split(regex)).chain([bytes(false)]).collect(),
        };
        let merges = self.listed_merges(vocab)?;
        let mut root = Map::new();
        root.insert("pre_tokenizer".into(), json!({"type": "Sequence", "pretokenizers": steps}));
        root.insert("decoder".into(), bytes(true));
        root.insert("model".into(), self.model_json(merges, vocab, json!({"ignore_merges": whole_words})));
        Ok(root)
    }

    fn sentence_piece(&self, vocab: &HashMap<&str, u32>) -> Result<Map<String, Value>> {
        let merges = if self.merges.is_empty() { self.derived_merges(vocab)? } else { self.listed_merges(vocab)? };
        let prefix = self.add_space_prefix.unwrap_or(true);
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE_MARK}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unk = self.unk.and_then(|id| self.tokens.get(id as usize));
        let options = json!({"byte_fallback": true, "fuse_unk": true, "unk_token": unk});
        let mut root = Map::new();
        root.insert("normalizer".into(), json!({"type": "Sequence", "normalizers": normalizers}));
        root.insert("decoder".into(), json!({"type": "Sequence", "decoders": decoders}));
        root.insert("model".into(), self.model_json(merges, vocab, options));
        Ok(root)
    }

    /// The merges of the file, each checked against the vocabulary.
    fn listed_merges(&self, vocab: &HashMap<&str, u32>) -> Result<Vec<Value>> {
        let parse = |(rank, merge): (usize, &String)| {
            let pair = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
            let Some((left, right)) = pair else {
                return Err(Error::Gguf(GgufFault::Merge { rank, merge: merge.clone() }));
            };
            for piece in [left, right, format!("{left}{right}").as_str()] {
                if !vocab.contains_key(piece) {
                    return Err(Error::Gguf(GgufFault::MergedPiece { rank, merge: merge.clone(), piece: piece.to_owned() }));
                }
            }
            Ok(json!([left, right]))
        };
        self.merges.iter().enumerate().map(parse).collect()
    }

    /// Merges in the order of their results' scores. Every split of a piece into two others is a
    /// merge.
    fn derived_merges(&self, vocab: &HashMap<&str, u32>) -> Result<Vec<Value>> {
        if self.scores.is_empty() {
            return Err(Error::Gguf(GgufFault::Unranked));
        }
        let mut ranked: Vec<(f32, u32, u32, &str, &str)> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if self.token_types.get(id).is_some_and(|&kind| kind != 1 && kind != USER_DEFINED) {
                continue;
            }
            let chars = token.chars().count();
            if chars > MAX_PIECE_CHARS {
                return Err(Error::Gguf(GgufFault::LongToken { id, chars, limit: MAX_PIECE_CHARS }));
            }
            let score = self.scores.get(id).copied().unwrap_or(f32::NEG_INFINITY);
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&l), Some(&r)) = (vocab.get(left), vocab.get(right)) {
                    ranked.push((score, l, r, left, right));
                }
            }
        }
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        Ok(ranked.into_iter().map(|(.., left, right)| json!([left, right])).collect())
    }

    /// Control tokens are special; user-defined ones are matched whole in text but are ordinary
    /// text themselves.
    fn added_tokens(&self) -> Value {
        let entry = |(id, token): (usize, &String)| {
            let stated = self.token_types.get(id).copied().unwrap_or(1);
            // Some converters state the end of a turn as ordinary text.
            let kind = if ends::is_known(token) { CONTROL } else { stated };
            let special = kind == CONTROL || self.unk == Some(id as u32) && kind != 1;
            (!token.is_empty() && (special || kind == USER_DEFINED)).then(|| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special,
                })
            })
        };
        self.tokens.iter().enumerate().filter_map(entry).collect()
    }

    /// Puts BOS and EOS around a sequence where the file asks for it.
    fn post_processor(&self) -> Result<Value> {
        if matches!(self.model.as_str(), "bert" | "t5") {
            return Ok(self.encoder_post_processor());
        }
        let implied = self.model == "llama" || self.model == "gpt2" && self.pre_tokenizer().is_ok_and(|kind| kind.begins);
        let add_bos = self.add_bos.unwrap_or(implied);
        let token = |wanted: bool, id: Option<u32>| id.filter(|_| wanted).and_then(|id| Some((id, self.tokens.get(id as usize)?)));
        let (bos, eos) = (token(add_bos, self.bos), token(self.add_eos.unwrap_or(false), self.eos));
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let mut special = Map::new();
        let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
        if let Some((id, text)) = bos {
            single.insert(0, json!({"SpecialToken": {"id": text, "type_id": 0}}));
            special.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
        }
        if let Some((id, text)) = eos {
            single.push(json!({"SpecialToken": {"id": text, "type_id": 0}}));
            special.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
        }
        let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]);
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
    }
}

#[cfg(test)]
mod tests;
