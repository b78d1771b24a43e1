//! Engines by name.

use std::{fmt, sync::Arc};

use flambeau_ir::engine::Engine;

use crate::{Error, Result};

/// The engines that a program can be loaded on, in the order of preference.
#[derive(Clone, Default)]
pub struct Engines {
    list: Vec<Arc<dyn Engine>>,
}

impl Engines {
    /// No engines.
    pub fn new() -> Engines {
        Engines::default()
    }

    /// These and one more; an engine of the same name is replaced.
    #[must_use]
    pub fn with(mut self, engine: Arc<dyn Engine>) -> Engines {
        self.list.retain(|known| known.name() != engine.name());
        self.list.push(engine);
        self
    }

    /// The engine of that name.
    ///
    /// # Errors
    /// [`Error::NoEngine`] lists the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Engine>> {
        let found = self.list.iter().find(|engine| engine.name() == name);
        found.cloned().ok_or_else(|| Error::NoEngine { name: name.to_owned(), known: self.names().join(", ") })
    }

    /// All names, in order.
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
