//! Finds an installed MLX.

use std::{path::PathBuf, sync::OnceLock};

use anyhow::Result;
use flambeau::mlx::{Device, MlxEngine, Options, Search, Shim};

use crate::environment;

/// Folder of the interfaces that a package has compiled ahead.
static INTERFACES: OnceLock<PathBuf> = OnceLock::new();

/// Looks in this folder for interfaces to MLX before one is compiled. Only the first call counts.
pub(crate) fn interfaces_in(folder: PathBuf) {
    let _ = INTERFACES.set(folder);
}

/// Flags that choose an installed MLX and a device of it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MlxSelection {
    /// MLX device: cpu, gpu or gpu:N; by default the first GPU, or the CPU without a GPU
    #[arg(help_heading = "Engine", long, value_name = "DEVICE")]
    pub(crate) device: Option<Device>,

    /// Installed MLX: a Python package, a virtual environment, or a prefix with include/ and lib/
    #[arg(help_heading = "Engine", long, value_name = "DIR")]
    pub(crate) mlx_path: Option<PathBuf>,
}

/// Flags that choose an installed MLX and how it is used.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MlxArgs {
    #[command(flatten)]
    pub(crate) selection: MlxSelection,

    /// Run all custom Metal kernels of a program, even unknown ones
    #[arg(help_heading = "Engine", long)]
    pub(crate) allow_custom_kernels: bool,

    /// Rebuild the MLX graph at each run instead of compiling repeated runs
    #[arg(help_heading = "Engine", long)]
    pub(crate) no_mlx_compile: bool,

    /// Memory limit for MLX's arrays in MiB; a run that needs more fails
    #[arg(help_heading = "Engine", long, value_name = "MIB")]
    pub(crate) mlx_memory_limit: Option<u64>,

    /// Freed memory that MLX may keep for reuse, in MiB
    #[arg(help_heading = "Engine", long, value_name = "MIB")]
    pub(crate) mlx_cache_limit: Option<u64>,

    /// Memory that MLX keeps resident (wired) on an Apple GPU, in MiB
    #[arg(help_heading = "Engine", long, value_name = "MIB")]
    pub(crate) mlx_wired_limit: Option<u64>,
}

impl MlxArgs {
    /// Name of a given flag that only this engine supports.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.selection.device.is_some(), "--device"),
            (self.selection.mlx_path.is_some(), "--mlx-path"),
            (self.allow_custom_kernels, "--allow-custom-kernels"),
            (self.no_mlx_compile, "--no-mlx-compile"),
            (self.mlx_memory_limit.is_some(), "--mlx-memory-limit"),
            (self.mlx_cache_limit.is_some(), "--mlx-cache-limit"),
            (self.mlx_wired_limit.is_some(), "--mlx-wired-limit"),
        ];
        flags.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Places to search: active environments, interpreters on the search path, Homebrew.
    pub(crate) fn search(&self) -> Search {
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(environment::path).map(|home| home.join("bin/python"));
        let homebrew =
            environment::path("HOMEBREW_PREFIX").map_or_else(|| vec!["/opt/homebrew".into(), "/usr/local".into()], |p| vec![p]);
        Search {
            path: self.selection.mlx_path.clone(),
            interpreters: active.chain(["python3", "python"].map(PathBuf::from)).collect(),
            prefixes: homebrew,
        }
    }

    /// The interface for the MLX that was found.
    pub(crate) fn shim(&self) -> Result<Shim> {
        let (cache, compiler) = (environment::cache("mlx")?, environment::path("CXX"));
        let ahead = INTERFACES.get().cloned().into_iter().collect();
        Ok(Shim { install: self.search().find()?, ahead, cache, compiler })
    }

    /// The engine; the first use of an installed MLX compiles the shim, which takes some seconds.
    pub(crate) fn load(&self) -> Result<MlxEngine> {
        let shim = self.shim()?;
        if !shim.is_built() {
            eprintln!("compiling the C interface to MLX {} (once)", shim.install.version);
        }
        let bytes = |mib: Option<u64>| mib.map(|m| m.saturating_mul(1 << 20));
        let options = Options {
            device: self.selection.device,
            compile: self.no_mlx_compile.then_some(false),
            allow_custom_kernels: self.allow_custom_kernels,
            cache_limit: bytes(self.mlx_cache_limit),
            wired_limit: bytes(self.mlx_wired_limit),
            memory_limit: bytes(self.mlx_memory_limit),
        };
        Ok(MlxEngine::open(&shim, &options)?)
    }
}
