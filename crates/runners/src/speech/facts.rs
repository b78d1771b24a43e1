//! Metadata of a speech program, from its constant methods.

use flambeau_runtime::{Program, Value};

use crate::{Error, Result};

/// Whether a program has all of these methods.
pub(crate) fn has_methods(program: &Program, names: &[&str]) -> bool {
    names.iter().all(|name| program.method_names().any(|found| found == *name))
}

/// The constant methods of a program, with the family's name for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    program: &'a Program,
    family: &'static str,
}

impl<'a> Facts<'a> {
    pub(crate) fn of(program: &'a Program, family: &'static str) -> Facts<'a> {
        Facts { program, family }
    }

    /// A number above 0.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`] if it is not stated.
    pub(crate) fn size(&self, name: &str) -> Result<usize> {
        let size = self.program.constant_int(name).and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
        size.ok_or_else(|| self.missing(name))
    }

    /// A token, the first one if there are several.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`] if it is not stated.
    pub(crate) fn id(&self, name: &str) -> Result<u32> {
        self.ids(name).first().copied().ok_or_else(|| self.missing(name))
    }

    /// Numbers from 0 on; none if they are not stated.
    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let values = self.program.constant(name).unwrap_or_default();
        values.iter().filter_map(Value::as_int).filter_map(|id| u32::try_from(id).ok()).collect()
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self.program.constant(name)?.pop()? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::NoSpeechModel { family: self.family, what: format!("it does not state `{name}`") }
    }
}
