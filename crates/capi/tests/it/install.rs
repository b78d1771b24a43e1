//! The installed folder, as pkg-config and CMake see it.

use std::{fs, path::Path, process::Command};

use flambeau_testcases::test;
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::{
    executorch,
    toolchain::{abi_version, has, library, package},
};

pub(crate) fn tests() -> Vec<Trial> {
    let needs_pkg_config = || has("pkg-config").and(has("gcc")).and(has("bash"));
    let needs_new_cmake = || has("bash").and(executorch::requirement()).and(has_new_cmake());
    let needs_cmake = || has("cmake").and(has("gcc")).and(has("g++")).and(has("bash"));
    vec![
        test("install::pkg_config_finds_it", needs_pkg_config, pkg_config),
        test("install::cmake_finds_it", needs_cmake, cmake),
        test("install::cmake_builds_the_backend", needs_new_cmake, backend),
    ]
}

/// Whether CMake is as new as ExecuTorch's package asks.
fn has_new_cmake() -> Result<(), String> {
    has("cmake")?;
    let text = run(Command::new("cmake").arg("--version"));
    let version = text.lines().next().and_then(|line| line.split_whitespace().nth(2)).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next(), numbers.next());
    if found >= (Some(3), Some(28)) { Ok(()) } else { Err(format!("CMake is {version}, and ExecuTorch asks for 3.28")) }
}

/// Runs a command and gives its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A folder with the library of this build, moved after its installation.
fn installed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (first, moved) = (folder.path().join("first"), folder.path().join("moved"));
    let script = package("../../scripts/install-c.sh");
    let from = library().with_file_name("");
    run(Command::new("bash").arg(script).arg(&first).arg("--from").arg(from));
    fs::rename(first, moved).unwrap();
    folder
}

fn mlp() -> std::path::PathBuf {
    package("../flambeau/examples/data/mlp.pte")
}

/// Runs a program that was linked against the installed library.
fn runs(program: &Path) {
    let output = run(Command::new(program).arg(mlp()).args(["0.5", "-1", "0", "2"]));
    assert!(output.contains("0.50053") && output.contains("0.19053"), "{output}");
}

fn pkg_config() {
    let folder = installed();
    let prefix = folder.path().join("moved");
    let ask = |what: &[&str]| {
        let output =
            run(Command::new("pkg-config").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(what).arg("flambeau"));
        output.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ask(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let program = folder.path().join("program");
    let mut command = Command::new("gcc");
    command.arg(package("examples/run_program.c")).arg("-o").arg(&program).args(ask(&["--cflags", "--libs"]));
    run(command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));
    runs(&program);

    let soname = if cfg!(target_os = "macos") {
        format!("libflambeau.{}.dylib", abi_version())
    } else {
        format!("libflambeau.so.{}", abi_version())
    };
    assert!(prefix.join("lib").join(soname).is_symlink());
    assert!(ask(&["--static", "--libs"]).contains(&"-lm".to_owned()));
}

fn cmake() {
    let folder = installed();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(uses C CXX)\nset(CMAKE_CXX_STANDARD 17)\n\
        find_package(flambeau 0.1 REQUIRED)\nadd_executable(in_c run_program.c)\nadd_executable(in_cpp run_program.cpp)\n\
        target_link_libraries(in_c flambeau::flambeau)\ntarget_link_libraries(in_cpp flambeau::flambeau)\n";
    fs::write(source.join("CMakeLists.txt"), project).unwrap();
    for name in ["run_program.c", "run_program.cpp"] {
        fs::copy(package("examples").join(name), source.join(name)).unwrap();
    }
    let build = folder.path().join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", folder.path().join("moved").display());
    run(Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&build).arg(prefix));
    run(Command::new("cmake").arg("--build").arg(&build));
    runs(&build.join("in_c"));
    runs(&build.join("in_cpp"));

    // A version that does not fit is refused.
    fs::write(source.join("CMakeLists.txt"), project.replace("flambeau 0.1", "flambeau 9.1")).unwrap();
    let refused = Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&build).output().unwrap();
    assert!(!refused.status.success());
}

fn backend() {
    let folder = installed();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let project = "cmake_minimum_required(VERSION 3.28)\nproject(uses CXX)\nfind_package(executorch REQUIRED)\n\
        find_package(flambeau REQUIRED)\nadd_library(backend SHARED ${flambeau_EXECUTORCH_BACKEND})\n\
        target_link_libraries(backend PRIVATE executorch::runtime flambeau::flambeau)\n";
    fs::write(source.join("CMakeLists.txt"), project).unwrap();
    let build = folder.path().join("build");
    let (ours, theirs) = (folder.path().join("moved"), executorch::root().join("share/cmake"));
    let prefix = format!("-DCMAKE_PREFIX_PATH={};{}", ours.display(), theirs.display());
    run(Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&build).arg(prefix));
    run(Command::new("cmake").arg("--build").arg(&build));
}
