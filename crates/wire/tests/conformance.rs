//! Every program of the conformance data, as ExecuTorch wrote it, survives decoding, encoding and decoding.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flambeau_ir::{Graph, check};
use flambeau_tensor::Bytes;
use flambeau_wire::{
    Blob, Error, Program, ProgramWriter, mlx,
    pte::{Delegate, EValue, ExecutionPlan},
    read_program,
};

const BACKEND: &str = "MLXBackend";

/// Unpacks an archive into `into` with the system's tar.
fn unpack(archive: &Path, into: &Path) {
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(into).status();
    assert!(status.expect("tar runs").success(), "{} unpacks", archive.display());
}

fn programs_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("an unpacked folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            programs_under(&path, found);
        } else if path.extension().is_some_and(|e| e == "pte") {
            found.push(path);
        }
    }
}

fn graphs(program: &Program) -> Vec<Graph> {
    let delegates = program.plans.iter().flat_map(|p| &p.delegates).filter(|d| d.id == BACKEND);
    delegates.map(|d| mlx::decode(&program.delegate_payload(d)).expect("ExecuTorch's payload decodes")).collect()
}

/// The program with every MLX payload decoded, checked and encoded again.
fn encode(program: &Program) -> Bytes {
    let payload = |delegate: &Delegate, payload: Bytes| {
        if delegate.id != BACKEND {
            return Ok(Blob::from_bytes(payload));
        }
        let graph = check(mlx::decode(&payload)?).expect("ExecuTorch's graph is valid");
        Ok::<_, Error>(Blob::from_bytes(mlx::encode(&graph)))
    };
    let mut out = Vec::new();
    ProgramWriter::from_program(program, payload).and_then(|w| w.write(&mut out)).expect("what was read can be written");
    out.into()
}

/// Values with the data of their tensors; buffer indices are a file's own affair.
fn values(program: &Program, plan: &ExecutionPlan) -> Vec<(EValue, Option<Bytes>)> {
    let resolve = |value: &EValue| match value {
        EValue::Tensor(t) => {
            let mut bare = t.clone();
            bare.data_buffer_idx = 0;
            (EValue::Tensor(bare), program.tensor_data(t))
        }
        other => (other.clone(), None),
    };
    plan.values.iter().map(resolve).collect()
}

fn check_same(before: &Program, after: &Program, place: &Path) {
    assert_eq!(graphs(before), graphs(after), "{}", place.display());
    assert_eq!(before.plans.len(), after.plans.len());
    for (a, b) in before.plans.iter().zip(&after.plans) {
        assert_eq!(values(before, a), values(after, b), "{}", place.display());
        let bare = |p: &ExecutionPlan| {
            let delegates = p.delegates.iter().map(|d| Delegate { data: Default::default(), ..d.clone() }).collect();
            ExecutionPlan { values: Vec::new(), delegates, ..p.clone() }
        };
        assert_eq!(bare(a), bare(b), "{}", place.display());
    }
    assert!(before.named_data.keys().eq(after.named_data.keys()));
    for key in before.named_data.keys() {
        assert_eq!(before.named(key), after.named(key), "{} {key}", place.display());
    }
}

#[test]
fn every_program_of_executorch_survives_decoding_and_encoding() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    let temp = tempfile::tempdir().expect("a temporary folder");
    let mut archives = 0;
    for name in ["ops.tar.xz", "models.tar.xz"] {
        let archive = folder.join(name);
        if archive.exists() {
            unpack(&archive, temp.path());
            archives += 1;
        } else {
            println!("skipped {name}: no such file in {}", folder.display());
        }
    }
    let mut found = Vec::new();
    programs_under(temp.path(), &mut found);
    assert!(archives == 0 || found.len() > 20, "{} programs", found.len());
    let mut nodes = 0;
    for path in &found {
        let file = Bytes::from(fs::read(path).expect("a readable file"));
        let before = read_program(&file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let after = read_program(&encode(&before)).unwrap_or_else(|e| panic!("{} again: {e}", path.display()));
        check_same(&before, &after, path);
        nodes += graphs(&before).iter().map(Graph::node_count).sum::<usize>();
    }
    println!("{} programs, {nodes} nodes", found.len());
}
