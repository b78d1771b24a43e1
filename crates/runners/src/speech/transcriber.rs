//! Recordings of any length, window by window.

use flambeau_text::Tokenizer;

use super::{
    SAMPLE_RATE, Segment, Word,
    whisper::{Decoding, Language, Request, Whisper, align, compression_ratio, decode, detect_language, spans, text},
};
use crate::{Error, Result};

/// What is softer than this is silence: 78 dB below full scale.
const QUIET: f32 = 1.25e-4;
/// Samples of silence that are worth leaving out, and how many stay ahead of the first sound.
const LONG_SILENCE: usize = 2 * SAMPLE_RATE as usize;
const LEAD: usize = SAMPLE_RATE as usize / 2;

/// Whoever speaks says more than this.
const LEAST_TOKENS_A_SECOND: f64 = 1.0;

/// What to do with what is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Write it down in its own language.
    #[default]
    Transcribe,
    /// Write it down in English.
    Translate,
}

/// How to transcribe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Code of the language that is spoken; without it, the first window tells.
    pub language: Option<String>,
    pub task: Task,
    /// Text that might have come before the recording: names and spellings that the model then prefers.
    pub prompt: String,
    /// Temperatures to try one after the other until a window's text passes the limits below.
    pub temperatures: Vec<f32>,
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
    /// Fixes what is drawn at temperatures above 0.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            language: None,
            task: Task::Transcribe,
            prompt: String::new(),
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            most_compression: Some(2.4),
            least_log_probability: Some(-1.0),
            most_no_speech: Some(0.6),
            words: false,
            condition_on_previous: false,
            seed: 0,
        }
    }
}

/// What a step of a [`Transcriber`] came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// More samples have to be pushed before there is a whole window.
    NeedsSamples,
    /// A window was decoded into these segments, in the order of time; silence has none.
    Segments(Vec<Segment>),
    /// All of the recording was decoded.
    Finished,
}

/// A transcription as a machine that its caller feeds: samples are pushed in blocks of any size, and each step decodes a window.
/// It keeps no more than a window's samples beyond what was pushed since.
#[derive(Debug)]
pub struct Transcriber<'a> {
    model: &'a mut Whisper,
    tokenizer: &'a Tokenizer,
    settings: Settings,
    /// Samples from `position` on.
    samples: Vec<f32>,
    /// Samples that were decoded.
    position: u64,
    is_whole: bool,
    language: Option<Language>,
    /// Tokens that the next window is decoded with: those of the prompt, and of the text so far.
    previous: Vec<u32>,
    prompt: usize,
}

