//! Random graphs: MLX against the CPU engine.

use std::{process::ExitCode, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked, Node,
    engine::{Constants, Engine, EngineError, LoadOptions, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor, cast};
use flambeau_testcases::functions;
use flambeau_testgraphs::{RandomGraph, Rounding, random_graph};

#[path = "support/mod.rs"]
mod installed;

const GRAPHS: u64 = 10_000;

struct Nothing;

impl Constants for Nothing {
    fn get(&self, _: &str) -> Option<Bytes> {
        None
    }
}

fn run(engine: &dyn Engine, graph: &Checked, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    engine.load(Arc::new(graph.clone()), &Nothing, &LoadOptions::default())?.run(inputs)
}

fn tensor(value: &Value) -> Tensor {
    match value {
        Value::Tensor(tensor) => tensor.clone(),
        Value::Int(value) => Tensor::scalar(*value),
    }
}

/// Why two results are not the same up to rounding; integers are the same bit by bit.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{} {:?}, expected {} {:?}", found.dtype(), found.shape(), expected.dtype(), expected.shape()));
    }
    if !found.dtype().is_float() {
        return (found.bytes()[..] != expected.bytes()[..]).then(|| "not the same integers".to_owned());
    }
    let floats = |t: &Tensor| cast(t, DType::F32).and_then(|t| Ok(t.as_slice::<f32>()?.to_vec())).expect("a float tensor");
    let share = if found.dtype() == DType::F32 { 0.04 } else { 0.08 };
    let (found, expected) = (floats(found), floats(expected));
    let largest = expected.iter().filter(|v| v.is_finite()).fold(1.0f32, |m, v| m.max(v.abs()));
    let close = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= share * largest;
    let at = found.iter().zip(&expected).position(|(&a, &b)| !close(a, b))?;
    Some(format!("element {at} is {}, expected {}", found[at], expected[at]))
}

fn draws_sixteen_bits(graph: &Checked) -> bool {
    graph.chains.iter().flatten().any(|node| matches!(node, Node::RandomBits(n) if n.width == 2))
}

fn check(engines: [&dyn Engine; 2], sample: &RandomGraph) -> Result<(), String> {
    let [found, expected] = engines.map(|engine| run(engine, &sample.graph, &sample.inputs));
    let (found, expected) = match (found, expected) {
        (Ok(found), Ok(expected)) => (found, expected),
        (Err(_), Err(_)) => return Ok(()),
        // Sixteen random bits are of a type that MLX computes with and the CPU engine only moves.
        (Ok(_), Err(_)) if draws_sixteen_bits(&sample.graph) => return Ok(()),
        (found, expected) => return Err(format!("MLX {found:?}, CPU engine {expected:?}")),
    };
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if let Some(difference) = difference(&tensor(found), &tensor(expected)) {
            return Err(format!("output {i}: {difference}"));
        }
    }
    Ok(())
}

fn mlx_and_the_cpu_engine_agree() {
    let mlx = installed::engine();
    let (cpu, mut wrong) = (CpuEngine::new(Some(2)), Vec::new());
    for seed in 0..GRAPHS {
        let sample = random_graph(seed, 8, Rounding::FloatNodes);
        if let Err(what) = check([&mlx, &cpu], &sample) {
            wrong.push(format!("seed {seed}: {what}\n{}", *sample.graph));
        }
    }
    assert!(wrong.is_empty(), "{} graphs differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        mlx_and_the_cpu_engine_agree,
    ])
}
