//! `/v1/chat/completions`.

use axum::response::Response;
use flambeau::{
    runners::llm::{Part, ThinkingSplitter},
    text::{ChatInput, Clock, Constraint},
};
use serde_json::{Map, Value as Json, json};

use super::{HARMLESS, answers::Answers, form::Form, logprobs, messages, params::MAX_TOP, params::Params, prompt, usage::timings};
use crate::{
    answer::{Choice, Finish},
    error::{ApiError, Result},
    json::{Fields, wrong},
    model::{Handle, Served},
    reply::{self, Events, Frames, ResponseBuilder},
    tools::{AnswerReader, Delta},
    tools::{Parser, ToolFormat, Tools, calls},
    worker::JobUpdate,
};

/// A chat request before its answer.
#[derive(Debug)]
pub(crate) struct Conversation {
    input: ChatInput,
    tools: Option<(Tools, ToolFormat)>,
    choice: ToolChoice,
    single_call: bool,
    /// Number of calls in the messages.
    calls: usize,
    /// Whether the answer continues the last message.
    continues: bool,
}

impl Conversation {
    /// Takes the fields that determine the prompt.
    ///
    /// # Errors
    /// The error names a field that is invalid or not supported by the model's template.
    pub(crate) fn read(fields: &mut Fields, model: &Served) -> Result<Conversation> {
        let list = fields.list("messages")?.ok_or_else(|| ApiError::value("messages", "`messages` is missing"))?;
        let list = messages::read(list)?;
        let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
        let single_call = fields.flag("parallel_tool_calls")? == Some(false);
        let choice = tool_choice(fields, tools.is_some())?;
        let tools = tools.filter(|_| choice != ToolChoice::None);
        let known = tools.as_deref().map(Tools::read).transpose()?;
        if let ToolChoice::Named(name) = &choice
            && !known.as_ref().is_some_and(|known| known.has(name))
        {
            return Err(ApiError::value("tool_choice", format!("`tools` has no function {name:?}")));
        }
        let continues = fields.flag("continue_final_message")?.unwrap_or(false);
        if continues && list.last().is_none_or(|last| last["role"] != "assistant") {
            let message = "`continue_final_message` needs a last message of the assistant";
            return Err(ApiError::value("continue_final_message", message));
        }
        let format = known.is_some().then(|| model.tool_format()).transpose()?;
        // Earlier calls may stand in a conversation that offers no tools any more.
        let calls = calls(&list);
        let (list, tools) = match format.or_else(|| model.tool_format().ok().filter(|_| calls > 0)) {
            Some(format) => format.history(list, tools),
            None => (list, tools),
        };
        let input = ChatInput {
            messages: list,
            tools,
            add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
            extra: variables(fields, model)?,
            now: Some(Clock::now()),
            ..ChatInput::default()
        };
        Ok(Conversation { input, tools: known.zip(format), choice, single_call, calls, continues })
    }

    /// Renders the prompt with the model's template.
    ///
    /// # Errors
    /// Fails if the model has no template or the template rejects the messages.
    pub(crate) fn prompt(&self, model: &Served) -> Result<String> {
        let template = model.template()?;
        let written = if self.continues {
            prompt::render_unfinished(template, &self.input)
        } else {
            prompt::render(template, &self.input).map_err(|error| error.to_string())
        };
        written.map_err(|error| ApiError::value("messages", error))
    }

    /// Constraint on an answer by `form` and by the allowed or required tools.
    ///
    /// Thoughts already open in the prompt come first and are unconstrained.
    ///
    /// # Errors
    /// Fails if the form is invalid or the model's vocabulary does not support constraints.
    fn constraint(&self, model: &Served, form: Option<&Form>, prompt: &str) -> Result<Option<Constraint>> {
        let only = if let ToolChoice::Named(name) = &self.choice { Some(name.as_str()) } else { None };
        let calls = self.tools.as_ref().map(|(tools, format)| {
            let is_single = self.single_call || !format.several;
            tools.grammar(format.format, model.control_tokens(), only, is_single)
        });
        let answer = form.map(Form::rule).transpose()?;
        let (param, start, rules) = match (form.zip(answer), calls) {
            (_, Some(calls)) if self.must_call() => ("tool_choice", "calls", calls),
            (Some((form, answer)), Some(calls)) => (form.param, "(answer | calls)", format!("answer: {answer}\n{calls}")),
            (Some((form, answer)), None) => (form.param, "answer", format!("answer: {answer}\n")),
            (None, _) => return Ok(None),
        };
        let grammar = match ThinkingSplitter::new(prompt).close() {
            Some(close) => format!("start: thoughts {start}\n{rules}{}", model.control_tokens().thoughts(close)),
            None => format!("start: {start}\n{rules}"),
        };
        model.grammars(param)?.lark(grammar).map(Some).map_err(|error| ApiError::value(param, error.to_string()))
    }

