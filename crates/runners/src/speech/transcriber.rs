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

/// How to transcribe. What only some families know says so; the others refuse it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The language that is spoken, by its code or its English name; without it, the first window tells.
    pub language: Option<String>,
    pub task: Task,
    /// Text that might have come before the recording: names and spellings that the model then prefers.
    pub prompt: String,
    /// Names and words to prefer, which stand ahead of every window, before the prompt and the text so far.
    pub hotwords: String,
    /// Temperatures to try one after the other until a window's text passes the limits below.
    pub temperatures: Vec<f32>,
    /// How many texts of a window are tried at a time.
    pub search: Search,
    /// A text that compresses better than this repeats itself.
    pub most_compression: Option<f32>,
    /// A text whose mean log-probability is lower than this is not trusted.
    pub least_log_probability: Option<f32>,
    /// A window is silent if the model gives no speech a higher probability than this, and its text is not trusted or says next to
    /// nothing: models say a word or two into silence, and are sure of them.
    pub most_no_speech: Option<f32>,
    /// Whether segments get their words with times.
    pub words: bool,
    /// Whether a window is decoded with the text before it in mind: names and style stay the same, and mistakes too.
    pub condition_on_previous: bool,
    /// How many windows are decoded at a time. Above 1 they end in pauses, not where a sentence did, and know nothing of one another.
    pub batch: usize,
    /// Whether the model only hears where somebody may be speaking, with half a second on either side; pauses of less than 2 seconds are
    /// heard too. Times are those of the recording all the same.
    pub voice_activity: bool,
    /// If somebody waits for the text of a stream, how many seconds of sound come between two hypotheses of it, 0.1 to 10: words are
    /// [drafted](Transcriber::draft) when two of them agree, and have times. Voxtral Realtime, which makes none, drafts each word at once.
    pub live: Option<f64>,
    /// Fixes what is drawn at temperatures above 0.
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
    /// Refuses what a family does not take. None but Whisper translates, or has text in mind.
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

/// What a step of a [`Transcriber`] came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// More samples have to be pushed before there is a whole window.
    NeedsSamples,
    /// What was decoded, a window or live a part of one, made these segments, in the order of time; silence has none.
    Segments(Vec<Segment>),
    /// All of the recording was decoded.
    Finished,
}

/// How a family listens: it takes what it understood off the front of a stream.
pub(crate) trait Listener: fmt::Debug {
    /// Listens to the next window, if there is a whole one or the stream is whole.
    fn step(&mut self, stream: &mut Stream) -> Result<Progress>;

    /// The language that is spoken, as far as it is known.
    fn language(&self) -> Option<&str>;

    /// Live words that belong to no segment yet.
    fn draft(&self) -> Draft {
        Draft::default()
    }
}

/// A transcription as a machine that its caller feeds: samples are pushed in blocks of any size, and each step decodes a window.
/// It keeps no more than a window's samples beyond what was pushed since.
#[derive(Debug)]
pub struct Transcriber<'a> {
    /// What the model hears of the recording, or will.
    stream: Stream,
    gate: Option<Gate>,
    listener: Box<dyn Listener + 'a>,
}

impl<'a> Transcriber<'a> {
    /// A transcription of one recording.
    ///
    /// # Errors
    /// The model does not know the language, cannot translate, or takes no prompt; the prompt cannot be tokenized.
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

    /// Says that no samples follow.
    pub fn finish(&mut self) {
        if let Some(gate) = self.gate.as_mut().filter(|_| !self.stream.is_whole) {
            gate.finish(&mut self.stream);
        }
        self.stream.is_whole = true;
    }

    /// Takes the next block of a recording: [pushes](Self::push) it, or [finishes](Self::finish) if there is none.
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

    /// The language that is spoken, as far as it is known.
    pub fn language(&self) -> Option<&str> {
        self.listener.language()
    }

    /// What was heard of a [live](Settings::live) stream and belongs to no segment yet. The words that are settled never change: all
    /// segments' words and these are the text so far.
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
            // Nobody spoke: there is nothing to hear, not even the silence that ends a recording.
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
