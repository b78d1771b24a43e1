//! Runs that are submitted before the token of the one before is read.

use std::{process::ExitCode, sync::Arc, thread, time::Duration};

use flambeau_ir::{
    Graph, check,
    engine::{Constants, DecodeStep, Engine, LoadOptions, Sampling, Session, Value},
};
use flambeau_mlx::MlxEngine;
use flambeau_tensor::{Bytes, Tensor};
use flambeau_testcases::{functions, history};
use flambeau_text::{Rng, Sampler, SamplingParams};

#[path = "support/mod.rs"]
mod installed;

use installed::alone;

const VOCAB: usize = 50;

/// Logits go in and out.
const LOGITS: &str = r#"slots constants=0 inputs=1 outputs=1 buffers=0 temps=0 values=0
main 0
input t0
output t1
meta t0 f32[1,2,50]
meta t1 f32[1,2,50]
chain 0
  IdCopy x=t0 out=t1
"#;

struct Table(Vec<f32>);

impl Table {
    fn new() -> Table {
        let mut rng = Rng::new(3);
        Table((0..VOCAB * VOCAB).map(|_| rng.next_unit() as f32).collect())
    }
}

impl Constants for Table {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some(self.0.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into())
    }
}

fn load(engine: &MlxEngine, graph: &str) -> Box<dyn Session> {
    let graph = check(graph.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound");
    engine.load(Arc::new(graph), &Table::new(), &LoadOptions::default()).expect("the graph loads")
}

fn step(token: i64, position: i64) -> Vec<Value> {
    let tensor = |v: i64, shape: &[usize]| Value::Tensor(Tensor::from_slice(&[v], shape).expect("one element"));
    vec![tensor(token, &[1, 1]), tensor(position, &[1])]
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };

fn submit(session: &mut Box<dyn Session>, inputs: Vec<Value>, feedback: Option<usize>) {
    session.pipelined().expect("the session pipelines").submit(DecodeStep { inputs, feedback, logits: 0, sampling: GREEDY });
}

fn receive(session: &mut Box<dyn Session>) -> Result<u32, String> {
    session.pipelined().expect("the session pipelines").receive().map_err(|e| e.to_string())
}

/// The tokens of the table, one after the other.
fn expected(first: usize, count: usize) -> Vec<u32> {
    let (table, mut sums, mut token) = (Table::new().0, [0.0f32; VOCAB], first);
    let next = |_| {
        for (sum, v) in sums.iter_mut().zip(&table[token * VOCAB..]) {
            *sum += v;
        }
        token = (0..VOCAB).max_by(|&a, &b| sums[a].total_cmp(&sums[b])).expect("a vocabulary");
        token as u32
    };
    (0..count).map(next).collect()
}

fn tokens_feed_the_runs_behind_them() {
    let _turn = alone();
    for compiles in [false, true] {
        let engine = installed::engine_that(compiles);
        let mut session = load(&engine, &history(VOCAB));
        for _ in 0..2 {
            let mut tokens = Vec::new();
            submit(&mut session, step(7, 0), None);
            for position in 1..8 {
                // The step takes the previous token instead of the one named here.
                submit(&mut session, step(0, position), Some(0));
                tokens.push(receive(&mut session).unwrap());
            }
            tokens.push(receive(&mut session).unwrap());
            assert_eq!(tokens, expected(7, 8), "compiled: {compiles}");
            session.reset();
        }
        assert_eq!(engine.compiled_runs() > 0, compiles);
        drop(session);
        assert_eq!(engine.live_arrays(), 0);
    }
}

fn runs_that_nobody_receives_are_taken_back() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut session = load(&engine, &history(VOCAB));
    submit(&mut session, step(7, 0), None);
    submit(&mut session, step(0, 1), Some(0));
    let first = receive(&mut session).unwrap();
    session.pipelined().expect("the session pipelines").cancel();
    assert!(receive(&mut session).unwrap_err().contains("no step is in flight"));
    submit(&mut session, step(first.into(), 1), None);
    assert_eq!(vec![first, receive(&mut session).unwrap()], expected(7, 2));
}

