//! Conformance of Moonshine's results for a recording.

use anyhow::{Context, Result, bail};
use flambeau::{runners::speech::moonshine::Moonshine, tensor::Tensor, text::argmax};
use serde_json::Value as Json;

use super::{Setting, ids};

/// `case.json` of a Moonshine.
pub(super) struct Expected {
    /// IDs of the prompt, before the text.
    prompt: Vec<u32>,
    /// The greedy text of the recording.
    tokens: Vec<u32>,
}

impl Expected {
    pub(super) fn read(json: &Json) -> Expected {
        Expected { prompt: ids(json, "prompt"), tokens: ids(json, "tokens") }
    }

    pub(super) fn compare(&self, setting: &Setting<'_>) -> Result<()> {
        let mut model = Moonshine::load(&setting.program, setting.engine)?;
        if self.prompt != [model.start()] {
            bail!("a text begins with {}, expected {:?}", model.start(), self.prompt);
        }
        let hidden = model.encode(&setting.samples)?;
        setting.compare_rows("encoder.bin", &hidden)?;
        let (mut rows, mut logits, mut next) = (Vec::new(), Vec::new(), model.start());
        for (i, &want) in self.tokens.iter().enumerate() {
            model.step(&[next], &mut logits)?;
            rows.extend_from_slice(&logits);
            next = argmax(&logits).context("no logit is a number")?.0;
            if next != want {
                bail!("greedy token {i} is {next}, expected {want}");
            }
        }
        setting.compare_rows("logits.bin", &Tensor::from_slice(&rows, &[self.tokens.len(), logits.len()])?)
    }
}
