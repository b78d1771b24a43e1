//! Conformance of Voxtral's results for a recording.

use anyhow::{Context, Result, bail};
use flambeau::{runners::speech::voxtral::Voxtral, text::argmax};
use serde_json::Value as Json;

use super::{Setting, ids};

/// `case.json` of a Voxtral.
pub(super) struct Expected {
    /// IDs of the prompt before and after the recording's rows.
    head: Vec<u32>,
    tail: Vec<u32>,
    /// Number of the recording's rows, if the case states it.
    rows: Option<u64>,
    /// The greedy text.
    tokens: Vec<u32>,
}

impl Expected {
    pub(super) fn read(json: &Json) -> Expected {
        Expected {
            head: ids(json, "prompt_head"),
            tail: ids(json, "prompt_tail"),
            rows: json["prompt_audio_tokens"].as_u64(),
            tokens: ids(json, "tokens"),
        }
    }

    pub(super) fn compare(&self, setting: &Setting<'_>) -> Result<()> {
        let mut model = Voxtral::load(&setting.program, setting.engine)?;
        let (mut features, mut rows) = (Vec::new(), Vec::new());
        for window in setting.samples.chunks(model.window()) {
            let made = model.features(window)?;
            features.extend_from_slice(made.as_slice::<f32>()?);
            rows.extend(model.encode(made)?);
        }
        setting.compare_floats("features.bin", &features)?;
        let count = (rows.len() / model.hidden()) as u64;
        if let Some(expected) = self.rows.filter(|&expected| expected != count) {
            bail!("{count} rows stand for the recording, expected {expected}");
        }
        setting.compare_floats("encoder.bin", &rows)?;
        let (mut logits, mut all) = (Vec::new(), Vec::new());
        model.begin([&self.head, &self.tail], &rows, &mut logits)?;
        for (i, &want) in self.tokens.iter().enumerate() {
            all.extend_from_slice(&logits);
            let (found, _) = argmax(&logits).context("no logit is a number")?;
            if found != want {
                bail!("greedy token {i} is {found}, expected {want}");
            }
            if i + 1 < self.tokens.len() {
                model.step(want, &mut logits)?;
            }
        }
        setting.compare_floats("logits.bin", &all)
    }
}
