//! Tests of arguments, state and shared state of methods.

use flambeau_ir::{Graph, check};
use flambeau_runtime::{Error, LoadOptions, Method, Program, SharedState, Value};
use flambeau_tensor::{DType, Tensor};
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

use crate::support::{dynamic, engine, floats, kernels, load, plan, planned, read};

/// `out = x + total` with the running total in a mutable buffer.
const RUNNING_SUM: &str = r#"slots constants=1 inputs=1 outputs=1 buffers=1 temps=0 values=0
main 0
input t1
output t2
buffer t3
name t0 "step"
name t1 "x"
meta t0 f32[]
meta t1 f32[1..4]
meta t2 f32[1..4]
meta t3 f32[]
chain 0
  Add a=t3 b=t0 out=t3
  Add a=t1 b=t3 out=t2
"#;

fn running_sum(backend: &str, named: &[(&str, Vec<u8>)]) -> Result<Method, Error> {
    let graph = check(RUNNING_SUM.parse::<Graph>().unwrap()).unwrap();
    let call = Instruction::DelegateCall { delegate: 0, args: vec![0, 1] };
    let mut plan = plan(vec![dynamic(DType::F32, &[4]), dynamic(DType::F32, &[4])], &[0], &[1], vec![call]);
    plan.delegates = vec![Delegate { id: backend.into(), ..Delegate::default() }];
    load(plan, vec![Blob::from_bytes(mlx::encode(&graph))], named)
}

fn step() -> Vec<(&'static str, Vec<u8>)> {
    vec![("step", 0.5f32.to_le_bytes().to_vec())]
}

#[test]
fn state_lives_from_run_to_run_until_it_is_reset() {
    let mut method = running_sum("MLXBackend", &step()).unwrap();
    let run = |method: &mut Method| read(&method.run(&[floats(&[1.0, 2.0], &[2])]).unwrap()[0]);
    assert_eq!(run(&mut method), [1.5, 2.5]);
    assert_eq!(run(&mut method), [2.0, 3.0]);
    method.reset();
    assert_eq!(run(&mut method), [1.5, 2.5]);
    let mut other = method.program().clone().method("forward", &engine(), &LoadOptions::default()).unwrap();
    assert_eq!(run(&mut other), [1.5, 2.5]);
}

#[test]
fn arguments_are_checked_before_anything_runs() {
    let mut method = running_sum("MLXBackend", &step()).unwrap();
    assert_eq!((method.inputs()[0].to_string().as_str(), method.inputs()[0].name.as_deref()), ("f32[..4]", Some("x")));
    let mut refused = |inputs: &[Value], parts: &[&str]| {
        let message = method.run(inputs).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(message.contains(part), "`{message}` lacks `{part}`"));
    };
    refused(&[], &["takes 1 inputs", "found 0"]);
    refused(&[floats(&[0.0; 5], &[5])], &["input 0 (`x`)", "f32[..4]", "f32[5]"]);
    refused(&[floats(&[0.0; 2], &[1, 2])], &["f32[..4]", "f32[1, 2]"]);
    refused(&[Tensor::zeros(DType::I64, &[2]).unwrap().into()], &["f32[..4]", "i64[2]"]);
    refused(&[Value::Int(1)], &["the integer 1"]);
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let message = |result: Result<Method, Error>| result.map(|_| ()).unwrap_err().to_string();
    assert!(message(running_sum("MLXBackend", &[])).contains("`step`"));
    assert!(message(running_sum("XnnpackBackend", &step())).contains("XnnpackBackend"));
    let call = Instruction::KernelCall { op: 0, args: vec![0, 1, 1] };
    let mut unknown = plan(vec![planned(DType::F32, &[2]), planned(DType::F32, &[2])], &[0], &[1], vec![call]);
    unknown.operators = kernels(&[("custom::frobnicate", "out")]);
    assert!(message(load(unknown, vec![], &[])).contains("`custom::frobnicate.out`"));
}

#[test]
fn kernel_calls_run_by_the_compilers_rules() {
    let values = vec![
        dynamic(DType::F32, &[4]),
        dynamic(DType::F32, &[4]),
        EValue::Int(2),
        dynamic(DType::F32, &[4]),
        dynamic(DType::F32, &[4]),
    ];
    let calls =
        vec![Instruction::KernelCall { op: 0, args: vec![0, 1, 2, 3, 3] }, Instruction::KernelCall { op: 1, args: vec![3, 4, 4] }];
    let mut plan = plan(values, &[0, 1], &[4], calls);
    plan.operators = kernels(&[("aten::add", "out"), ("aten::relu", "out")]);
    let mut method = load(plan, vec![], &[]).unwrap();
    let sum = method.run(&[floats(&[1.0, -9.0], &[2]), floats(&[10.0, 1.0], &[2])]).unwrap();
    assert_eq!(read(&sum[0]), [21.0, 0.0]);
    let longer = method.run(&[floats(&[1.0; 3], &[3]), floats(&[1.0; 3], &[3])]).unwrap();
    assert_eq!(read(&longer[0]), [3.0; 3]);
}

