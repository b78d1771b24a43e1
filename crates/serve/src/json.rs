//! JSON request bodies without duplicate keys. Readers take the fields one by one.

use std::{
    cell::Cell,
    fmt,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value as Json, json};

use crate::error::{ApiError, Result};

/// Maximum number of JSON values in a field. Schemas within their limits have fewer.
const MAX_VALUES: usize = 128 << 10;
/// Fields without this limit: lists of texts, messages, tokens or requests. Other limits bound
/// them.
const LONG: [&str; 11] =
    ["body", "requests", "prompt", "input", "tokens", "messages", "documents", "texts", "queries", "text_1", "text_2"];

/// Reads a value whose objects have no key twice.
#[derive(Clone, Copy)]
struct Strict<'c> {
    /// Number of values that the field may still have; unlimited if `None`.
    left: Option<&'c Cell<usize>>,
}

impl Strict<'_> {
    /// Counts a value.
    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        let Some(left) = self.left else { return Ok(()) };
        left.set(left.get().checked_sub(1).ok_or_else(|| E::custom("too many values"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Json, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            self.count::<A::Error>()?;
            list.push(value);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.count::<A::Error>()?;
            add(&mut map, key, &mut entries, self)?;
        }
        Ok(Json::Object(map))
    }
}

/// Reads the value of a key that is new.
fn add<'de, A: MapAccess<'de>>(
    map: &mut Map<String, Json>,
    key: String,
    entries: &mut A,
    value: Strict<'_>,
) -> Result<(), A::Error> {
    if map.contains_key(&key) {
        return Err(A::Error::custom(format!("the key {key:?} stands twice in an object")));
    }
    let value = entries.next_value_seed(value)?;
    map.insert(key, value);
    Ok(())
}

/// Reads the object of a body, and bounds the values of each field.
struct Body<'c> {
    /// The field that has too many.
    full: &'c Cell<Option<String>>,
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Map<String, Json>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Map<String, Json>, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let left = Cell::new(MAX_VALUES);
            let value = Strict { left: Some(&left).filter(|_| !LONG.contains(&key.as_str())) };
            let name = key.clone();
            let added = add(&mut map, key, &mut entries, value);
            if added.is_err() && left.get() == 0 {
                self.full.set(Some(name));
            }
            added?;
        }
        Ok(map)
    }
}

/// The fields that a reader asks for, with JSON schemas of their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Mutex<Map<String, Json>>>);

impl Record {
    fn add(&self, name: &str, schema: Json) {
        let mut fields = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = fields.entry(name).or_insert_with(|| json!({}));
        if known.as_object().is_some_and(Map::is_empty) {
            *known = schema;
        }
    }

    /// The schemas by field name.
    pub(crate) fn schemas(&self) -> Map<String, Json> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Fields of an object; each is taken once. A `null` field counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Json>,
    record: Option<Record>,
}

