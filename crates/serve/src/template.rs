//! Tool support of a chat template, without a model.

use flambeau::text::{ChatInput, ChatTemplate, Clock};
use serde_json::{Map, Value as Json, json};

use crate::{
    openai::{chat::Message, messages},
    tools::AnswerReader,
    tools::{Parser, ToolFormat, Tools, calls},
};

/// A chat template with its tool format.
#[derive(Debug)]
pub struct TemplateProbe<'a> {
    template: &'a ChatTemplate,
    format: Result<ToolFormat, &'static str>,
}

impl<'a> TemplateProbe<'a> {
    /// Finds the tool format by rendering calls and parsing them back.
    pub fn new(template: &'a ChatTemplate) -> TemplateProbe<'a> {
        TemplateProbe { template, format: ToolFormat::of(template) }
    }

    /// Properties of the template.
    ///
    /// `tool_format` is `null` with a `reason` if no format was found. `parallel_calls`: several
    /// calls per message are supported. `arguments`: JSON type of call arguments. `shown_by`: part
    /// of a conversation that carries the tools.
    pub fn facts(&self) -> Json {
        match &self.format {
            Ok(found) => json!({
                "tool_format": found.format.name,
                "parallel_calls": found.several,
                "arguments": if found.takes_text() { "string" } else { "object" },
                "shown_by": found.shown_by(),
            }),
            Err(reason) => json!({ "tool_format": null, "reason": format!("the chat template {reason}") }),
        }
    }

    /// Renders the prompt of a conversation in OpenAI's format, as the server does.
    ///
    /// # Errors
    /// Fails if a message is malformed or the template rejects the conversation.
    pub fn prompt(&self, list: Vec<Json>, tools: Option<Vec<Json>>, extra: Map<String, Json>) -> Result<String, String> {
        let list = messages::read(list).map_err(|error| error.to_string())?;
        let (messages, tools) = match &self.format {
            Ok(format) => format.history(list, tools),
            Err(_) => (list, tools),
        };
        let now = Some(Clock::now());
        let input = ChatInput { messages, tools, add_generation_prompt: true, extra, now, ..ChatInput::default() };
        self.template.render(&input).map_err(|error| error.to_string())
    }

    /// Parses a model's text after a prompt into a message. `list` is the conversation so far.
    ///
    /// # Errors
    /// Fails if a tool is malformed or the tool format is unknown.
    pub fn message(&self, prompt: &str, list: &[Json], tools: &[Json], text: &str) -> Result<Json, String> {
        let known = Tools::read(tools).map_err(|error| error.to_string())?;
        let parser = match self.format {
            _ if tools.is_empty() => None,
            Ok(found) => Some(Parser::new(found.format, known, calls(list), false)),
            Err(reason) => return Err(format!("the chat template {reason}")),
        };
        let (mut reader, mut deltas) = (AnswerReader::of_chat(prompt, parser), Vec::new());
        reader.push(text, &mut deltas);
        reader.finish(false, &mut deltas);
        let mut message = Message::default();
        deltas.into_iter().for_each(|delta| message.add(delta));
        Ok(message.to_json())
    }
}
