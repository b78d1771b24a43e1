//! Conformance of Parakeet's results for a recording.

use anyhow::{Result, bail};
use flambeau::{
    runners::speech::parakeet::{Parakeet, TimedToken},
    tensor::Tensor,
};
use serde_json::Value as Json;

use super::{Setting, ids};

/// `case.json` of a Parakeet.
pub(super) struct Expected {
    tokens: Vec<u32>,
    /// Position of each token, if the case has them.
    frames: Vec<u32>,
    durations: Vec<u32>,
    /// Position of each row of logits, if the case states it. CTC has a row at every position.
    step_frames: Vec<u32>,
    /// Number of positions before the reference's padding.
    valid_frames: Option<usize>,
}

impl Expected {
    pub(super) fn read(json: &Json) -> Expected {
        Expected {
            tokens: ids(json, "tokens"),
            frames: ids(json, "frames"),
            durations: ids(json, "durations"),
            step_frames: ids(json, "step_frames"),
            valid_frames: json["valid_frames"].as_u64().and_then(|n| usize::try_from(n).ok()),
        }
    }

    pub(super) fn compare(&self, setting: &Setting<'_>) -> Result<()> {
        let mut model = Parakeet::load(&setting.program, setting.engine)?;
        let features = model.features(&setting.samples)?;
        setting.compare_rows("features.bin", &features)?;
        let [hidden, made] = model.encode(features)?;
        if let Some(valid) = self.valid_frames.filter(|&valid| valid != hidden.shape()[1]) {
            bail!("the encoder has {} positions, expected {valid}", hidden.shape()[1]);
        }
        setting.compare_rows("encoder.bin", &hidden)?;
        let (mut rows, mut frames) = (Vec::new(), Vec::new());
        let tokens = model.decode(&made, &mut |frame, row| {
            rows.extend_from_slice(row);
            frames.push(frame as u32);
        })?;
        let logits = Tensor::from_slice(&rows, &[frames.len(), rows.len() / frames.len().max(1)])?;
        setting.compare_rows("logits.bin", &logits)?;
        if !self.step_frames.is_empty() {
            same("steps at frames", &frames, &self.step_frames)?;
        }
        let of = |part: fn(&TimedToken) -> u32| -> Vec<u32> { tokens.iter().map(part).collect() };
        same("tokens", &of(|token| token.id), &self.tokens)?;
        for (name, part, expected) in [
            ("frames", (|token| token.frame as u32) as fn(&TimedToken) -> u32, &self.frames),
            ("durations", |token| token.duration as u32, &self.durations),
        ] {
            if !expected.is_empty() {
                same(name, &of(part), expected)?;
            }
        }
        Ok(())
    }
}

fn same(what: &str, found: &[u32], expected: &[u32]) -> Result<()> {
    if let Some(at) = (0..found.len().max(expected.len())).find(|&at| found.get(at) != expected.get(at)) {
        bail!("{what}: number {at} is {:?}, expected {:?}", found.get(at), expected.get(at));
    }
    Ok(())
}
