//! The first differing node, on engines and programs with one fault.

use std::sync::Arc;

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked, Graph, IdCopy, Node, check,
    engine::{Constants, KvCacheConfig, KvLayer},
};
use flambeau_runtime::{
    Engine, LoadOptions, Program, Value,
    verify::{self, random_inputs},
};
use flambeau_tensor::{DType, Tensor};
use flambeau_wire::{
    Blob, mlx,
    pte::{Delegate, EValue, Instruction},
};

use crate::support::{dynamic, engine, floats, plan, planned};

/// A layer, a choice between two branches, and a buffer that counts the runs.
const GRAPH: &str = r#"slots constants=2 inputs=1 outputs=2 buffers=1 temps=3 values=1
main 0
init 3
input t2
output t3
output t4
buffer t5
name t0 "0000/up.weight"
name t1 "0000/one"
name t2 "x"
name t5 "0000/count"
meta t0 f32[3,2]
meta t1 f32[1]
meta t2 f32[4,2]
meta t3 f32[4,3]
meta t4 f32[1]
meta t5 f32[1]
chain 0
  Transpose x=t0 out=t6 perm=[1,0]
  Addmm mat1=t2 mat2=t6 out=t7
  Sigmoid x=t7 out=t6
  Multiply a=t7 b=t6 out=t7
  SymSize a=t2 dim=0 out=v0
  If cond=v0 then_chain_idx=1 else_chain_idx=2
  Add a=t8 b=t7 out=t3
  Add a=t5 b=t1 out=t5
  IdCopy x=t5 out=t4
chain 1
  Exp x=t7 out=t8
chain 2
  Neg x=t7 out=t8
chain 3
  IdCopy x=t1 out=t5
"#;

/// A program whose delegate has this graph. The first values of the plan are its inputs.
fn delegated(graph: &str, values: Vec<EValue>, inputs: usize, named: &[(&str, Vec<u8>)]) -> Program {
    let graph = check(graph.parse::<Graph>().unwrap()).unwrap();
    let args: Vec<u32> = (0..values.len() as u32).collect();
    let (given, made) = args.split_at(inputs);
    let mut plan = plan(values, given, made, vec![Instruction::DelegateCall { delegate: 0, args: args.clone() }]);
    plan.delegates = vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }];
    crate::support::program(plan, vec![Blob::from_bytes(mlx::encode(&graph))], named).unwrap()
}

/// The program with `up.weight` scaled.
fn program(scale: f32) -> Program {
    let values = vec![planned(DType::F32, &[4, 2]), planned(DType::F32, &[4, 3]), planned(DType::F32, &[1])];
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let weight = [0.5, -1.0, 0.25, 2.0, 1.5, -0.75].map(|v| v * scale);
    delegated(GRAPH, values, 1, &[("0000/up.weight", bytes(&weight)), ("0000/one", bytes(&[1.0]))])
}

fn runs() -> Vec<Vec<Value>> {
    vec![vec![floats(&[1.0, 2.0, -0.5, 0.25, 3.0, -2.0, 0.0, 1.0], &[4, 2])]; 3]
}

/// The CPU engine with a fault in graphs that `is_broken` accepts: it leaves out `Sigmoid`.
struct Faulty<F>(CpuEngine, F);

impl<F: Fn(&Graph) -> bool + Send + Sync> Engine for Faulty<F> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn load(
        &self,
        graph: Arc<Checked>,
        constants: &dyn Constants,
        options: &LoadOptions,
    ) -> Result<Box<dyn flambeau_ir::engine::Session>, flambeau_runtime::EngineError> {
        if !(self.1)(&graph) {
            return self.0.load(graph, constants, options);
        }
        let mut broken = Graph::clone(&graph);
        for node in broken.chains.iter_mut().flatten() {
            if let Node::Sigmoid(sigmoid) = node {
                *node = IdCopy { x: sigmoid.x, out: sigmoid.out }.into();
            }
        }
        self.0.load(Arc::new(check(broken).unwrap()), constants, options)
    }
}

fn faulty(is_broken: impl Fn(&Graph) -> bool + Send + Sync + 'static) -> Arc<dyn Engine> {
    Arc::new(Faulty(CpuEngine::new(Some(1)), is_broken))
}

#[test]
fn engines_that_agree_are_compared_at_every_node() {
    let verdict = verify::check(&program(1.0), "forward", [&engine(), &engine()], &runs(), None, &LoadOptions::default()).unwrap();
    assert!(verdict.agrees(), "{verdict:?}");
    assert_eq!((verdict.nodes, verdict.skipped.len()), (27, 0));
}

/// Two `If` nodes. Each branch uses a slot that the other branch does not set.
const BRANCHES: &str = r#"slots constants=0 inputs=1 outputs=1 buffers=0 temps=3 values=1
main 0
input t0
output t1
meta t0 f32[4,2]
meta t1 f32[4,2]
chain 0
  SymSize a=t0 dim=0 out=v0
  If cond=v0 then_chain_idx=1 else_chain_idx=2
  If cond=v0 then_chain_idx=3 else_chain_idx=4
  Add a=t3 b=t4 out=t1
chain 1
  Exp x=t0 out=t2
  Neg x=t2 out=t3
chain 2
  Neg x=t0 out=t3
chain 3
  Sin x=t0 out=t2
  Neg x=t2 out=t4
chain 4
  Neg x=t0 out=t4
"#;

#[test]
fn slots_of_single_branches_are_no_results() {
    let values = vec![planned(DType::F32, &[4, 2]), planned(DType::F32, &[4, 2])];
    let program = delegated(BRANCHES, values, 1, &[]);
    let verdict = verify::check(&program, "forward", [&engine(), &engine()], &runs(), None, &LoadOptions::default()).unwrap();
    assert!(verdict.agrees() && verdict.nodes == 12, "{verdict:?}");
}

