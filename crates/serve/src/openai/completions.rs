//! `/v1/completions`.

use axum::response::Response;
use flambeau::{runners::llm::Job, text::Tokenizer};
use serde_json::{Value as Json, json};

use super::{HARMLESS, answers::Answers, chat::stream_usage, logprobs, params::MAX_TOP, params::Params};
use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    gaps::Gap,
    json::{Fields, wrong},
    model::Handle,
    reply::{self, Events, Frames, ResponseBuilder},
    tools::{AnswerReader, Delta},
    worker::{JobUpdate, Update},
};

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 64;
/// Default maximum number of tokens: OpenAI's default.
const DEFAULT_TOKENS: usize = 16;

/// A prompt as text or as tokens.
#[derive(Clone, Debug)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A completion request.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    prompts: Vec<Prompt>,
    params: Params,
    pub(crate) stream: bool,
    include_usage: bool,
    echo: bool,
    /// Text after the answer.
    suffix: Option<String>,
}

impl CompletionRequest {
    /// Parses a request after `model` was taken.
    ///
    /// # Errors
    /// The error names the invalid or unsupported field.
    pub(crate) fn read(mut fields: Fields, model: &Handle, most_choices: usize) -> Result<CompletionRequest> {
        let prompts = prompts(fields.take("prompt"), model.tokenizer.vocab_size())?;
        let mut params = Params::read(&mut fields, model, most_choices)?;
        params.limit_tokens(DEFAULT_TOKENS);
        params.logprobs = fields.count("logprobs", 0..=MAX_TOP)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        if echo && params.logprobs.is_some() {
            return Err(ApiError::unsupported("echo", "`echo` with `logprobs` is not supported: prompts are not judged"));
        }
        let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = stream_usage(&mut fields)?;
        fields.finish(HARMLESS)?;
        if prompts.len() * params.choices > MAX_PROMPTS {
            return Err(ApiError::value("n", format!("a request takes at most {MAX_PROMPTS} answers")));
        }
        Ok(CompletionRequest { prompts, params, stream, include_usage, echo, suffix })
    }

    /// Jobs for all prompts, and the writer of the response.
    ///
    /// # Errors
    /// Fails if a prompt cannot be encoded.
    pub(crate) fn prepare(&self, model: Handle) -> Result<(Vec<Job>, CompletionAnswer)> {
        let (mut jobs, mut prompt_tokens, mut begun) = (Vec::new(), 0, Vec::new());
        for prompt in &self.prompts {
            let mut params = self.params.clone();
            let ids = match (prompt, &self.suffix) {
                (Prompt::Text(text), Some(suffix)) => model.fill(&Gap::new(text.clone(), suffix.clone()), "suffix", &mut params)?,
                (Prompt::Ids(_), Some(_)) => return Err(ApiError::value("suffix", "`suffix` needs a prompt of text")),
                (Prompt::Text(text), None) => model.encode(text, true, "prompt")?,
                (Prompt::Ids(ids), None) => ids.clone(),
            };
            let text = if self.echo { text(prompt, &model.tokenizer)? } else { String::new() };
            prompt_tokens += ids.len();
            jobs.extend(params.jobs(&ids, &model));
            begun.extend(std::iter::repeat_n(text, self.params.choices));
        }
        let choices = begun.iter().map(|_| Choice::new(AnswerReader::plain())).collect();
        let mut answers = Answers::new("cmpl-", model, choices, prompt_tokens);
        answers.include_usage = self.include_usage;
        answers.has_logprobs = self.params.logprobs.is_some();
        let offsets = begun.iter().map(|text| text.chars().count()).collect();
        Ok((jobs, CompletionAnswer { answers, begun, offsets }))
    }
}

fn text(prompt: &Prompt, tokenizer: &Tokenizer) -> Result<String> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => tokenizer.decode(ids, true).map_err(|error| ApiError::value("prompt", error.to_string())),
    }
}

