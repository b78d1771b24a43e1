//! Library code below the rim (commands and bindings) uses no environment variables, clocks or
//! global state.

use flambeau_tidy::{Token, rust_sources, sources};

use crate::{Exception, hold};

/// Whether a file belongs to the rim, or to code outside of programs.
fn is_free(path: &str) -> bool {
    let folders = ["crates/capi/", "crates/cli/", "crates/python/", "crates/serve/", "crates/tidy/", "crates/testcases/"];
    folders.iter().any(|folder| path.starts_with(folder))
        || path.ends_with("/tests.rs")
        || path.split('/').any(|part| ["tests", "examples", "benches", "fuzz"].contains(&part))
}

/// Locations in library code where `is_found` accepts the tokens that begin there.
fn places(is_found: impl Fn(&[Token]) -> bool) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for file in rust_sources().iter().filter(|file| !is_free(&file.path)) {
        for (i, token) in file.tokens.iter().enumerate().filter(|(_, token)| !token.is_test) {
            if is_found(&file.tokens[i..]) {
                found.push((file.path.clone(), token.line, token.text.clone()));
            }
        }
    }
    found
}

fn begins(tokens: &[Token], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == *text)
}

#[test]
fn clocks_are_passed_in() {
    const EXCEPTIONS: &[Exception] = &[
        ("crates/flambeau/src/lib.rs", "makes the clock that callers pass in"),
        ("crates/mlx/src/owner.rs", "waits with a limit"),
    ];
    let found = places(|tokens| ["Instant", "SystemTime"].contains(&tokens[0].text.as_str()));
    hold("clocks below the rim", &found, EXCEPTIONS);
}

#[test]
fn nothing_below_the_rim_reads_the_environment() {
    const FUNCTIONS: [&str; 13] = [
        "var",
        "var_os",
        "vars",
        "vars_os",
        "args",
        "args_os",
        "set_var",
        "remove_var",
        "home_dir",
        "temp_dir",
        "current_dir",
        "current_exe",
        "set_current_dir",
    ];
    let found =
        places(|tokens| begins(tokens, &["env", ":", ":"]) && tokens.get(3).is_some_and(|t| FUNCTIONS.contains(&t.text.as_str())));
    hold("the environment below the rim", &found, &[]);
}

#[test]
fn nothing_is_global() {
    const EXCEPTIONS: &[Exception] = &[
        ("crates/aten/src/table.rs", "lines of a constant table, parsed when they are first asked for"),
        ("crates/lower/src/rules/mod.rs", "an index of a constant table, made at its first use"),
        ("crates/mlx/src/cuda.rs", "texts put together from constants, made at their first use"),
        ("crates/mlx/src/ffi/mod.rs", "a loaded shim stays until the process ends, and so does its table"),
        ("crates/mlx/src/owner.rs", "a device has one owner in a process: MLX's own state is global"),
    ];
    let found = places(|tokens| ["static", "thread_local"].contains(&tokens[0].text.as_str()));
    hold("static items", &found, EXCEPTIONS);
}

#[test]
fn the_shim_neither_reads_nor_sets_the_environment() {
    const EXCEPTIONS: &[Exception] = &[(
        "crates/mlx/shim/core.cpp",
        "MLX takes its switch for TF32 from the environment alone; what the caller set there stays",
    )];
    let mut found = Vec::new();
    for file in sources().iter().filter(|file| file.path.starts_with("crates/mlx/shim/")) {
        for (i, line) in file.text.lines().enumerate() {
            if ["getenv", "setenv", "putenv", "std::chrono"].iter().any(|word| line.contains(word)) {
                found.push((file.path.clone(), i + 1, line.trim().to_owned()));
            }
        }
    }
    hold("the environment and clocks in the shim", &found, EXCEPTIONS);
}
