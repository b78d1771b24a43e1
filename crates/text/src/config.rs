//! The files next to `tokenizer.json` in a Hugging Face model folder.

use serde_json::{Map, Value, json};

use crate::error::{ConfigFault, Error, Result};
use crate::sampler::SamplingParams;

/// Contents of the files of a model folder that concern text. Absent files are `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`; takes precedence over the template in `tokenizer_config.json`.
    pub chat_template: Option<&'a str>,
}

/// The special tokens of a model by role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Text of the token that begins a sequence.
    pub bos: Option<String>,
    /// Text of the token that ends a sequence.
    pub eos: Option<String>,
    /// Text of the unknown token.
    pub unk: Option<String>,
    /// Text of the padding token.
    pub pad: Option<String>,
    /// Id of the token that begins a sequence.
    pub bos_id: Option<u32>,
    /// Every id that ends generation, without duplicates.
    pub eos_ids: Vec<u32>,
}

/// The recommendations of `generation_config.json`. A field that the file does not set is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Id of the token that begins a sequence.
    pub bos_id: Option<u32>,
    /// Ids that end generation.
    pub eos_ids: Vec<u32>,
    /// False asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// Ids that are never drawn.
    pub suppress_tokens: Vec<u32>,
}

pub(crate) fn parse_object(file: &'static str, bytes: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::Config { file, fault: ConfigFault::NotAnObject }),
        Err(e) => Err(Error::Config { file, fault: e.into() }),
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

impl GenerationDefaults {
    /// Reads `generation_config.json`; values of an unexpected type count as absent.
    ///
    /// # Errors
    /// The bytes are not a JSON object.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let map = parse_object("generation_config.json", bytes)?;
        let number = |key: &str| map.get(key).and_then(Value::as_f64).map(|v| v as f32);
        let eos_ids = match map.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
            Some(one) => id(one).into_iter().collect(),
            None => Vec::new(),
        };
        Ok(Self {
            bos_id: map.get("bos_token_id").and_then(id),
            eos_ids,
            do_sample: map.get("do_sample").and_then(Value::as_bool),
            temperature: number("temperature"),
            top_k: map.get("top_k").and_then(Value::as_u64).map(|k| usize::try_from(k).unwrap_or(usize::MAX)),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
            suppress_tokens: map.get("suppress_tokens").and_then(Value::as_array).into_iter().flatten().filter_map(id).collect(),
        })
    }

    /// The recommendation as sampling parameters: greedy unless `do_sample` is true, 1 where no
    /// temperature is given.
    pub fn sampling(&self, seed: u64) -> SamplingParams {
        let logit_bias = self.suppress_tokens.iter().map(|&id| (id, f32::NEG_INFINITY)).collect();
        let base = SamplingParams { seed, logit_bias, ..SamplingParams::default() };
        let repetition_penalty = self.repetition_penalty.unwrap_or(base.repetition_penalty);
        if self.do_sample != Some(true) {
            return SamplingParams { repetition_penalty, ..base };
        }
        SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty,
            ..base
        }
    }
}

/// The text of a token, which a file states as a string or as an object with the key `content`.
pub(crate) fn token_text(value: Option<&Value>) -> Option<&str> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

impl SpecialTokens {
    /// Collects the roles from the files; `lookup` turns a token's text into its id.
    pub(crate) fn from_files(files: &TokenizerFiles<'_>, lookup: impl Fn(&str) -> Option<u32>) -> Result<Self> {
        let mut found = Self::default();
        let sources = [("tokenizer_config.json", files.tokenizer_config), ("special_tokens_map.json", files.special_tokens_map)];
        for (file, bytes) in sources {
            let Some(bytes) = bytes else { continue };
            let map = parse_object(file, bytes)?;
            let take = |slot: &mut Option<String>, key: &str| {
                if slot.is_none() {
                    *slot = token_text(map.get(key)).map(str::to_owned);
                }
            };
            take(&mut found.bos, "bos_token");
            take(&mut found.eos, "eos_token");
            take(&mut found.unk, "unk_token");
            take(&mut found.pad, "pad_token");
        }
        let generation = files.generation_config.map(GenerationDefaults::from_json).transpose()?.unwrap_or_default();
        found.bos_id = found.bos.as_deref().and_then(&lookup).or(generation.bos_id);
        found.add_eos(found.eos.as_deref().and_then(&lookup));
        found.add_eos(generation.eos_ids);
        Ok(found)
    }

    /// Adds new ids to the ids that end generation.
    pub(crate) fn add_eos(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            if !self.eos_ids.contains(&id) {
                self.eos_ids.push(id);
            }
        }
    }

    /// These roles, and the chat template if there is one, as a `tokenizer_config.json`.
    pub fn to_config_json(&self, chat_template: Option<&str>) -> Vec<u8> {
        let mut map = Map::new();
        let texts = [("bos_token", &self.bos), ("eos_token", &self.eos), ("unk_token", &self.unk), ("pad_token", &self.pad)];
        for (key, text) in texts {
            if let Some(text) = text {
                map.insert(key.to_owned(), json!(text));
            }
        }
        if let Some(template) = chat_template {
            map.insert("chat_template".to_owned(), json!(template));
        }
        Value::Object(map).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_config_gives_ids_and_sampling() {
        let check = |text: &str, eos: &[u32], temperature: f32, top_k: usize| {
            let defaults = GenerationDefaults::from_json(text.as_bytes()).unwrap();
            let sampling = defaults.sampling(1);
            assert_eq!((defaults.eos_ids.as_slice(), sampling.temperature, sampling.top_k), (eos, temperature, top_k), "{text}");
        };
        check("{}", &[], 0.0, 0);
        check(r#"{"eos_token_id": 2, "temperature": 0.7}"#, &[2], 0.0, 0);
        check(r#"{"eos_token_id": [2, 5], "do_sample": true, "temperature": 0.5, "top_k": 20}"#, &[2, 5], 0.5, 20);
        check(r#"{"eos_token_id": -1, "do_sample": true}"#, &[], 1.0, 0);
        check(r#"{"eos_token_id": ["x", 99999999999, 3]}"#, &[3], 0.0, 0);
    }

    #[test]
    fn special_tokens_come_from_every_file() {
        let files = TokenizerFiles {
            tokenizer_config: Some(br#"{"bos_token": {"content": "<s>"}, "pad_token": null}"#),
            special_tokens_map: Some(br#"{"eos_token": "</s>", "bos_token": "other"}"#),
            generation_config: Some(br#"{"eos_token_id": [2, 7]}"#),
            ..TokenizerFiles::default()
        };
        let lookup = |text: &str| ["<unk>", "<s>", "</s>"].iter().position(|t| *t == text).map(|at| at as u32);
        let found = SpecialTokens::from_files(&files, lookup).unwrap();
        let want = SpecialTokens {
            bos: Some("<s>".into()),
            eos: Some("</s>".into()),
            bos_id: Some(1),
            eos_ids: vec![2, 7],
            ..SpecialTokens::default()
        };
        assert_eq!(found, want);
        assert_eq!(found.to_config_json(Some("x")), br#"{"bos_token":"<s>","eos_token":"</s>","chat_template":"x"}"#);
    }

    #[test]
    fn a_malformed_file_is_named() {
        let files = TokenizerFiles { tokenizer_config: Some(b"[]"), ..TokenizerFiles::default() };
        let error = SpecialTokens::from_files(&files, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "tokenizer_config.json: expected a JSON object");
    }
}
