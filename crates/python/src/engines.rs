//! Engines, each made once in a process.

use std::{
    collections::BTreeMap,
    process,
    sync::{Arc, Mutex, PoisonError},
};

use flambeau::engine::Engine;
use pyo3::prelude::*;

use crate::errors::{self, ExecutionError};

/// What an engine is chosen by: the flags of the command.
type Flags = Vec<String>;

/// Engines by process and flags. None is ever dropped: a process that was forked has no threads of its parent's engines to wait for.
static ENGINES: Mutex<BTreeMap<(u32, Flags), Arc<dyn Engine>>> = Mutex::new(BTreeMap::new());

/// The engine that flags of the command choose, made at its first use in this process.
pub(crate) fn engine(py: Python<'_>, flags: &[String]) -> PyResult<Arc<dyn Engine>> {
    let key = (process::id(), flags.to_vec());
    // The lock is held for moments only, with the interpreter attached, so that no fork finds it taken.
    let known = ENGINES.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(engine) = known {
        return Ok(engine);
    }
    let made = py.detach(|| flambeau_cli::library::engine(flags)).map_err(|error| errors::load(&error))?;
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Arc::clone(engines.entry(key).or_insert(made)))
}

/// The process that loaded something, which alone has the threads to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Home {
        Home(process::id())
    }

    /// # Errors
    /// This process was forked from the one that loaded `what`.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        if process::id() == self.0 {
            return Ok(());
        }
        let text = format!(
            "{what} was loaded in the process that this one was forked from, whose threads do not exist here: load it again in this process, or start workers with the method `spawn`"
        );
        Err(ExecutionError::new_err(text))
    }
}
