//! Random graphs, some with changed fields. A planned graph equals the same graph with decomposed
//! nodes. A changed graph is rejected, runs, or returns an error.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use fastrand::Rng;
use flambeau_cpu::CpuEngine;
use flambeau_fuzz::{Zeros, is_cheap};
use flambeau_ir::{
    Checked, check,
    decompose::decompose,
    engine::{Engine, EngineError, LoadOptions, Value},
};
use flambeau_testcases::mutate;
use flambeau_testgraphs::{RandomGraph, Rounding, random_graph};
use libfuzzer_sys::{Corpus, fuzz_target};

/// Seed of a graph, and changes to it.
#[derive(Arbitrary, Debug)]
struct Drawn {
    graph: u32,
    nodes: u8,
    changes: Vec<u16>,
}

fn run(graph: Checked, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    let zeros = Zeros::of(&graph);
    let mut session = CpuEngine::new(Some(1)).load(Arc::new(graph), &zeros, &LoadOptions::default())?;
    let first = session.run(inputs);
    assert_eq!(first.is_ok(), session.run(inputs).is_ok(), "the second run ends as the first");
    first
}

/// Whether two results have equal shapes, types and bits.
fn is_same(found: &Value, expected: &Value, rounds: bool) -> bool {
    match (found, expected) {
        (Value::Tensor(a), Value::Tensor(b)) => {
            (a.dtype(), a.shape()) == (b.dtype(), b.shape()) && (rounds || a.bytes() == b.bytes())
        }
        (Value::Int(a), Value::Int(b)) => a == b,
        _ => false,
    }
}

fn compare(sample: &RandomGraph) {
    let plain = decompose(&sample.graph, &|_| true).expect("valid graphs are spelled out");
    let (Ok(found), Ok(expected)) = (run(sample.graph.clone(), &sample.inputs), run(plain, &sample.inputs)) else { return };
    for ((found, expected), &rounds) in found.iter().zip(&expected).zip(&sample.tainted) {
        assert!(is_same(found, expected, rounds), "{found:?} where {expected:?} was expected of\n{}", *sample.graph);
    }
}

fuzz_target!(|drawn: Drawn| -> Corpus {
    let sample = random_graph(drawn.graph.into(), usize::from(drawn.nodes % 16), Rounding::FusedNodes);
    if drawn.changes.is_empty() {
        compare(&sample);
        return Corpus::Keep;
    }
    let mut graph = sample.graph.into_inner();
    for &change in drawn.changes.iter().take(32) {
        let _ = mutate(&mut graph, &mut Rng::with_seed(change.into()));
    }
    let Ok(graph) = check(graph) else { return Corpus::Keep };
    if !is_cheap(&graph) {
        return Corpus::Reject;
    }
    let _ = run(graph, &sample.inputs);
    Corpus::Keep
});
