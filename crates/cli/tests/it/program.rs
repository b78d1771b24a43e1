//! Small programs: `forward(x) = x + 1` for `x` f32 `[2]`, and what is wrong with others.

use std::path::{Path, PathBuf};

use flambeau::{
    ir::{Graph, check},
    tensor::{DType, Tensor, tensor_list},
    wire::{
        Blob, ProgramWriter, mlx,
        pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
    },
};

/// `out = x + one`; the constant's data goes under `one`.
const ADD_ONE: &str = r#"slots constants=1 inputs=1 outputs=1 buffers=0 temps=0 values=0
main 0
input t1
output t2
name t0 "one"
name t1 "x"
name t2 "y"
meta t0 f32[]
meta t1 f32[2]
meta t2 f32[2]
chain 0
  Add a=t1 b=t0 out=t2
"#;

/// The bytes of the program, with its method delegated to `backend`.
pub(crate) fn bytes(backend: &str) -> Vec<u8> {
    let graph: Graph = ADD_ONE.parse().expect("the text form is right");
    let graph = check(graph).expect("the graph is right");
    let tensor = |offset| {
        let mut value = TensorValue::new(DType::F32, &[2]);
        value.allocation = Some(Allocation { memory_id: 1, offset });
        EValue::Tensor(Box::new(value))
    };
    let call = Instruction::DelegateCall { delegate: 0, args: vec![0, 1] };
    let plan = ExecutionPlan {
        name: "forward".into(),
        values: vec![tensor(0), tensor(16)],
        inputs: vec![0],
        outputs: vec![1],
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![Delegate { id: backend.into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 32],
        ..ExecutionPlan::default()
    };
    let mut writer = ProgramWriter::new();
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).expect("one payload for one delegate");
    writer.constant_method("get_answer", vec![EValue::Int(42)]);
    writer.named("one", Blob::from_bytes(1.0f32.to_le_bytes().to_vec())).expect("a new key");
    let mut out = Vec::new();
    writer.write(&mut out).expect("memory takes all bytes");
    out
}

/// Writes the program into a folder.
pub(crate) fn write(folder: &Path) -> PathBuf {
    let path = folder.join("add.pte");
    std::fs::write(&path, bytes("MLXBackend")).expect("the folder is writable");
    path
}

/// Writes a `.bin` file of one tensor.
pub(crate) fn write_tensor(folder: &Path, name: &str, tensor: Tensor) {
    std::fs::write(folder.join(name), tensor_list::write(&[tensor]).expect("the type has a number"))
        .expect("the folder is writable");
}

/// A tensor of 32-bit floats.
pub(crate) fn floats(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape).expect("the shape fits")
}
