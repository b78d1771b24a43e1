//! Tests of fallback calls.

use flambeau_compile::{Error, Options, Outcome, Ties, compile};
use flambeau_runtime::{Program, Value};
use flambeau_wire::pte::{EValue, Instruction};

use crate::support::{check_runs, close, compiled, engine, exported, method, runs};

fn without(targets: &[&str]) -> Options {
    Options { undelegated: targets.iter().map(|t| (*t).to_owned()).collect(), ..Options::default() }
}

/// Number of delegate calls and of kernel calls.
fn calls(bytes: &[u8]) -> (usize, usize) {
    let program = Program::from_bytes(bytes.to_vec()).unwrap();
    let instructions = &program.file().plans[0].chains[0].instructions;
    let kernels = instructions.iter().filter(|i| matches!(i, Instruction::KernelCall { .. })).count();
    (instructions.len() - kernels, kernels)
}

fn check(name: &str, targets: &[&str], expected: (usize, usize)) {
    let bytes = compiled(name, &without(targets)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(calls(&bytes), expected, "{name} without {targets:?}");
    check_runs(&mut method(bytes, "forward"), name);
}

#[test]
fn methods_are_cut_at_kernel_calls() {
    check("chain", &["aten.sin.default"], (2, 1));
    check("chain", &["aten.sin.default", "aten.cos.default"], (2, 2));
    check("chain", &["aten.mean.dim", "aten.amax.default"], (1, 2));
    check("chain", &["aten.exp.default", "aten.sqrt.default", "aten.cat.default"], (3, 3));
    check("layers", &["aten.relu.default"], (2, 1));
    check("layers", &["aten.embedding.default"], (1, 1));
}

#[test]
fn buffers_stay_in_one_delegate() {
    check("kv_train", &["aten.sum.dim_IntList"], (1, 1));
    check("kv_aten", &["aten.sum.dim_IntList"], (1, 1));
}

#[test]
fn planned_places_fit_and_are_reused() {
    let bytes =
        compiled("chain", &without(&["aten.sin.default", "aten.cos.default", "aten.exp.default", "aten.cat.default"])).unwrap();
    let program = Program::from_bytes(bytes).unwrap();
    let plan = &program.file().plans[0];
    let tensors = plan.values.iter().filter_map(|v| if let EValue::Tensor(t) = v { Some(t) } else { None });
    let mut total = 0;
    for tensor in tensors.filter(|t| t.data_buffer_idx == 0) {
        let (place, bytes) = (tensor.allocation.unwrap(), tensor.nbytes().unwrap());
        assert_eq!((place.memory_id, place.offset % 16), (1, 0));
        assert!(place.offset + bytes <= plan.non_const_buffer_sizes[1]);
        total += bytes.next_multiple_of(16);
    }
    assert!(plan.non_const_buffer_sizes[1] < total, "{} bytes for {total}", plan.non_const_buffer_sizes[1]);
}

#[test]
fn sizes_that_depend_on_the_data_are_left_to_kernels() {
    let program = exported("nonzero");
    let output = compile(&[("forward", &program)], &Options::default(), &*engine()).unwrap();
    let names: Vec<String> = output.report.methods[0]
        .fallbacks()
        .map(|c| if let Outcome::Fallback(kernel) = &c.outcome { kernel.clone() } else { String::new() })
        .collect();
    assert_eq!(names, ["aten::nonzero.out"]);
    assert_eq!(output.graphs().count(), 2);
    let full = Options { require_full: true, ..Options::default() };
    let Err(Error::Refused { calls, .. }) = compile(&[("forward", &program)], &full, &*engine()) else {
        panic!("it was not refused")
    };
    assert_eq!(calls[0].target, "aten.nonzero.default");
}

#[test]
fn results_as_long_as_the_data_says_are_read_by_nodes_again() {
    check_runs(&mut method(compiled("selected", &Options::default()).unwrap(), "forward"), "selected");
}

#[test]
fn written_inputs_take_their_new_contents() {
    for name in ["mutated_input", "mutated_input_aten"] {
        let mut method = method(compiled(name, &Options::default()).unwrap(), "forward");
        check_runs(&mut method, name);
        let (given, _) = runs(name).remove(0);
        let [(0, Value::Tensor(new))] = method.written_inputs() else { panic!("{name}: {:?}", method.written_inputs()) };
        let (old, new) = (given[0].as_slice::<f32>().unwrap(), new.as_slice::<f32>().unwrap());
        assert!(old.iter().zip(new).all(|(a, b)| a + 1.0 == *b), "{name}: {old:?} became {new:?}");
    }
}

#[test]
fn element_types_without_nodes_are_left_to_kernels() {
    let bytes = compiled("double", &Options::default()).unwrap();
    assert_eq!(calls(&bytes).0, 0, "delegates");
    assert!(calls(&bytes).1 >= 7, "kernel calls");
    check_runs(&mut method(bytes, "forward"), "double");
    check_runs(&mut method(compiled("narrowed", &Options::default()).unwrap(), "forward"), "narrowed");
}

#[test]
fn positions_of_equal_elements_are_the_kernels_unless_any_will_do() {
    let bytes = compiled("ties", &Options::default()).unwrap();
    assert_eq!(calls(&bytes), (0, 5));
    check_runs(&mut method(bytes, "forward"), "ties");
    let bytes = compiled("ties", &Options { ties: Ties::Any, ..Options::default() }).unwrap();
    assert_eq!(calls(&bytes), (1, 0));
    let (inputs, expected) = runs("ties").remove(0);
    let found = method(bytes, "forward").run(&inputs.into_iter().map(Value::Tensor).collect::<Vec<_>>()).unwrap();
    for i in [0, 2, 4, 6] {
        let Value::Tensor(found) = &found[i] else { panic!("result {i}") };
        close(found, &expected[i], &format!("result {i}"));
    }
}

#[test]
fn calls_that_only_name_a_type_are_no_writes() {
    check("named_type", &[], (1, 0));
}

#[test]
fn a_buffer_on_both_sides_of_a_kernel_call_is_refused() {
    let Err(error) = compiled("writes", &without(&["aten.fill_.Scalar", "aten.mul.Tensor"])) else { panic!("it was compiled") };
    assert!(error.to_string().contains("buffer `grid`"), "{error}");
}