/// `forward(x, flag)`: x + x if the flag is true, else x.
fn branch() -> ExecutionPlan {
    let values = vec![planned(DType::F32, &[1]), planned(DType::Bool, &[1]), EValue::Int(1), planned(DType::F32, &[1])];
    let instructions = vec![
        Instruction::JumpFalse { cond: 1, destination: 3 },
        Instruction::KernelCall { op: 0, args: vec![0, 0, 2, 3, 3] },
        Instruction::JumpFalse { cond: 4, destination: 4 },
        Instruction::MoveCall { from: 0, to: 3 },
    ];
    let mut plan = plan(values, &[0, 1], &[3], instructions);
    plan.values.push(EValue::Bool(false));
    plan.operators = kernels(&[("aten::add", "out")]);
    plan
}

#[test]
fn jumps_choose_a_branch() {
    let mut method = load(branch(), vec![], &[]).unwrap();
    for (flag, expected) in [(true, 6.0), (false, 3.0)] {
        let flag = Tensor::from_slice(&[flambeau_tensor::Bool::from(flag)], &[1]).unwrap();
        assert_eq!(read(&method.run(&[floats(&[3.0], &[1]), flag.into()]).unwrap()[0]), [expected]);
    }
}

#[test]
fn numbers_are_computed_outside_of_graphs() {
    let values = vec![dynamic(DType::F32, &[8]), EValue::Int(0), EValue::Int(0), EValue::Int(3), EValue::Int(0)];
    let calls =
        vec![Instruction::KernelCall { op: 0, args: vec![0, 1, 2] }, Instruction::KernelCall { op: 1, args: vec![2, 3, 4] }];
    let mut plan = plan(values, &[0], &[4], calls);
    plan.operators = kernels(&[("aten::sym_size", "int"), ("executorch_prim::mul", "Scalar")]);
    let mut method = load(plan, vec![], &[]).unwrap();
    assert_eq!(method.run(&[floats(&[0.0; 5], &[5])]).unwrap()[0].as_int(), Some(15));
}

#[test]
fn an_endless_loop_ends() {
    let jump = Instruction::JumpFalse { cond: 0, destination: 0 };
    let mut method = load(plan(vec![EValue::Bool(false)], &[], &[0], vec![jump]), vec![], &[]).unwrap();
    assert!(matches!(method.run(&[]), Err(Error::Endless { .. })));
}

/// A kernel call over input 0, state 1, factor 2 and output 3, with the state planned at this
/// place.
fn about_state(name: &str, (memory_id, offset): (u32, u64), args: &[u32], dtype: DType) -> ExecutionPlan {
    let mut state = TensorValue::new(dtype, &[2]);
    state.allocation = Some(Allocation { memory_id, offset });
    let values = vec![planned(dtype, &[2]), EValue::Tensor(Box::new(state)), EValue::Int(1), planned(dtype, &[2])];
    let output = args[args.len() - 1];
    let mut plan = plan(values, &[0], &[output], vec![Instruction::KernelCall { op: 0, args: args.to_vec() }]);
    plan.name = name.into();
    plan.non_const_buffer_sizes.push(64);
    plan.operators = kernels(&[("aten::add", "out")]);
    plan
}

/// Results of `read` on zeros, after two runs of `write` that each add one to the state.
fn read_after_writes(read: ExecutionPlan, options: &LoadOptions) -> Result<Vec<f32>, Error> {
    let mut writer = ProgramWriter::new();
    writer.method(read, vec![]).unwrap();
    writer.method(about_state("write", (2, 16), &[1, 0, 2, 1, 1], DType::F32), vec![]).unwrap();
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    let program = Program::from_bytes(file)?;
    let mut write = program.method("write", &engine(), options)?;
    let mut reader = program.method("read", &engine(), options)?;
    write.run(&[floats(&[1.0; 2], &[2])])?;
    write.run(&[floats(&[1.0; 2], &[2])])?;
    reader.run(&[floats(&[0.0; 2], &[2])]).map(|results| self::read(&results[0]))
}

#[test]
fn planned_state_is_shared_by_its_place() {
    let plan = |place, dtype| about_state("read", place, &[1, 0, 2, 3, 3], dtype);
    let shared = || LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
    assert_eq!(read_after_writes(plan((2, 16), DType::F32), &LoadOptions::default()).unwrap(), [0.0; 2]);
    assert_eq!(read_after_writes(plan((2, 16), DType::F32), &shared()).unwrap(), [2.0; 2]);
    assert_eq!(read_after_writes(plan((2, 32), DType::F32), &shared()).unwrap(), [0.0; 2]);
    assert_eq!(read_after_writes(plan((1, 16), DType::F32), &shared()).unwrap(), [0.0; 2]);
    let refused = read_after_writes(plan((2, 16), DType::I64), &shared()).unwrap_err().to_string();
    assert!(refused.contains("arena 2, byte 16") && refused.contains("f32"), "{refused}");
}
