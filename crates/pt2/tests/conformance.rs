//! Every archive of the conformance data, which lies beside the repository, parses and gives all its weights.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flambeau_pt2::{Archive, Weight};

/// Every `model.pt2` under a folder.
fn archives(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            archives(&path, out);
        } else if path.file_name().is_some_and(|n| n == "model.pt2") {
            out.push(path);
        }
    }
}

fn check(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let program = Archive::open(fs::read(path)?.into())?.only_program()?;
    for input in &program.signature.inputs {
        let Some(weight) = program.weight_of(input) else { continue };
        match weight {
            Weight::Subclass(s) => s.tensors.values().try_for_each(|v| v.tensor().map(drop))?,
            other => drop(other.tensor()?),
        }
    }
    let calls = program.to_string().matches("= call_function[").count();
    if calls < program.graph.nodes.len() { Err("calls are missing in the text".into()) } else { Ok(()) }
}

#[test]
fn every_conformance_archive_is_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    let packed: Vec<PathBuf> = fs::read_dir(&data).into_iter().flatten().flatten().map(|e| e.path()).collect();
    let packed: Vec<_> = packed.into_iter().filter(|p| p.to_string_lossy().ends_with(".tar.xz")).collect();
    if packed.is_empty() {
        println!("skipped: no conformance data in {}", data.display());
        return;
    }
    let unpacked = tempfile::tempdir().unwrap();
    for tar in packed {
        let status = Command::new("tar").arg("-xJf").arg(&tar).arg("-C").arg(unpacked.path()).status().unwrap();
        assert!(status.success(), "{}", tar.display());
    }
    let mut paths = Vec::new();
    archives(unpacked.path(), &mut paths);
    assert!(!paths.is_empty());
    let faults: Vec<String> = paths.iter().filter_map(|p| check(p).err().map(|e| format!("{}: {e}", p.display()))).collect();
    assert!(faults.is_empty(), "{} of {} archives:\n{}", faults.len(), paths.len(), faults.join("\n"));
}
