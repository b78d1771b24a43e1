//! Engines by name.

use std::{fmt, sync::Arc};

use flambeau_ir::engine::Engine;

use crate::{Error, Result};

/// The engines that can load a program, in order of preference.
#[derive(Clone, Default)]
pub struct Engines {
    list: Vec<Arc<dyn Engine>>,
}

impl Engines {
    /// Creates an empty registry.
    pub fn new() -> Engines {
        Engines::default()
    }

    /// Adds an engine, and replaces an engine with the same name.
    #[must_use]
    pub fn with(mut self, engine: Arc<dyn Engine>) -> Engines {
        self.list.retain(|known| known.name() != engine.name());
        self.list.push(engine);
        self
    }

    /// The engine with this name.
    ///
    /// # Errors
    /// [`Error::NoEngine`] lists the known names.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Engine>> {
        let found = self.list.iter().find(|engine| engine.name() == name);
        found.cloned().ok_or_else(|| Error::NoEngine { name: name.to_owned(), known: self.names().join(", ") })
    }

    /// All names, in order of preference.
    pub fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|engine| engine.name()).collect()
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_name() {
        let cpu: Arc<dyn Engine> = Arc::new(flambeau_cpu::CpuEngine::new(Some(1)));
        let engines = Engines::new().with(Arc::clone(&cpu)).with(cpu);
        assert_eq!(engines.names(), ["cpu"]);
        assert!(engines.get("cpu").is_ok());
        let message = engines.get("tpu").err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message.contains("tpu") && message.contains("cpu"), "{message}");
    }
}
