//! Call grammars in llguidance's Lark notation.

use std::fmt::Write as _;

use flambeau::text::{Tokenizer, spaced};
use serde_json::{Value as Json, json};

use super::{
    Tools,
    format::{Arguments, Field, Format, Head, Ids, Middle, Pairs, Value},
    marker::{Element, elements},
    order::{Item, MAX_ITEMS},
    pattern, types,
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
            // Thoughts have no control token, so they stop before the end marker.
            Some((0, length, id)) if length == close.len() => format!("thought <[{id}]> BLANK\nthought: /(?s:.*)/"),
            _ => format!("thought BLANK\nthought[suffix={}]: /(?s:.*)/", literal(close)),
        };
        format!("thoughts: {end}\nBLANK: /[ \\n]{{0,4}}/\n")
    }
}

/// Writes the rules of one grammar.
pub(super) struct Writer<'a> {
    format: &'static Format,
    tokens: &'a ControlTokens,
    rules: String,
    count: usize,
    /// Rules for orders of arguments so far.
    pub(super) orders: usize,
}

impl Tools {
    /// Grammar of calls, as rules under the name `calls`: of the tool `only`, or of any tool; one
    /// call or several.
    pub(crate) fn grammar(&self, format: &'static Format, tokens: &ControlTokens, only: Option<&str>, single: bool) -> String {
        let mut writer = Writer { format, tokens, rules: String::new(), count: 0, orders: 0 };
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
        // The prompt's end is the marker of the first call.
        let first = if format.leads.is_empty() { call.clone() } else { format!("{inside} {close}") };
        let [begin, end, between] = [format.section.0, format.section.1, format.between].map(|marker| writer.marker(marker));
        let more = if single { String::new() } else { format!("({between} {call})*") };
        format!("calls: {begin} {first} {more} {end}\n{}", writer.rules)
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
    pub(super) fn rule(&mut self, body: &str) -> String {
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
                Field::Arguments(field) => format!("{} {}", key(field), self.json_arguments(schema)),
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
            Arguments::Json => self.json_arguments(schema),
            Arguments::Pairs(pairs) => self.pairs(pairs, schema),
            Arguments::Python => format!("{} \")\"", self.listed(schema, "=", ", ", None)),
            Arguments::Quoted(quote) => format!("{} \"}}\"", self.listed(schema, ":", ",", Some(quote))),
        };
        self.rule(&format!("{} {middle} {arguments}", self.word(name)))
    }

    /// An object of arguments. Its keys come in any order where its schema is plain.
    fn json_arguments(&mut self, schema: &Json) -> String {
        let whole = format!("%json {}", spaced(arguments_schema(schema)));
        let properties = properties(schema);
        if !is_plain(schema) || !self.has_room(properties.len()) {
            return self.rule(&whole);
        }
        let items = properties.into_iter().map(|(key, is_required, value)| {
            let value = self.rule(&format!("%json {}", spaced(value)));
            Item { is_required, text: format!("{} {value}", literal(&format!("{}: ", literal(key)))) }
        });
        let items: Vec<Item> = items.collect();
        let body = self.in_any_order(&items, "\", \"");
        self.rule(&format!("\"{{\" {body} \"}}\""))
    }

    /// Pairs of tags.
    fn pairs(&mut self, pairs: &Pairs, schema: &Json) -> String {
        let line = if self.format.close.starts_with('\n') { "\"\\n\"?" } else { "" };
        let mut items = Vec::new();
        for (key, is_required, value) in properties(schema) {
            let pair = self.pair(pairs, Some(key), &value);
            items.push(Item { is_required, text: format!("{pair} {line}") });
        }
        if items.is_empty() && schema["additionalProperties"] != false {
            let pair = self.pair(pairs, None, &json!({ "type": "string" }));
            return self.rule(&format!("({pair} {line})*"));
        }
        self.in_any_order(&items, "")
    }

    fn pair(&mut self, pairs: &Pairs, key: Option<&str>, schema: &Json) -> String {
        // If the schema allows strings, the parser takes an unquoted value for a string.
        let kinds = types(schema);
        let is_text = kinds.contains(&"string");
        let others: Vec<&str> = kinds.into_iter().filter(|kind| *kind != "string").collect();
        let way = |wanted: [Value; 2]| pairs.middles.iter().find(|middle| wanted.contains(&middle.value));
        let json_way = way([Value::Json, Value::Schema]);
        match way([Value::Text, Value::Schema]).filter(|_| is_text) {
            // The format writes strings differently from other values.
            Some(middle) if middle.value == Value::Text && !others.is_empty() => {
                let (text, rest) = match fixed_values(schema) {
                    Some(values) => {
                        let (texts, rest): (Vec<Json>, Vec<Json>) = values.into_iter().partition(Json::is_string);
                        // There is no alternative without values.
                        let (has_texts, has_rest) = (!texts.is_empty(), !rest.is_empty() || texts.is_empty());
                        (has_texts.then(|| json!({ "enum": texts })), has_rest.then(|| json!({ "enum": rest })))
                    }
                    None => (Some(schema.clone()), Some(json!({ "type": others }))),
                };
                let text = text.map(|text| self.pair_as(pairs, middle, key, &text, true));
                let rest = json_way.zip(rest).map(|(middle, rest)| self.pair_as(pairs, middle, key, &rest, false));
                self.rule(&[text, rest].into_iter().flatten().collect::<Vec<_>>().join(" | "))
            }
            Some(middle) => self.pair_as(pairs, middle, key, schema, true),
            None => json_way.map_or_else(String::new, |middle| self.pair_as(pairs, middle, key, schema, false)),
        }
    }

