//! The MLX that `scripts/install-mlx.sh` installs below the target folder. Tests of other crates
//! include this file by its path, because `flambeau-testcases` does not depend on engines.

#![allow(dead_code, reason = "every test file uses its part")]

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use flambeau_mlx::{Device, Install, Interface, MlxEngine, Options, Search, Shim};

/// MLX counts memory for the whole process, so that tests take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Where compiled shims are kept: the folder that the command uses below this one as cache.
pub(crate) const CACHE: &str = env!("CARGO_TARGET_TMPDIR");

/// Where the script puts MLX.
pub(crate) fn path() -> PathBuf {
    Path::new(CACHE).with_file_name("mlx")
}

fn install() -> Result<Install, String> {
    let found = Search { path: Some(path()), ..Search::default() }.find();
    found.map_err(|error| format!("{error}; scripts/install-mlx.sh installs MLX for these tests"))
}

/// Whether MLX is installed.
pub(crate) fn requirement() -> Result<(), String> {
    install().map(drop)
}

/// The source of the shim for the installed MLX.
pub(crate) fn source() -> Shim {
    let cache = Path::new(CACHE).join("flambeau/mlx");
    Shim { install: install().expect("MLX is installed"), ahead: Vec::new(), cache, compiler: None }
}

/// The compiled shim of the installed MLX.
pub(crate) fn shim() -> Interface {
    source().build().expect("the shim compiles").into()
}

/// An engine on MLX's CPU backend.
pub(crate) fn engine() -> MlxEngine {
    engine_that(false)
}

/// An engine on MLX's CPU backend, with or without compiled runs.
pub(crate) fn engine_that(compiles: bool) -> MlxEngine {
    let options = Options { device: Some(Device::Cpu), compile: Some(compiles), ..Options::default() };
    MlxEngine::load(&shim(), &options).expect("the engine loads")
}