    /// Control tokens of thoughts and calls that stay in the text. Tokens that end the answer are
    /// excluded.
    fn shown_ids(&self, model: &Served) -> Vec<u32> {
        let mut texts: Vec<&str> = ThinkingSplitter::marker_texts().collect();
        texts.extend(self.tools.iter().flat_map(|(_, format)| format.format.texts()));
        let mut ids = model.control_tokens().within(&texts);
        ids.retain(|id| !model.stop_ids.contains(id) && !model.tokenizer.is_eos(*id));
        ids
    }

    fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    fn parser(&self) -> Option<Parser> {
        self.tools.clone().map(|(tools, format)| Parser::new(format.format, tools, self.calls, self.single_call))
    }
}

/// Tool settings of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

fn tool_choice(fields: &mut Fields, has_tools: bool) -> Result<ToolChoice> {
    const NAME: &str = "tool_choice";
    let value = fields.take(NAME);
    let choice = match &value {
        None => ToolChoice::Auto,
        Some(Json::String(choice)) if choice == "none" => ToolChoice::None,
        Some(Json::String(choice)) if choice == "auto" => ToolChoice::Auto,
        Some(Json::String(choice)) if choice == "required" => ToolChoice::Required,
        Some(choice) => match (choice["type"].as_str(), choice["function"]["name"].as_str()) {
            (Some("function"), Some(name)) => ToolChoice::Named(name.to_owned()),
            _ => return Err(wrong(NAME, "none, auto, required or a function with its name", choice)),
        },
    };
    if matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) && !has_tools {
        return Err(ApiError::value(NAME, "`tool_choice` needs `tools`"));
    }
    Ok(choice)
}