/// Attention over a cache that the host provides.
const CACHED: &str = r#"slots constants=0 inputs=2 outputs=1 buffers=0 temps=1
main 0
input t0
input t1
output t2
meta t0 f32[1,2,1..4,4]
meta t1 i64[1]
meta t2 f32[1,2,1..4,4]
chain 0
  Sin x=t0 out=t3
  UpdateAndAttend q=t0 k=t3 v=t0 position=t1 out=t2 layer_id=0 scale=0.5
"#;

#[test]
fn caches_of_the_host_are_kept_between_runs() {
    let values = vec![dynamic(DType::F32, &[1, 2, 4, 4]), planned(DType::I64, &[1]), dynamic(DType::F32, &[1, 2, 4, 4])];
    let program = delegated(CACHED, values, 2, &[]);
    let layers = vec![KvLayer { window: None, n_kv_heads: 2, head_dim: 4 }];
    let config = KvCacheConfig { capacity: 16, layers, dtype: DType::F32, max_write: None };
    let options = LoadOptions { kv_cache: Some(config), ..LoadOptions::default() };
    // A prompt of three positions, and two steps of one.
    let step = |at: i64, count: usize| {
        let values: Vec<f32> = (0..8 * count).map(|i| (i as f32 + at as f32) / 7.0 - 1.0).collect();
        vec![floats(&values, &[1, 2, count, 4]), Tensor::from_slice(&[at], &[1]).unwrap().into()]
    };
    let runs = [step(0, 3), step(3, 1), step(4, 1)];

    let mut whole = program.method("forward", &engine(), &options).unwrap();
    let expected: Vec<Vec<Value>> = runs.iter().map(|inputs| whole.run(inputs).unwrap()).collect();
    let recording = verify::record(&program, "forward", &engine(), &runs, &options).unwrap();
    for (found, expected) in recording.outputs.iter().zip(&expected) {
        assert_eq!(crate::support::read(&found[0]), crate::support::read(&expected[0]));
    }
    let verdict = verify::check(&program, "forward", [&engine(), &engine()], &runs, None, &options).unwrap();
    assert!(verdict.agrees() && verdict.nodes == 6, "{verdict:?}");
    assert!(verify::record(&program, "forward", &engine(), &runs, &LoadOptions::default()).is_err(), "there is no cache");
}

#[test]
fn state_is_kept_between_runs() {
    let recording = verify::record(&program(1.0), "forward", &engine(), &runs(), &LoadOptions::default()).unwrap();
    let counts: Vec<f32> = recording.outputs.iter().map(|outputs| crate::support::read(&outputs[1])[0]).collect();
    assert_eq!(counts, [2.0, 3.0, 4.0]);
}

#[test]
fn a_node_that_is_wrong_alone_is_named() {
    let verdict =
        verify::check(&program(1.0), "forward", [&faulty(|_| true), &engine()], &runs(), None, &LoadOptions::default()).unwrap();
    let first = &verdict.differences[0];
    assert_eq!((first.nodes.clone(), first.node.as_str()), (2..=2, "Sigmoid x=t7 out=t6"));
    assert!(first.distance.unwrap().absolute > 0.1 && first.distance.unwrap().ulps > 1000, "{first}");
    assert_eq!(verdict.differences.len(), 3, "one for each run, and none for the nodes after it");
    assert_eq!(verdict.outputs[0].0, 0);
}

#[test]
fn nodes_that_are_wrong_together_are_named() {
    let tested =
        faulty(|graph| graph.chains.iter().flatten().filter(|n| matches!(n, Node::Sigmoid(_) | Node::Multiply(_))).count() > 1);
    let verdict = verify::check(&program(1.0), "forward", [&tested, &engine()], &runs(), None, &LoadOptions::default()).unwrap();
    assert_eq!(verdict.differences.len(), 1, "{verdict:?}");
    let found = &verdict.differences[0];
    assert_eq!((found.nodes.clone(), found.node.as_str()), (2..=3, "Multiply a=t7 b=t6 out=t7"));
}

#[test]
fn the_node_that_reads_a_changed_weight_is_named() {
    let record = |scale| verify::record(&program(scale), "forward", &engine(), &runs(), &LoadOptions::default()).unwrap();
    assert!(verify::compare(&record(1.0), &record(1.0), None).agrees());
    let verdict = verify::compare(&record(1.01), &record(1.0), None);
    let first = &verdict.differences[0];
    assert_eq!((first.nodes.clone(), &first.weights[..]), (0..=0, &["0000/up.weight".to_owned()][..]));
    assert_eq!(verdict.outputs[0].1, 0, "the count of runs is equal");
}

#[test]
fn recorded_tensors_are_compared_by_place() {
    let recording = verify::record(&program(1.0), "forward", &engine(), &runs()[..1], &LoadOptions::default()).unwrap();
    let mut tensors = recording.tensors();
    assert!(verify::compare_with_recorded(&recording, &tensors, None).agrees());
    let place = *tensors.keys().find(|place| place.1 == 3).unwrap();
    tensors.insert(place, floats(&[0.0; 12], &[4, 3]).as_tensor().unwrap().clone());
    let verdict = verify::compare_with_recorded(&recording, &tensors, None);
    assert_eq!(verdict.differences[0].nodes, 3..=3);
}

#[test]
fn random_inputs_fit_the_method_and_repeat() {
    let method = program(1.0).method("forward", &engine(), &LoadOptions::default()).unwrap();
    let draw = |seed| crate::support::read(&random_inputs(&method, seed, 8).unwrap()[0]);
    assert_eq!((draw(1).len(), draw(1) == draw(1), draw(1) == draw(2)), (8, true, false));
}
