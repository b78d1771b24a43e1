//! Conformance of Voxtral Realtime's results for a recording, with several block sizes.

use anyhow::{Context, Result, bail};
use flambeau::runners::speech::voxtral_realtime::VoxtralRealtime;
use serde_json::Value as Json;

use super::{Setting, ids};

/// `case.json` of a Voxtral Realtime.
pub(super) struct Expected {
    /// IDs of the prompt, before the first generated token.
    prompt: Vec<u32>,
    /// The greedy text.
    tokens: Vec<u32>,
}

impl Expected {
    pub(super) fn read(json: &Json) -> Expected {
        Expected { prompt: ids(json, "prompt"), tokens: ids(json, "tokens") }
    }

    pub(super) fn compare(&self, setting: &Setting<'_>) -> Result<()> {
        let mut model = VoxtralRealtime::load(&setting.program, setting.engine)?;
        if model.prompt_len() != self.prompt.len() {
            bail!("the prompt has {} tokens, expected {}", model.prompt_len(), self.prompt.len());
        }
        model.push(&setting.samples);
        model.finish();
        setting.compare("features.bin", &model.features()?)?;
        // All samples at once, blocks of one token's 80 ms, and blocks that no step divides evenly.
        for block in [setting.samples.len(), model.step_samples(), 1000] {
            model.restart();
            self.compare_stream(setting, &mut model, block).with_context(|| format!("in blocks of {block} samples"))?;
        }
        Ok(())
    }

    fn compare_stream(&self, setting: &Setting<'_>, model: &mut VoxtralRealtime, block: usize) -> Result<()> {
        let (mut rows, mut tokens, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        let mut blocks = setting.samples.chunks(block);
        let mut is_whole = false;
        while !is_whole {
            match blocks.next() {
                Some(block) => model.push(block),
                None => {
                    model.finish();
                    is_whole = true;
                }
            }
            rows.extend(model.listen()?);
            while let Some(token) = model.next_token(&self.prompt)? {
                tokens.push(token);
                logits.extend_from_slice(model.logits());
            }
        }
        setting.compare_floats("encoder.bin", &rows)?;
        if tokens.len() < self.tokens.len() {
            bail!("{} tokens were generated, expected {}", tokens.len(), self.tokens.len());
        }
        if let Some(i) = (0..self.tokens.len()).find(|&i| tokens[i] != self.tokens[i]) {
            bail!("token {i} is {}, expected {}", tokens[i], self.tokens[i]);
        }
        logits.truncate(logits.len() / tokens.len() * self.tokens.len());
        setting.compare_floats("logits.bin", &logits)
    }
}
