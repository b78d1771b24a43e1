//! Recordings of any length, in stretches that fit into the caches.

use flambeau_text::{Tokenizer, argmax, log_probabilities};

use super::{FAMILY, Voxtral, unfit};
use crate::{
    Error, Result,
    speech::{
        Progress, SAMPLE_RATE, Segment, Settings,
        segment::has_words,
        stream::{SHORTEST, Stream},
        text_decoder::{first_token, special_token},
        transcriber::{Listener, Takes},
    },
};

/// Maximum tokens of speech; a longer text repeats itself.
const MOST_TOKENS_A_SECOND: f64 = 12.0;
/// Tokens that the caches keep free for the text of a window.
const TOKENS_A_WINDOW: usize = 200;
/// Tokens of the text between two reports of progress.
const TOKENS_A_STEP: usize = 16;

/// Transcribes one recording with Voxtral.
#[derive(Debug)]
pub(crate) struct VoxtralListener<'a> {
    model: &'a mut Voxtral,
    tokenizer: &'a Tokenizer,
    language: Option<String>,
    /// Tokens before and after the sound.
    prompt: [Vec<u32>; 2],
    state: State,
    logits: Vec<f32>,
}

/// Stage of the samples at the front of the stream.
#[derive(Debug)]
enum State {
    /// Nothing yet.
    Waiting,
    /// The first `encoded` of `heard` samples became rows.
    Listening {
        heard: usize,
        encoded: usize,
        rows: Vec<f32>,
    },
    Writing {
        heard: usize,
        tokens: Vec<u32>,
        log_probability: f32,
    },
}

impl<'a> VoxtralListener<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// The model does not support a setting, or the tokenizer belongs to another model.
    pub(crate) fn new(model: &'a mut Voxtral, tokenizer: &'a Tokenizer, settings: &Settings) -> Result<VoxtralListener<'a>> {
        settings.check(FAMILY, Takes { language: true, ..Takes::default() })?;
        let prompt = prompt(tokenizer, settings.language.as_deref())?;
        Ok(VoxtralListener {
            model,
            tokenizer,
            language: settings.language.clone(),
            prompt,
            state: State::Waiting,
            logits: Vec::new(),
        })
    }

    /// Maximum samples of a stretch.
    fn longest(&self) -> usize {
        let window = self.model.window();
        let rows = window / ROW_SAMPLES + TOKENS_A_WINDOW;
        (self.model.context() / rows).max(1) * window
    }

    /// Decodes more of the text. Returns whether the text is complete.
    fn write(&mut self, heard: usize, tokens: &mut Vec<u32>, log_probability: &mut f32) -> Result<bool> {
        let seconds = heard as f64 / f64::from(SAMPLE_RATE);
        let most = 16 + (seconds * MOST_TOKENS_A_SECOND) as usize;
        for _ in 0..TOKENS_A_STEP {
            let (token, _) = argmax(&self.logits).ok_or_else(|| unfit("its logits are no numbers"))?;
            *log_probability += log_probabilities(&self.logits, &[token]).first().copied().unwrap_or_default();
            if self.tokenizer.is_eos(token) || tokens.len() == most || self.model.position() == self.model.context() {
                return Ok(true);
            }
            tokens.push(token);
            self.model.step(token, &mut self.logits)?;
        }
        Ok(false)
    }

    fn segments(&self, stream: &Stream, heard: usize, tokens: Vec<u32>, log_probability: f32) -> Result<Vec<Segment>> {
        let text = self.tokenizer.decode(&tokens, true)?;
        if !has_words(&text) {
            return Ok(Vec::new());
        }
        let [start, end] = [0, heard as isize].map(|samples| stream.at(samples));
        let mean = log_probability / (tokens.len() + 1) as f32;
        Ok(vec![Segment::greedy(start..end, start, text, tokens, mean)])
    }
}

impl Listener for VoxtralListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let (next, progress) = match std::mem::replace(&mut self.state, State::Waiting) {
            State::Waiting => {
                if stream.is_whole && stream.samples.len() < SHORTEST {
                    return Ok(Progress::Finished);
                }
                let Some(heard) = stream.stretch(self.longest()) else { return Ok(Progress::NeedsSamples) };
                match stream.silence(heard) {
                    Some(passed) => {
                        stream.pass(passed);
                        (State::Waiting, Vec::new())
                    }
                    None => (State::Listening { heard, encoded: 0, rows: Vec::new() }, Vec::new()),
                }
            }
            State::Listening { heard, encoded, mut rows } if encoded < heard => {
                let end = heard.min(encoded + self.model.window());
                let features = self.model.features(&stream.samples[encoded..end])?;
                rows.extend(self.model.encode(features)?);
                (State::Listening { heard, encoded: end, rows }, Vec::new())
            }
            State::Listening { heard, rows, .. } => {
                let [head, tail] = &self.prompt;
                self.model.begin([head, tail], &rows, &mut self.logits)?;
                (State::Writing { heard, tokens: Vec::new(), log_probability: 0.0 }, Vec::new())
            }
            State::Writing { heard, mut tokens, mut log_probability } => {
                if self.write(heard, &mut tokens, &mut log_probability)? {
                    let segments = self.segments(stream, heard, tokens, log_probability)?;
                    stream.pass(heard);
                    (State::Waiting, segments)
                } else {
                    (State::Writing { heard, tokens, log_probability }, Vec::new())
                }
            }
        };
        self.state = next;
        Ok(Progress::Segments(progress))
    }

    fn language(&self) -> Option<&str> {
        self.language.as_deref()
    }
}

/// Minimum samples per row: 80 ms.
const ROW_SAMPLES: usize = 1280;

/// Tokens before and after the sound: an instruction to transcribe, with the language if it is
/// given.
fn prompt(tokenizer: &Tokenizer, language: Option<&str>) -> Result<[Vec<u32>; 2]> {
    let id = |name: &str| special_token(tokenizer, FAMILY, name);
    let mut tail = vec![id("[/INST]")?];
    if let Some(code) = language {
        if !(2..=3).contains(&code.len()) || !code.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(Error::Language { found: code.to_owned(), expected: "expected a code such as en".into() });
        }
        tail.extend(tokenizer.encode_plain(&format!("lang:{code}"))?);
    }
    tail.push(id("[TRANSCRIBE]")?);
    Ok([vec![first_token(tokenizer, FAMILY)?, id("[INST]")?, id("[BEGIN_AUDIO]")?], tail])
}
