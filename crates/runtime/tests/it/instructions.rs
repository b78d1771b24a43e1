//! Tests of the instructions of methods and their errors: delegate calls, kernel calls, moves,
//! jumps and frees.

use flambeau_ir::{Graph, check};
use flambeau_runtime::{Error, InstructionError, Method, OperatorError, Place, Value};
use flambeau_tensor::{Bool, DType, Tensor};
use flambeau_wire::{
    Blob, mlx,
    pte::{BufferDevice, Chain, Delegate, Device, EValue, ExecutionPlan, Instruction},
};

use crate::support::{dynamic, floats, kernels, load, plan, planned, read};

fn delegate(args: &[u32]) -> Instruction {
    Instruction::DelegateCall { delegate: 0, args: args.to_vec() }
}

fn kernel(op: u32, args: &[u32]) -> Instruction {
    Instruction::KernelCall { op, args: args.to_vec() }
}

/// A plan with one kernel call.
fn one_kernel(name: (&str, &str), values: Vec<EValue>, inputs: &[u32], outputs: &[u32], args: &[u32]) -> ExecutionPlan {
    ExecutionPlan { operators: kernels(&[name]), ..plan(values, inputs, outputs, vec![kernel(0, args)]) }
}

/// Squares `x`, and takes an unused integer.
const SQUARE: &str = r#"slots constants=0 inputs=1 outputs=1 buffers=0 temps=0 values=1
main 0
input t0
input v0
output t1
meta t0 f32[1..4]
meta t1 f32[1..4]
chain 0
  Multiply a=t0 b=t0 out=t1
"#;

fn square(values: Vec<EValue>, inputs: &[u32], args: &[u32]) -> Result<Method, Error> {
    let graph = check(SQUARE.parse::<Graph>().unwrap()).unwrap();
    let mut plan = plan(values, inputs, &[2], vec![delegate(args)]);
    plan.delegates = vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }];
    load(plan, vec![Blob::from_bytes(mlx::encode(&graph))], &[])
}

fn square_values(result: DType) -> Vec<EValue> {
    vec![dynamic(DType::F32, &[4]), EValue::Int(0), dynamic(result, &[4])]
}

/// Runs the method and returns the error, which must name the method and the place.
fn fails(method: &mut Method, inputs: &[Value], place: Place) -> InstructionError {
    match method.run(inputs) {
        Err(Error::Run { method, place: found, source }) => {
            assert_eq!((method.as_str(), found), ("forward", place));
            *source
        }
        other => panic!("expected a failure of an instruction, found {other:?}"),
    }
}

fn first() -> Place {
    Place::default()
}

#[test]
fn delegates_take_tensors_and_integers_and_their_results_get_the_types_of_the_plan() {
    let mut method = square(square_values(DType::F32), &[0, 1], &[0, 1, 2]).unwrap();
    assert_eq!(read(&method.run(&[floats(&[3.0, -2.0], &[2]), Value::Int(7)]).unwrap()[0]), [9.0, 4.0]);
    let mut method = square(square_values(DType::I64), &[0, 1], &[0, 1, 2]).unwrap();
    let result = method.run(&[floats(&[3.0, -2.0], &[2]), Value::Int(7)]).unwrap();
    assert_eq!(result[0].as_tensor().unwrap().as_slice::<i64>().unwrap(), [9, 4]);
}

#[test]
fn a_delegate_call_of_another_arity_is_refused_when_the_method_is_loaded() {
    let error = square(square_values(DType::F32), &[0, 1], &[0, 2]).unwrap_err();
    let Error::Prepare { place, source, .. } = &error else { panic!("{error}") };
    assert_eq!(*place, first());
    assert!(matches!(**source, InstructionError::DelegateArity { delegate: 0, inputs: 2, outputs: 1, found: 2 }), "{source}");
}

#[test]
fn delegates_refuse_values_that_they_cannot_take() {
    let mut method = square(square_values(DType::F32), &[0, 1], &[0, 1, 2]).unwrap();
    let error = fails(&mut method, &[floats(&[1.0], &[1]), Value::Int(1 << 40)], first());
    assert!(matches!(error, InstructionError::DelegateArgument { delegate: 0, .. }), "{error}");
    let values = vec![dynamic(DType::F32, &[4]), EValue::String("seven".into()), dynamic(DType::F32, &[4])];
    let mut method = square(values, &[0], &[0, 1, 2]).unwrap();
    let error = fails(&mut method, &[floats(&[1.0], &[1])], first());
    assert!(error.to_string().contains("the string `seven`"), "{error}");
}

