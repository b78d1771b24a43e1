//! Detects a chat template's call format by rendering calls and parsing them back.

use flambeau::text::{ChatInput, ChatTemplate, Clock, message};
use serde_json::{Value as Json, json};

use super::{
    AnswerReader, Delta, Parser, Tools,
    description::DescriptionPlace,
    format::{Format, Ids},
    table::FORMATS,
};

/// How a template takes calls, and the format of its model's calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolFormat {
    pub(crate) format: &'static Format,
    /// Whether the template expects arguments as JSON text.
    pub(super) text_arguments: bool,
    /// Whether a message may contain several calls.
    pub(crate) several: bool,
    /// Whether a message with calls has no text.
    pub(super) no_text: bool,
    /// Whether earlier calls are written into message texts, because the template omits calls.
    pub(super) is_written: bool,
    /// Place of the tool description, if the template has no support for tools.
    pub(super) description: Option<DescriptionPlace>,
}

/// Question of the probe conversation.
const QUESTION: &str = "A question";
/// Answer of the probe that replaces the calls.
const ANSWER: &str = "ZZ-an-answer";
const NAMES: [&str; 2] = ["probe_first_tool", "probe_second_tool"];
/// Argument strings of the probe; the plain ones are for templates that do not escape.
const TEXTS: [&str; 2] = ["with \"quotes\"\nand {breaks} é", "plain words"];

/// A rendered probe.
#[derive(Clone, Copy, Debug)]
struct Probe {
    text: &'static str,
    text_arguments: bool,
    no_text: bool,
    ids: Ids,
    calls: usize,
}

impl Probe {
    fn arguments(self, number: usize) -> Json {
        json!({ "probe_text": self.text, "probe_count": 17 + number })
    }

    fn message(self) -> Json {
        let call = |number: usize| {
            let arguments = self.arguments(number);
            let arguments = if self.text_arguments { arguments.to_string().into() } else { arguments };
            let function = json!({ "name": NAMES[number], "arguments": arguments });
            json!({ "id": self.id(number), "type": "function", "function": function })
        };
        let content = if self.no_text { Json::Null } else { "".into() };
        json!({ "role": "assistant", "content": content, "tool_calls": (0..self.calls).map(call).collect::<Vec<_>>() })
    }

    fn id(self, number: usize) -> String {
        match self.ids {
            Ids::Counted => format!("functions.{}:{number}", NAMES[number]),
            Ids::Nine | Ids::Free | Ids::Written => format!("probe000{number}"),
        }
    }
}

fn tools() -> Vec<Json> {
    let tool = |name: &&str| {
        let properties = json!({ "probe_text": { "type": "string", "description": "A text" }, "probe_count": { "type": "integer", "description": "A number" } });
        let parameters = json!({ "type": "object", "properties": properties, "required": ["probe_text", "probe_count"] });
        json!({ "type": "function", "function": { "name": name, "description": "A tool", "parameters": parameters } })
    };
    NAMES.iter().map(tool).collect()
}

/// The format of a template that takes tools from the system message.
fn read_from_field(template: &ChatTemplate) -> Option<&'static Format> {
    let messages = ToolFormat::describe_tools(DescriptionPlace::Field, vec![message("user", QUESTION)], Some(&tools()));
    let input = ChatInput { messages, add_generation_prompt: true, now: Some(Clock::EPOCH), ..ChatInput::default() };
    let prompt = template.render(&input).ok().filter(|prompt| prompt.contains(NAMES[0]))?;
    FORMATS.iter().find(|row| row.taught_by.iter().any(|text| prompt.contains(text)))
}

/// Place of the tool description in a template without support for tools.
///
/// # Errors
/// Fails if the template renders no messages.
fn description_place(template: &ChatTemplate) -> Result<DescriptionPlace, &'static str> {
    let shows = |messages: Vec<Json>, wanted: &[&str]| {
        let input = ChatInput { messages, add_generation_prompt: true, now: Some(Clock::EPOCH), ..ChatInput::default() };
        template.render(&input).is_ok_and(|text| wanted.iter().all(|wanted| text.contains(wanted)))
    };
    let user = message("user", QUESTION);
    match () {
        () if shows(vec![message("system", ANSWER), user.clone()], &[ANSWER, QUESTION]) => Ok(DescriptionPlace::System),
        () if shows(vec![user], &[QUESTION]) => Ok(DescriptionPlace::User),
        () => Err("shows no messages"),
    }
}

/// Whether a template that omits calls describes tools in a format's words.
fn is_taught(row: &Format, template: &ChatTemplate) -> bool {
    let [with, without] = [Some(tools()), None].map(|tools| render_with(template, None, tools).unwrap_or_default());
    row.taught_by.iter().any(|text| with.contains(text) && !without.contains(text))
}

fn render(template: &ChatTemplate, answer: Option<Json>) -> Option<String> {
    render_with(template, answer, Some(tools()))
}

fn render_with(template: &ChatTemplate, answer: Option<Json>, tools: Option<Vec<Json>>) -> Option<String> {
    let add_generation_prompt = answer.is_none();
    let messages = std::iter::once(message("user", QUESTION)).chain(answer).collect();
    let mut input = ChatInput { messages, tools, add_generation_prompt, now: Some(Clock::EPOCH), ..ChatInput::default() };
    input.extra.insert("enable_thinking".into(), false.into());
    template.render(&input).ok()
}

impl ToolFormat {
    /// Whether the template takes arguments as JSON text.
    pub(crate) fn takes_text(&self) -> bool {
        self.text_arguments
    }

