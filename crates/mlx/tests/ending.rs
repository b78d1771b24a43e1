//! Drops engines while MLX has work: many times in one process, and at the exit of separate
//! processes. `scripts/check_unsafe.sh mlx` runs this file under AddressSanitizer.

use std::{
    env, fs,
    process::{Command, ExitCode},
    sync::Arc,
    thread,
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

use installed::alone;

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

/// A graph with thousands of constants and buffers `[4]`, which take long to drop. Its result does
/// not depend on them.
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

/// The running total `[4]` of the inputs, in a buffer and as the result.
const TOTAL: &str = r#"slots constants=1 inputs=1 outputs=1 buffers=1 temps=1 values=0
main 0
input t1
output t2
buffer t3
name t0 "zeros"
name t3 "total"
meta t0 f32[4]
meta t1 f32[4]
meta t2 f32[4]
meta t3 f32[4]
chain 0
  Add a=t1 b=t0 out=t4
  Add a=t3 b=t4 out=t3
  IdCopy x=t3 out=t2
"#;

/// Slow logits `[1, 64]`: products of temporaries `[size, size]`, filled with the input's one
/// element.
fn long(size: usize) -> String {
    format!(
        "slots constants=0 inputs=1 outputs=1 buffers=0 temps=4 values=0
main 0
input t0
output t1
meta t0 f32[1,1]
meta t1 f32[1,64]
chain 0
  BroadcastTo x=t0 out=t2 shape=[{size},{size}]
  Addmm mat1=t2 mat2=t2 out=t3
  Addmm mat1=t3 mat2=t2 out=t4
  Slice x=t4 out=t5 axis=0 start=0 stop=1 step=1
  Slice x=t5 out=t1 axis=1 start=0 stop=64 step=1
"
    )
}

fn what_sessions_share_goes_after_their_engine() {
    let (_turn, engine) = (alone(), installed::engine());
    let shared = SharedState::default();
    let graph = wide();
    let sessions: Vec<_> = (0..4).map(|_| load(&engine, &graph, shared.clone())).collect();
    drop((shared, engine, sessions));
}

/// Adds ones to the total of [`TOTAL`], and returns it.
fn add(session: &mut dyn Session) -> Vec<f32> {
    let ones = Tensor::from_slice(&[1.0f32; 4], &[4]).expect("four elements");
    match &session.run(&[Value::Tensor(ones)]).expect("the graph runs")[..] {
        [Value::Tensor(total)] => total.as_slice::<f32>().expect("f32 elements").to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Submits so many steps of [`long`] without waiting.
fn submit(session: &mut dyn Session, steps: usize) {
    let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
    for _ in 0..steps {
        let inputs = vec![Value::Tensor(Tensor::from_slice(&[1.0f32], &[1, 1]).expect("one element"))];
        session.pipelined().expect("the session pipelines").submit(DecodeStep { inputs, feedback: None, logits: 0, sampling });
    }
}

fn submitted_runs_are_never_received() {
    let (_turn, engine) = (alone(), installed::engine());
    submit(&mut *load(&engine, &long(600), SharedState::default()), 8);
}

/// Opens an engine, runs and submits work, and drops everything. Three bits of the round's number
/// select compiled runs, the order of drops, and a second thread that drops sessions.
fn open_and_drop(round: usize) {
    let engine = installed::engine_that(round & 1 != 0);
    let shared = SharedState::default();
    let mut sessions: Vec<_> = (0..2).map(|_| load(&engine, TOTAL, shared.clone())).collect();
    for run in 0..6 {
        assert_eq!(add(&mut *sessions[run % 2]), [run as f32 + 1.0; 4], "round {round}");
    }
    let mut busy = load(&engine, &long(160), SharedState::default());
    submit(&mut *busy, 2);
    match (round & 2 != 0, round & 4 != 0) {
        (false, false) => drop((engine, shared, sessions, busy)),
        (true, false) => {
            drop((busy, sessions, shared));
            assert_eq!(engine.live_arrays(), 0, "round {round}");
        }
        (engine_first, true) => {
            let dropping = thread::spawn(move || drop((sessions, busy)));
            if engine_first {
                drop((engine, shared));
            } else {
                drop((shared, engine));
            }
            dropping.join().expect("dropping does not panic");
        }
    }
}

/// Threads of this process; 0 where the system does not list them.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn engines_come_and_go() {
    let _turn = alone();
    let before = threads();
    (0..200).for_each(open_and_drop);
    let after = threads();
    assert!(after < before + 100, "{before} threads became {after}");
}

fn few_engines_come_and_go() {
    let _turn = alone();
    (0..8).step_by(3).for_each(open_and_drop);
}

/// Runs one test of this file in so many processes, one after the other.
fn check_ends_well(test: &str, processes: usize) {
    let this = env::current_exe().expect("the test's own file");
    for _ in 0..processes {
        let out = Command::new(&this).args(["--exact", test]).output().expect("the process starts");
        assert!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"), "`{test}` is no test");
    }
}

fn a_process_ends_well_while_sessions_are_dropped() {
    check_ends_well("what_sessions_share_goes_after_their_engine", 6);
}

fn a_process_ends_well_while_mlx_computes() {
    check_ends_well("submitted_runs_are_never_received", 6);
}

fn a_process_ends_well_after_its_engines() {
    check_ends_well("few_engines_come_and_go", 20);
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        what_sessions_share_goes_after_their_engine,
        submitted_runs_are_never_received,
        engines_come_and_go,
        few_engines_come_and_go,
        a_process_ends_well_while_sessions_are_dropped,
        a_process_ends_well_while_mlx_computes,
        a_process_ends_well_after_its_engines,
    ])
}
