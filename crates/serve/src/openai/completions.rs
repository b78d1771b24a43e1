//! `/v1/completions`.

use flambeau::{runners::llm::Job, text::Tokenizer};
use serde_json::{Value as Json, json};

use super::{FINGERPRINT, HARMLESS, chat::stream_usage, logprobs, params::MAX_TOP, params::Params, usage::timings, usage::usage};
use crate::{
    answer::{Choice, Delta, Finish, Reader, id},
    error::{ApiError, Result},
    json::{Fields, wrong},
    model::{Handle, Served, now},
    reply::{Events, Frames},
    worker::Update,
};

/// Most prompts of a request.
const MAX_PROMPTS: usize = 64;
/// Tokens of an answer unless the request says otherwise, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;

/// A prompt as text or as tokens.
#[derive(Clone, Debug)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A request to continue texts.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    prompts: Vec<Prompt>,
    params: Params,
    pub(crate) stream: bool,
    include_usage: bool,
    echo: bool,
}

impl CompletionRequest {
    /// Reads a request, whose `model` was taken already.
    ///
    /// # Errors
    /// Names the field that is wrong or not supported.
    pub(crate) fn read(mut fields: Fields, model: &Served, most_choices: usize) -> Result<CompletionRequest> {
        let prompts = prompts(fields.take("prompt"), model.tokenizer.vocab_size())?;
        let mut params = Params::read(&mut fields, model, most_choices)?;
        params.limit_tokens(DEFAULT_TOKENS);
        params.logprobs = fields.count("logprobs", 0..=MAX_TOP)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        if echo && params.logprobs.is_some() {
            return Err(ApiError::unsupported("echo", "`echo` with `logprobs` is not supported: prompts are not judged"));
        }
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = stream_usage(&mut fields)?;
        fields.finish(HARMLESS)?;
        if prompts.len() * params.choices > MAX_PROMPTS {
            return Err(ApiError::value("n", format!("a request takes at most {MAX_PROMPTS} answers")));
        }
        Ok(CompletionRequest { prompts, params, stream, include_usage, echo })
    }

    /// The jobs of all prompts, and how their answer is written.
    ///
    /// # Errors
    /// A prompt cannot be written as tokens.
    pub(crate) fn prepare(&self, model: Handle) -> Result<(Vec<Job>, CompletionAnswer)> {
        let (mut jobs, mut prompt_tokens, mut begun) = (Vec::new(), 0, Vec::new());
        for prompt in &self.prompts {
            let ids = match prompt {
                Prompt::Text(text) => model.encode(text, true, "prompt")?,
                Prompt::Ids(ids) => ids.clone(),
            };
            let text = if self.echo { text(prompt, &model.tokenizer)? } else { String::new() };
            prompt_tokens += ids.len();
            jobs.extend(self.params.jobs(&ids, &model));
            begun.extend(std::iter::repeat_n(text, self.params.choices));
        }
        let answer = CompletionAnswer {
            id: id("cmpl-"),
            created: now(),
            choices: begun.iter().map(|_| Choice::new(Reader::plain())).collect(),
            offsets: begun.iter().map(|text| text.chars().count()).collect(),
            begun,
            prompt_tokens,
            include_usage: self.include_usage,
            has_logprobs: self.params.logprobs.is_some(),
            model,
        };
        Ok((jobs, answer))
    }
}

fn text(prompt: &Prompt, tokenizer: &Tokenizer) -> Result<String> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => tokenizer.decode(ids, true).map_err(|error| ApiError::value("prompt", error.to_string())),
    }
}

/// A text, a list of texts, a list of tokens or a list of such lists.
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

/// The answer to a request, as it comes.
#[derive(Debug)]
pub(crate) struct CompletionAnswer {
    id: String,
    created: u64,
    model: Handle,
    choices: Vec<Choice>,
    /// What each answer begins with.
    begun: Vec<String>,
    /// Where in each answer the next token begins, in characters.
    offsets: Vec<usize>,
    prompt_tokens: usize,
    include_usage: bool,
    has_logprobs: bool,
}

impl CompletionAnswer {
    /// Takes an update; the text that it adds.
    fn take(&mut self, number: usize, update: Update) -> Result<String> {
        let mut deltas = Vec::new();
        self.choices[number].take(update, &mut deltas)?;
        Ok(deltas.into_iter().filter_map(|delta| if let Delta::Content(text) = delta { Some(text) } else { None }).collect())
    }

    fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    fn head(&self) -> Json {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": FINGERPRINT,
        })
    }

    /// An answer, or a piece of it; tokens that were told of are forgotten.
    fn choice(&mut self, index: usize, text: &str) -> Json {
        let choice = &mut self.choices[index];
        let logprobs = if self.has_logprobs {
            logprobs::completion(&self.model.tokenizer, &choice.logprobs, &mut self.offsets[index])
        } else {
            Json::Null
        };
        choice.logprobs.clear();
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish.map(Finish::name) })
    }
}

/// The answer put together from all updates.
#[derive(Debug)]
pub(crate) struct WholeCompletion {
    answer: CompletionAnswer,
    texts: Vec<String>,
}

impl WholeCompletion {
    pub(crate) fn new(answer: CompletionAnswer) -> WholeCompletion {
        WholeCompletion { texts: answer.begun.clone(), answer }
    }

    /// Takes an update; true if all answers are done.
    ///
    /// # Errors
    /// A generation failed.
    pub(crate) fn take(&mut self, number: usize, update: Update) -> Result<bool> {
        let text = self.answer.take(number, update)?;
        self.texts[number].push_str(&text);
        Ok(self.answer.is_done())
    }

    /// The response.
    pub(crate) fn into_json(mut self) -> Json {
        let mut response = self.answer.head();
        let texts = std::mem::take(&mut self.texts);
        response["choices"] = texts.iter().enumerate().map(|(index, text)| self.answer.choice(index, text)).collect();
        response["usage"] = usage(self.answer.prompt_tokens, &self.answer.choices);
        response["timings"] = self.answer.choices.first().map_or(Json::Null, timings);
        response
    }
}

impl Events for CompletionAnswer {
    fn begin(&mut self, frames: &mut Frames) {
        for index in 0..self.choices.len() {
            let text = std::mem::take(&mut self.begun[index]);
            if !text.is_empty() {
                let mut chunk = self.head();
                chunk["choices"] = json!([self.choice(index, &text)]);
                frames.data(&chunk);
            }
        }
    }

    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Result<bool> {
        let text = self.take(number, update)?;
        if !text.is_empty() || self.choices[number].finish.is_some() {
            let mut chunk = self.head();
            chunk["choices"] = json!([self.choice(number, &text)]);
            if self.include_usage {
                chunk["usage"] = Json::Null;
            }
            frames.data(&chunk);
        }
        Ok(self.is_done())
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.include_usage {
            let mut chunk = self.head();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(self.prompt_tokens, &self.choices);
            frames.data(&chunk);
        }
        frames.done();
    }
}
