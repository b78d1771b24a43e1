//! Reads `config.json` key by key, so that every complaint names its key.

use serde_json::{Map, Value};

use crate::{Error, Result, keys::Keys, limits::MAX_SIZE};

/// A JSON object with its path.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl Keys for Fields<'_> {
    fn size_opt(&self, key: &str) -> Result<Option<usize>> {
        let fits = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|v| (1..=MAX_SIZE).contains(v));
        self.typed(key, &format!("an integer from 1 to {MAX_SIZE}"), fits)
    }

    fn positive_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number above 0", |v| v.as_f64().filter(|v| v.is_finite() && *v > 0.0))
    }

    fn error(&self, key: &str, expected: impl Into<String>) -> Error {
        let found = self.get(key).map_or("nothing".into(), |v| v.to_string().chars().take(80).collect::<String>());
        Error::key(self.key(key), expected, found)
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { map, path: String::new() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// The value under a key; null counts as missing.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn typed<T>(&self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key).map(|v| get(v).ok_or_else(|| self.error(key, expected))).transpose()
    }

    pub(crate) fn child(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, path: format!("{}{key}.", self.path) }))
    }

    pub(crate) fn bool_opt(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    pub(crate) fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.bool_opt(key)?.unwrap_or(default))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a text", Value::as_str)
    }

    /// One integer or a list of them; none if the key is missing.
    pub(crate) fn ints(&self, key: &str) -> Result<Vec<i64>> {
        let read = |v: &Value| match v {
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|v| vec![v]),
        };
        Ok(self.typed(key, "an integer or a list of integers", read)?.unwrap_or_default())
    }

    /// A list of `n` finite numbers above zero.
    pub(crate) fn positives(&self, key: &str, n: usize) -> Result<Vec<f64>> {
        let read = |v: &Value| -> Option<Vec<f64>> {
            v.as_array()?.iter().map(|v| v.as_f64().filter(|v| v.is_finite() && *v > 0.0)).collect()
        };
        let expected = format!("a list of {n} numbers above 0");
        let list = self.typed(key, &expected, read)?.filter(|list| list.len() == n);
        list.ok_or_else(|| self.error(key, expected))
    }
}
