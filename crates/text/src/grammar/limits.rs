//! Limits on the schemas of clients, checked before a schema is compiled.

use std::collections::HashSet;

use serde_json::Value as Json;

use crate::error::{Error, Result};

/// Maximum size of a schema's names and values in bytes. A grammar may hold several schemas: see
/// [`MAX_GRAMMAR`].
const MAX_BYTES: usize = 256 << 10;
/// Maximum size of a grammar in bytes, with its schemas.
const MAX_GRAMMAR: usize = 1 << 20;
/// Maximum number of nested objects and arrays.
const MAX_DEPTH: usize = 64;
/// Maximum number of properties of all objects.
const MAX_PROPERTIES: usize = 5_000;
/// Maximum number of values in all `enum`s.
const MAX_ENUM: usize = 5_000;
/// Maximum length of a regular expression in bytes.
const MAX_PATTERN: usize = 4 << 10;

/// Sizes of a schema's visited part.
#[derive(Default)]
struct SchemaSizes {
    bytes: usize,
    properties: usize,
    values: usize,
}

fn within(size: usize, limit: usize, what: &str) -> Result<()> {
    if size <= limit { Ok(()) } else { Err(Error::Grammar(format!("the schema has more than {limit} {what}"))) }
}

/// Checks the sizes of a client's schema and its chains of references. Grammars take schemas that
/// pass.
///
/// # Errors
/// A size is above its limit, or a reference leads back to itself. The error names the limit, or
/// the reference that leads back to itself.
pub fn check_schema(schema: &Json) -> Result<()> {
    let mut sizes = SchemaSizes::default();
    let mut rest = vec![(schema, 0)];
    while let Some((value, depth)) = rest.pop() {
        within(depth, MAX_DEPTH, "levels")?;
        sizes.add(value)?;
        match value {
            Json::Object(map) => {
                if let Some(target) = map.get("$ref").and_then(Json::as_str) {
                    check_chain(schema, target)?;
                }
                rest.extend(map.values().map(|value| (value, depth + 1)));
            }
            Json::Array(list) => rest.extend(list.iter().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the size of a grammar's text.
///
/// # Errors
/// It is larger than the limit.
pub(super) fn check_grammar(text: &str) -> Result<()> {
    if text.len() <= MAX_GRAMMAR {
        return Ok(());
    }
    Err(Error::Grammar(format!("the grammar, with its schemas, has more than {MAX_GRAMMAR} bytes")))
}

impl SchemaSizes {
    /// Counts a value without its children.
    fn add(&mut self, value: &Json) -> Result<()> {
        self.bytes += match value {
            Json::String(text) => text.len(),
            Json::Object(map) => map.keys().map(String::len).sum(),
            _ => 1,
        };
        if let Json::Object(map) = value {
            self.properties += map.get("properties").and_then(Json::as_object).map_or(0, serde_json::Map::len);
            self.values += map.get("enum").and_then(Json::as_array).map_or(0, Vec::len);
            within(map.get("pattern").and_then(Json::as_str).map_or(0, str::len), MAX_PATTERN, "bytes in a pattern")?;
        }
        within(self.bytes, MAX_BYTES, "bytes")?;
        within(self.properties, MAX_PROPERTIES, "properties")?;
        within(self.values, MAX_ENUM, "enum values")
    }
}

/// Follows references that stand for each other, within the schema.
fn check_chain(schema: &Json, first: &str) -> Result<()> {
    let mut seen = HashSet::new();
    let mut target = first;
    while seen.insert(target) {
        let next = target.strip_prefix('#').and_then(|pointer| schema.pointer(pointer)).and_then(|value| value.get("$ref"));
        match next.and_then(Json::as_str) {
            Some(next) => target = next,
            None => return Ok(()),
        }
    }
    Err(Error::Grammar(format!("the reference {first:?} leads back to itself")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: &Json) -> String {
        check_schema(schema).expect_err("the schema is within the limits").to_string()
    }

    #[test]
    fn errors_name_the_limit() {
        let mut deep = json!({ "type": "integer" });
        for _ in 0..40 {
            deep = json!({ "type": "array", "items": deep });
        }
        assert!(check_schema(&deep).is_ok());
        for _ in 0..40 {
            deep = json!({ "type": "array", "items": deep });
        }
        let properties: serde_json::Map<String, Json> = (0..5_001).map(|i| (format!("p{i}"), json!({}))).collect();
        for (schema, text) in [
            (deep, "64 levels"),
            (json!({ "enum": (0..5_001).collect::<Vec<_>>() }), "5000 enum values"),
            (json!({ "properties": properties }), "5000 properties"),
            (json!({ "pattern": "a".repeat(5_000) }), "4096 bytes in a pattern"),
            (json!({ "description": "a".repeat(300_000) }), "262144 bytes"),
        ] {
            let error = refusal(&schema);
            assert!(error.contains(text), "{error}");
        }
        assert!(check_grammar(&"a".repeat(MAX_GRAMMAR)).is_ok() && check_grammar(&"a".repeat(MAX_GRAMMAR + 1)).is_err());
    }

    #[test]
    fn a_reference_that_leads_back_to_itself_is_named() {
        let cycle = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } });
        assert!(refusal(&cycle).contains("\"#/$defs/"));
        // A reference inside a property is recursion, as of a tree.
        let tree = json!({ "type": "object", "properties": { "children": { "type": "array", "items": { "$ref": "#" } } } });
        assert!(check_schema(&tree).is_ok());
    }
}
