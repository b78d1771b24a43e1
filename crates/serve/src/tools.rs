//! Tool calls in a model's text.
//!
//! Each model family writes calls in its own format. A row of [`table`] gives the markers and the
//! structure of one format. One parser ([`parser`]), one grammar writer ([`grammar`]) and the
//! format detection ([`detect`]) read the row.

mod description;
mod detect;
mod format;
mod grammar;
mod history;
mod json;
mod literal;
mod marker;
mod nested;
mod order;
mod pairs;
mod parser;
mod pattern;
mod reader;
mod table;
mod write;

use flambeau::text::check_schema;
use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

pub(crate) use self::{
    detect::ToolFormat,
    grammar::ControlTokens,
    history::calls,
    parser::Parser,
    reader::{AnswerReader, Delta},
};
use crate::error::{ApiError, Result};

/// Names of tools that run code.
const CODE_TOOLS: [&str; 3] = ["python", "ipython", "code_interpreter"];

/// The tools of a request: JSON schemas of arguments by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    schemas: BTreeMap<String, Json>,
}

impl Tools {
    /// Parses OpenAI's list of tools.
    ///
    /// # Errors
    /// Fails if an entry is not a function with a name, a name repeats, or a schema exceeds the
    /// limits.
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
            check_schema(&function["parameters"]).map_err(|error| ApiError::value(&param, error.to_string()))?;
            if schemas.insert(name.to_owned(), function["parameters"].clone()).is_some() {
                return Err(ApiError::value(&param, format!("two tools have the name {name:?}")));
            }
        }
        Ok(Tools { schemas })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.schemas.contains_key(name)
    }

    /// Tool names in alphabetical order.
    fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.schemas.keys().map(String::as_str)
    }

    /// Tools that run code, each with the argument for the code. It is the only string of the
    /// schema, or `code` if there are several or none.
    fn of_code(&self) -> impl Iterator<Item = (&str, &str)> {
        CODE_TOOLS.iter().filter_map(move |name| {
            let (name, schema) = self.schemas.get_key_value(*name)?;
            let mut texts =
                schema["properties"].as_object().into_iter().flatten().filter(|(_, value)| types(value).contains(&"string"));
            let argument = match (texts.next(), texts.next()) {
                (Some((only, _)), None) => only.as_str(),
                _ => "code",
            };
            Some((name.as_str(), argument))
        })
    }

    /// The types that a schema allows for an argument. Empty if it states none.
    fn types(&self, name: &str, argument: &str) -> Vec<&str> {
        let Some(schema) = self.schemas.get(name) else { return Vec::new() };
        let property = &schema["properties"][argument];
        let target = property["$ref"].as_str().and_then(|reference| schema.pointer(reference.strip_prefix('#')?));
        types(target.unwrap_or(property))
    }

    /// Whether a schema allows only strings for an argument.
    fn is_text(&self, name: &str, argument: &str) -> bool {
        let types = self.types(name, argument);
        !types.is_empty() && types.iter().all(|kind| *kind == "string")
    }

    /// Value of an unquoted argument.
    fn value(&self, name: &str, argument: &str, text: &str) -> Json {
        let types = self.types(name, argument);
        let fits = |value: &Json| types.is_empty() || types.iter().any(|kind| is_of(value, kind));
        let parsed = match text.trim() {
            "True" => Some(Json::Bool(true)),
            "False" => Some(Json::Bool(false)),
            "None" => Some(Json::Null),
            // Templates write an empty text for an empty list or object.
            "" if !types.contains(&"string") => match types[..] {
                ["array"] => Some(json!([])),
                ["object"] => Some(json!({})),
                _ => None,
            },
            text => serde_json::from_str(text).ok().or_else(|| literal::collection(text)),
        };
        // Strings are unquoted here, so quotes around the text belong to the string.
        parsed.filter(|value| fits(value) && !(value.is_string() && types.contains(&"string"))).unwrap_or_else(|| text.into())
    }
}

/// Types that a schema allows, including its alternatives.
fn types(schema: &Json) -> Vec<&str> {
    match &schema["type"] {
        Json::String(kind) => return vec![kind],
        Json::Array(kinds) => return kinds.iter().filter_map(Json::as_str).collect(),
        _ => {}
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(type_of).collect();
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    alternatives.flat_map(types).collect()
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

fn is_of(value: &Json, kind: &str) -> bool {
    let found = type_of(value);
    found == kind || found == "integer" && kind == "number"
}

/// Part of an answer's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// A tool call starts. Calls are numbered from 0. The ID is set if the format has IDs.
    Call {
        number: usize,
        id: Option<String>,
        name: String,
    },
    /// More of the call's arguments. All pieces together are JSON.
    Arguments {
        number: usize,
        text: String,
    },
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
