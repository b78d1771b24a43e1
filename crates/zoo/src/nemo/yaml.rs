//! Reads YAML configs as JSON values.

use serde_json::{Map, Number, Value};
use yaml_rust2::{
    Yaml,
    parser::{Event, Parser},
    scanner::TScalarStyle,
};

use crate::{
    Error, Result,
    limits::{MAX_JSON_BYTES, MAX_YAML_DEPTH},
};

/// A list or map under construction.
enum Open {
    List(Vec<Value>),
    /// A map, with the key of the next value.
    Map(Map<String, Value>, Option<String>),
}

/// Reads the map in a file's first document. Aliases are refused, because they can grow without
/// bounds.
///
/// # Errors
/// [`Error::File`] if the file holds no such map.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<Map<String, Value>> {
    let fault = |what: &dyn ToString| Error::file(file, what.to_string());
    if bytes.len() > MAX_JSON_BYTES {
        return Err(Error::limit("bytes of a YAML file", bytes.len() as u64, MAX_JSON_BYTES as u64));
    }
    let text = str::from_utf8(bytes).map_err(|e| fault(&e))?;
    let (mut parser, mut open) = (Parser::new_from_str(text), Vec::new());
    loop {
        let (event, _) = parser.next_token().map_err(|e| fault(&e))?;
        let done = match event {
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|open| match open {
                Open::List(list) => Value::Array(list),
                Open::Map(map, _) => Value::Object(map),
            }),
            Event::Scalar(text, style, ..) => Some(scalar(text, style)),
            Event::Alias(_) => return Err(fault(&"it has an alias, expected plain values")),
            Event::StreamEnd | Event::DocumentEnd => return Err(fault(&"it holds no map")),
            Event::Nothing | Event::StreamStart | Event::DocumentStart => None,
        };
        if open.len() > MAX_YAML_DEPTH {
            return Err(fault(&format!("it is deeper than {MAX_YAML_DEPTH} levels")));
        }
        match (done, open.last_mut()) {
            (Some(Value::Object(map)), None) => return Ok(map),
            (Some(value), Some(Open::List(list))) => list.push(value),
            (Some(value), Some(Open::Map(map, key))) => match key.take() {
                Some(key) => drop(map.insert(key, value)),
                None => *key = Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            },
            (Some(_), None) => return Err(fault(&"it holds no map")),
            (None, _) => {}
        }
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    if style != TScalarStyle::Plain {
        return Value::String(text);
    }
    match Yaml::from_str(&text) {
        Yaml::Null => Value::Null,
        Yaml::Boolean(value) => Value::Bool(value),
        Yaml::Integer(value) => value.into(),
        Yaml::Real(real) => real.parse().ok().and_then(Number::from_f64).map_or(Value::String(text), Value::Number),
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_types_of_json() {
        let text = "encoder:\n  d_model: 512\n  scale: 1.0e-05\n  bias: false\n  out: null\n  sizes: [-1, [2, '3']]\nname: a b\n";
        let map = read("a", text.as_bytes()).unwrap();
        let expected = serde_json::json!({
            "encoder": { "d_model": 512, "scale": 1e-5, "bias": false, "out": null, "sizes": [-1, [2, "3"]] }, "name": "a b",
        });
        assert_eq!(Value::Object(map), expected);
    }

    #[test]
    fn what_is_no_map_of_plain_values_is_refused() {
        let error = |text: &str| read("a", text.as_bytes()).unwrap_err().to_string();
        assert!(error("a: &x [1]\nb: *x\n").contains("alias"));
        let nested: String = (0..100).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(error(&nested).contains("deeper"));
        assert!(error(&format!("a: {}", "[".repeat(100_000))).contains("file `a`"));
        assert!(error("- 1").contains("no map") && error("").contains("no map") && error("a: [").contains("file `a`"));
    }
}
