//! Variables that some templates read instead of `tools` and `strftime_now`.

use std::collections::HashSet;

use minijinja::{Environment, Value};
use serde::Serialize as _;
use serde_json::{Serializer, Value as Json, ser::PrettyFormatter};

use super::{ChatInput, json};

/// Which of these variables a template reads.
#[derive(Debug, Clone, Default)]
pub(super) struct OtherNames {
    /// `functions`: the tools as JSON text (Firefunction v2).
    functions: bool,
    /// `datetime`: the time as text (Firefunction v2).
    datetime: bool,
    /// `xml_tools`: the tools as a list (SmolLM3).
    xml_tools: bool,
}

impl OtherNames {
    /// The names in a template that compiles.
    pub(super) fn of(source: &str) -> OtherNames {
        let environment = Environment::empty();
        let names = environment.template_from_str(source).map(|template| template.undeclared_variables(false));
        let names: HashSet<String> = names.unwrap_or_default();
        let has = |name: &str| names.contains(name);
        let lacks_tools = !has("tools");
        OtherNames {
            functions: lacks_tools && has("functions"),
            datetime: has("datetime"),
            xml_tools: lacks_tools && has("xml_tools"),
        }
    }

    /// The variables for a conversation.
    pub(super) fn variables(&self, chat: &ChatInput) -> Vec<(String, Value)> {
        let mut out = Vec::new();
        let tools = chat.tools.as_deref().unwrap_or_default();
        if self.functions {
            let functions: Vec<&Json> = tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).collect();
            let text = if functions.is_empty() { String::new() } else { indented(&functions) };
            out.push(("functions".to_owned(), text.into()));
        }
        if self.datetime {
            let text = chat.now.map(|now| now.format("%Y-%m-%d %H:%M:%S")).unwrap_or_default();
            out.push(("datetime".to_owned(), text.into()));
        }
        if self.xml_tools && !tools.is_empty() {
            out.push(("xml_tools".to_owned(), json::list(tools)));
        }
        out
    }
}

/// JSON text with four blanks a level.
fn indented(functions: &[&Json]) -> String {
    let mut out = Vec::new();
    // Writing into memory cannot fail.
    let _ = functions.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"    ")));
    String::from_utf8(out).unwrap_or_default()
}
