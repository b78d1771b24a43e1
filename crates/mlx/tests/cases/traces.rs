//! Compiled runs give the results of runs node by node.

use std::{path::Path, sync::Arc};

use flambeau_ir::{
    Graph, check,
    engine::{Engine, LoadOptions, NoConstants, Session, Value},
};
use flambeau_mlx::MlxEngine;
use flambeau_tensor::{DType, Tensor, Tolerance, compare};
use flambeau_testcases::LoadedCase;

use crate::{committed_folders, installed};

/// One engine with compilation and one without.
pub(crate) fn engines() -> [MlxEngine; 2] {
    [true, false].map(installed::engine_that)
}

/// Whether two runs gave the same results up to MLX's order of summation.
fn agree(a: &[Value], b: &[Value]) -> Result<(), String> {
    let tolerance = Tolerance { relative: 1e-3, absolute: 1e-4 };
    for (a, b) in a.iter().zip(b) {
        match (a, b) {
            (Value::Tensor(a), Value::Tensor(b)) => compare(a, b, tolerance).map_err(|e| e.to_string())?,
            (Value::Int(a), Value::Int(b)) if a == b => {}
            other => return Err(format!("{other:?}")),
        }
    }
    Ok(())
}

pub(crate) fn same_again([compiling, plain]: &[MlxEngine; 2], folder: &Path) -> Result<(), String> {
    let case = LoadedCase::open(folder)?;
    let Some((graph, args)) = case.delegate_call()? else { return Ok(()) };
    let runs = |engine: &MlxEngine| -> Result<Vec<Vec<Value>>, String> {
        let (mut session, arguments) = case.load(engine, graph.clone(), &args)?;
        (0..4).map(|_| session.run(&arguments).map_err(|e| e.to_string())).collect()
    };
    match (runs(compiling), runs(plain)) {
        (Ok(a), Ok(b)) => a.iter().zip(&b).try_for_each(|(a, b)| agree(a, b)),
        (Err(a), Err(b)) if a == b => Ok(()),
        (a, b) => Err(format!("compiled {:?}, plain {:?}", a.err(), b.err())),
    }
}

pub(crate) fn cases_run_compiled() {
    let engines = engines();
    let mut cases = 0;
    for (name, folder) in committed_folders() {
        same_again(&engines, &folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        cases += 1;
    }
    let [compiling, plain] = engines;
    assert!(compiling.compiled_runs() >= cases, "{} compiled runs of {cases} cases", compiling.compiled_runs());
    assert_eq!(plain.compiled_runs(), 0);
}

/// A step of attention over a cache of 700 positions, as custom SDPA is exported: q, k, v
/// `[1, 2, 1, 8]` and the position.
const DECODE: &str = "\
slots constants=0 inputs=2 outputs=1 buffers=2 temps=5 values=4
main 0
input t0
input t1
output t2
buffer t3
buffer t4
meta t0 f32[1,2,1,8]
meta t1 i64[1]
meta t2 f32[1,2,1,8]
meta t3 f32[1,2,700,8]
meta t4 f32[1,2,700,8]
chain 0
  Take x=t1 out=t5 index=0 axis=0
  ItemInt x=t5 out=v0
  SymSize a=t0 dim=2 out=v1
  AddInt a=v0 b=v1 out=v2
  Rope x=t0 out=t6 dims=8 offset=v0 base=10000.0
  SliceUpdate dst=t3 update=t6 out=t3 axis=2 start=v0 stop=v2
  SliceUpdate dst=t4 update=t0 out=t4 axis=2 start=v0 stop=v2
  Slice x=t3 out=t7 axis=2 start=0 stop=v2
  Slice x=t4 out=t8 axis=2 start=0 stop=v2
  Contiguous x=t7 out=t9
  SymSize a=t9 dim=2 out=v3
  Sdpa q=t6 k=t9 v=t8 out=t2 scale=0.35 causal=true
";

fn decode_session(engine: &MlxEngine) -> Box<dyn Session> {
    let graph: Graph = DECODE.parse().expect("the text is a graph");
    engine
        .load(Arc::new(check(graph).expect("the graph is sound")), &NoConstants, &LoadOptions::default())
        .expect("the graph loads")
}

fn step(session: &mut Box<dyn Session>, position: i64) -> Result<Vec<Value>, String> {
    let q: Vec<f32> = (0..16).map(|i| ((i * 7 + position * 3) % 11) as f32 / 5.0 - 1.0).collect();
    let q = Tensor::from_slice(&q, &[1, 2, 1, 8]).expect("a tensor");
    let position = Tensor::from_slice(&[position], &[1]).expect("a tensor");
    assert_eq!(position.dtype(), DType::I64);
    session.run(&[Value::Tensor(q), Value::Tensor(position)]).map_err(|e| e.to_string())
}

pub(crate) fn positions_stay_open_in_compiled_runs() {
    let [compiling, plain] = engines();
    let (mut a, mut b) = (decode_session(&compiling), decode_session(&plain));
    // Every position, then back to the first. This includes the cache's last position and changes
    // of the padded length.
    for position in (0..700).chain([0, 1, 256]) {
        let same = agree(&step(&mut a, position).expect("a step"), &step(&mut b, position).expect("a step"));
        assert_eq!(same, Ok(()), "position {position}");
    }
    assert!(compiling.compiled_runs() >= 700, "{} compiled runs", compiling.compiled_runs());
    // No trace covers positions beyond the cache, where nothing is written. Existing traces stay.
    let before = compiling.compiled_runs();
    for position in [700, 5] {
        let same = agree(&step(&mut a, position).expect("a step"), &step(&mut b, position).expect("a step"));
        assert_eq!(same, Ok(()), "position {position}");
    }
    assert_eq!(compiling.compiled_runs(), before + 1);
}
