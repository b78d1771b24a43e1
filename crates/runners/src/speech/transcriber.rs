//! Recordings of any length, window by window.

use std::fmt;

use flambeau_text::Tokenizer;

use super::{Draft, Segment, SpeechModel, gate::Gate, languages, stream::Stream, whisper::Search};
use crate::{Error, Result};

/// Task of a transcription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Write it down in its own language.
    #[default]
    Transcribe,
    /// Write it down in English.
    Translate,
}

/// Options of a transcription. A family refuses options that it does not support.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Spoken language, by its code or English name. If `None`, the first window determines it.
    pub language: Option<String>,
    pub task: Task,
    /// Text before the recording, with names and spellings that the model then prefers.
    pub prompt: String,
    /// Names and words to prefer. They precede the prompt and the earlier text in every window.
    pub hotwords: String,
    /// Temperatures, tried in order until a window's text passes the limits below.
    pub temperatures: Vec<f32>,
    /// Search over candidate texts of a window.
    pub search: Search,
    /// Maximum compression ratio. A text that compresses better repeats itself.
    pub most_compression: Option<f32>,
    /// Minimum mean log-probability of a trusted text.
    pub least_log_probability: Option<f32>,
    /// No-speech probability of a silent window: above it, a window is silent if its text is not
    /// trusted or is nearly empty. Models write a word or two into silence with confidence.
    pub most_no_speech: Option<f32>,
    /// Whether segments include words with times.
    pub words: bool,
    /// Whether the text before a window is context for its decoding. Names and style stay the same,
    /// and so do mistakes.
    pub condition_on_previous: bool,
    /// Number of windows decoded at a time. Above 1, windows end in pauses, not after sentences,
    /// and do not share context.
    pub batch: usize,
    /// Whether only possible speech is transcribed, with half a second on either side. Pauses below
    /// 2 seconds are kept. Times still refer to the recording.
    pub voice_activity: bool,
    /// Seconds of sound between two hypotheses of a live stream, 0.1 to 10. Words have times, and
    /// are [drafted](Transcriber::draft) when two hypotheses agree. Voxtral Realtime makes no
    /// hypotheses and drafts each word at once.
    pub live: Option<f64>,
    /// Seed of the sampling at temperatures above 0.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            language: None,
            task: Task::Transcribe,
            prompt: String::new(),
            hotwords: String::new(),
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            search: Search::default(),
            most_compression: Some(2.4),
            least_log_probability: Some(-1.0),
            most_no_speech: Some(0.6),
            words: false,
            condition_on_previous: false,
            batch: 1,
            voice_activity: false,
            live: None,
            seed: 0,
        }
    }
}

/// Optional settings that a family supports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Takes {
    pub(crate) language: bool,
    pub(crate) words: bool,
    pub(crate) live: bool,
}

impl Settings {
    /// Refuses options that a family does not support. Only Whisper translates and uses text as
    /// context.
    ///
    /// # Errors
    /// [`Error::NoTranslation`] and [`Error::NoSuchSetting`].
    pub(crate) fn check(&self, family: &'static str, takes: Takes) -> Result<()> {
        if self.task == Task::Translate {
            return Err(Error::NoTranslation);
        }
        let refused = [
            (self.language.is_some() && !takes.language, "language: it writes down what it hears"),
            (self.words && !takes.words, "times of words: it does not tell when each was said"),
            (self.live.is_some() && !takes.live, "live stream: it hears whole windows"),
            (!self.prompt.trim().is_empty(), "prompt"),
            (!self.hotwords.trim().is_empty(), "hotwords"),
            (self.condition_on_previous, "previous text"),
            (self.batch > 1, "batch size"),
            (self.search != Search::default(), "beam size, best of, patience or length penalty"),
        ];
        match refused.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, option)) => Err(Error::NoSuchSetting { family, option }),
            None => Ok(()),
        }
    }
}

