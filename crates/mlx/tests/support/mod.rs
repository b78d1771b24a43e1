//! The MLX that `scripts/mlx.sh` installs below the target folder.

use std::path::{Path, PathBuf};

use flambeau_mlx::{Device, MlxEngine, Options, Search, Shim};

/// The compiled shim of the installed MLX; `None`, with a word about it, if there is none.
pub(crate) fn shim() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = target.parent().map(|target| target.join("mlx"));
    let install = match (Search { path, ..Search::default() }).find() {
        Ok(install) => install,
        Err(error) => {
            eprintln!("skipped: {error}; scripts/mlx.sh installs MLX for these tests");
            return None;
        }
    };
    let shim = Shim { install, cache: target.join("shims"), compiler: None };
    Some(shim.build().expect("the shim compiles"))
}

/// An engine on MLX's CPU backend.
pub(crate) fn engine() -> Option<MlxEngine> {
    let options = Options { device: Some(Device::Cpu), ..Options::default() };
    Some(MlxEngine::load(&shim()?, &options).expect("the engine loads"))
}
