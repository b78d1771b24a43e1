//! The repository's own sources, as `tests/` looks at them: files, the tokens of Rust code, and what Cargo says of packages.

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
    /// Relative to the repository's root, with `/` between its parts.
    pub path: String,
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What holds no source: what git ignores, and git's own.
const SKIPPED: [&str; 6] = [".git", "target", "models", "__pycache__", "corpus", "artifacts"];

/// Every text file of the repository, in the order of their paths.
///
/// # Panics
/// A folder or a file cannot be read.
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

/// Every Rust file of the repository, read once.
///
/// # Panics
/// As [`sources`] does, or a file is not Rust.
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

/// What `cargo metadata` says of the workspace's packages.
///
/// # Panics
/// Cargo fails.
pub fn packages() -> Vec<Json> {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let json: Json = serde_json::from_str(&text).expect("cargo metadata prints JSON");
    json["packages"].as_array().expect("metadata lists packages").clone()
}

/// What a Cargo command prints, run in the repository without the network.
///
/// # Panics
/// The command fails.
pub fn cargo(args: &[&str]) -> String {
    let done = Command::new(env!("CARGO")).args(args).arg("--offline").current_dir(root()).output().expect("cargo starts");
    assert!(done.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("cargo prints UTF-8")
}