#[test]
fn an_engine_that_fails_is_named_with_its_delegate() {
    // The graph's metadata bounds a size that is unbounded in the plan.
    let values = vec![dynamic(DType::F32, &[4]), EValue::Int(0), dynamic(DType::F32, &[4])];
    let mut method = square(values, &[0, 1], &[1, 0, 2]).unwrap();
    let error = fails(&mut method, &[floats(&[1.0], &[1]), Value::Int(1)], first());
    assert!(matches!(error, InstructionError::Delegate { delegate: 0, .. }), "{error}");
    assert!(method.run(&[floats(&[1.0], &[1]), Value::Int(1)]).is_err(), "it fails again, and does not panic");
}

#[test]
fn kernels_follow_the_schema_of_their_operator() {
    let values = vec![dynamic(DType::F32, &[4]), dynamic(DType::I64, &[4]), EValue::Int(0), EValue::Bool(false), EValue::Int(4)];
    let mut sum = one_kernel(("aten::sum", "IntList_out"), values, &[0], &[1], &[0, 2, 3, 4, 1, 1]);
    sum.values[1] = planned(DType::I64, &[]);
    let mut method = load(sum, vec![], &[]).unwrap();
    let result = method.run(&[floats(&[1.75, 2.75, 3.75], &[3])]).unwrap();
    assert_eq!(result[0].as_tensor().unwrap().as_slice::<i64>().unwrap(), [6], "the elements are cast before they are added");
}

#[test]
fn kernels_with_several_results_return_them_as_a_list() {
    let mut values = vec![dynamic(DType::F32, &[4]), EValue::Int(2), EValue::Int(-1), EValue::Bool(true), EValue::Bool(true)];
    values.extend([planned(DType::F32, &[2]), planned(DType::I64, &[2]), EValue::TensorList(vec![5, 6])]);
    let topk = one_kernel(("aten::topk", "values"), values, &[0], &[5, 6], &[0, 1, 2, 3, 4, 5, 6, 7]);
    let results = load(topk, vec![], &[]).unwrap().run(&[floats(&[1.0, 4.0, 2.0, 3.0], &[4])]).unwrap();
    assert_eq!(read(&results[0]), [4.0, 3.0]);
    assert_eq!(results[1].as_tensor().unwrap().as_slice::<i64>().unwrap(), [1, 3]);
}

#[test]
fn results_are_as_long_as_the_data_says() {
    let values = vec![dynamic(DType::F32, &[4]), dynamic(DType::I64, &[4, 1])];
    let nonzero = one_kernel(("aten::nonzero", "out"), values, &[0], &[1], &[0, 1, 1]);
    let mut method = load(nonzero, vec![], &[]).unwrap();
    for (x, places) in [(vec![0.0, 2.0, 0.0, 1.0], vec![1i64, 3]), (vec![0.0], vec![])] {
        let result = method.run(&[floats(&x, &[x.len()])]).unwrap();
        let found = result[0].as_tensor().unwrap();
        assert_eq!((found.shape(), found.as_slice::<i64>().unwrap()), (&[places.len(), 1][..], &places[..]));
    }
}

#[test]
fn floats_of_64_bits_are_computed_as_such() {
    let doubles = |v: &[f64]| Value::from(Tensor::from_slice(v, &[v.len()]).unwrap());
    let values = || vec![dynamic(DType::F64, &[4]), dynamic(DType::F64, &[4])];
    let mut method = load(one_kernel(("aten::expm1", "out"), values(), &[0], &[1], &[0, 1, 1]), vec![], &[]).unwrap();
    let result = method.run(&[doubles(&[1e-12, 0.5])]).unwrap();
    let found = result[0].as_tensor().unwrap().as_slice::<f64>().unwrap();
    assert_eq!(found, [1e-12f64.exp_m1(), 0.5f64.exp_m1()]);
    let mut method = load(one_kernel(("aten::erf", "out"), values(), &[0], &[1], &[0, 1, 1]), vec![], &[]).unwrap();
    let error = fails(&mut method, &[doubles(&[1.0])], first());
    assert!(matches!(error, InstructionError::Operator { source: OperatorError::Refused(_), .. }), "{error}");
}

#[test]
fn complex_numbers_go_from_kernel_to_kernel() {
    let values = vec![
        planned(DType::F32, &[1, 4]),
        EValue::Int(-1),
        EValue::IntList(vec![1]),
        EValue::Int(0),
        EValue::Bool(true),
        planned(DType::C64, &[1, 3]),
        EValue::Int(1),
        EValue::IntList(vec![6, 3]),
        planned(DType::C64, &[3, 1]),
        planned(DType::F32, &[3, 1]),
        planned(DType::F32, &[3, 1, 2]),
    ];
    let calls = [&[0, 2, 3, 4, 5, 5][..], &[5, 7, 8, 8], &[8, 9, 9], &[8, 10, 10]];
    let calls = calls.iter().zip(0..).map(|(args, op)| kernel(op, args)).collect();
    let mut plan = plan(values, &[0], &[9, 10], calls);
    let names = ["aten::_fft_r2c", "aten::permute_copy", "aten::abs", "aten::view_as_real_copy"];
    plan.operators = kernels(&names.map(|name| (name, "out")));
    let outputs = load(plan, vec![], &[]).unwrap().run(&[floats(&[1.0, 2.0, 3.0, 4.0], &[1, 4])]).unwrap();
    let near = |found: &[f32], expected: &[f32]| found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-5);
    assert!(near(&read(&outputs[0]), &[10.0, 8f32.sqrt(), 2.0]), "{:?}", read(&outputs[0]));
    assert_eq!(outputs[1].describe(), "f32[3, 1, 2]");
    assert!(near(&read(&outputs[1]), &[10.0, 0.0, -2.0, 2.0, -2.0, 0.0]), "{:?}", read(&outputs[1]));
}

