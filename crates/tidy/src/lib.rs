//! Access to the repository's own sources for the checks in `tests/`: files, tokens of Rust code,
//! and Cargo's package metadata.

#![forbid(unsafe_code)]

mod tokens;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::Value as Json;

pub use crate::tokens::Token;
use crate::tokens::tokens;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path relative to the repository's root, with `/` separators.
    pub path: String,
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folders without sources: ignored by git, or git's own.
const SKIPPED: [&str; 6] = [".git", "target", "models", "__pycache__", "corpus", "artifacts"];

/// All text files of the repository, sorted by path.
///
/// # Panics
/// Panics if a folder or file cannot be read.
pub fn sources() -> Vec<Source> {
    let (root, mut files) = (root(), Vec::new());
    collect(&root, String::new(), &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// A Rust file of the repository.
#[derive(Clone, Debug)]
pub struct RustSource {
    pub path: String,
    pub text: String,
    pub tokens: Vec<Token>,
}

/// All Rust files of the repository, read once.
///
/// # Panics
/// As [`sources`]; also panics if a file is not valid Rust.
pub fn rust_sources() -> &'static [RustSource] {
    static FILES: LazyLock<Vec<RustSource>> = LazyLock::new(|| {
        let files = sources().into_iter().filter(|file| file.path.ends_with(".rs"));
        files
            .map(|Source { path, text }| {
                let tokens = tokens(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
                RustSource { path, text, tokens }
            })
            .collect()
    });
    &FILES
}

fn collect(folder: &Path, prefix: String, files: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let entry = entry.expect("the folder lists its entries");
        let (name, kind) = (entry.file_name().to_string_lossy().into_owned(), entry.file_type().expect("an entry has a type"));
        let path = format!("{prefix}{name}");
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), format!("{path}/"), files);
        } else if kind.is_file()
            && let Ok(text) = String::from_utf8(fs::read(entry.path()).unwrap_or_else(|e| panic!("{path}: {e}")))
        {
            files.push(Source { path, text });
        }
    }
}

/// The workspace's packages, from `cargo metadata`.
///
/// # Panics
/// Panics if Cargo fails.
pub fn packages() -> Vec<Json> {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let json: Json = serde_json::from_str(&text).expect("cargo metadata prints JSON");
    json["packages"].as_array().expect("metadata lists packages").clone()
}

/// Runs a Cargo command offline in the repository; returns its standard output.
///
/// # Panics
/// Panics if the command fails.
pub fn cargo(args: &[&str]) -> String {
    let done = Command::new(env!("CARGO")).args(args).arg("--offline").current_dir(root()).output().expect("cargo starts");
    assert!(done.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("cargo prints UTF-8")
}