/// Outcome of a [`Transcriber`] step.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// More samples are needed for a whole window.
    NeedsSamples,
    /// Segments of the decoded window, or of a part of it in live transcription. They are in order
    /// of time; silence has none.
    Segments(Vec<Segment>),
    /// The whole recording is decoded.
    Finished,
}

/// A family's way to transcribe a stream. It removes decoded samples from the front.
pub(crate) trait Listener: fmt::Debug {
    /// Decodes the next window, if it is complete or the stream is.
    fn step(&mut self, stream: &mut Stream) -> Result<Progress>;

    /// Spoken language, if it is known.
    fn language(&self) -> Option<&str>;

    /// Live words that belong to no segment yet.
    fn draft(&self) -> Draft {
        Draft::default()
    }
}

/// A transcription that its caller drives. Samples are pushed in blocks of any size, and each step
/// decodes a window. It keeps at most a window's samples beyond the newly pushed ones.
#[derive(Debug)]
pub struct Transcriber<'a> {
    /// Samples of the recording for the model.
    stream: Stream,
    gate: Option<Gate>,
    listener: Box<dyn Listener + 'a>,
}

impl<'a> Transcriber<'a> {
    /// Starts the transcription of one recording.
    ///
    /// # Errors
    /// The model does not support the language, a translation or a prompt, or the prompt cannot be
    /// tokenized.
    pub fn new(model: &'a mut SpeechModel, tokenizer: &'a Tokenizer, mut settings: Settings) -> Result<Transcriber<'a>> {
        settings.language = settings.language.as_deref().map(languages::code);
        let gate = settings.voice_activity.then(Gate::default);
        Ok(Transcriber { stream: Stream::default(), gate, listener: model.listener(tokenizer, settings)? })
    }

    /// Appends samples of one channel at [`SAMPLE_RATE`](super::SAMPLE_RATE).
    pub fn push(&mut self, samples: &[f32]) {
        match &mut self.gate {
            Some(gate) => gate.push(samples, &mut self.stream),
            None => self.stream.samples.extend_from_slice(samples),
        }
    }

    /// Marks the end of the recording.
    pub fn finish(&mut self) {
        if let Some(gate) = self.gate.as_mut().filter(|_| !self.stream.is_whole) {
            gate.finish(&mut self.stream);
        }
        self.stream.is_whole = true;
    }

    /// Takes the next block of a recording: [pushes](Self::push) it, or [finishes](Self::finish) if
    /// there is none.
    pub fn feed(&mut self, block: Option<&[f32]>) {
        match block {
            Some(samples) => self.push(samples),
            None => self.finish(),
        }
    }

    /// Seconds of the recording that were decoded.
    pub fn seconds(&self) -> f64 {
        match &self.gate {
            Some(gate) => gate.seconds(&self.stream),
            None => self.stream.seconds(),
        }
    }

    /// Spoken language, if it is known.
    pub fn language(&self) -> Option<&str> {
        self.listener.language()
    }

    /// Words of a [live](Settings::live) stream that belong to no segment yet. Settled words never
    /// change. The text so far consists of all segments' words, then these.
    pub fn draft(&self) -> Draft {
        let mut draft = self.listener.draft();
        if let Some(gate) = &self.gate {
            draft.settled.iter_mut().for_each(|word| gate.restore_word(word));
        }
        draft
    }

    /// Decodes the next window, if there is one.
    ///
    /// # Errors
    /// The model fails.
    pub fn step(&mut self) -> Result<Progress> {
        if self.gate.is_some() && self.stream.is_whole && self.stream.position() == 0 && self.stream.samples.is_empty() {
            // A recording without speech has nothing to decode, not even the silence at its end.
            return Ok(Progress::Finished);
        }
        let mut progress = self.listener.step(&mut self.stream)?;
        if let (Some(gate), Progress::Segments(segments)) = (&self.gate, &mut progress) {
            segments.iter_mut().for_each(|segment| gate.restore(segment));
        }
        if progress == Progress::Finished {
            // The rest is too short for text.
            self.stream.pass(self.stream.samples.len());
        }
        Ok(progress)
    }
}
