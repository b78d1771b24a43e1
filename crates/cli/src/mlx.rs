//! An installed MLX, as the environment tells of it.

use std::{env, path::PathBuf};

use anyhow::{Context, Result};
use flambeau::mlx::{MlxEngine, Options, Search, Shim};

/// Flags that choose an installed MLX and how it is used.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MlxArgs {
    /// Where the mlx engine computes: cpu, gpu or gpu:N; the first GPU if not given, else the CPU
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,

    /// Installed MLX: a Python package, a virtual environment, or a prefix with include/ and lib/
    #[arg(long, value_name = "DIR")]
    pub(crate) mlx_path: Option<PathBuf>,

    /// Let the mlx engine run Metal kernels of a program that Flambeau does not know
    #[arg(long)]
    pub(crate) allow_custom_kernels: bool,

    /// Build every run of the mlx engine node by node, also those that could be compiled once
    #[arg(long)]
    pub(crate) no_mlx_compile: bool,

    /// MiB of freed memory that MLX may keep for reuse
    #[arg(long, value_name = "MIB")]
    pub(crate) mlx_cache_limit: Option<u64>,

    /// MiB that MLX keeps resident on an Apple GPU
    #[arg(long, value_name = "MIB")]
    pub(crate) mlx_wired_limit: Option<u64>,
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl MlxArgs {
    /// Where to look: active environments, the interpreters on the search path, Homebrew.
    pub(crate) fn search(&self) -> Search {
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(|home| home.join("bin/python"));
        let homebrew = variable("HOMEBREW_PREFIX").map_or_else(|| vec!["/opt/homebrew".into(), "/usr/local".into()], |p| vec![p]);
        Search {
            path: self.mlx_path.clone(),
            interpreters: active.chain(["python3", "python"].map(PathBuf::from)).collect(),
            prefixes: homebrew,
        }
    }

    /// The shim for what the search finds.
    pub(crate) fn shim(&self) -> Result<Shim> {
        Ok(Shim { install: self.search().find()?, cache: cache()?, compiler: variable("CXX") })
    }

    /// The engine; the first use of an installed MLX compiles the shim, which takes some seconds.
    pub(crate) fn load(&self) -> Result<MlxEngine> {
        let shim = self.shim()?;
        if !shim.is_built() {
            eprintln!("compiling the C interface to MLX {} (once)", shim.install.version);
        }
        let device = self.device.as_deref().map(str::parse).transpose()?;
        let bytes = |mib: Option<u64>| mib.map(|m| m.saturating_mul(1 << 20));
        let options = Options {
            device,
            compile: self.no_mlx_compile.then_some(false),
            allow_custom_kernels: self.allow_custom_kernels,
            cache_limit: bytes(self.mlx_cache_limit),
            wired_limit: bytes(self.mlx_wired_limit),
            memory_limit: None,
        };
        Ok(MlxEngine::load(&shim.build()?, &options)?)
    }
}

/// The folder that keeps compiled shims.
fn cache() -> Result<PathBuf> {
    let home = variable("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    Ok(home.context("there is no home folder for the cache; set XDG_CACHE_HOME")?.join("flambeau").join("mlx"))
}
