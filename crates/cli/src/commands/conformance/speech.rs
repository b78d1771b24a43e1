//! A speech case: a tiny model in its published form, a recording, and the model's results.

mod moonshine;
mod parakeet;
mod voxtral;
mod voxtral_realtime;
mod whisper;

use std::{fs::File, path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use flambeau::{
    audio::Recording,
    engine::Engine,
    runners::speech::SAMPLE_RATE,
    runtime::Program,
    tensor::{Tensor, Tolerance, compare},
    zoo,
};
use serde_json::Value as Json;

use super::{
    Outcome,
    checkpoint::{one, program_with},
};

/// `case.json` of a speech model.
pub(super) struct SpeechCase {
    tolerance: Tolerance,
    expected: Expected,
}

/// Results of a family for the recording.
enum Expected {
    Moonshine(moonshine::Expected),
    Parakeet(parakeet::Expected),
    Voxtral(voxtral::Expected),
    VoxtralRealtime(voxtral_realtime::Expected),
    Whisper(whisper::Expected),
    /// Model type of a family without an exporter.
    Unknown(String),
}

/// The exported program and the recording.
struct Setting<'a> {
    folder: &'a Path,
    tolerance: Tolerance,
    samples: Vec<f32>,
    program: Program,
    engine: &'a Arc<dyn Engine>,
}

impl SpeechCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<SpeechCase> {
        let expected = match json["family"].as_str().context("case.json names no family")? {
            "voxtral" => Expected::Voxtral(voxtral::Expected::read(json)),
            "voxtral-realtime" => Expected::VoxtralRealtime(voxtral_realtime::Expected::read(json)),
            "whisper" => Expected::Whisper(whisper::Expected::read(json)),
            "moonshine" => Expected::Moonshine(moonshine::Expected::read(json)),
            family if family.starts_with("parakeet") => Expected::Parakeet(parakeet::Expected::read(json)),
            family => Expected::Unknown(family.to_owned()),
        };
        Ok(SpeechCase { tolerance, expected })
    }

    /// Exports the checkpoint in f32 and compares each stage with the case.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        if let Expected::Unknown(family) = &self.expected {
            bail!("speech models of the family {family} are not supported yet");
        }
        let audio = folder.join("audio.wav");
        let file = File::open(&audio).with_context(|| format!("cannot read {}", audio.display()))?;
        let samples = Recording::from_file(file, SAMPLE_RATE)?.read_to_end()?;
        let checkpoint = ["checkpoint", "checkpoint.nemo"].map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        let checkpoint = checkpoint.context("there is neither a folder checkpoint nor a file checkpoint.nemo")?;
        let program = program_with(&checkpoint, &zoo::Options::default(), engine)?;
        let setting = Setting { folder, tolerance: self.tolerance, samples, program, engine };
        match &self.expected {
            Expected::Moonshine(expected) => expected.compare(&setting)?,
            Expected::Parakeet(expected) => expected.compare(&setting)?,
            Expected::Voxtral(expected) => expected.compare(&setting)?,
            Expected::VoxtralRealtime(expected) => expected.compare(&setting)?,
            Expected::Whisper(expected) => expected.compare(&setting)?,
            Expected::Unknown(_) => {}
        }
        Ok(Outcome::Passed(Vec::new()))
    }
}

impl Setting<'_> {
    /// The tensor of a file. `None` if the case lacks the file.
    fn expected(&self, name: &str) -> Result<Option<Tensor>> {
        self.folder.join(name).is_file().then(|| one(self.folder, name)).transpose()
    }

    /// Compares a tensor with a file's.
    fn compare(&self, name: &str, found: &Tensor) -> Result<()> {
        match self.expected(name)? {
            Some(expected) => compare(found, &expected, self.tolerance).with_context(|| name.to_owned()),
            None => Ok(()),
        }
    }

    /// Compares consecutive rows with the elements of a file's tensor, regardless of its axes.
    fn compare_floats(&self, name: &str, found: &[f32]) -> Result<()> {
        let Some(expected) = self.expected(name)? else { return Ok(()) };
        let found = Tensor::from_slice(found, &[found.len()])?;
        let expected = expected.reshape(&[expected.numel()])?;
        compare(&found, &expected, self.tolerance).with_context(|| name.to_owned())
    }

    /// Compares a tensor [.., rows, n] with a file's tensor. Rows of padding may follow the latter.
    fn compare_rows(&self, name: &str, found: &Tensor) -> Result<()> {
        let Some(expected) = self.expected(name)? else { return Ok(()) };
        let &[rows, n] = &found.shape()[found.rank() - 2..] else { bail!("{name}: found shape {:?}", found.shape()) };
        let whole = expected.numel() / n.max(1);
        if expected.shape().last() != Some(&n) || whole < rows {
            bail!("{name}: found shape {:?}, expected {:?}", found.shape(), expected.shape());
        }
        let bytes = expected.bytes().slice(..expected.bytes().len() / whole.max(1) * rows);
        let expected = Tensor::new(expected.dtype(), &[rows, n], bytes)?;
        compare(&found.reshape(&[rows, n])?, &expected, self.tolerance).with_context(|| name.to_owned())
    }
}

/// A list of ids; none if it is missing.
fn ids(json: &Json, key: &str) -> Vec<u32> {
    let list = json[key].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Json::as_u64).filter_map(|id| id.try_into().ok()).collect()
}
