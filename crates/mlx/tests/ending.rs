//! Dropping engines while MLX has work. Failures show only at process exit, so the tests start
//! processes.

use std::{
    env,
    process::{Command, ExitCode},
    sync::Arc,
};

use flambeau_ir::{
    Graph, check,
    engine::{Constants, DecodeStep, Engine, LoadOptions, Sampling, Session, SharedState, Value},
};
use flambeau_mlx::MlxEngine;
use flambeau_tensor::{Bytes, Tensor};
use flambeau_testcases::functions;

#[path = "support/mod.rs"]
mod installed;

/// Zeros for every name.
struct Zeros;

impl Constants for Zeros {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some(vec![0; 16].into())
    }
}

fn load(engine: &MlxEngine, graph: &str, shared: SharedState) -> Box<dyn Session> {
    let graph = check(graph.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound");
    let options = LoadOptions { shared: Some(shared), ..LoadOptions::default() };
    engine.load(Arc::new(graph), &Zeros, &options).expect("the graph loads")
}

/// So many constants and buffers `[4]` that dropping them takes long, and a result that needs none
/// of them.
fn wide() -> String {
    const N: u32 = 2000;
    let (input, output) = (N, N + 1);
    let mut text =
        format!("slots constants={N} inputs=1 outputs=1 buffers={N} temps=0 values=0\nmain 0\ninput t{input}\noutput t{output}\n");
    let (constants, buffers) = (0..N, N + 2..2 * N + 2);
    buffers.clone().for_each(|t| text += &format!("buffer t{t}\n"));
    constants.chain(buffers).for_each(|t| text += &format!("name t{t} \"c{t}\"\n"));
    (0..2 * N + 2).for_each(|t| text += &format!("meta t{t} f32[4]\n"));
    text + &format!("chain 0\n  IdCopy x=t{input} out=t{output}\n")
}

/// Slow logits `[1, 64]`: products of temporaries `[600, 600]` filled with the input's one element.
const LONG: &str = "slots constants=0 inputs=1 outputs=1 buffers=0 temps=4 values=0
main 0
input t0
output t1
meta t0 f32[1,1]
meta t1 f32[1,64]
chain 0
  BroadcastTo x=t0 out=t2 shape=[600,600]
  Addmm mat1=t2 mat2=t2 out=t3
  Addmm mat1=t3 mat2=t2 out=t4
  Slice x=t4 out=t5 axis=0 start=0 stop=1 step=1
  Slice x=t5 out=t1 axis=1 start=0 stop=64 step=1
";

fn what_sessions_share_goes_after_their_engine() {
    let engine = installed::engine();
    let shared = SharedState::default();
    let graph = wide();
    let sessions: Vec<_> = (0..4).map(|_| load(&engine, &graph, shared.clone())).collect();
    drop((shared, engine, sessions));
}

fn submitted_runs_are_never_received() {
    let engine = installed::engine();
    let mut session = load(&engine, LONG, SharedState::default());
    let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
    for _ in 0..8 {
        let inputs = vec![Value::Tensor(Tensor::from_slice(&[1.0f32], &[1, 1]).expect("one element"))];
        session.pipelined().expect("the session pipelines").submit(DecodeStep { inputs, feedback: None, logits: 0, sampling });
    }
}

/// Runs one test of this file again and again, in a process of its own.
fn check_ends_well(test: &str) {
    let this = env::current_exe().expect("the test's own file");
    for _ in 0..6 {
        let out = Command::new(&this).args(["--exact", test]).output().expect("the process starts");
        assert!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"), "`{test}` is no test");
    }
}

fn a_process_ends_well_while_sessions_are_dropped() {
    check_ends_well("what_sessions_share_goes_after_their_engine");
}

fn a_process_ends_well_while_mlx_computes() {
    check_ends_well("submitted_runs_are_never_received");
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        what_sessions_share_goes_after_their_engine,
        submitted_runs_are_never_received,
        a_process_ends_well_while_sessions_are_dropped,
        a_process_ends_well_while_mlx_computes,
    ])
}
