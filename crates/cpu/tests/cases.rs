//! Every program of the conformance folders, if the folders are beside the repository.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flambeau_cpu::CpuEngine;

mod support;
use support::{Outcome, run_case};

/// The unpacked folder, or `None` if there is no archive.
fn unpacked(name: &str) -> Option<PathBuf> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance").join(format!("{name}.tar.xz"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = target.join(name);
    if !archive.exists() {
        return None;
    }
    if !folder.exists() {
        let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(target).status().expect("tar runs");
        assert!(status.success(), "{} does not unpack", archive.display());
    }
    Some(folder)
}

/// Runs every case of a folder; only those whose names start with a word of `skipped` may be left out.
fn check(name: &str, at_least: usize, skipped: &[&str]) {
    let Some(folder) = unpacked(name) else {
        eprintln!("no conformance archive `{name}` beside the repository");
        return;
    };
    let engine = CpuEngine::new(Some(2));
    let (mut passed, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(folder).expect("the folder lists") {
        let path = entry.expect("the entry reads").path();
        let case = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match run_case(&engine, &path) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(_) if skipped.iter().any(|s| case.starts_with(s)) => {}
            outcome => wrong.push(format!("{case}: {outcome:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(passed >= at_least, "only {passed} cases ran");
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
