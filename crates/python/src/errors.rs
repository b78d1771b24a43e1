//! Errors as Python exceptions, with the same messages as the command.

use flambeau::runtime;
use pyo3::{PyErr, create_exception, exceptions::PyRuntimeError};

create_exception!(flambeau, Error, PyRuntimeError, "The base of all errors of this package.");
create_exception!(flambeau, LoadError, Error, "A program, a method or a model cannot be loaded.");
create_exception!(flambeau, InputError, Error, "An argument does not fit what a method or a model takes.");
create_exception!(flambeau, ExecutionError, Error, "A run has failed.");
create_exception!(flambeau, CompileError, Error, "A program cannot be compiled.");

/// The exception for a runtime error.
pub(crate) fn of_runtime(error: &runtime::Error) -> PyErr {
    let text = error.to_string();
    match error {
        runtime::Error::ArgumentCount { .. } | runtime::Error::Argument { .. } => InputError::new_err(text),
        runtime::Error::Run { .. } | runtime::Error::NoOutput { .. } | runtime::Error::Endless { .. } => {
            ExecutionError::new_err(text)
        }
        _ => LoadError::new_err(text),
    }
}

/// An [`InputError`] with the messages of an error, its causes and advice.
pub(crate) fn input(error: &anyhow::Error) -> PyErr {
    InputError::new_err(flambeau_cli::library::message(error))
}

/// A [`LoadError`] with the messages of an error, its causes and advice.
pub(crate) fn load(error: &anyhow::Error) -> PyErr {
    LoadError::new_err(flambeau_cli::library::message(error))
}
