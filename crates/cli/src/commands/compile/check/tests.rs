use flambeau::pt2::Archive;

use super::*;

/// A committed case, and one run of it with the value of every call as our own engine computes it.
fn case(name: &str) -> (Exported, Run, Arc<dyn Engine>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/cases").join(name);
    let read = |file: &str| Bytes::from(std::fs::read(folder.join(file)).unwrap());
    let exported = Archive::open(read("model.pt2")).unwrap().only_program().unwrap();
    let list = |file: &str| flambeau::tensor::tensor_list::read(&read(file)).unwrap();
    let run = Run { inputs: list("input.bin"), outputs: list("expected_output.bin"), values: Vec::new() };
    (exported, run, flambeau::engines(Some(1), false).get("cpu").unwrap())
}

fn compared(exported: &Exported, run: Run, engine: &Arc<dyn Engine>) -> Result<(), String> {
    compare_runs("forward", exported, &[run], &Options::default(), engine).map_err(|e| format!("{e:#}"))
}

#[test]
fn agreeing_results_pass() {
    let (exported, run, engine) = case("model.norms");
    assert_eq!(compared(&exported, run, &engine), Ok(()));
}

#[test]
fn the_first_call_that_differs_is_named() {
    let (exported, mut run, engine) = case("model.norms");
    let wrong = |tensor: &Tensor| {
        let values: Vec<f32> = tensor.as_slice::<f32>().unwrap().iter().map(|v| v * 1.5 + 1.0).collect();
        Tensor::from_slice(&values, tensor.shape()).unwrap()
    };
    let call = exported.graph.nodes.iter().rev().find(|node| node.outputs[0].as_tensor().is_some()).unwrap();
    run.outputs = run.outputs.iter().map(wrong).collect();
    let last = call.outputs[0].as_tensor().unwrap();
    run.values = vec![NamedTensor { name: Some(last.into()), tensor: run.outputs[0].clone() }];
    let text = compared(&exported, run, &engine).unwrap_err();
    for part in ["run 0, inputs f32[", "output 0:", &format!("first at {} (`", call.target), "elements differ"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn floats_pass_within_rounding_and_integers_only_if_equal() {
    let floats = |v: &[f32]| Tensor::from_slice(v, &[v.len()]).unwrap();
    let close = |a: &Tensor, b: &Tensor| compare(a, b, rounding(b)).is_ok();
    assert!(close(&floats(&[1000.0, 0.01]), &floats(&[1000.05, 0.02])));
    assert!(!close(&floats(&[1.0, 0.01]), &floats(&[1.0, 0.02])));
    let integers = |v: &[i64]| Tensor::from_slice(v, &[v.len()]).unwrap();
    assert!(!close(&integers(&[1_000_000]), &integers(&[1_000_001])));
}
