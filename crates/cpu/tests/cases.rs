//! Every program of the conformance folders, if the folders are beside the repository.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

use flambeau_cpu::CpuEngine;

#[path = "support/changes.rs"]
mod changes;
mod support;
use changes::{Dice, mutate};
use support::{Case, Outcome, run_case};

/// The case folders of an archive, in order; none if there is no such archive.
fn folders(name: &str) -> Vec<PathBuf> {
    static UNPACKING: Mutex<()> = Mutex::new(());
    let _alone = UNPACKING.lock();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance").join(format!("{name}.tar.xz"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if !archive.exists() {
        eprintln!("no conformance archive `{name}` beside the repository");
        return Vec::new();
    }
    if !target.join(name).exists() {
        let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(target).status().expect("tar runs");
        assert!(status.success(), "{} does not unpack", archive.display());
    }
    let entries = fs::read_dir(target.join(name)).expect("the folder lists");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("the entry reads").path()).collect();
    folders.sort();
    folders
}

fn name_of(folder: &Path) -> String {
    folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Runs every case of an archive; only those whose names start with a word of `skipped` may be left out.
fn check(name: &str, at_least: usize, skipped: &[&str]) {
    let engine = CpuEngine::new(Some(2));
    let folders = folders(name);
    let (mut passed, mut wrong) = (0, Vec::new());
    for folder in &folders {
        let case = name_of(folder);
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

#[test]
fn changed_programs_run_or_are_refused_but_never_panic() {
    let engine = CpuEngine::new(Some(1));
    let (mut dice, mut panics, mut runs) = (Dice(1), Vec::new(), 0);
    let folders = folders("ops");
    for folder in &folders {
        let case = Case::open(folder).expect("the case opens");
        let Some((graph, args)) = case.delegate_call().expect("the payload decodes") else { continue };
        for round in 0..12 {
            let mut graph = graph.clone();
            if (0..=round / 6).any(|_| mutate(&mut graph, &mut dice).is_none()) {
                continue;
            }
            let text = format!("{:?}", graph.chains);
            match catch_unwind(AssertUnwindSafe(|| case.run(&engine, graph, &args).is_ok())) {
                Ok(ran) => runs += usize::from(ran),
                Err(_) => panics.push(format!("{}: {text}", name_of(folder))),
            }
        }
    }
    assert!(panics.is_empty(), "{} panics, such as {}", panics.len(), panics[0]);
    assert!(folders.is_empty() || runs > 100, "only {runs} changed programs ran");
}
