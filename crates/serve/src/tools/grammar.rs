//! Call grammars in llguidance's Lark notation.

use std::fmt::Write as _;

use flambeau::text::{Tokenizer, spaced};
use serde_json::{Value as Json, json};

use super::{
    Tools,
    format::{Arguments, Field, Format, Head, Ids, Pairs, Value},
    marker::{Element, elements},
    types,
};

/// Control tokens of a model. Grammars refer to them by ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlTokens(Vec<(String, u32)>);

impl ControlTokens {
    /// All control tokens of a tokenizer.
    pub(crate) fn of(tokenizer: &Tokenizer) -> ControlTokens {
        ControlTokens(tokenizer.control_tokens().map(|(id, text)| (text, id)).collect())
    }

    /// IDs of the tokens that occur in the texts.
    pub(crate) fn within(&self, texts: &[&str]) -> Vec<u32> {
        let used = self.0.iter().filter(|(token, _)| texts.iter().any(|text| text.contains(token.as_str())));
        used.map(|(_, id)| *id).collect()
    }

    /// The first token in a text: index, length and ID. At the same index, the longer token wins.
    fn first(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.0.iter().filter_map(|(token, id)| Some((text.find(token.as_str())?, token.len(), *id)));
        found.min_by_key(|(at, length, _)| (*at, std::cmp::Reverse(*length)))
    }

    /// Grammar of thoughts up to and including their end marker, as rules under the name
    /// `thoughts`.
    pub(crate) fn thoughts(&self, close: &str) -> String {
        let end = match self.first(close) {
            // Text holds no control token, and ends by itself.
            Some((0, length, id)) if length == close.len() => format!("thought <[{id}]> BLANK\nthought: /(?s:.*)/"),
            _ => format!("thought BLANK\nthought[suffix={}]: /(?s:.*)/", literal(close)),
        };
        format!("thoughts: {end}\nBLANK: /[ \\n]{{0,4}}/\n")
    }
}

/// Writer of one grammar's rules.
struct Writer<'a> {
    format: &'static Format,
    tokens: &'a ControlTokens,
    rules: String,
    count: usize,
}

impl Tools {
    /// Grammar of calls, as rules under the name `calls`: of the tool `only`, or of any tool; one
    /// call or several.
    pub(crate) fn grammar(&self, format: &'static Format, tokens: &ControlTokens, only: Option<&str>, single: bool) -> String {
        let mut writer = Writer { format, tokens, rules: String::new(), count: 0 };
        let named: Vec<(&String, &Json)> = self.schemas.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
        let heads: Vec<String> = named
            .iter()
            .map(|(name, schema)| match &format.head {
                Head::Object(fields) => writer.object(fields, name, schema),
                Head::Name(middles, arguments) => writer.named(name, schema, middles, arguments),
            })
            .collect();
        let inside = writer.rule(&heads.join(" | "));
        let (open, close) = (writer.marker(format.open.first().copied().unwrap_or_default()), writer.marker(format.close));
        let call = writer.rule(&format!("{open} {inside} {close}"));
        let [begin, end, between] = [format.section.0, format.section.1, format.between].map(|marker| writer.marker(marker));
        let more = if single { String::new() } else { format!("({between} {call})*") };
        format!("calls: {begin} {call} {more} {end}\n{}", writer.rules)
    }
}

fn arguments_schema(schema: &Json) -> Json {
    if schema.is_object() { schema.clone() } else { json!({ "type": "object" }) }
}

fn literal(text: &str) -> String {
    Json::from(text).to_string()
}

