//! Reads `config.json` key by key. Every error names its key, and unknown keys are refused.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use serde_json::{Map, Value};

use crate::{Error, Result, limits::MAX_SIZE};

/// A JSON object with its path.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
    /// Other names of this object's keys, each before the key.
    aliases: &'static [(&'static str, &'static str)],
    /// Paths of the keys read so far.
    asked: Rc<RefCell<BTreeSet<String>>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { map, path: String::new(), aliases: &[], asked: Rc::default() }
    }

    /// The same object, whose keys may have these other names. A key's own name comes first.
    pub(crate) fn with_aliases(&self, aliases: &'static [(&'static str, &'static str)]) -> Fields<'a> {
        Fields { aliases, ..self.clone() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// The value under a key; null counts as missing.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(self.key(key));
        let own = self.map.get(key).filter(|v| !v.is_null());
        self.aliases.iter().filter(|(_, name)| *name == key).fold(own, |found, (alias, _)| found.or(self.get(alias)))
    }

    /// Refuses keys that were not read, except `harmless` keys. Covers this object and the objects
    /// in it that were read.
    pub(crate) fn finish(&self, harmless: &dyn Fn(&str) -> bool) -> Result<()> {
        for (key, value) in self.map.iter().filter(|(key, value)| !value.is_null() && !harmless(key)) {
            let path = self.key(key);
            if !self.asked.borrow().contains(&path) {
                return Err(self.error(key, "no key of unknown meaning, which might change what the model computes"));
            }
            if let Value::Object(map) = value {
                let child = Fields { map, path: format!("{path}."), aliases: &[], asked: Rc::clone(&self.asked) };
                child.finish(harmless)?;
            }
        }
        Ok(())
    }

    /// An error about a key, with its value.
    pub(crate) fn error(&self, key: &str, expected: impl Into<String>) -> Error {
        let found = self.map.get(key).filter(|v| !v.is_null());
        let found = found.map_or("nothing".into(), |v| v.to_string().chars().take(80).collect::<String>());
        Error::key(self.key(key), expected, found)
    }

    fn typed<T>(&self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key).map(|v| get(v).ok_or_else(|| self.error(key, expected))).transpose()
    }

    pub(crate) fn child(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, path: format!("{}{key}.", self.path), aliases: &[], asked: Rc::clone(&self.asked) }))
    }

    /// A required object.
    pub(crate) fn object(&self, key: &str) -> Result<Fields<'a>> {
        self.child(key)?.ok_or_else(|| self.error(key, "an object"))
    }

    /// Whether the key is present with the value null.
    pub(crate) fn has_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// All keys of the object.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.map.keys()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A size from 1 to [`MAX_SIZE`].
    pub(crate) fn size_opt(&self, key: &str) -> Result<Option<usize>> {
        let fits = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|v| (1..=MAX_SIZE).contains(v));
        self.typed(key, &format!("an integer from 1 to {MAX_SIZE}"), fits)
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        self.size_opt(key)?.ok_or_else(|| self.error(key, "an integer"))
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.size_opt(key)?.unwrap_or(default))
    }

    /// A number from 0 to [`MAX_SIZE`].
    pub(crate) fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        let fits = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|v| *v <= MAX_SIZE);
        Ok(self.typed(key, &format!("an integer from 0 to {MAX_SIZE}"), fits)?.unwrap_or(default))
    }

    /// A finite number above zero.
    pub(crate) fn positive_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number above 0", |v| v.as_f64().filter(|v| v.is_finite() && *v > 0.0))
    }

    pub(crate) fn positive(&self, key: &str) -> Result<f64> {
        self.positive_opt(key)?.ok_or_else(|| self.error(key, "a number above 0"))
    }

    pub(crate) fn positive_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.positive_opt(key)?.unwrap_or(default))
    }

    /// A finite number of at least zero.
    pub(crate) fn magnitude_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number from 0 on", |v| v.as_f64().filter(|v| v.is_finite() && *v >= 0.0))
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

    /// Refuses any string other than the supported one. A missing string is valid.
    pub(crate) fn expect_text(&self, key: &str, expected: &str) -> Result<()> {
        match self.text(key)? {
            Some(found) if found != expected => Err(self.error(key, expected)),
            _ => Ok(()),
        }
    }

    /// Refuses any size other than the supported one. A missing size is valid.
    pub(crate) fn expect_size(&self, key: &str, expected: usize) -> Result<()> {
        if self.size_or(key, expected)? == expected { Ok(()) } else { Err(self.error(key, expected.to_string())) }
    }

    /// Refuses the unsupported boolean. A missing boolean is valid.
    pub(crate) fn expect_bool(&self, key: &str, expected: bool) -> Result<()> {
        if self.bool_or(key, expected)? == expected { Ok(()) } else { Err(self.error(key, expected.to_string())) }
    }

    /// A list of texts, at least `n`.
    pub(crate) fn texts(&self, key: &str, n: usize) -> Result<Option<Vec<&'a str>>> {
        let read =
            |v: &'a Value| v.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>().filter(|list| list.len() >= n);
        self.typed(key, &format!("a list of {n} texts"), read)
    }

    /// One integer or a list of integers. Empty if the key is missing.
    pub(crate) fn ints(&self, key: &str) -> Result<Vec<i64>> {
        let read = |v: &Value| match v {
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|v| vec![v]),
        };
        Ok(self.typed(key, "an integer or a list of integers", read)?.unwrap_or_default())
    }

    /// A list of pairs of integers from 0 on.
    pub(crate) fn pairs(&self, key: &str) -> Result<Option<Vec<[usize; 2]>>> {
        let number = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok());
        let pair = |v: &Value| match &v.as_array()?[..] {
            [a, b] => Some([number(a)?, number(b)?]),
            _ => None,
        };
        self.typed(key, "a list of pairs of integers", |v| v.as_array()?.iter().map(pair).collect())
    }

    /// A list of `n` finite numbers from zero on.
    pub(crate) fn numbers(&self, key: &str, n: usize) -> Result<Option<Vec<f64>>> {
        let read = |v: &Value| -> Option<Vec<f64>> {
            v.as_array()?.iter().map(|v| v.as_f64().filter(|v| v.is_finite() && *v >= 0.0)).collect()
        };
        self.typed(key, &format!("a list of {n} numbers from 0 on"), |v| read(v).filter(|list| list.len() >= n))
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
