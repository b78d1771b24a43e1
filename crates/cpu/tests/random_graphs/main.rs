//! Random graphs. Single nodes are compared with their definitions, and planned graphs with the
//! same graphs without fused nodes. One engine computes both sides.

mod reference;

use std::{collections::BTreeMap, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked, In, Slot,
    decompose::decompose,
    engine::{Engine, EngineError, LoadOptions, NoConstants, Value},
    for_each_float_function,
};
use flambeau_tensor::{DType, Tensor};
use flambeau_testgraphs::{RandomGraph, Rounding, generated_nodes, random_graph};

use crate::reference::{Array, evaluate};

const GRAPHS: u64 = 10_000;

/// Results of two runs of one session.
fn run(engine: &CpuEngine, graph: &Checked, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    let mut session = engine.load(Arc::new(graph.clone()), &NoConstants, &LoadOptions::default())?;
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

/// Why two results differ by more than `bound`; bit by bit if it is zero.
fn difference(found: &Tensor, expected: &Tensor, bound: f64) -> Option<String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{} {:?}, expected {} {:?}", found.dtype(), found.shape(), expected.dtype(), expected.shape()));
    }
    if bound == 0.0 {
        return (found.bytes()[..] != expected.bytes()[..]).then(|| "not the same bits".to_owned());
    }
    let (found, expected) = (Array::read(found).values, Array::read(expected).values);
    let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= bound;
    let at = found.iter().zip(&expected).position(|(&a, &b)| !close(a, b))?;
    Some(format!("element {at} is {}, expected {} within {bound}", found[at], expected[at]))
}

/// Compares the planned graph with the graph without fused nodes.
fn check(engine: &CpuEngine, sample: &RandomGraph) -> Result<(), String> {
    let plain = decompose(&sample.graph, &|_| true).map_err(|e| format!("decomposition: {e}"))?;
    let (planned, plain) = match (run(engine, &sample.graph, &sample.inputs), run(engine, &plain, &sample.inputs)) {
        (Ok(planned), Ok(plain)) => (planned, plain),
        // Division by zero is an error by the node's definition.
        (Err(EngineError::Node { what, .. }), Err(EngineError::Node { what: plain, .. }))
            if what == plain && what.ends_with("by zero") =>
        {
            return Ok(());
        }
        (planned, plain) => return Err(format!("planned {planned:?}, plain {plain:?}")),
    };
    let bounds = if sample.tainted.contains(&true) {
        let every = run(engine, &sample.every, &sample.inputs).map_err(|e| format!("every result: {e}"))?;
        sample.bounds(&every)
    } else {
        vec![0.0; planned.len()]
    };
    for (i, (found, expected)) in planned.iter().zip(&plain).enumerate() {
        if let Some(difference) = difference(&tensor(found), &tensor(expected), bounds[i]) {
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

/// Whether an element is the expected one, rounded or wrapped to its type.
fn is_close(dtype: DType, found: f64, expected: f64) -> bool {
    let (epsilon, largest) = match dtype {
        DType::F32 => (2e-5, f32::MAX.into()),
        DType::F16 => (2e-3, 65504.0),
        DType::BF16 => (1.6e-2, f32::MAX.into()),
        DType::Bool => return found == f64::from(expected != 0.0),
        // Beyond this, f64 has not every integer.
        _ if expected.abs() > (1i64 << 53) as f64 => return true,
        other => return (found as i64).wrapping_sub(expected as i64).trailing_zeros() >= 8 * other.size() as u32,
    };
    found == expected
        || found.is_nan() && expected.is_nan()
        || found.is_infinite() && expected.abs() > largest && found.is_sign_negative() == expected.is_sign_negative()
        || (found - expected).abs() <= epsilon * expected.abs().max(1.0)
}

/// Compares a graph of one node with its definition; the node's name if it has one here and runs.
fn check_alone(engine: &CpuEngine, sample: &RandomGraph) -> Result<Option<&'static str>, String> {
    let [chain] = &sample.graph.chains[..] else { return Ok(None) };
    let ([node], [Slot::Tensor(_)]) = (&chain[..], &sample.graph.outputs[..]) else { return Ok(None) };
    let Ok(found) = run(engine, &sample.graph, &sample.inputs) else { return Ok(None) };
    let found = Array::read(&tensor(&found[0]));
    let get = |In(slot): In| {
        let at = sample.graph.inputs.iter().position(|&input| input == Slot::Tensor(slot)).expect("operands are inputs");
        Array::read(&tensor(&sample.inputs[at]))
    };
    let Some(expected) = evaluate(node, &get, &found.shape) else { return Ok(None) };
    for (i, (&found_value, &expected)) in found.values.iter().zip(&expected).enumerate() {
        if !is_close(found.dtype, found_value, expected) {
            return Err(format!("element {i} of {} is {found_value}, by definition {expected}", found.dtype));
        }
    }
    assert_eq!(found.values.len(), expected.len());
    Ok(Some(node.name()))
}

#[test]
fn single_nodes_are_what_their_definitions_say() {
    let (engine, mut wrong, mut kinds) = (CpuEngine::new(Some(1)), Vec::new(), BTreeMap::new());
    for seed in 0..4 * GRAPHS {
        let sample = random_graph(seed, 1, Rounding::FloatNodes);
        match check_alone(&engine, &sample) {
            Ok(checked) => checked.into_iter().for_each(|kind| *kinds.entry(kind).or_insert(0) += 1),
            Err(what) => wrong.push(format!("seed {seed}: {what}\n{}", *sample.graph)),
        }
    }
    assert!(wrong.is_empty(), "{} nodes differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(kinds.len() >= 65 && kinds.values().all(|&n| n >= 20), "{} kinds: {kinds:?}", kinds.len());
    macro_rules! float_function {
        ($name:ident) => {
            assert!(kinds.contains_key(stringify!($name)), "{} has no definition", stringify!($name));
        };
    }
    for_each_float_function!(float_function);
}
