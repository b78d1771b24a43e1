//! Faults of pickles.

use crate::Error;

/// Reason why bytes are not a pickle of tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleFault {
    #[error("the pickle ends too early")]
    Truncated,
    #[error("a name without end")]
    UnterminatedName,
    #[error("{0} that is not UTF-8")]
    NotUtf8(&'static str),
    #[error("expected protocol 2 or less")]
    Protocol,
    #[error("instruction {0:#04x} is not known")]
    Instruction(u8),
    #[error("the stack is empty")]
    EmptyStack,
    #[error("no mark on the stack")]
    NoMark,
    #[error("memo {0} is empty")]
    EmptyMemo(u32),
    #[error("a key without value")]
    KeyWithoutValue,
    #[error("expected an integer of at most 8 bytes, found {0}")]
    LongInteger(usize),
    #[error("expected {expected}, found {found}")]
    Expected { expected: &'static str, found: String },
    /// A name that is not on the list of allowed constructors.
    #[error("`{module} {name}` is not among the constructors that tensors need")]
    Global { module: String, name: String },
    #[error("cannot call {callee} with {arguments} arguments")]
    Arguments { callee: String, arguments: usize },
    #[error("cannot call {0}")]
    NotCallable(String),
    #[error("cannot rebuild {class} by {by}")]
    Rebuild { class: String, by: String },
    #[error("no tensor can have elements of type {0}")]
    ElementType(&'static str),
    #[error("an untyped storage without element type")]
    Untyped,
    #[error("{found} {what} exceed the limit of {limit}")]
    Limit { what: &'static str, found: usize, limit: usize },
    /// A fault inside a named object.
    #[error("{place}: {fault}")]
    At { place: String, fault: Box<PickleFault> },
    /// A storage or view that cannot be read from the archive.
    #[error("{0}")]
    Archive(Box<Error>),
}

impl PickleFault {
    pub(super) fn at(self, place: impl Into<String>) -> PickleFault {
        PickleFault::At { place: place.into(), fault: Box::new(self) }
    }
}

impl From<Error> for PickleFault {
    fn from(error: Error) -> PickleFault {
        PickleFault::Archive(Box::new(error))
    }
}
