//! The text of one window.

use flambeau_text::{Sampler, SamplingParams, Tokenizer, log_probabilities};

use super::{Language, Rules, Search, Vocabulary, Whisper, beam, unfit};
use crate::Result;

/// What to decode of a window.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Ids before `<|startoftranscript|>`: what was said before, without its own special token.
    pub previous: Vec<u32>,
    /// Language and task, in models that have several.
    pub task: Vec<u32>,
    pub timestamps: bool,
    /// 0 takes the likeliest token each time.
    pub temperature: f32,
    /// Fixes what is drawn at other temperatures.
    pub seed: u64,
    /// Most tokens of the text; half of what the model holds if it is 0.
    pub max_tokens: usize,
    /// How many texts are tried.
    pub search: Search,
}

/// What the decoder reads ahead of a text.
#[derive(Debug)]
pub(super) struct Prompt {
    /// What was said before, and the token that begins a window's text.
    pub(super) head: Vec<u32>,
    /// Language and task, and whether there are timestamps.
    pub(super) task: Vec<u32>,
    /// Most tokens of the text.
    pub(super) most: usize,
}

impl Prompt {
    /// The prompt of a request, for a model that holds `context` tokens.
    pub(super) fn new(vocabulary: &Vocabulary, request: &Request, context: usize) -> Prompt {
        let mut head = Vec::new();
        if !request.previous.is_empty() {
            // No more than leaves room for the text itself.
            let room = (context / 2).saturating_sub(1);
            head.push(vocabulary.previous);
            head.extend_from_slice(&request.previous[request.previous.len().saturating_sub(room)..]);
        }
        head.push(vocabulary.start);
        let mut task = request.task.clone();
        if !request.timestamps {
            task.push(vocabulary.no_timestamps);
        }
        Prompt { head, task, most: if request.max_tokens == 0 { context / 2 } else { request.max_tokens } }
    }
}

/// What was decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// Text and timestamps, without the token that ends them.
    pub tokens: Vec<u32>,
    /// Probability of each, and of the token that ended them if there was one.
    pub probabilities: Vec<f32>,
    /// Whether the model ended the text.
    pub is_ended: bool,
    /// Sum of the log-probabilities over the number of tokens plus one.
    pub mean_log_probability: f32,
    /// What the model gives the token for no speech after `<|startoftranscript|>`.
    pub no_speech_probability: f32,
}

/// Decodes the window that the model listens to.
///
/// # Errors
/// The model fails, no token is possible, or several texts are to be tried and the program cannot.
pub fn decode(model: &mut Whisper, request: &Request) -> Result<Decoding> {
    if request.search.width(request.temperature) > 1 {
        return beam::decode(model, request);
    }
    let vocabulary = model.vocabulary().clone();
    let (mut logits, context) = (Vec::new(), model.context());
    let Prompt { head, task, most } = Prompt::new(&vocabulary, request, context);
    model.restart();
    model.step(&head, &mut logits)?;
    let no_speech_probability = vocabulary.no_speech_probability(&logits);
    if !task.is_empty() {
        model.step(&task, &mut logits)?;
    }
    let rules = Rules { vocabulary: &vocabulary, timestamps: request.timestamps };
    let params = SamplingParams { temperature: request.temperature, seed: request.seed, ..SamplingParams::default() };
    let mut sampler = Sampler::new(params)?;
    let (mut tokens, mut probabilities, mut sum, mut is_ended) = (Vec::new(), Vec::new(), 0.0, false);
    while tokens.len() < most {
        rules.apply(&tokens, &mut logits);
        let token = sampler.sample(&logits, &[])?;
        let log_probability = log_probabilities(&logits, &[token])[0];
        sum += log_probability;
        probabilities.push(log_probability.exp());
        if token == vocabulary.end {
            is_ended = true;
            break;
        }
        tokens.push(token);
        if model.position() == context {
            break;
        }
        model.step(&[token], &mut logits)?;
    }
    let mean_log_probability = sum / (probabilities.len() + 1) as f32;
    Ok(Decoding { tokens, probabilities, is_ended, mean_log_probability, no_speech_probability })
}

/// The likeliest language of the window that the model listens to, with its probability among all.
///
/// # Errors
/// The model fails, or knows English alone.
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

/// The text of tokens, timestamps and other special tokens left out.
pub(crate) fn text(tokenizer: &Tokenizer, vocabulary: &Vocabulary, tokens: &[u32]) -> Result<String> {
    let plain: Vec<u32> = vocabulary.text_of(tokens).collect();
    Ok(tokenizer.decode(&plain, true)?)
}
