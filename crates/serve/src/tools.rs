//! Calls of tools in a model's text.
//!
//! Two forms are known. *Tagged* calls stand between `<tool_call>` and `</tool_call>`, as JSON (Hermes, Qwen 2.5 and 3) or as
//! `<function=..><parameter=..>` (Qwen 3 Coder). *Bare* calls are answers that are JSON from their first character on (Llama 3).

mod call;
mod markup;

use std::collections::BTreeMap;

use flambeau::text::spaced;
use serde_json::{Map, Value as Json, json};

use self::call::CallReader;
use crate::error::{ApiError, Result};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tagged,
    Bare,
}

impl Form {
    /// The form that a chat template teaches its model; `None` if it knows no tools.
    pub(crate) fn of(template: &str) -> Option<Form> {
        match () {
            () if !template.contains("tools") => None,
            () if template.contains("<tool_call>") => Some(Form::Tagged),
            () if template.contains("\"parameters\"") => Some(Form::Bare),
            () => None,
        }
    }
}

/// The tools of a request: JSON schemas of arguments by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    schemas: BTreeMap<String, Json>,
}

impl Tools {
    /// Reads OpenAI's list of tools.
    ///
    /// # Errors
    /// An entry is no function with a name, or two have the same.
    pub(crate) fn read(list: &[Json]) -> Result<Tools> {
        let mut schemas = BTreeMap::new();
        for (i, tool) in list.iter().enumerate() {
            let param = format!("tools[{i}]");
            if tool["type"] != "function" {
                return Err(ApiError::unsupported(&param, format!("`{param}` must be of type function")));
            }
            let function = &tool["function"];
            let name = function["name"].as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| ApiError::value(&param, format!("`{param}.function.name` must be a text")))?;
            if schemas.insert(name.to_owned(), function["parameters"].clone()).is_some() {
                return Err(ApiError::value(&param, format!("two tools have the name {name:?}")));
            }
        }
        Ok(Tools { schemas })
    }

    /// A grammar of calls, as rules of llguidance's Lark notation under the name `calls`: of the tool `only` alone, or of any; one call or
    /// several.
    pub(crate) fn grammar(&self, form: Form, only: Option<&str>, single: bool) -> String {
        let key = if form == Form::Tagged { "arguments" } else { "parameters" };
        let named = self.schemas.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let call = named.map(|(name, schema)| {
            let schema = if schema.is_object() { schema.clone() } else { json!({ "type": "object" }) };
            json!({
                "type": "object",
                "properties": { "name": { "const": name }, key: schema },
                "required": ["name", key],
                "additionalProperties": false,
            })
        });
        let object = spaced(json!({ "anyOf": call.collect::<Vec<_>>() }));
        let (call, between) = match form {
            Form::Tagged => (r#""<tool_call>" "\n"? object "\n"? "</tool_call>""#, r#""\n"?"#),
            Form::Bare => ("object", r#""; ""#),
        };
        let calls = if single { "call".to_owned() } else { format!("call ({between} call)*") };
        format!("calls: {calls}\ncall: {call}\nobject: %json {object}\n")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.schemas.contains_key(name)
    }

    /// Whether the schema says that an argument is a text.
    fn is_text(&self, name: &str, argument: &str) -> bool {
        self.schemas.get(name).is_some_and(|schema| schema["properties"][argument]["type"] == "string")
    }
}

/// Kind of a part of an answer's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// A call of a tool begins; calls are numbered from 0.
    Call {
        number: usize,
        name: String,
    },
    /// More of the call's arguments, which together are JSON.
    Arguments {
        number: usize,
        text: String,
    },
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Where in an answer a parser is.
#[derive(Clone, Debug)]
enum Place {
    /// Before the first character that is no blank: a bare call may begin.
    Start,
    Text,
    Call(CallReader),
    /// In markup of `<function=..>`, which is read when it is whole.
    Markup,
    /// Behind a call, up to the end of its tag or the next bare call.
    After,
}

/// Tells calls from text as an answer comes. Anything but a call of a known tool stays text.
#[derive(Clone, Debug)]
pub(crate) struct Parser {
    form: Form,
    tools: Tools,
    place: Place,
    /// Text that may still become a call.
    held: String,
    /// The tag of the call that is being read, and the blank space before it.
    tag: String,
    /// Whether blank space is dropped until something else comes.
    trims: bool,
    calls: usize,
    /// Whether only the first call counts.
    single: bool,
}

impl Parser {
    pub(crate) fn new(form: Form, tools: Tools, single: bool) -> Parser {
        let place = if form == Form::Bare { Place::Start } else { Place::Text };
        Parser { form, tools, place, held: String::new(), tag: String::new(), trims: false, calls: 0, single }
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Whether a call has begun whose end has not come.
    pub(crate) fn is_in_call(&self) -> bool {
        matches!(&self.place, Place::Call(reader) if reader.has_begun())
    }

    /// Takes a piece of text and hands on what is decided.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        if self.single && self.calls > 0 && matches!(self.place, Place::After) {
            return;
        }
        self.held.push_str(text);
        while self.advance(out) {}
    }

    /// The text is over: what was held back is text, or the rest of a call.
    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) {
        match std::mem::replace(&mut self.place, Place::Text) {
            Place::Call(reader) if !reader.has_begun() => self.text(&reader.into_raw(), out),
            Place::Markup if self.markup(out) => {}
            Place::Markup => {
                let raw = format!("{}{}", self.tag, self.held);
                self.text(&raw, out);
            }
            Place::After | Place::Call(_) => {}
            Place::Start | Place::Text => {
                let held = std::mem::take(&mut self.held);
                self.text(&held, out);
            }
        }
    }

    fn text(&self, text: &str, out: &mut Vec<Piece>) {
        if !text.is_empty() {
            out.push(Piece::Text(text.to_owned()));
        }
    }

    /// Decides what can be decided; true if there may be more.
    fn advance(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.place {
            Place::Start => self.begin(out),
            Place::Text => self.find_call(out),
            Place::Call(reader) => {
                let held = std::mem::take(&mut self.held);
                let number = self.calls - usize::from(reader.has_begun());
                let rest = reader.push(&held, &self.tools, number, out);
                self.calls = number + usize::from(reader.has_begun());
                match rest {
                    Ok(None) => false,
                    Ok(Some(rest)) => {
                        self.held = rest;
                        self.place = Place::After;
                        !self.single
                    }
                    Err(raw) => {
                        // No call of a known tool: all of it is text, and what follows may hold a call again.
                        self.text(&raw, out);
                        self.place = Place::Text;
                        false
                    }
                }
            }
            Place::Markup => {
                if !self.held.contains(CLOSE) {
                    return false;
                }
                if self.markup(out) {
                    self.place = Place::After;
                    return !self.single;
                }
                let end = self.held.find(CLOSE).map_or(self.held.len(), |at| at + CLOSE.len());
                let raw = format!("{}{}", self.tag, &self.held[..end]);
                self.held.drain(..end);
                self.text(&raw, out);
                self.place = Place::Text;
                true
            }
            Place::After => self.leave_call(),
        }
    }

    /// The first characters of an answer: a bare call, or text from here on.
    fn begin(&mut self, out: &mut Vec<Piece>) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        if blank == self.held.len() {
            return false;
        }
        if self.held[blank..].starts_with('{') {
            let rest = self.held.split_off(blank);
            let prefix = std::mem::replace(&mut self.held, rest);
            self.place = Place::Call(CallReader::new(&prefix));
            return true;
        }
        const TAG: &str = "<|python_tag|>";
        if self.held[blank..].starts_with(TAG) {
            self.held.drain(..blank + TAG.len());
            return true;
        }
        if TAG.starts_with(&self.held[blank..]) {
            return false;
        }
        let held = std::mem::take(&mut self.held);
        self.text(&held, out);
        self.place = Place::Text;
        false
    }

    /// Text up to the next tag; blank space before it belongs to neither.
    fn find_call(&mut self, out: &mut Vec<Piece>) -> bool {
        if self.form == Form::Bare {
            let held = std::mem::take(&mut self.held);
            self.text(&held, out);
            return false;
        }
        if self.trims {
            let rest = self.held.trim_start().to_owned();
            self.held = rest;
            self.trims = self.held.is_empty();
        }
        let Some(at) = self.held.find(OPEN) else {
            let begins = (1..OPEN.len()).rev().find(|&n| self.held.ends_with(&OPEN[..n])).unwrap_or(0);
            let shown = self.held[..self.held.len() - begins].trim_end().len();
            let rest = self.held.split_off(shown);
            let shown = std::mem::replace(&mut self.held, rest);
            self.text(&shown, out);
            return false;
        };
        let inside = &self.held[at + OPEN.len()..];
        let Some(first) = inside.trim_start().chars().next() else { return false };
        let rest = inside.to_owned();
        let shown = self.held[..at].trim_end();
        self.text(shown, out);
        self.tag = self.held[shown.len()..at + OPEN.len()].to_owned();
        self.held = rest;
        self.place = if first == '<' { Place::Markup } else { Place::Call(CallReader::new(&self.tag)) };
        true
    }

    /// A whole call in markup; false if it is none.
    fn markup(&mut self, out: &mut Vec<Piece>) -> bool {
        let (inside, rest) = self.held.split_once(CLOSE).unwrap_or((&self.held, ""));
        let Some((name, arguments)) = markup::read(inside) else { return false };
        if !self.tools.has(name) {
            return false;
        }
        let typed = arguments.into_iter().map(|(key, text)| {
            let parsed = if self.tools.is_text(name, key) { None } else { serde_json::from_str(text).ok() };
            (key.to_owned(), parsed.unwrap_or_else(|| Json::from(text)))
        });
        let text = Json::Object(typed.collect::<Map<_, _>>()).to_string();
        let number = self.calls;
        out.extend([Piece::Call { number, name: name.to_owned() }, Piece::Arguments { number, text }]);
        self.calls += 1;
        self.held = format!("{CLOSE}{rest}");
        true
    }

    /// After a call: its closing tag, or the separator of bare calls.
    fn leave_call(&mut self) -> bool {
        if self.form == Form::Bare {
            let rest = self.held.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',').to_owned();
            self.held = rest;
            if self.held.starts_with('{') {
                self.place = Place::Call(CallReader::new(""));
                return true;
            }
            // Nothing but another call can follow.
            self.held.clear();
            return false;
        }
        match self.held.find(CLOSE) {
            Some(at) => {
                self.held.drain(..at + CLOSE.len());
                self.place = Place::Text;
                self.trims = true;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