/// A string, a list of strings, a list of tokens or a list of such lists.
fn prompts(value: Option<Json>, vocabulary: usize) -> Result<Vec<Prompt>> {
    const NAME: &str = "prompt";
    let missing = || ApiError::value(NAME, "`prompt` is missing");
    let id = |value: &Json| value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
    let one = |value: &Json| match value {
        Json::String(text) => Some(Prompt::Text(text.clone())),
        Json::Array(list) if !list.is_empty() => list.iter().map(id).collect::<Option<_>>().map(Prompt::Ids),
        _ => None,
    };
    let value = value.ok_or_else(missing)?;
    let prompts = match &value {
        Json::Array(list) if list.first().is_some_and(|first| !first.is_number()) => list.iter().map(one).collect(),
        other => one(other).map(|prompt| vec![prompt]),
    };
    let expected = format!("a text, a list of token ids below {vocabulary}, or a list of such");
    prompts.ok_or_else(|| wrong(NAME, &expected, &value))
}

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(crate) struct CompletionAnswer {
    answers: Answers,
    /// Text prepended to each answer.
    begun: Vec<String>,
    /// Offset of the next token in each answer, in characters.
    offsets: Vec<usize>,
}

/// Object type of the response and of stream events.
const KIND: &str = "text_completion";

impl CompletionAnswer {
    /// Applies an update and returns its new text.
    fn take(&mut self, number: usize, update: Update) -> Result<String> {
        let mut deltas = Vec::new();
        self.answers.choices[number].take(update, &mut deltas)?;
        Ok(deltas.into_iter().filter_map(|delta| if let Delta::Content(text) = delta { Some(text) } else { None }).collect())
    }

    /// An answer or a piece of it. Clears the pending log probabilities.
    fn choice(&mut self, index: usize, text: &str) -> Json {
        let Answers { choices, model, has_logprobs, .. } = &mut self.answers;
        let choice = &mut choices[index];
        let logprobs = if *has_logprobs {
            logprobs::completion(&model.tokenizer, &choice.logprobs, &mut self.offsets[index])
        } else {
            Json::Null
        };
        choice.logprobs.clear();
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish.map(Finish::name) })
    }
}

/// Collects the whole response.
#[derive(Debug)]
pub(crate) struct WholeCompletion {
    answer: CompletionAnswer,
    texts: Vec<String>,
}

impl ResponseBuilder for WholeCompletion {
    type Update = JobUpdate;

    fn take(&mut self, (number, update): JobUpdate) -> Result<bool> {
        let text = self.answer.take(number, update)?;
        self.texts[number].push_str(&text);
        Ok(self.answer.answers.is_done())
    }

    fn into_response(self) -> Response {
        let WholeCompletion { mut answer, texts } = self;
        let choices = texts.iter().enumerate().map(|(index, text)| answer.choice(index, text)).collect();
        reply::json(&answer.answers.whole(KIND, choices))
    }
}

impl Events for CompletionAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = WholeCompletion;

    fn builder(self) -> WholeCompletion {
        WholeCompletion { texts: self.begun.clone(), answer: self }
    }

    fn begin(&mut self, frames: &mut Frames) {
        for index in 0..self.begun.len() {
            let text = std::mem::take(&mut self.begun[index]);
            if !text.is_empty() {
                let choice = self.choice(index, &text);
                frames.data(&self.answers.object(KIND, json!([choice])));
            }
        }
    }

    fn update(&mut self, (number, update): JobUpdate, frames: &mut Frames) -> Result<bool> {
        let text = self.take(number, update)?;
        if !text.is_empty() || self.answers.choices[number].finish.is_some() {
            let choice = self.choice(number, &text);
            frames.data(&self.answers.chunk(KIND, choice));
        }
        Ok(self.answers.is_done())
    }

    fn end(&mut self, frames: &mut Frames) {
        self.answers.end(KIND, frames);
    }
}
