//! Conformance of Whisper's results for a recording.

use anyhow::{Context, Result, bail};
use flambeau::{
    runners::speech::whisper::{Request, Rules, Search, Whisper, decode, detect_language},
    tensor::{Tensor, Tolerance, compare},
    text::{argmax, log_probabilities},
};
use serde_json::Value as Json;

use super::{Setting, ids};

/// By how much a token's probability may differ between two methods.
const LEAST_DIFFERENCE: f32 = 1e-3;

/// `case.json` of a Whisper.
pub(super) struct Expected {
    /// IDs of the prompt, before the text.
    prompt: Vec<u32>,
    /// The greedy text of the recording, without timestamps and with them.
    tokens: Vec<u32>,
    tokens_with_timestamps: Vec<u32>,
    language: Option<String>,
}

impl Expected {
    pub(super) fn read(json: &Json) -> Expected {
        Expected {
            prompt: ids(json, "prompt"),
            tokens: ids(json, "tokens"),
            tokens_with_timestamps: ids(json, "tokens_with_timestamps"),
            language: json["detected_language"].as_str().map(str::to_owned),
        }
    }

    pub(super) fn compare(&self, setting: &Setting<'_>) -> Result<()> {
        let mut model = Whisper::load(&setting.program, setting.engine)?;
        let features = model.features(&setting.samples)?;
        setting.compare("features.bin", &features)?;
        let hidden = model.encode(features)?;
        setting.compare("encoder.bin", &hidden)?;
        if let Some(expected) = &self.language {
            let (found, _) = detect_language(&mut model)?;
            if found.code != *expected {
                bail!("the language is {}, expected {expected}", found.code);
            }
        }
        let (expected, tolerance) = (setting.expected("logits.bin")?, setting.tolerance);
        self.compare_text(&mut model, &self.prompt, &self.tokens, expected.as_ref(), tolerance).context("without timestamps")?;
        let no_timestamps = model.vocabulary().no_timestamps;
        let prompt: Vec<u32> = self.prompt.iter().copied().filter(|&id| id != no_timestamps).collect();
        self.compare_text(&mut model, &prompt, &self.tokens_with_timestamps, None, tolerance).context("with timestamps")?;
        for (temperature, beam_size, best_of) in [(0.0, 3, 1), (0.5, 1, 3)] {
            self.compare_search(&mut model, temperature, Search { beam_size, best_of, ..Search::default() })?;
        }
        Ok(())
    }

    /// Compares the probabilities of a beam search's text with the decoder's on that text alone.
    fn compare_search(&self, model: &mut Whisper, temperature: f32, search: Search) -> Result<()> {
        let vocabulary = model.vocabulary().clone();
        let task = self.prompt.iter().copied().filter(|id| ![vocabulary.start, vocabulary.no_timestamps].contains(id)).collect();
        let request = Request { task, temperature, search, max_tokens: self.tokens.len().max(2), ..Request::default() };
        let found = decode(model, &request)?;
        let rules = Rules { vocabulary: &vocabulary, timestamps: false };
        let mut logits = Vec::new();
        model.restart();
        model.step(&self.prompt, &mut logits)?;
        let tokens = found.tokens.iter().copied().chain(found.is_ended.then_some(vocabulary.end));
        for ((i, token), &probability) in tokens.enumerate().zip(&found.probabilities) {
            rules.apply(&found.tokens[..i], &mut logits);
            let alone = log_probabilities(&logits, &[token])[0].exp();
            if (alone - probability).abs() > LEAST_DIFFERENCE {
                bail!("{search:?} gives token {i} the probability {probability}, the decoder {alone}");
            }
            if token != vocabulary.end {
                model.step(&[token], &mut logits)?;
            }
        }
        Ok(())
    }

    /// The greedy text after a prompt, and the raw logits of each of its tokens where they are
    /// known.
    fn compare_text(
        &self,
        model: &mut Whisper,
        prompt: &[u32],
        tokens: &[u32],
        expected: Option<&Tensor>,
        tolerance: Tolerance,
    ) -> Result<()> {
        let vocabulary = model.vocabulary().clone();
        let rules = Rules { vocabulary: &vocabulary, timestamps: !prompt.contains(&vocabulary.no_timestamps) };
        let rows = expected.map(|rows| rows.reshape(&[tokens.len(), vocabulary.size])).transpose()?;
        let mut logits = Vec::new();
        model.restart();
        model.step(prompt, &mut logits)?;
        for (i, &want) in tokens.iter().enumerate() {
            if let Some(rows) = &rows {
                let len = rows.bytes().len() / tokens.len();
                let row = Tensor::new(rows.dtype(), &[vocabulary.size], rows.bytes().slice(i * len..(i + 1) * len))?;
                let found = Tensor::from_slice(&logits, &[vocabulary.size])?;
                compare(&found, &row, tolerance).with_context(|| format!("logits of token {i}"))?;
            }
            rules.apply(&tokens[..i], &mut logits);
            let found = argmax(&logits).context("no logit is a number")?.0;
            if found != want {
                bail!("greedy token {i} is {found}, expected {want}");
            }
            if want != vocabulary.end {
                model.step(&[want], &mut logits)?;
            }
        }
        Ok(())
    }
}