    /// A pair with its value in the format `middle`. `is_text` means an unquoted string.
    fn pair_as(&mut self, pairs: &Pairs, middle: &Middle, key: Option<&str>, schema: &Json, is_text: bool) -> String {
        let line = if pairs.on_lines { "\n" } else { "" };
        let close = format!("{line}{}", middle.close.replace("{key}", key.unwrap_or("argument")));
        let key = key.map_or_else(|| "/[a-zA-Z0-9_]+/".to_owned(), literal);
        let (open, middle) = (self.marker(pairs.open), self.marker(middle.text));
        let value = match fixed_values(schema).filter(|_| is_text) {
            Some(values) => format!("({}) {}", raw(&values), self.word(&close)),
            None if is_text => self.text_until(&close, schema),
            None => format!("{} {}", self.rule(&format!("%json {}", spaced(schema.clone()))), self.word(&close)),
        };
        let line = if line.is_empty() { "" } else { "\"\\n\"" };
        self.rule(&format!("{open} {key} {middle} {line} {value}"))
    }

    /// An unquoted string up to and including the marker `end`.
    fn text_until(&mut self, end: &str, schema: &Json) -> String {
        let name = format!("text{}", self.count);
        self.count += 1;
        let text = pattern::of_texts(schema).unwrap_or_else(|| "(?s:.*)".to_owned());
        let (rule, rest) = match self.tokens.first(end) {
            // The end begins with a control token. Strings have none, so they stop before it.
            Some((0, ..)) => (format!("{name}: /{text}/"), self.word(end)),
            _ => (format!("{name}[suffix={}]: /{text}/", literal(end)), String::new()),
        };
        let _ = writeln!(self.rules, "{rule}");
        format!("{name} {rest}")
    }

    /// Arguments as a list of `KEY{assign}VALUE`, separated by `comma`.
    fn listed(&mut self, schema: &Json, assign: &str, comma: &str, quote: Option<&str>) -> String {
        let mut items = Vec::new();
        for (key, is_required, value) in properties(schema) {
            let value = match quote {
                None => self.rule(&format!("%json {}", spaced(value))),
                Some(quote) => self.quoted(quote, &value),
            };
            items.push(Item { is_required, text: format!("{} {value}", literal(&format!("{key}{assign}"))) });
        }
        self.in_any_order(&items, &literal(comma))
    }

    /// A value whose strings are between two quotes.
    fn quoted(&mut self, quote: &str, schema: &Json) -> String {
        let open = self.word(quote);
        let kinds = types(schema);
        if !kinds.is_empty() && kinds.iter().all(|kind| *kind == "string") {
            let text = match fixed_values(schema) {
                Some(values) => format!("({}) {open}", raw(&values)),
                None => self.text_until(quote, schema),
            };
            return self.rule(&format!("{open} {text}"));
        }
        if ["integer", "number", "boolean", "null"].iter().any(|kind| schema["type"] == *kind) {
            return self.rule(&format!("%json {}", spaced(schema.clone())));
        }
        let text = self.text_until(quote, &Json::Null);
        let scalar = self.rule("%json {\"type\": [\"number\", \"boolean\", \"null\"]}");
        let name = format!("tool{}", self.count);
        let entry = format!("/[a-zA-Z0-9_]+/ \":\" {name}");
        let (object, array) = (format!("({entry} (\",\" {entry})*)?"), format!("({name} (\",\" {name})*)?"));
        self.rule(&format!("{open} {text} | {scalar} | \"{{\" {object} \"}}\" | \"[\" {array} \"]\""))
    }
}

/// Whether a schema states nothing about an object but its properties, so that their order is free.
fn is_plain(schema: &Json) -> bool {
    const KNOWN: [&str; 9] =
        ["type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs", "definitions"];
    let Some(map) = schema.as_object() else { return false };
    let properties = schema["properties"].as_object().map_or(0, serde_json::Map::len);
    let required = schema["required"].as_array().into_iter().flatten();
    let is_known = required.filter_map(Json::as_str).all(|key| schema["properties"].get(key).is_some());
    (2..=MAX_ITEMS).contains(&properties)
        && is_known
        && matches!(schema["type"].as_str(), None | Some("object"))
        && matches!(schema["additionalProperties"], Json::Null | Json::Bool(false))
        && map.keys().all(|key| KNOWN.contains(&key.as_str()))
        && refers_to_definitions(schema)
}

/// Whether all references of a schema are to its definitions.
fn refers_to_definitions(schema: &Json) -> bool {
    match schema {
        Json::Array(items) => items.iter().all(refers_to_definitions),
        Json::Object(map) => map.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref", Json::String(target)) => target.starts_with("#/$defs/") || target.starts_with("#/definitions/"),
            (_, value) => refers_to_definitions(value),
        }),
        _ => true,
    }
}

/// The values of a schema that allows only listed values.
fn fixed_values(schema: &Json) -> Option<Vec<Json>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    if let Some(values) = schema["enum"].as_array() {
        return Some(values.clone());
    }
    if schema["type"] == "null" {
        return Some(vec![Json::Null]);
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array())?;
    let values: Vec<Vec<Json>> = alternatives.iter().map(fixed_values).collect::<Option<_>>()?;
    Some(values.concat())
}

/// An expression for one of these values, with strings unquoted.
fn raw(values: &[Json]) -> String {
    let text = |value: &Json| literal(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    values.iter().map(text).collect::<Vec<_>>().join(" | ")
}

/// The properties of a schema: key, whether it is required, and its own schema.
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