fn sessions_that_go_with_runs_in_flight_leave_nothing() {
    let (_turn, engine) = (alone(), installed::engine());
    for resets in [false, true] {
        let mut session = load(&engine, &history(VOCAB));
        submit(&mut session, step(7, 0), None);
        (1..8).for_each(|position| submit(&mut session, step(0, position), Some(0)));
        if resets {
            session.reset();
            submit(&mut session, step(7, 0), None);
            assert_eq!(receive(&mut session).unwrap(), expected(7, 1)[0]);
        }
        drop(session);
        assert_eq!(engine.live_arrays(), 0);
        // MLX's own thread holds the memory of its arrays until it finishes.
        let is_free = || {
            engine.memory().active == 0 || {
                thread::sleep(Duration::from_millis(1));
                false
            }
        };
        assert!((0..10_000).any(|_| is_free()), "{} bytes are held", engine.memory().active);
    }
}

/// The table in one place, which sessions share.
struct Shared(Bytes);

impl Constants for Shared {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some(self.0.clone())
    }
}

/// Sessions behind first tokens of their own, each with a step in flight.
fn begun(engine: &MlxEngine, count: usize) -> Vec<Box<dyn Session>> {
    let graph = Arc::new(check(history(VOCAB).parse::<Graph>().expect("the text is a graph")).expect("the graph is sound"));
    let (table, options) = (Shared(Table::new().get("table").expect("it has bytes")), LoadOptions::default());
    let mut sessions: Vec<_> =
        (0..count).map(|_| engine.load(Arc::clone(&graph), &table, &options).expect("the graph loads")).collect();
    for (first, session) in sessions.iter_mut().enumerate() {
        submit(session, step(first as i64, 0), None);
    }
    sessions
}

fn sessions_that_decode_side_by_side_take_their_steps_together() {
    let _turn = alone();
    for compiles in [false, true] {
        let engine = installed::engine_that(compiles);
        let mut sessions = begun(&engine, 4);
        let mut tokens = vec![Vec::new(); 4];
        for position in 1..8 {
            for (session, tokens) in sessions.iter_mut().zip(&mut tokens) {
                submit(session, step(0, position), Some(0));
                tokens.push(receive(session).unwrap());
            }
        }
        for (session, tokens) in sessions.iter_mut().zip(&mut tokens) {
            tokens.push(receive(session).unwrap());
        }
        for (first, tokens) in tokens.iter().enumerate() {
            assert_eq!(*tokens, expected(first, 8), "session {first}, compiled: {compiles}");
        }
        assert!(engine.joined_runs() >= 6, "{} runs of several sessions", engine.joined_runs());
        drop(sessions);
        assert_eq!(engine.live_arrays(), 0);
    }
}

fn sessions_come_and_go_beside_others() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut sessions = begun(&engine, 4);
    let firsts: Vec<u32> = sessions.iter_mut().map(|session| receive(session).unwrap()).collect();
    for (session, &token) in sessions.iter_mut().zip(&firsts) {
        submit(session, step(token.into(), 1), None);
        submit(session, step(0, 2), Some(0));
    }
    // One session takes its steps back and continues differently, one ends while its step waits,
    // one submits an invalid step.
    sessions[1].pipelined().expect("the session pipelines").cancel();
    submit(&mut sessions[1], step(firsts[1].into(), 1), None);
    drop(sessions.remove(3));
    submit(&mut sessions[2], step(0, 3)[..1].to_vec(), None);
    let mut found: Vec<Vec<u32>> = firsts.iter().map(|&token| vec![token]).collect();
    for (i, count) in [(0, 2), (1, 1), (2, 2)] {
        (0..count).for_each(|_| found[i].push(receive(&mut sessions[i]).unwrap()));
    }
    assert!(receive(&mut sessions[2]).unwrap_err().contains("expected 2 inputs"));
    for (i, count) in [(0, 3), (1, 2), (2, 3), (3, 1)] {
        assert_eq!(found[i], expected(i, count), "session {i}");
    }
    sessions[0].reset();
    submit(&mut sessions[0], step(7, 0), None);
    assert_eq!(receive(&mut sessions[0]).unwrap(), expected(7, 1)[0]);
    assert!(engine.joined_runs() > 0);
    drop(sessions);
    assert_eq!(engine.live_arrays(), 0);
}

