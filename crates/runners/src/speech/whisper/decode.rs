//! The text of one window.

use flambeau_text::{Sampler, SamplingParams, Tokenizer, log_probabilities};

use super::{Language, Rules, Search, Vocabulary, Whisper, beam, unfit};
use crate::Result;

/// A decoding request for a window.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Ids before `<|startoftranscript|>`: the preceding text, without its special token.
    pub previous: Vec<u32>,
    /// Language and task, in models that have several.
    pub task: Vec<u32>,
    pub timestamps: bool,
    /// Tokens at the beginning of the text, regardless of the model's logits.
    pub begun: Vec<u32>,
    /// 0 takes the likeliest token each time.
    pub temperature: f32,
    /// Seed of the sampling at other temperatures.
    pub seed: u64,
    /// Maximum tokens of the text; 0 means half of the model's context.
    pub max_tokens: usize,
    /// Search over candidate texts.
    pub search: Search,
}

impl Request {
    /// Maximum tokens before a text in a context of `context` tokens. The rest is room for the
    /// text.
    pub(super) fn room(context: usize) -> usize {
        (context / 2).saturating_sub(1)
    }
}

/// Tokens before a text.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Previous text, and the token that begins a window's text.
    pub(super) head: Vec<u32>,
    /// Language, task, the token for no timestamps, and the given beginning of the text.
    pub(super) task: Vec<u32>,
    /// Maximum tokens of the text.
    pub(super) most: usize,
}

impl Prompt {
    /// The prompt of a request, for a model that holds `context` tokens.
    pub(super) fn new(vocabulary: &Vocabulary, request: &Request, context: usize) -> Prompt {
        let mut head = Vec::new();
        if !request.previous.is_empty() {
            let room = Request::room(context);
            head.push(vocabulary.previous);
            head.extend_from_slice(&request.previous[request.previous.len().saturating_sub(room)..]);
        }
        head.push(vocabulary.start);
        let mut task = request.task.clone();
        if !request.timestamps {
            task.push(vocabulary.no_timestamps);
        }
        task.extend(&request.begun);
        Prompt { head, task, most: if request.max_tokens == 0 { context / 2 } else { request.max_tokens } }
    }
}

/// Decoded text.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// Text and timestamps, including the given beginning of the text, without the end token.
    pub tokens: Vec<u32>,
    /// Probability of each chosen token, including the end token.
    pub probabilities: Vec<f32>,
    /// Whether the model ended the text.
    pub is_ended: bool,
    /// Sum of the log-probabilities over the number of tokens plus one.
    pub mean_log_probability: f32,
    /// Probability of the no-speech token after `<|startoftranscript|>`.
    pub no_speech_probability: f32,
}

/// Decodes the current window.
///
/// # Errors
/// The model fails, no token is possible, or the program does not support several texts.
pub fn decode(model: &mut Whisper, request: &Request) -> Result<Decoding> {
    if request.search.width(request.temperature) > 1 {
        return beam::decode(model, request);
    }
    let mut text = Greedy::begin(model, request)?;
    while let Some(token) = text.next(model.position())? {
        model.step(&[token], &mut text.logits)?;
    }
    Ok(text.decoding())
}

/// A text that grows by one token at a time, either the likeliest one or a sampled one.
#[derive(Debug)]
pub(super) struct Greedy {
    vocabulary: Vocabulary,
    timestamps: bool,
    sampler: Sampler,
    /// Maximum tokens of the model, and of the text.
    context: usize,
    most: usize,
    /// Logits of the next token.
    pub(super) logits: Vec<f32>,
    tokens: Vec<u32>,
    probabilities: Vec<f32>,
    sum: f32,
    is_ended: bool,
    no_speech_probability: f32,
}

impl Greedy {
    /// Reads the prompt for the text of the current window.
    pub(super) fn begin(model: &mut Whisper, request: &Request) -> Result<Greedy> {
        let (vocabulary, context, mut logits) = (model.vocabulary().clone(), model.context(), Vec::new());
        let Prompt { head, task, most } = Prompt::new(&vocabulary, request, context);
        model.restart();
        model.step(&head, &mut logits)?;
        let no_speech_probability = vocabulary.no_speech_probability(&logits);
        if !task.is_empty() {
            model.step(&task, &mut logits)?;
        }
        let params = SamplingParams { temperature: request.temperature, seed: request.seed, ..SamplingParams::default() };
        Ok(Greedy {
            vocabulary,
            timestamps: request.timestamps,
            sampler: Sampler::new(params)?,
            context,
            most,
            logits,
            tokens: request.begun.clone(),
            probabilities: Vec::new(),
            sum: 0.0,
            is_ended: false,
            no_speech_probability,
        })
    }

    /// Chooses the next token from the logits, with `read` tokens in the caches. Returns the token
    /// that the model reads next, or `None` at the end of the text.
    pub(super) fn next(&mut self, read: usize) -> Result<Option<u32>> {
        if self.is_ended || self.tokens.len() >= self.most {
            return Ok(None);
        }
        let rules = Rules { vocabulary: &self.vocabulary, timestamps: self.timestamps };
        rules.apply(&self.tokens, &mut self.logits);
        let token = self.sampler.sample(&self.logits, &[])?;
        let log_probability = log_probabilities(&self.logits, &[token])[0];
        self.sum += log_probability;
        self.probabilities.push(log_probability.exp());
        self.is_ended = token == self.vocabulary.end;
        if !self.is_ended {
            self.tokens.push(token);
        }
        Ok((!self.is_ended && self.tokens.len() < self.most && read < self.context).then_some(token))
    }

    pub(super) fn decoding(self) -> Decoding {
        Decoding {
            mean_log_probability: self.sum / (self.probabilities.len() + 1) as f32,
            tokens: self.tokens,
            probabilities: self.probabilities,
            is_ended: self.is_ended,
            no_speech_probability: self.no_speech_probability,
        }
    }
}

/// The most likely language of the current window, with its probability among all languages.
///
/// # Errors
/// The model fails, or is English-only.
pub fn detect_language(model: &mut Whisper) -> Result<(Language, f32)> {
    let mut logits = Vec::new();
    model.restart();
    model.step(&[model.vocabulary().start], &mut logits)?;
    let languages = &model.vocabulary().languages;
    let logit = |language: &Language| logits.get(language.id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let list: Vec<f32> = languages.iter().map(logit).collect();
    let best = flambeau_text::argmax(&list).ok_or_else(|| unfit("it knows no languages to choose from"))?.0;
    let probability = log_probabilities(&list, &[best])[0].exp();
    Ok((languages[best as usize].clone(), probability))
}

/// The text of tokens, without timestamps and other special tokens.
pub(crate) fn text(tokenizer: &Tokenizer, vocabulary: &Vocabulary, tokens: &[u32]) -> Result<String> {
    let plain: Vec<u32> = vocabulary.text_of(tokens).collect();
    Ok(tokenizer.decode(&plain, true)?)
}
