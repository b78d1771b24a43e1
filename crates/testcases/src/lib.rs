//! The conformance cases beside the repository, for tests of engines: where they are, how one runs, and programs that differ from them
//! a little.
//!
//! A case is a folder with a program that ExecuTorch wrote, its inputs, and PyTorch's results.

#![forbid(unsafe_code)]

mod changes;
mod run;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flambeau_ir::{In, Int, MetalKernel, Out, Tid, engine::Engine};
use flambeau_tensor::DType;

pub use self::{
    changes::{Dice, mutate},
    run::{Case, Outcome, run_case},
};

/// The folder `name` of unpacked cases, `ops` or `models`, below `target`; `None`, with a word about it, if there is no such archive.
///
/// # Panics
/// If the archive does not unpack.
pub fn unpacked(name: &str, target: &Path) -> Option<PathBuf> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance").join(format!("{name}.tar.xz"));
    let Ok(facts) = fs::metadata(&archive) else {
        eprintln!("skipped: no conformance archive `{name}` beside the repository");
        return None;
    };
    // Another archive of that name has another length.
    let cases = target.join(format!("cases-{name}-{}", facts.len()));
    if !cases.exists() {
        fs::create_dir_all(target).expect("the folder is made");
        let beside = tempfile::tempdir_in(target).expect("a folder beside");
        let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(beside.path()).status().expect("tar runs");
        assert!(status.success(), "{} does not unpack", archive.display());
        // Whoever comes second finds the first one's folder in the way, which is as good.
        let moved = fs::rename(beside.path().join(name), &cases);
        assert!(moved.is_ok() || cases.exists(), "{} holds no folder `{name}`", archive.display());
    }
    Some(cases)
}

/// The case folders of an archive, in order; none if there is no such archive.
///
/// # Panics
/// If the archive does not unpack.
pub fn folders(name: &str, target: &Path) -> Vec<PathBuf> {
    let Some(cases) = unpacked(name, target) else { return Vec::new() };
    let entries = fs::read_dir(cases).expect("the folder lists");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("the entry reads").path()).collect();
    folders.sort();
    folders
}

/// A case's name.
pub fn name_of(folder: &Path) -> String {
    folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A kernel from f32 `[4]` to f32 `[4]` that no engine knows, by the name `mystery`.
pub fn unknown_kernel(input: u32, output: u32) -> MetalKernel {
    MetalKernel {
        name: "mystery".into(),
        source: "out[0] = 1;".into(),
        inputs: vec![In(Tid(input))],
        outputs: vec![Out(Tid(output))],
        grid: vec![Int::Lit(1); 3],
        threadgroup: vec![Int::Lit(1); 3],
        header: None,
        input_names: vec!["x".into()],
        output_names: vec!["out".into()],
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: vec![Int::Lit(4)],
        output_shape_lengths: vec![1],
        output_dtypes: vec![DType::F32],
        template_arg_names: vec![],
        template_arg_kinds: vec![],
        template_arg_values: vec![],
        init_value: None,
    }
}

/// Runs every case; only those whose names start with a word of `skipped` may be left out.
///
/// # Panics
/// If a case fails, or fewer than `at_least` pass, unless there are none.
pub fn check(engine: &dyn Engine, folders: &[PathBuf], at_least: usize, skipped: &[&str]) {
    let (mut passed, mut wrong) = (0, Vec::new());
    for folder in folders {
        let case = name_of(folder);
        match run_case(engine, folder) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(_) if skipped.iter().any(|s| case.starts_with(s)) => {}
            outcome => wrong.push(format!("{case}: {outcome:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(folders.is_empty() || passed >= at_least, "only {passed} cases ran");
}
