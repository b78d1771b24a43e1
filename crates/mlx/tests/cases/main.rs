//! Every program of the conformance folders on an installed MLX, if both are there.

mod changed;
#[path = "../../../cpu/tests/support/changes.rs"]
mod changes;
#[path = "../support/mod.rs"]
mod installed;
mod kernels;
#[path = "../../../cpu/tests/support/mod.rs"]
mod support;
mod traces;

use support::{Outcome, run_case};

/// Runs every case of an archive; only those whose names start with a word of `skipped` may be left out.
fn check(name: &str, at_least: usize, skipped: &[&str]) {
    let Some(engine) = installed::engine() else { return };
    let folders = installed::case_folders(name);
    let (mut passed, mut wrong) = (0, Vec::new());
    for folder in &folders {
        let case = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match run_case(&engine, folder) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(_) if skipped.iter().any(|s| case.starts_with(s)) => {}
            outcome => wrong.push(format!("{case}: {outcome:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(folders.is_empty() || passed >= at_least, "only {passed} cases ran");
}

#[test]
fn operators_agree_with_pytorch() {
    // Random samples have nothing to compare with.
    check("ops", 708, &["sample_"]);
}

#[test]
fn models_agree_with_pytorch() {
    // These call kernels outside of their delegates, which is not the engine's work.
    check("models", 25, &["bert_mask", "electra", "roberta"]);
}
