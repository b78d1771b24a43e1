//! Every program of the conformance folders on an installed MLX, if both are there.

mod changed;
#[path = "../support/mod.rs"]
mod installed;
mod kernels;
mod traces;

use std::path::{Path, PathBuf};

use flambeau_testcases::{check, folders};

/// The case folders of an archive, in order; none if there is no such archive.
fn case_folders(name: &str) -> Vec<PathBuf> {
    folders(name, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn operators_agree_with_pytorch() {
    let Some(engine) = installed::engine() else { return };
    // Random samples have nothing to compare with.
    check(&engine, &case_folders("ops"), 708, &["sample_"]);
}

#[test]
fn models_agree_with_pytorch() {
    let Some(engine) = installed::engine() else { return };
    // These call kernels outside of their delegates, which is not the engine's work.
    check(&engine, &case_folders("models"), 25, &["bert_mask", "electra", "roberta"]);
}
