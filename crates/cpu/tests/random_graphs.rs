//! Random graphs: the planned engine against the same graph with its fused nodes spelled out.

use std::{collections::BTreeMap, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked,
    decompose::decompose,
    engine::{Constants, Engine, EngineError, LoadOptions, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor, cast};
use flambeau_testgraphs::{RandomGraph, Rounding, generated_nodes, random_graph};

const GRAPHS: u64 = 10_000;

struct Nothing;

impl Constants for Nothing {
    fn get(&self, _: &str) -> Option<Bytes> {
        None
    }
}

/// Results of two runs of one session.
fn run(engine: &CpuEngine, graph: &Checked, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    let mut session = engine.load(Arc::new(graph.clone()), &Nothing, &LoadOptions::default())?;
    let first = session.run(inputs)?;
    let second = session.run(inputs)?;
    let bytes = |values: &[Value]| values.iter().map(|v| tensor(v).bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(bytes(&first), bytes(&second), "a second run gives other results");
    Ok(second)
}

fn tensor(value: &Value) -> Tensor {
    match value {
        Value::Tensor(tensor) => tensor.clone(),
        Value::Int(value) => Tensor::scalar(*value),
    }
}

/// Why two results are not the same: bit by bit, or up to rounding in the type in which they were computed.
fn difference(found: &Tensor, expected: &Tensor, tainted: bool) -> Option<String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{} {:?}, expected {} {:?}", found.dtype(), found.shape(), expected.dtype(), expected.shape()));
    }
    if !tainted {
        return (found.bytes()[..] != expected.bytes()[..]).then(|| "not the same bits".to_owned());
    }
    let floats = |t: &Tensor| cast(t, DType::F32).and_then(|t| Ok(t.as_slice::<f32>()?.to_vec())).expect("a float tensor");
    let (found, expected) = (floats(found), floats(expected));
    let largest = expected.iter().filter(|v| v.is_finite()).fold(1.0f32, |m, v| m.max(v.abs()));
    let close = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 0.04 * largest;
    let at = found.iter().zip(&expected).position(|(&a, &b)| !close(a, b))?;
    Some(format!("element {at} is {}, expected {}", found[at], expected[at]))
}

fn check(engine: &CpuEngine, sample: &RandomGraph) -> Result<(), String> {
    let plain = decompose(&sample.graph, &|_| true).map_err(|e| format!("decomposition: {e}"))?;
    let (planned, plain) = match (run(engine, &sample.graph, &sample.inputs), run(engine, &plain, &sample.inputs)) {
        (Ok(planned), Ok(plain)) => (planned, plain),
        (Err(_), Err(_)) => return Ok(()),
        // A softmax over no elements is empty, while the maximum in its decomposition is an error.
        (Ok(_), Err(EngineError::Node { node: "Max", .. })) => return Ok(()),
        (planned, plain) => return Err(format!("planned {planned:?}, plain {plain:?}")),
    };
    for (i, (found, expected)) in planned.iter().zip(&plain).enumerate() {
        if let Some(difference) = difference(&tensor(found), &tensor(expected), sample.tainted[i]) {
            return Err(format!("output {i}: {difference}"));
        }
    }
    Ok(())
}

#[test]
fn planned_and_plain_graphs_agree() {
    let (engine, mut wrong, mut kinds) = (CpuEngine::new(Some(2)), Vec::new(), BTreeMap::new());
    for seed in 0..GRAPHS {
        let sample = random_graph(seed, 10, Rounding::FusedNodes);
        for node in sample.graph.chains.iter().flatten() {
            *kinds.entry(node.name()).or_insert(0) += 1;
        }
        if let Err(what) = check(&engine, &sample) {
            wrong.push(format!("seed {seed}: {what}\n{}", *sample.graph));
        }
    }
    assert!(wrong.is_empty(), "{} graphs differ:\n{}", wrong.len(), wrong.join("\n"));
    for kind in generated_nodes() {
        assert!(kinds.get(kind).is_some_and(|&n| n >= 20), "{kind} hardly occurs: {:?}", kinds.get(kind));
    }
}
