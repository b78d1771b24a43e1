//! Calls of tools in a model's text.
//!
//! Families of models write calls in formats of their own. A row of [`table`] states the markers
//! and the shape of one format. The row is read by one parser ([`parser`]), one writer of grammars
//! ([`grammar`]) and the search for a template's format ([`detect`]).

mod detect;
mod format;
mod grammar;
mod history;
mod json;
mod literal;
mod marker;
mod nested;
mod pairs;
mod parser;
mod table;
mod told;
mod write;

use flambeau::text::check_schema;
use std::collections::BTreeMap;

use serde_json::Value as Json;

pub(crate) use self::{detect::ToolFormat, grammar::ControlTokens, history::calls, parser::Parser};
use crate::error::{ApiError, Result};

/// The tools of a request: JSON schemas of arguments by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    schemas: BTreeMap<String, Json>,
}

impl Tools {
    /// Reads OpenAI's list of tools.
    ///
    /// # Errors
    /// An entry is no function with a name, two have the same, or a schema is above the limits.
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

    /// Names in alphabetical order.
    fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.schemas.keys().map(String::as_str)
    }

    /// The types that a schema states for an argument; none if it states none.
    fn types(&self, name: &str, argument: &str) -> Vec<&str> {
        let Some(schema) = self.schemas.get(name) else { return Vec::new() };
        let property = &schema["properties"][argument];
        let target = property["$ref"].as_str().and_then(|reference| schema.pointer(reference.strip_prefix('#')?));
        types(target.unwrap_or(property))
    }

    /// Whether a schema says that an argument is a text and nothing else.
    fn is_text(&self, name: &str, argument: &str) -> bool {
        let types = self.types(name, argument);
        !types.is_empty() && types.iter().all(|kind| *kind == "string")
    }

    /// The value of an argument that is written without quotes.
    fn value(&self, name: &str, argument: &str, text: &str) -> Json {
        let types = self.types(name, argument);
        let fits = |value: &Json| types.is_empty() || types.iter().any(|kind| is_of(value, kind));
        let parsed = match text.trim() {
            "True" => Some(Json::Bool(true)),
            "False" => Some(Json::Bool(false)),
            "None" => Some(Json::Null),
            text => serde_json::from_str(text).ok(),
        };
        // A text that a text may be is raw.
        parsed.filter(|value| fits(value) && !(value.is_string() && types.contains(&"string"))).unwrap_or_else(|| text.into())
    }
}

/// The types that a schema states, in its alternatives too.
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

/// Kind of a part of an answer's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// A call of a tool begins; calls are numbered from 0. Formats with ids of their own give one.
    Call {
        number: usize,
        id: Option<String>,
        name: String,
    },
    /// More of the call's arguments, which together are JSON.
    Arguments {
        number: usize,
        text: String,
    },
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