/// Additional template variables.
fn variables(fields: &mut Fields, model: &Served) -> Result<Map<String, Json>> {
    let mut variables = Map::new();
    variables.insert("enable_thinking".into(), model.thinks.into());
    if let Some(effort) = fields.text("reasoning_effort")? {
        let source = model.template()?.source();
        if !source.contains("reasoning_effort") && !source.contains("enable_thinking") {
            let message = format!("the chat template of {:?} has no choice of how much to think", model.name);
            return Err(ApiError::unsupported("reasoning_effort", message));
        }
        variables.insert("enable_thinking".into(), (effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    variables.extend(fields.object("chat_template_kwargs")?.unwrap_or_default());
    Ok(variables)
}

/// A parsed request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) conversation: Conversation,
    pub(crate) params: Params,
    form: Option<Form>,
    pub(crate) stream: bool,
    include_usage: bool,
}

impl ChatRequest {
    /// Parses a request after `model` was taken.
    ///
    /// # Errors
    /// The error names the invalid or unsupported field.
    pub(crate) fn read(mut fields: Fields, model: &Handle, most_choices: usize) -> Result<ChatRequest> {
        let conversation = Conversation::read(&mut fields, model)?;
        let mut params = Params::read(&mut fields, model, most_choices)?;
        let wants_logprobs = fields.flag("logprobs")?.unwrap_or(false);
        let top = fields.count("top_logprobs", 0..=MAX_TOP)?;
        if top.is_some() && !wants_logprobs {
            return Err(ApiError::value("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        params.logprobs = wants_logprobs.then(|| top.unwrap_or(0));
        let form = Form::read(&mut fields)?;
        check_modalities(&mut fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = stream_usage(&mut fields)?;
        fields.finish(HARMLESS)?;
        params.shown_ids = conversation.shown_ids(model);
        Ok(ChatRequest { conversation, params, form, stream, include_usage })
    }

    /// Constrains answers to this prompt as requested.
    ///
    /// # Errors
    /// Fails if the form is invalid or the model's vocabulary does not support constraints.
    pub(crate) fn constrain(&mut self, model: &Served, prompt: &str) -> Result<()> {
        self.params.constraint = self.conversation.constraint(model, self.form.as_ref(), prompt)?;
        Ok(())
    }

    /// The reader of the answer's text.
    pub(crate) fn reader(&self, prompt: &str) -> AnswerReader {
        let parser = self.conversation.parser();
        let thinks = ThinkingSplitter::new(prompt).part() == Part::Thinking;
        if self.params.constraint.is_some() && !thinks {
            AnswerReader::of_form(prompt, parser)
        } else {
            AnswerReader::of_chat(prompt, parser)
        }
    }

    /// The writer of the response.
    pub(crate) fn answer(&self, model: Handle, prompt: &str, prompt_tokens: usize) -> ChatAnswer {
        let choices = (0..self.params.choices).map(|_| Choice::new(self.reader(prompt))).collect();
        let mut answers = Answers::new("chatcmpl-", model, choices, prompt_tokens);
        answers.include_usage = self.include_usage;
        answers.has_logprobs = self.params.logprobs.is_some();
        ChatAnswer(answers)
    }
}

/// Refuses answers that are not texts.
fn check_modalities(fields: &mut Fields) -> Result<()> {
    match fields.list("modalities")? {
        Some(kinds) if kinds.iter().any(|kind| kind != "text") => {
            Err(ApiError::unsupported("modalities", "`modalities` can be text only"))
        }
        _ => Ok(()),
    }
}

/// Whether a stream ends with the usage.
pub(crate) fn stream_usage(fields: &mut Fields) -> Result<bool> {
    let mut options = fields.object("stream_options")?.unwrap_or_default();
    match options.remove("include_usage") {
        None | Some(Json::Null) => Ok(false),
        Some(Json::Bool(wanted)) => Ok(wanted),
        Some(other) => Err(wrong("stream_options.include_usage", "true or false", &other)),
    }
}

/// Builds the response to a request from its updates.
#[derive(Debug)]
pub(crate) struct ChatAnswer(Answers);

/// Object type in a stream.
const CHUNK: &str = "chat.completion.chunk";

/// A message under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    content: String,
    thinking: String,
    calls: Vec<(String, String, String)>,
}

impl Message {
    pub(crate) fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Thinking(text) => self.thinking.push_str(&text),
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Call { id, name, .. } => self.calls.push((id, name, String::new())),
            Delta::Arguments { number, text } => {
                if let Some((.., arguments)) = self.calls.get_mut(number) {
                    arguments.push_str(&text);
                }
            }
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        let content = if self.content.is_empty() && !self.calls.is_empty() { Json::Null } else { self.content.as_str().into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !self.thinking.is_empty() {
            message["reasoning_content"] = self.thinking.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Collects the whole response.
#[derive(Debug)]
pub(crate) struct WholeChat {
    answer: ChatAnswer,
    messages: Vec<Message>,
    deltas: Vec<Delta>,
}

impl ResponseBuilder for WholeChat {
    type Update = JobUpdate;

    fn take(&mut self, (number, update): JobUpdate) -> Result<bool> {
        let answers = &mut self.answer.0;
        answers.choices[number].take(update, &mut self.deltas)?;
        self.deltas.drain(..).for_each(|delta| self.messages[number].add(delta));
        Ok(answers.is_done())
    }

    fn into_response(self) -> Response {
        let answer = &self.answer;
        let choice = |(index, (choice, message)): (usize, (&Choice, &Message))| {
            json!({
                "index": index,
                "message": message.to_json(),
                "logprobs": answer.logprobs(choice),
                "finish_reason": choice.finish.map(Finish::name),
            })
        };
        let choices = answer.0.choices.iter().zip(&self.messages).enumerate().map(choice);
        reply::json(&answer.0.whole("chat.completion", choices.collect()))
    }
}

impl ChatAnswer {
    fn logprobs(&self, choice: &Choice) -> Json {
        if self.0.has_logprobs { logprobs::chat(&self.0.model.tokenizer, &choice.logprobs) } else { Json::Null }
    }

    fn chunk(&self, index: usize, delta: &Json, logprobs: Json, finish: Option<Finish>) -> Json {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish.map(Finish::name),
        });
        self.0.chunk(CHUNK, choice)
    }
}

impl Events for ChatAnswer {
    type Update = JobUpdate;
    type ResponseBuilder = WholeChat;

    fn builder(self) -> WholeChat {
        let messages = vec![Message::default(); self.0.choices.len()];
        WholeChat { answer: self, messages, deltas: Vec::new() }
    }

    fn begin(&mut self, frames: &mut Frames) {
        for index in 0..self.0.choices.len() {
            frames.data(&self.chunk(index, &json!({ "role": "assistant", "content": "" }), Json::Null, None));
        }
    }

    fn update(&mut self, (number, update): JobUpdate, frames: &mut Frames) -> Result<bool> {
        let mut deltas = Vec::new();
        self.0.choices[number].take(update, &mut deltas)?;
        let finish = self.0.choices[number].finish;
        for delta in deltas.iter().map(delta_json) {
            // Tokens with held-back text are reported with the next text.
            let logprobs = self.logprobs(&self.0.choices[number]);
            self.0.choices[number].logprobs.clear();
            frames.data(&self.chunk(number, &delta, logprobs, None));
        }
        if finish.is_some() {
            let left = &self.0.choices[number];
            let logprobs = if left.logprobs.is_empty() { Json::Null } else { self.logprobs(left) };
            let mut chunk = self.chunk(number, &json!({}), logprobs, finish);
            chunk["timings"] = timings(left);
            frames.data(&chunk);
        }
        Ok(self.0.is_done())
    }

    fn end(&mut self, frames: &mut Frames) {
        self.0.end(CHUNK, frames);
    }
}

fn delta_json(delta: &Delta) -> Json {
    match delta {
        Delta::Thinking(text) => json!({ "reasoning_content": text }),
        Delta::Content(text) => json!({ "content": text }),
        Delta::Call { number, id, name } => {
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [{ "index": number, "id": id, "type": "function", "function": function }] })
        }
        Delta::Arguments { number, text } => {
            json!({ "tool_calls": [{ "index": number, "function": { "arguments": text } }] })
        }
    }
}
