//! The flags that choose an engine.

use std::sync::Arc;

use anyhow::Result;
use flambeau::runtime::Engine;

use crate::{failure::usage, mlx::MlxArgs};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// Engine that runs the program: cpu or mlx.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(crate) engine: String,

    /// Threads of the engine; one per core if not given.
    #[arg(short, long, value_name = "N", alias = "cpu-threads")]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    pub(crate) mlx: MlxArgs,
}

impl EngineArgs {
    /// The engine; with `profile` it measures the time of each node.
    pub(crate) fn engine(&self, profile: bool) -> Result<Arc<dyn Engine>> {
        if self.threads == Some(0) {
            return Err(usage("--threads must be at least 1"));
        }
        if self.engine == "mlx" {
            return Ok(Arc::new(self.mlx.load()?.with_profile(profile)));
        }
        flambeau::engines(self.threads, profile).get(&self.engine).map_err(|e| usage(e.to_string()))
    }

    /// Number of threads that the engine uses.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(cores)
    }
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