impl Writer<'_> {
    /// Adds a rule and returns its name.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("tool{}", self.count);
        self.count += 1;
        // Writing to a text cannot fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// A literal text in which control tokens are tokens.
    fn word(&self, text: &str) -> String {
        let (mut out, mut rest) = (Vec::new(), text);
        while let Some((at, length, id)) = self.tokens.first(rest) {
            if at > 0 {
                out.push(literal(&rest[..at]));
            }
            out.push(format!("<[{id}]>"));
            rest = &rest[at + length..];
        }
        if !rest.is_empty() {
            out.push(literal(rest));
        }
        out.join(" ")
    }

    fn marker(&self, marker: &str) -> String {
        let element = |element| match element {
            Element::Blank(run) => format!("{}?", literal(run)),
            Element::Word(word) => self.word(word),
            Element::Id if self.format.ids == Ids::Counted => "/[0-9]{1,9}/".to_owned(),
            Element::Id if self.format.ids == Ids::Nine => "/[a-zA-Z0-9]{9}/".to_owned(),
            Element::Id => "/[a-zA-Z0-9]{1,10}/".to_owned(),
        };
        elements(marker).map(element).collect::<Vec<_>>().join(" ")
    }

    /// A call's object. Its arguments are a separate schema, so that their references stay valid.
    fn object(&mut self, fields: &[Field], name: &str, schema: &Json) -> String {
        let key = |key: &str| literal(&format!("{}: ", literal(key)));
        let mut parts = Vec::new();
        for field in fields {
            parts.push(match field {
                Field::Name(field) => format!("{} {}", key(field), literal(&literal(name))),
                Field::Arguments(field) => {
                    let arguments = self.rule(&format!("%json {}", spaced(arguments_schema(schema))));
                    format!("{} {arguments}", key(field))
                }
                Field::Id(field) if self.format.ids == Ids::Nine => format!("{} /\"[a-zA-Z0-9]{{9}}\"/", key(field)),
                Field::Id(field) => format!("{} /\"[0-9]{{1,9}}\"/", key(field)),
            });
        }
        self.rule(&format!("\"{{\" {} \"}}\"", parts.join(" \", \" ")))
    }

    /// A call's name and arguments.
    fn named(&mut self, name: &str, schema: &Json, middles: &[&str], arguments: &Arguments) -> String {
        let middle = self.marker(middles.first().copied().unwrap_or_default());
        let arguments = match arguments {
            Arguments::Json => self.rule(&format!("%json {}", spaced(arguments_schema(schema)))),
            Arguments::Pairs(pairs) => self.pairs(pairs, schema),
            Arguments::Python => format!("{} \")\"", self.listed(schema, "=", ", ", None)),
            Arguments::Quoted(quote) => format!("{} \"}}\"", self.listed(schema, ":", ",", Some(quote))),
        };
        self.rule(&format!("{} {middle} {arguments}", self.word(name)))
    }

    /// Pairs of tags in the schema's order.
    fn pairs(&mut self, pairs: &Pairs, schema: &Json) -> String {
        let mut all = Vec::new();
        for (key, is_required, value) in properties(schema) {
            let pair = self.pair(pairs, Some(key), &value);
            all.push(if is_required { pair } else { format!("{pair}?") });
        }
        if all.is_empty() && schema["additionalProperties"] != false {
            let pair = self.pair(pairs, None, &json!({ "type": "string" }));
            all.push(format!("{pair}*"));
        }
        let line = if self.format.close.starts_with('\n') { "\"\\n\"?" } else { "" };
        self.rule(&format!("{} {line}", all.join(&format!(" {line} "))))
    }

    fn pair(&mut self, pairs: &Pairs, key: Option<&str>, schema: &Json) -> String {
        // The parser reads a value that may be a text as one, without quotes.
        let is_text = types(schema).contains(&"string");
        let wanted = [if is_text { Value::Text } else { Value::Json }, Value::Schema];
        let Some(middle) = pairs.middles.iter().find(|middle| wanted.contains(&middle.value)) else { return String::new() };
        let line = if pairs.on_lines { "\n" } else { "" };
        let close = format!("{line}{}", middle.close.replace("{key}", key.unwrap_or("argument")));
        let key = key.map_or_else(|| "/[a-zA-Z0-9_]+/".to_owned(), literal);
        let (open, middle) = (self.marker(pairs.open), self.marker(middle.text));
        let value = if let Some(texts) = schema["enum"].as_array().filter(|texts| texts.iter().all(Json::is_string)) {
            let texts: Vec<String> = texts.iter().filter_map(Json::as_str).map(literal).collect();
            format!("({}) {}", texts.join(" | "), self.word(&close))
        } else if is_text {
            self.text_until(&close)
        } else {
            format!("{} {}", self.rule(&format!("%json {}", spaced(schema.clone()))), self.word(&close))
        };
        let line = if line.is_empty() { "" } else { "\"\\n\"" };
        self.rule(&format!("{open} {key} {middle} {line} {value}"))
    }

    /// Any text up to and including an end marker.
    fn text_until(&mut self, end: &str) -> String {
        let name = format!("text{}", self.count);
        self.count += 1;
        let (rule, rest) = match self.tokens.first(end) {
            // Text holds no control token, and ends by itself.
            Some((0, ..)) => (format!("{name}: /(?s:.*)/"), self.word(end)),
            _ => (format!("{name}[suffix={}]: /(?s:.*)/", literal(end)), String::new()),
        };
        let _ = writeln!(self.rules, "{rule}");
        format!("{name} {rest}")
    }

    /// Arguments in a list: the required ones in the schema's order, then any others.
    fn listed(&mut self, schema: &Json, assign: &str, comma: &str, quote: Option<&str>) -> String {
        let (mut required, mut others) = (Vec::new(), Vec::new());
        for (key, is_required, value) in properties(schema) {
            let value = match quote {
                None => self.rule(&format!("%json {}", spaced(value))),
                Some(quote) => self.quoted(quote, &value),
            };
            let pair = format!("{} {value}", literal(&format!("{key}{assign}")));
            if is_required {
                required.push(pair)
            } else {
                others.push(pair)
            };
        }
        let comma = literal(comma);
        let others = if others.is_empty() { String::new() } else { self.rule(&others.join(" | ")) };
        let first = required.join(&format!(" {comma} "));
        match (first.is_empty(), others.is_empty()) {
            (_, true) => first,
            (true, false) => format!("({others} ({comma} {others})*)?"),
            (false, false) => format!("{first} ({comma} {others})*"),
        }
    }

    /// A value whose strings are between two quotes.
    fn quoted(&mut self, quote: &str, schema: &Json) -> String {
        let open = self.word(quote);
        if schema["type"] == "string" {
            let text = self.text_until(quote);
            return self.rule(&format!("{open} {text}"));
        }
        if ["integer", "number", "boolean", "null"].iter().any(|kind| schema["type"] == *kind) {
            return self.rule(&format!("%json {}", spaced(schema.clone())));
        }
        let text = self.text_until(quote);
        let scalar = self.rule("%json {\"type\": [\"number\", \"boolean\", \"null\"]}");
        let name = format!("tool{}", self.count);
        let entry = format!("/[a-zA-Z0-9_]+/ \":\" {name}");
        let (object, array) = (format!("({entry} (\",\" {entry})*)?"), format!("({name} (\",\" {name})*)?"));
        self.rule(&format!("{open} {text} | {scalar} | \"{{\" {object} \"}}\" | \"[\" {array} \"]\""))
    }
}

/// Properties of a schema: key, whether it is required, and its own schema.
fn properties(schema: &Json) -> Vec<(&str, bool, Json)> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let all = schema["properties"].as_object().into_iter().flatten();
    all.map(|(key, value)| {
        let target = value["$ref"].as_str().and_then(|reference| schema.pointer(reference.strip_prefix('#')?));
        let mut value = target.unwrap_or(value).clone();
        // References of the property point into the whole schema.
        if let (Some(value), Some(outer)) = (value.as_object_mut(), schema.as_object()) {
            for defs in ["$defs", "definitions"] {
                if let Some(found) = outer.get(defs) {
                    value.entry(defs).or_insert_with(|| found.clone());
                }
            }
        }
        (key.as_str(), required.contains(&key.as_str()), value)
    })
    .collect()
}