impl<'a> Transcriber<'a> {
    /// A transcription of one recording.
    ///
    /// # Errors
    /// The model does not know the language, or cannot translate; the prompt cannot be tokenized.
    pub fn new(model: &'a mut Whisper, tokenizer: &'a Tokenizer, settings: Settings) -> Result<Transcriber<'a>> {
        let vocabulary = model.vocabulary();
        let language = settings.language.as_deref().map(|code| known(vocabulary, code)).transpose()?.flatten();
        if settings.task == Task::Translate && vocabulary.translate.is_none() {
            return Err(Error::NoTranslation);
        }
        let prompt = settings.prompt.trim();
        let previous = if prompt.is_empty() { Vec::new() } else { tokenizer.encode_plain(&format!(" {prompt}"))? };
        let prompt = previous.len();
        Ok(Transcriber {
            model,
            tokenizer,
            settings,
            samples: Vec::new(),
            position: 0,
            is_whole: false,
            language,
            previous,
            prompt,
        })
    }

    /// Appends samples of one channel at [`SAMPLE_RATE`].
    pub fn push(&mut self, samples: &[f32]) {
        self.samples.extend_from_slice(samples);
    }

    /// Says that no samples follow.
    pub fn finish(&mut self) {
        self.is_whole = true;
    }

    /// Seconds of the recording that were decoded.
    pub fn seconds(&self) -> f64 {
        self.position as f64 / f64::from(SAMPLE_RATE)
    }

    /// The language that is spoken, once it is known; none where the model knows English alone.
    pub fn language(&self) -> Option<&str> {
        self.language.as_ref().map(|language| language.code.as_str())
    }

    /// Decodes the next window, if there is one.
    ///
    /// # Errors
    /// The model fails.
    pub fn step(&mut self) -> Result<Progress> {
        let step = self.model.step_samples();
        // What is shorter than a step of the timestamps says nothing.
        if self.is_whole && self.samples.len() < step {
            return Ok(Progress::Finished);
        }
        if !self.is_whole && self.samples.len() < self.model.window() {
            return Ok(Progress::NeedsSamples);
        }
        let heard = self.samples.len().min(self.model.window());
        if let Some(passed) = self.silence(heard) {
            self.pass(passed);
            // What follows a long silence need not go on with what was said before it.
            self.previous.truncate(self.prompt);
            return Ok(Progress::Segments(Vec::new()));
        }
        let features = self.model.features(&self.samples[..heard])?;
        self.model.encode(features)?;
        if self.language.is_none() && !self.model.vocabulary().languages.is_empty() {
            self.language = Some(detect_language(self.model)?.0);
        }
        let steps = heard.div_ceil(step);
        let attempt = self.attempts(steps)?;
        let is_silent = self.is_silent(&attempt.decoding, steps);
        let (mut segments, next) = if is_silent { (Vec::new(), steps) } else { self.segments(&attempt, steps)? };
        if self.settings.words {
            self.add_words(&mut segments, steps)?;
        }
        if !self.settings.condition_on_previous || attempt.temperature > 0.5 {
            self.previous.truncate(self.prompt);
        } else {
            self.previous.extend(segments.iter().flat_map(|segment| &segment.tokens));
        }
        self.pass(if next == 0 { heard } else { (next * step).min(heard) });
        Ok(Progress::Segments(segments))
    }

    /// Goes on by that many samples.
    fn pass(&mut self, samples: usize) {
        self.samples.drain(..samples);
        self.position += samples as u64;
    }

    /// How many of the next `heard` samples need not be listened to, if they begin with silence: all, or those up to shortly before the
    /// first sound.
    fn silence(&self, heard: usize) -> Option<usize> {
        let quiet = self.samples[..heard].iter().take_while(|sample| sample.abs() < QUIET).count();
        let passed = if quiet == heard { heard } else { quiet.saturating_sub(LEAD) };
        (passed > 0 && (quiet == heard || quiet >= LONG_SILENCE)).then_some(passed)
    }

    /// Decodes the window at one temperature after the other until its text can be trusted; the likeliest one if none can.
    fn attempts(&mut self, steps: usize) -> Result<Attempt> {
        let mut best: Option<Attempt> = None;
        let temperatures = if self.settings.temperatures.is_empty() { vec![0.0] } else { self.settings.temperatures.clone() };
        for (temperature, seed) in temperatures.into_iter().zip(self.settings.seed..) {
            let request = Request {
                previous: self.previous.clone(),
                task: self.task_tokens(),
                timestamps: true,
                temperature,
                seed,
                max_tokens: 0,
            };
            let decoding = decode(self.model, &request)?;
            let text = text(self.tokenizer, self.model.vocabulary(), &decoding.tokens)?;
            let attempt = Attempt { compression_ratio: compression_ratio(text.trim()), decoding, temperature };
            if self.is_trusted(&attempt, steps) {
                return Ok(attempt);
            }
            let is_better = best.as_ref().is_none_or(|best| self.is_better(&attempt, best));
            best = if is_better { Some(attempt) } else { best };
        }
        best.ok_or(Error::EmptyPrompt)
    }

    fn task_tokens(&self) -> Vec<u32> {
        let vocabulary = self.model.vocabulary();
        let task = match self.settings.task {
            Task::Transcribe => vocabulary.transcribe,
            Task::Translate => vocabulary.translate,
        };
        self.language.iter().map(|language| language.id).chain(task.filter(|_| self.language.is_some())).collect()
    }

    fn repeats(&self, attempt: &Attempt) -> bool {
        self.settings.most_compression.is_some_and(|most| attempt.compression_ratio > most)
    }

    fn is_doubtful(&self, decoding: &Decoding) -> bool {
        self.settings.least_log_probability.is_some_and(|least| decoding.mean_log_probability < least)
    }

    fn is_trusted(&self, attempt: &Attempt, steps: usize) -> bool {
        self.is_silent(&attempt.decoding, steps) || !self.repeats(attempt) && !self.is_doubtful(&attempt.decoding)
    }

    fn is_better(&self, a: &Attempt, b: &Attempt) -> bool {
        let key = |attempt: &Attempt| (!self.repeats(attempt), attempt.decoding.mean_log_probability);
        key(a) > key(b)
    }

    /// Whether the model holds the window of `steps` steps for silence, and its text does not speak against that.
    fn is_silent(&self, decoding: &Decoding, steps: usize) -> bool {
        let says_so = self.settings.most_no_speech.is_some_and(|most| decoding.no_speech_probability > most);
        let said = self.model.vocabulary().text_of(&decoding.tokens).count();
        let seconds = (steps * self.model.step_samples()) as f64 / f64::from(SAMPLE_RATE);
        says_so && (self.is_doubtful(decoding) || (said as f64) < LEAST_TOKENS_A_SECOND * seconds)
    }

    /// Tells when the words of the window's segments were said.
    fn add_words(&mut self, segments: &mut [Segment], steps: usize) -> Result<()> {
        let vocabulary = self.model.vocabulary();
        let counts: Vec<usize> = segments.iter().map(|segment| vocabulary.text_of(&segment.tokens).count()).collect();
        let tokens: Vec<u32> = segments.iter().flat_map(|segment| vocabulary.text_of(&segment.tokens)).collect();
        let head: Vec<u32> = [vocabulary.start].into_iter().chain(self.task_tokens()).collect();
        let language = self.language().unwrap_or("en").to_owned();
        let aligned = align(self.model, self.tokenizer, (&head, &tokens), &language, steps)?;
        let mut aligned = aligned.into_iter().peekable();
        let mut last = 0;
        for (segment, count) in segments.iter_mut().zip(counts) {
            last += count;
            while let Some(word) = aligned.next_if(|word| word.tokens.start < last) {
                let (start, end) = (self.at(word.start), self.at(word.end));
                segment.words.push(Word { text: word.text, start, end });
            }
        }
        Ok(())
    }

    /// Seconds of the recording at a step of the window.
    fn at(&self, steps: usize) -> f64 {
        let seconds = self.seconds() + (steps * self.model.step_samples()) as f64 / f64::from(SAMPLE_RATE);
        (seconds * 1000.0).round() / 1000.0
    }

    /// The window's segments, and the step at which the next window begins.
    fn segments(&self, attempt: &Attempt, steps: usize) -> Result<(Vec<Segment>, usize)> {
        let decoding = &attempt.decoding;
        let vocabulary = self.model.vocabulary();
        let (spans, next) = spans(vocabulary, &decoding.tokens, steps);
        let mut segments = Vec::new();
        for span in spans.into_iter().filter(|span| span.start < span.end) {
            let tokens = &decoding.tokens[span.tokens.clone()];
            let text = text(self.tokenizer, vocabulary, tokens)?;
            // Marks alone say nothing.
            if !text.chars().any(char::is_alphanumeric) {
                continue;
            }
            segments.push(Segment {
                start: self.at(span.start),
                end: self.at(span.end),
                window: self.at(0),
                text,
                tokens: tokens.to_vec(),
                words: Vec::new(),
                temperature: attempt.temperature,
                mean_log_probability: decoding.mean_log_probability,
                no_speech_probability: decoding.no_speech_probability,
                compression_ratio: attempt.compression_ratio,
            });
        }
        Ok((segments, next))
    }
}

/// A window's text at one temperature.
#[derive(Debug)]
struct Attempt {
    decoding: Decoding,
    temperature: f32,
    compression_ratio: f32,
}

/// The language of that code, which models of English alone only take if it is English.
fn known(vocabulary: &super::whisper::Vocabulary, code: &str) -> Result<Option<Language>> {
    let unknown = |expected: String| Err(Error::Language { found: code.to_owned(), expected });
    match vocabulary.language(code) {
        Some(language) => Ok(Some(language.clone())),
        None if !vocabulary.languages.is_empty() => {
            let codes: Vec<&str> = vocabulary.languages.iter().map(|language| language.code.as_str()).collect();
            unknown(format!("expected one of {}", codes.join(", ")))
        }
        None if code == "en" => Ok(None),
        None => unknown("it knows English alone".into()),
    }
}