    /// The part of a conversation that carries tools and earlier calls.
    pub(crate) fn shown_by(&self) -> &'static str {
        match (self.description, self.is_written) {
            (Some(_), _) => "messages",
            (None, true) => "template; texts hold earlier calls",
            (None, false) => "template",
        }
    }

    /// Detects the call format of a template.
    ///
    /// # Errors
    /// Fails if the template renders calls in an unknown format, or no messages at all.
    pub(crate) fn of(template: &ChatTemplate) -> Result<ToolFormat, &'static str> {
        let begun: Vec<String> =
            [None, Some(message("assistant", ANSWER))].into_iter().filter_map(|answer| render(template, answer)).collect();
        let mut shows = false;
        for (text, no_text, text_arguments) in ways() {
            let probe = Probe { text, text_arguments, no_text, ids: Ids::Nine, calls: 1 };
            let Some(format) = best(template, probe, &begun, &mut shows) else { continue };
            let ids = if format.ids == Ids::Counted { Ids::Counted } else { Ids::Nine };
            let probe = Probe { ids, calls: 2, ..probe };
            let rendered = render(template, Some(probe.message()));
            let several = rendered.is_some_and(|rendered| unparsed_bytes(format, probe, &rendered, &begun).is_some());
            return Ok(ToolFormat { format, text_arguments, several, no_text, is_written: false, description: None });
        }
        if shows {
            return Err("writes calls of tools in no known format");
        }
        let written = ToolFormat {
            format: &FORMATS[0],
            text_arguments: false,
            several: true,
            no_text: false,
            is_written: true,
            description: None,
        };
        if let Some(format) = read_from_field(template) {
            return Ok(ToolFormat { format, description: Some(DescriptionPlace::Field), ..written });
        }
        let describes = render(template, None).is_some_and(|prompt| prompt.contains(NAMES[0]));
        match FORMATS.iter().find(|row| is_taught(row, template)) {
            Some(format) => Ok(ToolFormat { format, ..written }),
            // The model expects calls in a format of its own.
            None if describes => Err("describes tools, and shows no calls in a known format"),
            None => Ok(ToolFormat { description: Some(description_place(template)?), ..written }),
        }
    }
}

/// Ways to pass calls to a template, most common first.
///
/// Each is the probe's text, whether messages with calls have no text, and whether arguments are
/// JSON text.
fn ways() -> impl Iterator<Item = (&'static str, bool, bool)> {
    let each = |text| [(text, false, false), (text, false, true), (text, true, false), (text, true, true)];
    TEXTS.into_iter().flat_map(each)
}

/// The format that parses a rendered probe with the least text left over. Sets `shows` if the
/// template renders the call.
fn best(template: &ChatTemplate, probe: Probe, begun: &[String], shows: &mut bool) -> Option<&'static Format> {
    let mut best: Option<(usize, &'static Format)> = None;
    for ids in [Ids::Nine, Ids::Counted] {
        let probe = Probe { ids, ..probe };
        let Some(rendered) = render(template, Some(probe.message())) else { continue };
        *shows |= rendered.rfind(NAMES[0]) > rendered.rfind(QUESTION);
        for row in FORMATS.iter().filter(|row| (row.ids == Ids::Counted) == (ids == Ids::Counted)) {
            let Some(left) = unparsed_bytes(row, probe, &rendered, begun) else { continue };
            if best.is_none_or(|(least, _)| left < least) {
                best = Some((left, row));
            }
        }
    }
    best.map(|(_, row)| row)
}

/// Number of bytes left over when a format parses a rendering; `None` if the calls differ.
fn unparsed_bytes(row: &'static Format, probe: Probe, rendered: &str, begun: &[String]) -> Option<usize> {
    let ways = begun.iter().filter_map(|begun| {
        let at = shared(begun, rendered);
        let (calls, left) = read(row, &rendered[..at], &rendered[at..]);
        let expected = |(number, (name, arguments)): (usize, &(String, String))| {
            name == NAMES[number] && serde_json::from_str::<Json>(arguments).is_ok_and(|found| found == probe.arguments(number))
        };
        (calls.len() == probe.calls && calls.iter().enumerate().all(expected)).then_some(left)
    });
    ways.min()
}

/// Start of the answer: length of the common prefix of two renderings, without a partial marker.
fn shared(begun: &str, rendered: &str) -> usize {
    if rendered.starts_with(begun) {
        return begun.len();
    }
    let same = begun.char_indices().zip(rendered.chars()).take_while(|((_, a), b)| a == b);
    let at = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    let cuts = ['<', '['].map(|open| {
        let close = if open == '<' { '>' } else { ']' };
        rendered[..at].rfind(open).filter(|&begin| !rendered[begin..at].contains(close))
    });
    cuts.into_iter().flatten().min().unwrap_or(at)
}

/// The calls of an answer, and the length of its text in bytes.
fn read(row: &'static Format, prompt: &str, answer: &str) -> (Vec<(String, String)>, usize) {
    let known = Tools::read(&tools()).unwrap_or_default();
    let mut reader = AnswerReader::of_chat(prompt, Some(Parser::new(row, known, 0, false).own_format_only()));
    let mut deltas = Vec::new();
    reader.push(answer, &mut deltas);
    reader.finish(false, &mut deltas);
    let (mut calls, mut left): (Vec<(String, String)>, usize) = (Vec::new(), 0);
    for delta in deltas {
        match delta {
            Delta::Content(text) => left += text.trim().len(),
            Delta::Thinking(_) => {}
            Delta::Call { name, .. } => calls.push((name, String::new())),
            Delta::Arguments { number, text } => {
                if let Some((_, arguments)) = calls.get_mut(number) {
                    arguments.push_str(&text);
                }
            }
        }
    }
    (calls, left)
}