impl Fields {
    /// Parses the fields of a request body.
    ///
    /// # Errors
    /// It is no JSON object, has a key twice, or a field has too many values.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields> {
        let full = Cell::new(None);
        let mut reader = serde_json::Deserializer::from_slice(body);
        let read = reader.deserialize_map(Body { full: &full }).and_then(|map| reader.end().map(|()| map));
        match (read, full.into_inner()) {
            (Ok(map), _) => Ok(Fields::of(map)),
            (Err(_), Some(name)) => Err(ApiError::value(&name, format!("`{name}` has more than {MAX_VALUES} values"))),
            (Err(error), None) if error.is_data() && body.trim_ascii_start().first() != Some(&b'{') => {
                Err(ApiError::invalid("the request body is no JSON object"))
            }
            (Err(error), None) => Err(ApiError::invalid(format!("the request body is no valid JSON: {error}"))),
        }
    }

    /// Fields of an object made by the server.
    pub(crate) fn of(map: Map<String, Json>) -> Fields {
        Fields { map, record: None }
    }

    /// Fields of an object made by the server, with a record of the fields taken.
    pub(crate) fn recorded(map: Map<String, Json>) -> (Fields, Record) {
        let record = Record::default();
        (Fields { map, record: Some(record.clone()) }, record)
    }

    fn note(&self, name: &str, schema: impl FnOnce() -> Json) {
        if let Some(record) = &self.record {
            record.add(name, schema());
        }
    }

    /// Reads a field without taking it.
    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Takes a field of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json> {
        self.note(name, || json!({}));
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a number in a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        self.note(name, || json!({ "type": "number", "minimum": range.start(), "maximum": range.end() }));
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| wrong(name, &format!("a number from {} to {}", range.start(), range.end()), &value))
    }

    /// Takes an integer in a range.
    pub(crate) fn count(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<usize>> {
        self.note(name, || json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() }));
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().filter(|count| range.contains(count)).and_then(|count| usize::try_from(count).ok());
        count.map(Some).ok_or_else(|| wrong(name, &format!("a whole number from {} to {}", range.start(), range.end()), &value))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.note(name, || json!({ "type": "boolean" }));
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, "true or false", &value))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.note(name, || json!({ "type": "string" }));
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(value) => Err(wrong(name, "a text", &value)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Json>>> {
        self.note(name, || json!({ "type": "object" }));
        match self.take(name) {
            None => Ok(None),
            Some(Json::Object(map)) => Ok(Some(map)),
            Some(value) => Err(wrong(name, "an object", &value)),
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Json>>> {
        self.note(name, || json!({ "type": "array" }));
        match self.take(name) {
            None => Ok(None),
            Some(Json::Array(list)) => Ok(Some(list)),
            Some(value) => Err(wrong(name, "a list", &value)),
        }
    }

    /// Ends parsing: only ignored fields listed in `harmless` may remain.
    ///
    /// # Errors
    /// The error names a remaining field.
    pub(crate) fn finish(self, harmless: &[&str]) -> Result<()> {
        harmless.iter().for_each(|name| self.note(name, || json!({})));
        let left = self.map.iter().find(|(name, value)| !value.is_null() && !harmless.contains(&name.as_str()));
        left.map_or(Ok(()), |(name, _)| Err(ApiError::unsupported(name, format!("`{name}` is not supported"))))
    }
}

/// A field has the wrong type.
pub(crate) fn wrong(param: &str, expected: &str, found: &Json) -> ApiError {
    const SHOWN: usize = 60;
    let mut shown: String = found.to_string().chars().take(SHOWN + 1).collect();
    if shown.chars().count() > SHOWN {
        shown.pop();
        shown.push('…');
    }
    ApiError::value(param, format!("`{param}` must be {expected}, found {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn bodies_are_objects_that_say_each_thing_once() {
        for (body, expected) in [
            ("[]", "no JSON object"),
            ("{", "no valid JSON"),
            (r#"{"a": 1, "a": 2}"#, "stands twice"),
            (r#"{"b": [{"a": 1, "a": 2}]}"#, "stands twice"),
            (r#"{"a": "\ud800"}"#, "no valid JSON"),
            (r#"{"a": 1e999}"#, "no valid JSON"),
        ] {
            let error = Fields::parse(body.as_bytes()).unwrap_err();
            assert!(error.message.contains(expected) && error.status == 400, "{body}: {error}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(Fields::parse(deep.as_bytes()).unwrap_err().message.contains("no valid JSON"));
    }

    #[test]
    fn fields_have_a_bounded_number_of_values() {
        let many = |count: usize| vec!["1"; count].join(",");
        let body = |field: &str, count: usize| format!("{{\"a\": 1, \"{field}\": {{\"enum\": [{}]}}}}", many(count));
        let error = Fields::parse(body("response_format", MAX_VALUES).as_bytes()).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("response_format")), "{error}");
        // The rest is not read.
        let cut = body("tools", MAX_VALUES + 10).replace("]}}", "");
        assert_eq!(Fields::parse(cut.as_bytes()).unwrap_err().param.as_deref(), Some("tools"));
        assert!(Fields::parse(body("tools", MAX_VALUES - 1).as_bytes()).is_ok());
        assert!(Fields::parse(body("input", MAX_VALUES + 10).as_bytes()).is_ok());
        assert!(Fields::parse(b"{} {}").unwrap_err().message.contains("no valid JSON"));
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        for value in ["-1", "3", "1e308", "\"1\"", "true", "[1]", "{}"] {
            let error = fields(&format!("{{\"x\": {value}}}")).number("x", 0.0..=2.0).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("x"), "{value}");
        }
        for value in ["-1", "1.5", "9223372036854775808", "\"1\""] {
            let error = fields(&format!("{{\"x\": {value}}}")).count("x", 0..=100).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("x"), "{value}");
        }
    }

    #[test]
    fn readers_are_recorded() {
        let (mut fields, record) = Fields::recorded(Map::new());
        fields.take("a");
        fields.flag("b").unwrap();
        fields.number("c", 0.0..=2.0).unwrap();
        fields.text("a").unwrap();
        fields.finish(&["d"]).unwrap();
        let expected = json!({ "a": { "type": "string" }, "b": { "type": "boolean" }, "c": { "type": "number", "minimum": 0.0, "maximum": 2.0 }, "d": {} });
        assert_eq!(Json::Object(record.schemas()), expected);
    }

    #[test]
    fn fields_that_are_left_are_named_unless_they_change_nothing() {
        let body = r#"{"user": "u", "nothing": null, "mirostat": 2}"#;
        assert_eq!(fields(body).finish(&["user"]).unwrap_err().param.as_deref(), Some("mirostat"));
        let mut rest = fields(body);
        assert_eq!(rest.count("mirostat", 0..=2).unwrap(), Some(2));
        assert!(rest.finish(&["user"]).is_ok());
    }
}
