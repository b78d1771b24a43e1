//! Reads metadata under an architecture's prefix, and tracks the read keys.

use std::{cell::RefCell, collections::BTreeSet};

use super::{Gguf, MetadataValue};
use crate::{
    Error, Result,
    limits::{MAX_LAYERS, MAX_SIZE},
};

pub(super) struct Keys<'a> {
    pub(super) file: &'a Gguf,
    prefix: &'a str,
    /// Names read so far.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a Gguf, prefix: &'a str) -> Keys<'a> {
        Keys { file, prefix, asked: RefCell::default() }
    }

    /// Full key of a name.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a MetadataValue> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.file.metadata.get(&self.key(name))
    }

    /// Refuses keys that were not read.
    pub(super) fn finish(&self) -> Result<()> {
        let prefix = format!("{}.", self.prefix);
        let asked = self.asked.borrow();
        match self.file.metadata.keys().filter_map(|key| key.strip_prefix(&prefix)).find(|name| !asked.contains(*name)) {
            Some(unknown) => Err(self.error(unknown, "no key of unknown meaning, which might change what the model computes")),
            None => Ok(()),
        }
    }

    pub(super) fn error(&self, name: &str, expected: impl Into<String>) -> Error {
        let found = self.file.metadata.get(&self.key(name)).map_or("nothing".to_owned(), MetadataValue::describe);
        Error::key(self.key(name), expected, found)
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>> {
        self.get(name);
        self.file.int(&self.key(name))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.get(name);
        self.file.text(&self.key(name))
    }

    /// A size above 0. Writers store 0 for absent parts.
    pub(super) fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.int(name)?.filter(|&value| value != 0) else { return Ok(None) };
        let size = usize::try_from(value).ok().filter(|v| *v <= MAX_SIZE);
        size.map(Some).ok_or_else(|| self.error(name, format!("an integer from 1 to {MAX_SIZE}")))
    }

    pub(super) fn size(&self, name: &str) -> Result<usize> {
        self.size_opt(name)?.ok_or_else(|| self.error(name, "an integer"))
    }

    pub(super) fn positive_opt(&self, name: &str) -> Result<Option<f64>> {
        self.get(name);
        match self.file.float(&self.key(name))? {
            Some(v) if !v.is_finite() || v <= 0.0 => Err(self.error(name, "a number above 0")),
            found => Ok(found),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name);
        self.file.float(&self.key(name))
    }

    pub(super) fn bool(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(MetadataValue::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.error(name, "a boolean")),
        }
    }

    /// A list of booleans, one for each layer.
    pub(super) fn bools(&self, name: &str) -> Result<Option<Vec<bool>>> {
        if self.get(name).is_none() {
            return Ok(None);
        }
        // Some writers store booleans as integers.
        let bool = |v: MetadataValue| match v {
            MetadataValue::Bool(v) => Some(v),
            MetadataValue::Int(v @ (0 | 1)) => Some(v == 1),
            _ => None,
        };
        self.of_all_layers(name, self.file.numbers(&self.key(name), bool)?).map(Some)
    }

    /// A count for each layer, stated per layer or once for all.
    pub(super) fn counts(&self, name: &str) -> Result<Vec<usize>> {
        let count = |v: i64| usize::try_from(v).ok().filter(|v| *v <= MAX_SIZE);
        if let Some(MetadataValue::Int(one)) = self.get(name) {
            let one = count(*one).ok_or_else(|| self.error(name, format!("an integer from 0 to {MAX_SIZE}")))?;
            return Ok(vec![one; self.layers()?]);
        }
        let number = |v: MetadataValue| if let MetadataValue::Int(v) = v { count(v) } else { None };
        self.of_all_layers(name, self.file.numbers(&self.key(name), number)?)
    }

    /// A number for each layer.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f64>> {
        let number = |v: MetadataValue| if let MetadataValue::Float(v) = v { Some(v) } else { None };
        self.of_all_layers(name, self.file.numbers(&self.key(name), number)?)
    }

    fn of_all_layers<T>(&self, name: &str, mut list: Vec<T>) -> Result<Vec<T>> {
        let layers = self.layers()?;
        if list.len() < layers {
            return Err(self.error(name, format!("an array of {layers}")));
        }
        list.truncate(layers);
        Ok(list)
    }

    /// Number of decoder layers, without layers that predict further tokens.
    pub(super) fn layers(&self) -> Result<usize> {
        let all = self.size_opt("block_count")?.ok_or_else(|| self.error("block_count", "the number of layers, from 1 on"))?;
        let foreseeing = self.size_opt("nextn_predict_layers")?.unwrap_or(0);
        let layers = all.checked_sub(foreseeing).filter(|layers| (1..=MAX_LAYERS).contains(layers));
        layers.ok_or_else(|| {
            self.error("block_count", format!("1 to {MAX_LAYERS} layers beside the {foreseeing} of nextn_predict_layers"))
        })
    }

    /// Elements of a head: stated, or its share of the hidden width.
    pub(super) fn head_dim(&self) -> Result<Option<usize>> {
        match self.size_opt("attention.key_length")? {
            Some(stated) => Ok(Some(stated)),
            None => self.even_head_dim(),
        }
    }

    /// A head's share of the hidden width.
    pub(super) fn even_head_dim(&self) -> Result<Option<usize>> {
        let (heads, hidden) = (self.size_opt("attention.head_count")?, self.size_opt("embedding_length")?);
        Ok(heads.zip(hidden).filter(|(heads, hidden)| hidden.is_multiple_of(*heads)).map(|(heads, hidden)| hidden / heads))
    }
}
