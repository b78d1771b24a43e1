//! A speech case: a tiny model as it is published, a recording, and what the model makes of it.

use std::{fs::File, path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use flambeau::{
    audio::Recording,
    engine::Engine,
    runners::speech::{
        SAMPLE_RATE,
        whisper::{Rules, Whisper, detect_language},
    },
    tensor::{Tensor, Tolerance, compare},
    text::argmax,
    zoo,
};
use serde_json::Value as Json;

use super::{
    Outcome,
    checkpoint::{one, program_with},
};

/// What `case.json` says of a speech model.
pub(super) struct SpeechCase {
    family: String,
    tolerance: Tolerance,
    /// Ids ahead of the text.
    prompt: Vec<u32>,
    /// The greedy text of the recording, without timestamps and with them.
    tokens: Vec<u32>,
    tokens_with_timestamps: Vec<u32>,
    language: Option<String>,
}

impl SpeechCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<SpeechCase> {
        let ids = |key: &str| -> Vec<u32> {
            let list = json[key].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(Json::as_u64).filter_map(|id| id.try_into().ok()).collect()
        };
        Ok(SpeechCase {
            family: json["family"].as_str().context("case.json names no family")?.to_owned(),
            tolerance,
            prompt: ids("prompt"),
            tokens: ids("tokens"),
            tokens_with_timestamps: ids("tokens_with_timestamps"),
            language: json["detected_language"].as_str().map(str::to_owned),
        })
    }

    /// Exports the checkpoint in f32 and holds each stage against the case.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        if self.family != "whisper" {
            bail!("speech models of the family {} are not supported yet", self.family);
        }
        let audio = folder.join("audio.wav");
        let file = File::open(&audio).with_context(|| format!("cannot read {}", audio.display()))?;
        let samples = Recording::from_file(file, SAMPLE_RATE)?.read_to_end()?;
        let program = program_with(&folder.join("checkpoint"), &zoo::Options::default(), engine)?;
        let mut model = Whisper::load(&program, engine)?;
        let features = model.features(&samples)?;
        compare(&features, &one(folder, "features.bin")?, self.tolerance).context("features")?;
        let hidden = model.encode(features)?;
        compare(&hidden, &one(folder, "encoder.bin")?, self.tolerance).context("encoder")?;
        if let Some(expected) = &self.language {
            let (found, _) = detect_language(&mut model)?;
            if found.code != *expected {
                bail!("the language is {}, expected {expected}", found.code);
            }
        }
        let expected = one(folder, "logits.bin")?;
        self.compare_text(&mut model, &self.prompt, &self.tokens, Some(&expected)).context("without timestamps")?;
        let no_timestamps = model.vocabulary().no_timestamps;
        let prompt: Vec<u32> = self.prompt.iter().copied().filter(|&id| id != no_timestamps).collect();
        self.compare_text(&mut model, &prompt, &self.tokens_with_timestamps, None).context("with timestamps")?;
        Ok(Outcome::Passed(Vec::new()))
    }

    /// The greedy text after a prompt, and the raw logits of each of its tokens where they are known.
    fn compare_text(&self, model: &mut Whisper, prompt: &[u32], tokens: &[u32], expected: Option<&Tensor>) -> Result<()> {
        let vocabulary = model.vocabulary().clone();
        let rules = Rules { vocabulary: &vocabulary, timestamps: expected.is_none() };
        let rows = expected.map(|rows| rows.reshape(&[tokens.len(), vocabulary.size])).transpose()?;
        let mut logits = Vec::new();
        model.restart();
        model.step(prompt, &mut logits)?;
        for (i, &want) in tokens.iter().enumerate() {
            if let Some(rows) = &rows {
                let len = rows.bytes().len() / tokens.len();
                let row = Tensor::new(rows.dtype(), &[vocabulary.size], rows.bytes().slice(i * len..(i + 1) * len))?;
                let found = Tensor::from_slice(&logits, &[vocabulary.size])?;
                compare(&found, &row, self.tolerance).with_context(|| format!("logits of token {i}"))?;
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
