//! The MLX that `scripts/install-mlx.sh` installs below the target folder.

#![allow(dead_code, reason = "every test file uses its part")]

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use flambeau_mlx::{Device, MlxEngine, Options, Search, Shim};

/// MLX counts memory for the whole process, so that tests take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// The compiled shim of the installed MLX; `None`, with a word about it, if there is none.
pub(crate) fn shim() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = target.parent().map(|target| target.join("mlx"));
    let install = match (Search { path, ..Search::default() }).find() {
        Ok(install) => install,
        Err(error) => {
            eprintln!("skipped: {error}; scripts/install-mlx.sh installs MLX for these tests");
            return None;
        }
    };
    let shim = Shim { install, cache: target.join("shims"), compiler: None };
    Some(shim.build().expect("the shim compiles"))
}

/// An engine on MLX's CPU backend.
pub(crate) fn engine() -> Option<MlxEngine> {
    engine_that(false)
}

/// An engine on MLX's CPU backend, with or without compiled runs.
pub(crate) fn engine_that(compiles: bool) -> Option<MlxEngine> {
    let options = Options { device: Some(Device::Cpu), compile: Some(compiles), ..Options::default() };
    Some(MlxEngine::load(&shim()?, &options).expect("the engine loads"))
}
