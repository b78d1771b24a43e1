//! Every case's program is unchanged after decoding, encoding and decoding.

use std::{fs, path::Path, process::ExitCode};

use flambeau_ir::{Graph, check};
use flambeau_tensor::Bytes;
use flambeau_testcases::{all, per_case};
use flambeau_wire::{
    Blob, Error, Program, ProgramWriter, mlx,
    pte::{Delegate, EValue, ExecutionPlan},
    read_program,
};

const BACKEND: &str = "MLXBackend";

fn graphs(program: &Program) -> Vec<Graph> {
    let delegates = program.plans.iter().flat_map(|p| &p.delegates).filter(|d| d.id == BACKEND);
    delegates.map(|d| mlx::decode(&program.delegate_payload(d)).expect("the payload decodes")).collect()
}

/// Encodes the program again, with every MLX payload decoded, checked and encoded.
fn encode(program: &Program) -> Bytes {
    let payload = |delegate: &Delegate, payload: Bytes| {
        if delegate.id != BACKEND {
            return Ok(Blob::from_bytes(payload));
        }
        let graph = check(mlx::decode(&payload)?).expect("the graph is valid");
        Ok::<_, Error>(Blob::from_bytes(mlx::encode(&graph)))
    };
    let mut out = Vec::new();
    ProgramWriter::from_program(program, payload).and_then(|w| w.write(&mut out)).expect("what was read can be written");
    out.into()
}

/// Values with the data of their tensors. Buffer indices are removed, because they may differ
/// between files.
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

fn check_same(before: &Program, after: &Program) {
    assert_eq!(graphs(before), graphs(after));
    assert_eq!(before.plans.len(), after.plans.len());
    for (a, b) in before.plans.iter().zip(&after.plans) {
        assert_eq!(values(before, a), values(after, b));
        let bare = |p: &ExecutionPlan| {
            let delegates = p.delegates.iter().map(|d| Delegate { data: Default::default(), ..d.clone() }).collect();
            ExecutionPlan { values: Vec::new(), delegates, ..p.clone() }
        };
        assert_eq!(bare(a), bare(b));
    }
    assert!(before.named_data.keys().eq(after.named_data.keys()));
    for key in before.named_data.keys() {
        assert_eq!(before.named(key), after.named(key), "{key}");
    }
}

fn main() -> ExitCode {
    let tests = per_case(all(Path::new(env!("CARGO_TARGET_TMPDIR"))), |_, folder| {
        let path = folder.join("model.pte");
        let before = read_program(&Bytes::from(fs::read(&path).expect("a readable file"))).expect("the program reads");
        let after = read_program(&encode(&before)).expect("the program reads again");
        check_same(&before, &after);
    });
    flambeau_testcases::run(tests)
}