fn failures_reach_who_receives() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut session = load(&engine, &history(VOCAB));
    submit(&mut session, step(7, 0), Some(0));
    submit(&mut session, step(7, 0)[..1].to_vec(), None);
    submit(&mut session, step(7, 0), None);
    assert!(receive(&mut session).unwrap_err().contains("there is no previous step"));
    assert!(receive(&mut session).unwrap_err().contains("expected 2 inputs"));
    assert_eq!(receive(&mut session).unwrap(), expected(7, 1)[0]);
    let mut logits = load(&engine, LOGITS);
    submit(&mut logits, vec![Value::Tensor(Tensor::from_slice(&[f32::NAN; 2 * VOCAB], &[1, 2, VOCAB]).unwrap())], None);
    assert!(receive(&mut logits).unwrap_err().contains("no logit"));
}

fn tokens_are_drawn_as_the_sampler_draws_them() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut session = load(&engine, LOGITS);
    let mut rng = Rng::new(11);
    let base = SamplingParams::default();
    for (case, params) in [
        base.clone(),
        SamplingParams { temperature: 1.0, ..base.clone() },
        SamplingParams { temperature: 0.3, top_k: 5, ..base.clone() },
        SamplingParams { temperature: 1.5, top_k: 1000, ..base.clone() },
        SamplingParams { temperature: 2.0, top_p: 0.7, ..base.clone() },
        SamplingParams { temperature: 1.0, min_p: 0.2, ..base.clone() },
        SamplingParams { temperature: 1.2, top_k: 20, top_p: 0.9, min_p: 0.05, ..base.clone() },
        SamplingParams { temperature: 0.7, top_k: 1, ..base },
    ]
    .into_iter()
    .enumerate()
    {
        let mut sampler = Sampler::new(params.clone()).unwrap();
        for round in 0..40 {
            let mut logits: Vec<f32> = (0..2 * VOCAB).map(|_| (rng.next_unit() * 8.0 - 4.0) as f32).collect();
            (logits[VOCAB + 3], logits[VOCAB + 4]) = (f32::NAN, f32::NEG_INFINITY);
            if round % 10 == 9 {
                logits[VOCAB + 30] = f32::INFINITY;
            }
            let uniform = sampler.clone().next_uniform().expect("no penalty");
            let SamplingParams { temperature, top_k, top_p, min_p, .. } = params;
            let inputs = vec![Value::Tensor(Tensor::from_slice(&logits, &[1, 2, VOCAB]).unwrap())];
            let sampling = Sampling { temperature, top_k, top_p, min_p, uniform };
            session.pipelined().unwrap().submit(DecodeStep { inputs, feedback: None, logits: 0, sampling });
            let expected = sampler.sample(&logits[VOCAB..], &[]).unwrap();
            assert_eq!(receive(&mut session).unwrap(), expected, "case {case}, round {round}");
        }
    }
}

/// The table's program with a running sum of the previous rows as carried state.
fn carrying() -> String {
    history(VOCAB).replace("IndexCopy dst=t4 update=t6 indices=t2 out=t4 axis=0", "Add a=t4 b=t6 out=t4")
}

fn a_state_that_every_run_carries_on_is_taken_back() {
    let (_turn, engine) = (alone(), installed::engine());
    let run = |taken_back: usize| {
        let mut session = load(&engine, &carrying());
        let mut tokens = Vec::new();
        submit(&mut session, step(7, 0), None);
        for position in 1..4 {
            (0..taken_back).for_each(|ahead| submit(&mut session, step(0, position + ahead as i64), Some(0)));
            let token = receive(&mut session).unwrap();
            session.pipelined().expect("the session pipelines").cancel();
            submit(&mut session, step(token.into(), position), None);
            tokens.push(token);
        }
        tokens
    };
    let expected = run(0);
    assert_eq!([run(1), run(2)], [expected.clone(), expected]);
}

fn draws_without_a_seed_forbid_pipelining() {
    let (_turn, engine) = (alone(), installed::engine());
    let draws = LOGITS.replace("temps=0", "temps=1").replace("  IdCopy", "  RandomBits shape=[4] width=4 out=t2\n  IdCopy");
    assert!(load(&engine, &draws).pipelined().is_none());
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        tokens_feed_the_runs_behind_them,
        runs_that_nobody_receives_are_taken_back,
        sessions_that_go_with_runs_in_flight_leave_nothing,
        sessions_that_decode_side_by_side_take_their_steps_together,
        sessions_come_and_go_beside_others,
        failures_reach_who_receives,
        tokens_are_drawn_as_the_sampler_draws_them,
        a_state_that_every_run_carries_on_is_taken_back,
        draws_without_a_seed_forbid_pipelining,
    ])
}
