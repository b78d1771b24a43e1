//! Writes calls as a model would.

use serde_json::{Map, Value as Json};

use super::format::{Arguments, Field, Format, Head, Ids, Pairs, Value};
use super::marker::ID;

/// A call to write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) arguments: Map<String, Json>,
}

impl Format {
    /// Calls in this format.
    pub(super) fn write(&self, calls: &[Call]) -> String {
        let calls: Vec<String> = calls.iter().map(|call| self.call(call)).collect();
        format!("{}{}{}", self.section.0, calls.join(self.between), self.section.1)
    }

    fn call(&self, call: &Call) -> String {
        let id = if self.ids == Ids::Counted { call.id.rsplit(':').next().unwrap_or_default() } else { &call.id };
        let inside = match &self.head {
            Head::Object(fields) => {
                let field = |field: &Field| match field {
                    Field::Name(key) => pair(key, &call.name.as_str().into()),
                    Field::Arguments(key) => pair(key, &Json::Object(call.arguments.clone())),
                    Field::Id(key) => pair(key, &id.into()),
                };
                format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
            Head::Name(middles, arguments) => {
                let middle = middles.first().copied().unwrap_or_default();
                format!("{}{middle}{}", call.name, self.arguments(arguments, &call.arguments))
            }
        };
        let open = self.open.first().copied().unwrap_or_default();
        format!("{open}{inside}{}", self.close).replace(ID, id)
    }

    fn arguments(&self, how: &Arguments, arguments: &Map<String, Json>) -> String {
        let list =
            |comma: &str, one: &dyn Fn((&String, &Json)) -> String| arguments.iter().map(one).collect::<Vec<_>>().join(comma);
        match how {
            Arguments::Json => json(&Json::Object(arguments.clone())),
            Arguments::Pairs(pairs) => {
                let line = if pairs.on_lines || self.close.starts_with('\n') { "\n" } else { "" };
                list(line, &|(key, value)| tagged(pairs, key, value))
            }
            Arguments::Python => format!("{})", list(", ", &|(key, value)| format!("{key}={}", json(value)))),
            Arguments::Quoted(quote) => format!("{}}}", list(",", &|(key, value)| format!("{key}:{}", quoted(quote, value)))),
        }
    }
}

fn pair(key: &str, value: &Json) -> String {
    format!("{}: {}", Json::from(key), json(value))
}

/// JSON with a space after commas and colons, as models and grammars write it.
fn json(value: &Json) -> String {
    match value {
        Json::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(", ")),
        Json::Object(map) => {
            format!("{{{}}}", map.iter().map(|(key, value)| pair(key, value)).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn tagged(pairs: &Pairs, key: &str, value: &Json) -> String {
    let wanted = [if value.is_string() { Value::Text } else { Value::Json }, Value::Schema];
    let Some(middle) = pairs.middles.iter().find(|middle| wanted.contains(&middle.value)) else { return String::new() };
    let text = value.as_str().map_or_else(|| json(value), str::to_owned);
    let line = if pairs.on_lines { "\n" } else { "" };
    format!("{}{key}{}{line}{text}{line}{}", pairs.open, middle.text, middle.close.replace("{key}", key))
}

/// A value whose strings are between two quotes.
fn quoted(quote: &str, value: &Json) -> String {
    match value {
        Json::String(text) => format!("{quote}{text}{quote}"),
        Json::Array(items) => format!("[{}]", items.iter().map(|item| quoted(quote, item)).collect::<Vec<_>>().join(",")),
        Json::Object(map) => {
            let pair = |(key, value): (&String, &Json)| format!("{key}:{}", quoted(quote, value));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
