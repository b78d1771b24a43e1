//! The flags that choose an engine.

use std::sync::Arc;

use anyhow::Result;
use flambeau::{
    cpu::CpuEngine,
    engine::{Clock, Engine},
};

use crate::{count::positive, failure::usage, mlx::MlxArgs};

/// An engine by its name on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EngineName {
    #[default]
    Cpu,
    Mlx,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct EngineArgs {
    /// Engine that runs the model
    #[arg(help_heading = "Engine", long, value_name = "NAME", default_value = "cpu")]
    pub(crate) engine: EngineName,

    /// Number of threads; by default one per core
    #[arg(help_heading = "Engine", short, long, value_name = "N", alias = "cpu-threads", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    pub(crate) mlx: MlxArgs,
}

impl EngineArgs {
    /// The engine; with `profile` it measures the time of each node.
    pub(crate) fn engine(&self, profile: bool) -> Result<Arc<dyn Engine>> {
        self.engine_with(profile.then(flambeau::clock))
    }

    /// The engine; with a clock it measures the time of each node.
    pub(crate) fn engine_with(&self, clock: Option<Clock>) -> Result<Arc<dyn Engine>> {
        if self.engine == EngineName::Mlx {
            return Ok(Arc::new(self.mlx.load()?.with_profile(clock)));
        }
        if let Some(flag) = self.mlx.given() {
            return Err(usage(format!("{flag} needs --engine mlx")));
        }
        Ok(Arc::new(CpuEngine::new(self.threads).with_profile(clock)))
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
