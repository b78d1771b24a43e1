//! Engines, created once per process.

use std::{
    collections::BTreeMap,
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use flambeau::{
    engine::{Clock, Engine},
    text::Tokenizer,
};
use pyo3::prelude::*;

use crate::errors::{self, ExecutionError};

/// Command line flags that choose an engine.
type Flags = Vec<String>;

/// Engines by process id and flags. They are never dropped, because a forked process lacks the
/// threads that a drop would wait for.
static ENGINES: Mutex<BTreeMap<(u32, Flags), Arc<dyn Engine>>> = Mutex::new(BTreeMap::new());

/// The engine for these command line flags, created at its first use in this process.
pub(crate) fn engine(py: Python<'_>, flags: &[String]) -> PyResult<Arc<dyn Engine>> {
    let key = (process::id(), flags.to_vec());
    // The lock is held briefly and with the interpreter attached, so a fork never copies it in the
    // locked state.
    let known = ENGINES.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(engine) = known {
        return Ok(engine);
    }
    let made = py.detach(|| flambeau_cli::library::engine(flags)).map_err(|error| errors::load(&error))?;
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Arc::clone(engines.entry(key).or_insert(made)))
}

/// The clock of all measurements.
static CLOCK: OnceLock<Clock> = OnceLock::new();

/// As [`engine`], an engine that measures, and its clock.
pub(crate) fn measured(py: Python<'_>, flags: &[String]) -> PyResult<(Arc<dyn Engine>, Clock)> {
    let clock = CLOCK.get_or_init(flambeau::clock).clone();
    let key = (process::id(), [flags, &["measured".to_owned()]].concat());
    let known = ENGINES.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(engine) = known {
        return Ok((engine, clock));
    }
    let made = py.detach(|| flambeau_cli::library::measured_engine(flags, clock.clone())).map_err(|error| errors::load(&error))?;
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((Arc::clone(engines.entry(key).or_insert(made)), clock))
}

/// A function of `flambeau_cli::library` that loads a model with its tokenizer by flags.
type Load<M> = fn(&[String], &Arc<dyn Engine>) -> anyhow::Result<(M, Tokenizer)>;

/// A model with its tokenizer. Threads use it one at a time.
pub(crate) struct Loaded<M> {
    model: Mutex<M>,
    pub(crate) tokenizer: Tokenizer,
    home: Home,
}

impl<M: Send> Loaded<M> {
    /// Loads a model.
    ///
    /// # Errors
    /// The engine or the model cannot be loaded.
    pub(crate) fn new(py: Python<'_>, (flags, engine_flags): (&[String], &[String]), load: Load<M>) -> PyResult<Loaded<M>> {
        let engine = engine(py, engine_flags)?;
        let (model, tokenizer) = py.detach(|| load(flags, &engine)).map_err(|error| errors::load(&error))?;
        Ok(Loaded { model: Mutex::new(model), tokenizer, home: Home::here() })
    }

    /// # Errors
    /// Another process loaded the model.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.home.check("the model")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, M> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The id of the process that loaded something. Only this process has the threads to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Home {
        Home(process::id())
    }

    /// # Errors
    /// Fails if this process was forked from the one that loaded `what`.
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
