//! The failure of an entry: a kind and a text.

use std::{
    ffi::{CStr, CString},
    fmt::Display,
    ptr,
};

use flambeau::{runners, runtime};
use flambeau_cli::library;

use crate::text;

/// The kinds of `flb_error_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    None = 0,
    Load = 1,
    Input = 2,
    Execution = 3,
    Bug = 4,
}

/// The object behind `flb_error`.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    text: CString,
}

impl Failure {
    pub(crate) fn new(kind: Kind, text: impl Display) -> Failure {
        Failure { kind, text: text::c_string(text.to_string()) }
    }

    /// An argument does not fit.
    pub(crate) fn input(text: impl Display) -> Failure {
        Failure::new(Kind::Input, text)
    }

    /// A model or an engine cannot be loaded: the messages of the error and its causes, with
    /// advice.
    pub(crate) fn load(error: &anyhow::Error) -> Failure {
        Failure::new(Kind::Load, library::message(error))
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn text(&self) -> &CStr {
        &self.text
    }

    #[cfg(test)]
    pub(crate) fn kind_and_text(&self) -> (Kind, &str) {
        (self.kind, self.text.to_str().unwrap_or_default())
    }
}

impl From<runtime::Error> for Failure {
    fn from(error: runtime::Error) -> Failure {
        let kind = match error {
            runtime::Error::ArgumentCount { .. } | runtime::Error::Argument { .. } => Kind::Input,
            runtime::Error::Run { .. } | runtime::Error::NoOutput { .. } | runtime::Error::Endless { .. } => Kind::Execution,
            _ => Kind::Load,
        };
        Failure::new(kind, error)
    }
}

impl From<runners::Error> for Failure {
    fn from(error: runners::Error) -> Failure {
        Failure::new(Kind::Execution, error)
    }
}

/// The owned pointer of a failure, or null.
pub(crate) fn raw(result: Result<(), Failure>) -> *mut Failure {
    result.map_or_else(|failure| Box::into_raw(Box::new(failure)), |()| ptr::null_mut())
}
