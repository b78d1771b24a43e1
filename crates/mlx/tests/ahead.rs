//! Interfaces that were compiled ahead, as packages for macOS bring them. Each case runs in a
//! process of its own, because a library stays loaded.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use flambeau_mlx::{Device, MlxEngine, Options, Shim};
use flambeau_testcases::test;

#[path = "support/mod.rs"]
mod installed;

/// Names the folder of interfaces for the process of a case.
const FOLDER: &str = "FLAMBEAU_TEST_INTERFACES";

/// A shim with an empty cache and without a compiler.
fn without_compiler(ahead: PathBuf, cache: &Path) -> Shim {
    Shim { ahead: vec![ahead], cache: cache.to_owned(), compiler: Some("/no/such/compiler".into()), ..installed::source() }
}

fn options() -> Options {
    Options { device: Some(Device::Cpu), ..Options::default() }
}

/// Runs one of the tests of this file in a new process, with a folder of interfaces.
fn run_alone(name: &str, folder: &Path) {
    let own = env::current_exe().expect("this test has a file");
    let done = Command::new(own).args(["--exact", name]).env(FOLDER, folder).output().expect("the process starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

/// The engine computes at loading, so that a loaded engine works.
fn one_is_loaded_without_a_compiler() {
    let Some(folder) = env::var_os(FOLDER) else {
        let folder = tempfile_below("ahead");
        installed::source().compile_ahead(folder.path()).expect("it compiles");
        return run_alone("one_is_loaded_without_a_compiler", folder.path());
    };
    let cache = tempfile_below("cache");
    let shim = without_compiler(folder.into(), cache.path());
    let engine = MlxEngine::open(&shim, &options()).expect("it loads");
    assert!(engine.version().starts_with(&shim.install.version), "{}", engine.version());
    assert!(!shim.path().exists());
}

/// A damaged file is passed over, and the interface is compiled.
fn a_damaged_one_is_passed_over() {
    let Some(folder) = env::var_os(FOLDER) else {
        let folder = tempfile_below("damaged");
        let shim = Shim { ahead: vec![folder.path().to_owned()], ..installed::source() };
        let name = format!("libflambeau_mlx-{}-{}", shim.install.version, flambeau_mlx::shim_digest());
        std::fs::write(folder.path().join(name).with_added_extension(env::consts::DLL_EXTENSION), "no library")
            .expect("it is written");
        assert!(shim.compiled_ahead().is_some());
        return run_alone("a_damaged_one_is_passed_over", folder.path());
    };
    let cache = tempfile_below("cache");
    let error =
        MlxEngine::open(&without_compiler(folder.clone().into(), cache.path()), &options()).expect_err("there is no compiler");
    assert!(error.to_string().contains("no C++ compiler"), "{error}");
    MlxEngine::open(&Shim { ahead: vec![folder.into()], ..installed::source() }, &options()).expect("the compiled one loads");
}

/// An empty folder for a case.
fn tempfile_below(name: &str) -> tempfile::TempDir {
    tempfile::Builder::new().prefix(name).tempdir_in(installed::CACHE).expect("a folder")
}

fn main() -> ExitCode {
    flambeau_testcases::run(vec![
        test("one_is_loaded_without_a_compiler", installed::requirement, one_is_loaded_without_a_compiler),
        test("a_damaged_one_is_passed_over", installed::requirement, a_damaged_one_is_passed_over),
    ])
}
