//! Where sound comes from.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context, Result};
use flambeau::{
    audio::{Pcm, Recording, Sample},
    runners::speech::SAMPLE_RATE,
};

use crate::{
    failure::{hint, usage},
    files, microphone,
    read_ahead::ReadAhead,
};

/// The recordings on the command line.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArgs {
    /// Recordings; `-` is stdin
    #[arg(value_name = "FILE", required_unless_present = "mic")]
    files: Vec<PathBuf>,

    /// Transcribe the default microphone, or DEVICE, until Ctrl-C; implies --live
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with_all = ["files", "pcm", "channels"])]
    mic: Option<String>,

    /// Format of recordings without a container, which hold raw samples
    #[arg(long, value_name = "FORMAT")]
    pcm: Option<PcmForm>,

    /// Sample rate of raw recordings
    #[arg(long, value_name = "HZ", default_value_t = SAMPLE_RATE, requires = "pcm")]
    rate: u32,

    /// `separate` transcribes each channel by itself; a number N states the channels of raw
    /// recordings, whose samples are interleaved
    #[arg(long, value_name = "separate|N", value_parser = channels)]
    channels: Vec<Channels>,
}

/// Requested handling of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channels {
    Separate,
    Count(u16),
}

fn channels(text: &str) -> Result<Channels, String> {
    match text {
        "separate" => Ok(Channels::Separate),
        number => number.parse().map(Channels::Count).map_err(|_| "expected `separate` or a number".into()),
    }
}

/// How a sample is written, in the names of ffmpeg.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PcmForm {
    U8,
    S16le,
    S24le,
    S32le,
    F32le,
    F64le,
}

impl PcmForm {
    fn sample(self) -> Sample {
        match self {
            PcmForm::U8 => Sample::U8,
            PcmForm::S16le => Sample::S16,
            PcmForm::S24le => Sample::S24,
            PcmForm::S32le => Sample::S32,
            PcmForm::F32le => Sample::F32,
            PcmForm::F64le => Sample::F64,
        }
    }
}

impl SourceArgs {
    /// The inputs, in order.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        if self.is_microphone() { vec!["microphone".into()] } else { self.files.clone() }
    }

    /// Whether the microphone is the source.
    pub(super) fn is_microphone(&self) -> bool {
        self.mic.is_some()
    }

    /// Whether each channel is a recording of its own.
    pub(super) fn is_separate(&self) -> bool {
        self.channels.contains(&Channels::Separate)
    }

    /// Refuses what no recording could mean.
    pub(super) fn check(&self) -> Result<()> {
        let is_count = |channels: &Channels| matches!(channels, Channels::Count(_));
        if self.pcm.is_none() && self.channels.iter().any(is_count) {
            return Err(usage("--channels takes a number with --pcm only: other recordings tell how many they have"));
        }
        if self.is_separate() && self.files.iter().any(|file| files::is_standard(file)) {
            return Err(usage("--channels separate reads a recording once for each channel, and stdin can only be read once"));
        }
        Ok(())
    }

    /// Opens a recording; one of the microphone ends when it is cancelled.
    pub(super) fn open(&self, file: &Path, is_live: bool, cancelled: &Arc<AtomicBool>) -> Result<Recording> {
        if let Some(name) = &self.mic {
            let (stream, pcm) = microphone::open(Some(name.as_str()).filter(|name| !name.is_empty()), cancelled)?;
            return Recording::from_pcm(stream, pcm, SAMPLE_RATE).context("the microphone");
        }
        let place = || file.display().to_string();
        let channels = self.channels.iter().find_map(|channels| match channels {
            Channels::Count(count) => Some(*count),
            Channels::Separate => None,
        });
        let pcm = self.pcm.map(|form| Pcm { sample: form.sample(), rate: self.rate, channels: channels.unwrap_or(1) });
        if files::is_standard(file) {
            return if is_live {
                // A microphone does not wait until something is understood.
                read_stream(ReadAhead::new(io::stdin())?, pcm)
            } else {
                read_stream(io::stdin(), pcm)
            };
        }
        let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        if opened.metadata().is_ok_and(|facts| facts.is_dir()) {
            return Err(hint(anyhow::anyhow!("{} is a folder", place()), "name its recordings"));
        }
        let recording = match pcm {
            Some(pcm) => Recording::from_pcm(opened, pcm, SAMPLE_RATE),
            None => Recording::from_file(opened, SAMPLE_RATE),
        };
        recording.with_context(place)
    }
}

/// Warnings about a recording that was read to its end.
pub(super) fn warnings(recording: &Recording) -> Vec<&'static str> {
    let all = [
        (recording.is_cut_short(), "the file ends in the midst of what it announces"),
        (recording.has_surplus(), "the file holds more sound than it announces; all of it was heard"),
        (recording.has_cancelled(), "its channels cancel one another out; where they do, the loudest one was heard"),
    ];
    all.into_iter().filter_map(|(is_so, warning)| is_so.then_some(warning)).collect()
}

fn read_stream(stream: impl Read + Send + Sync + 'static, pcm: Option<Pcm>) -> Result<Recording> {
    let recording = match pcm {
        Some(pcm) => Recording::from_pcm(stream, pcm, SAMPLE_RATE),
        None => Recording::from_stream(stream, SAMPLE_RATE),
    };
    recording.context("stdin")
}