#[test]
fn a_view_has_the_sizes_of_the_call() {
    let values = |size| {
        vec![
            dynamic(DType::F32, &[6]),
            EValue::Int(2),
            EValue::Int(size),
            EValue::IntList(vec![1, 2]),
            dynamic(DType::F32, &[2, 3]),
        ]
    };
    let view = |size| one_kernel(("executorch_prim::et_view", "default"), values(size), &[0], &[4], &[0, 3, 4, 4]);
    let x = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[6]);
    let result = load(view(-1), vec![], &[]).unwrap().run(std::slice::from_ref(&x)).unwrap();
    assert_eq!(result[0].as_tensor().unwrap().shape(), [2, 3]);
    let error = fails(&mut load(view(-2), vec![], &[]).unwrap(), &[x], first());
    assert!(matches!(error, InstructionError::Operator { source: OperatorError::NoShape(_), .. }), "{error}");
}

#[test]
fn kernel_calls_that_cannot_be_prepared_are_refused_when_the_method_is_loaded() {
    let values = || vec![planned(DType::F32, &[2]), planned(DType::F32, &[3]), EValue::Int(1), planned(DType::F32, &[2])];
    let refused = |plan: ExecutionPlan| match load(plan, vec![], &[]).unwrap_err() {
        Error::Prepare { place, source, .. } => match *source {
            InstructionError::Operator { operator, source } => {
                assert_eq!(place, first());
                (operator, source)
            }
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    };
    let (operator, source) = refused(one_kernel(("aten::add", "out"), values(), &[0], &[3], &[0, 1, 2, 3]));
    assert!(operator == "aten::add.out" && matches!(source, OperatorError::Unrepeated), "{source}");
    let (_, source) = refused(one_kernel(("aten::no_such_operator", "out"), values(), &[0], &[3], &[0, 3, 3]));
    assert!(matches!(source, OperatorError::Refused(_)), "{source}");
    let (_, source) = refused(one_kernel(("aten::add", "out"), values(), &[0], &[3], &[0, 1, 2, 3, 3]));
    assert!(matches!(source, OperatorError::Refused(_)), "sizes 2 and 3: {source}");
}

#[test]
fn kernels_fail_on_values_of_another_kind() {
    let values = vec![dynamic(DType::F32, &[2]), dynamic(DType::F32, &[2]), EValue::Int(1), dynamic(DType::F32, &[2])];
    let mut add = one_kernel(("aten::add", "out"), values, &[0, 1], &[3], &[0, 1, 2, 3, 3]);
    add.chains[0].instructions.insert(0, Instruction::MoveCall { from: 0, to: 2 });
    let error = fails(
        &mut load(add, vec![], &[]).unwrap(),
        &[floats(&[1.0], &[1]), floats(&[1.0], &[1])],
        Place { chain: 0, instruction: 1 },
    );
    assert!(matches!(error, InstructionError::Kind { value: 2, expected: "a number", .. }), "{error}");
    let values = vec![EValue::Int(5), EValue::Int(0), EValue::Int(0)];
    let divide = one_kernel(("executorch_prim::floordiv", "Scalar"), values, &[0, 1], &[2], &[0, 1, 2]);
    let error = fails(&mut load(divide, vec![], &[]).unwrap(), &[Value::Int(5), Value::Int(0)], first());
    assert!(matches!(error, InstructionError::Operator { source: OperatorError::DivisionByZero, .. }), "{error}");
}

#[test]
fn chains_run_in_order_and_a_jump_to_the_end_leaves_one() {
    // The first chain moves 1 to the result and jumps over the move of 2; the second adds 10.
    let values = vec![EValue::Bool(false), EValue::Int(1), EValue::Int(2), EValue::Int(10), EValue::Int(0), EValue::Int(0)];
    let first = vec![
        Instruction::MoveCall { from: 1, to: 4 },
        Instruction::JumpFalse { cond: 0, destination: 3 },
        Instruction::MoveCall { from: 2, to: 4 },
    ];
    let mut plan = plan(values, &[], &[5], first);
    plan.chains.push(Chain { instructions: vec![kernel(0, &[4, 3, 5])], ..Chain::default() });
    plan.operators = kernels(&[("executorch_prim::add", "Scalar")]);
    let mut method = load(plan.clone(), vec![], &[]).unwrap();
    assert_eq!(method.run(&[]).unwrap()[0].as_int(), Some(11));
    plan.values[0] = EValue::Bool(true);
    assert_eq!(load(plan, vec![], &[]).unwrap().run(&[]).unwrap()[0].as_int(), Some(12));
}

#[test]
fn conditions_are_booleans() {
    let jump = |cond: EValue| plan(vec![cond], &[0], &[0], vec![Instruction::JumpFalse { cond: 0, destination: 1 }]);
    let mut method = load(jump(planned(DType::Bool, &[2])), vec![], &[]).unwrap();
    let flags = Tensor::from_slice(&[Bool::from(true), Bool::from(false)], &[2]).unwrap();
    assert!(method.run(&[flags.into()]).is_ok());
    let mut method = load(jump(planned(DType::F32, &[1])), vec![], &[]).unwrap();
    let error = fails(&mut method, &[floats(&[1.0], &[1])], first());
    assert!(matches!(error, InstructionError::Condition(_)), "{error}");
}

#[test]
fn moves_leave_their_source_and_frees_leave_nothing() {
    let values = || vec![dynamic(DType::F32, &[4]), dynamic(DType::F32, &[4])];
    let mv = Instruction::MoveCall { from: 0, to: 1 };
    let free = |value| Instruction::Free { value };
    let moved = plan(values(), &[0], &[0, 1], vec![mv.clone()]);
    let results = load(moved, vec![], &[]).unwrap().run(&[floats(&[1.0], &[1])]).unwrap();
    assert_eq!((read(&results[0]), read(&results[1])), (vec![1.0], vec![1.0]));

    let freed = plan(values(), &[0], &[1], vec![free(0), mv.clone()]);
    let error = fails(&mut load(freed, vec![], &[]).unwrap(), &[floats(&[1.0], &[1])], Place { chain: 0, instruction: 1 });
    assert!(matches!(error, InstructionError::Unset(0)), "{error}");

    let mut method = load(plan(values(), &[0], &[1], vec![mv, free(1)]), vec![], &[]).unwrap();
    let error = method.run(&[floats(&[1.0], &[1])]).unwrap_err();
    assert!(matches!(error, Error::NoOutput { output: 0, .. }), "{error}");
}

/// A planned tensor at an offset of the arena.
fn at(offset: u64, sizes: &[u32]) -> EValue {
    let EValue::Tensor(mut value) = planned(DType::F32, sizes) else { return EValue::None };
    value.allocation.as_mut().unwrap().offset = offset;
    EValue::Tensor(value)
}

#[test]
fn views_that_the_exporter_left_out_have_the_elements_of_their_memory() {
    // x, its view, a sum, the sum's view, their product, and a view of it.
    let values = vec![
        at(0, &[4]),
        at(0, &[2, 2]),
        at(16, &[2, 2]),
        at(16, &[4]),
        at(32, &[4]),
        at(32, &[1, 4]),
        EValue::Int(1),
        at(48, &[4]),
    ];
    let operators = kernels(&[("aten::add", "out"), ("aten::mul", "out")]);
    let calls = vec![kernel(0, &[1, 1, 6, 2, 2]), kernel(1, &[0, 3, 4, 4]), kernel(1, &[0, 0, 7, 7])];
    let plan = ExecutionPlan { operators, ..plan(values, &[0], &[5, 3, 1], calls) };
    let mut method = load(plan, vec![], &[]).unwrap();
    assert!(method.is_stateless());
    for x in [[1.0, -2.0, 3.0, 0.5], [4.0, 0.0, 1.0, 1.0]] {
        let results = method.run(&[floats(&x, &[4])]).unwrap();
        let shapes: Vec<&[usize]> = results.iter().map(|result| result.as_tensor().unwrap().shape()).collect();
        assert_eq!(shapes, [&[1, 4][..], &[4], &[2, 2]]);
        assert_eq!(read(&results[0]), x.map(|v| v * 2.0 * v));
        assert_eq!(read(&results[1]), x.map(|v| v + v));
        assert_eq!(read(&results[2]), x);
    }
}

#[test]
fn methods_that_plan_memory_on_other_devices_are_refused() {
    let devices = vec![BufferDevice { buffer: 1, device: Device { kind: 1, index: 2 } }];
    let plan = ExecutionPlan { devices, ..plan(vec![planned(DType::F32, &[1])], &[0], &[0], vec![]) };
    let error = load(plan, vec![], &[]).unwrap_err().to_string();
    assert_eq!(error, "method `forward` plans memory on device cuda:2, which is not available here");
}
