//! Sessions that run at once.

use std::{any::Any, cell::RefCell, collections::BTreeMap};

use flambeau_ir::engine::{Engine, EngineError, LoadOptions, Outcome, Run, SharedState};

use super::*;

/// Constants shared by all sessions, like the constants of one program.
struct SharedConstants<'a> {
    noise: Noise<'a>,
    known: RefCell<BTreeMap<String, Bytes>>,
}

impl Constants for SharedConstants<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        if let Some(known) = self.known.borrow().get(key) {
            return Some(known.clone());
        }
        let bytes = self.noise.get(key)?;
        self.known.borrow_mut().insert(key.to_owned(), bytes.clone());
        Some(bytes)
    }
}

fn sessions(engine: &CpuEngine, graph: &Graph, count: usize) -> Vec<CpuSession> {
    sessions_of(engine, graph, &vec![LoadOptions::default(); count])
}

fn sessions_of(engine: &CpuEngine, graph: &Graph, options: &[LoadOptions]) -> Vec<CpuSession> {
    let checked = Arc::new(check(graph.clone()).expect("the graph is sound"));
    let constants = SharedConstants { noise: Noise(graph), known: RefCell::default() };
    let load = |options| engine.session(Arc::clone(&checked), &constants, options).expect("it loads");
    options.iter().map(load).collect()
}

fn run_batch(engine: &CpuEngine, sessions: &mut [CpuSession], inputs: &[Vec<Value>]) -> Vec<Outcome> {
    let runs = sessions.iter_mut().zip(inputs).map(|(session, inputs)| Run { session, inputs });
    engine.run_last_of_each(&mut runs.collect::<Vec<_>>())
}

fn bytes(outcome: Outcome) -> Vec<u8> {
    only(outcome.expect("no panic").expect("the run goes well")).bytes().to_vec()
}

fn error(outcome: &Outcome) -> &EngineError {
    outcome.as_ref().expect("no panic").as_ref().expect_err("the run fails")
}

#[test]
fn sessions_have_the_bits_that_they_have_alone() {
    for (threads, dtype) in [(1, "f32"), (2, "bf16"), (3, "f16"), (16, "bf16")] {
        let (engine, graph) = (CpuEngine::new(Some(threads)), graph(DECODER, dtype));
        for count in 1..=10 {
            let mut all = sessions(&engine, &graph, 2 * count);
            let (alone, beside) = all.split_at_mut(count);
            // Prompts of different lengths, so that sessions are at different positions.
            for (i, session) in alone.iter_mut().chain(&mut *beside).enumerate() {
                session.run(&tokens(0, 1 + i % count)).expect("the prompt is read");
            }
            for step in 0..3 {
                let inputs: Vec<Vec<Value>> = (0..count).map(|i| tokens(1 + i % count + step, 1)).collect();
                let found: Vec<_> = run_batch(&engine, beside, &inputs).into_iter().map(bytes).collect();
                let expected: Vec<_> = alone.iter_mut().zip(&inputs).map(|(s, inputs)| bytes(Ok(s.run_last(inputs)))).collect();
                assert!(found == expected, "{dtype}, {threads} threads, {count} sessions, step {step}");
            }
        }
    }
}

#[test]
fn steps_of_other_sizes_go_their_own_way() {
    let (engine, graph) = (CpuEngine::new(Some(2)), graph(DECODER, "f32"));
    let mut all = sessions(&engine, &graph, 12);
    let (alone, beside) = all.split_at_mut(6);
    let inputs: Vec<Vec<Value>> = [1, 2, 1, 9, 2, 1].map(|count| tokens(3, count)).to_vec();
    let found: Vec<_> = run_batch(&engine, beside, &inputs).into_iter().map(bytes).collect();
    let expected: Vec<_> = alone.iter_mut().zip(&inputs).map(|(s, inputs)| bytes(Ok(s.run_last(inputs)))).collect();
    assert_eq!(found, expected);
}

#[test]
fn nodes_that_wait_for_their_turn_wait_for_nobody_else() {
    // One thread per session runs the sessions independently; more threads share the long steps.
    for threads in [2, 5] {
        let (engine, graph) = (CpuEngine::new(Some(threads)), graph(BRANCHES, "f32"));
        let mut all = sessions(&engine, &graph, 4);
        let (alone, beside) = all.split_at_mut(2);
        for (step, branch) in [(1.0, 1), (2.0, 0), (3.0, 0), (4.0, 1)] {
            let inputs = [four(step, branch), four(-step, 1 - branch)];
            let found: Vec<_> = run_batch(&engine, beside, &inputs).into_iter().map(bytes).collect();
            let expected: Vec<_> = alone.iter_mut().zip(&inputs).map(|(s, inputs)| bytes(Ok(s.run(inputs)))).collect();
            assert_eq!(found, expected, "{threads} threads, step {step}");
        }
    }
}

#[test]
fn sessions_share_buffers_with_others_and_take_turns_among_themselves() {
    let (engine, graph) = (CpuEngine::new(Some(2)), graph(DECODER, "f32"));
    // The first and the last write to the same caches.
    let options = || {
        let states: Vec<LoadOptions> =
            (0..3).map(|_| LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() }).collect();
        [0, 1, 2, 0].map(|state| states[state].clone())
    };
    let (mut alone, mut beside) = (sessions_of(&engine, &graph, &options()), sessions_of(&engine, &graph, &options()));
    for step in 0..4 {
        // Tokens 2 and 3 of the one text are read in the same round.
        let places = [2 * step, step, step, 2 * step + 1];
        let inputs = places.map(|place| tokens(place, 1)).to_vec();
        let found: Vec<_> = run_batch(&engine, &mut beside, &inputs).into_iter().map(bytes).collect();
        let expected: Vec<_> = alone.iter_mut().zip(&inputs).map(|(s, inputs)| bytes(Ok(s.run_last(inputs)))).collect();
        assert_eq!(found, expected, "step {step}");
    }
}

#[test]
fn a_session_that_fails_leaves_the_others() {
    for threads in [1, 2, 8] {
        let (engine, graph) = (CpuEngine::new(Some(threads)), graph(DECODER, "bf16"));
        let mut all = sessions(&engine, &graph, 5);
        let good = tokens(0, 1);
        let id = |id: i64| vec![Value::Tensor(Tensor::from_slice(&[id], &[1, 1]).expect("one token")), good[1].clone()];
        // A token outside the table, a position outside the caches, and a missing input.
        let inputs = vec![good.clone(), id(96), tokens(16, 1), good[..1].to_vec(), good.clone()];
        for _ in 0..2 {
            let outcomes = run_batch(&engine, &mut all, &inputs);
            assert!(error(&outcomes[1]).to_string().contains("(Take)"), "{}", error(&outcomes[1]));
            assert!(error(&outcomes[2]).to_string().contains("chain 0"), "{}", error(&outcomes[2]));
            assert!(error(&outcomes[3]).to_string().contains("expected 2 inputs"), "{}", error(&outcomes[3]));
            let [first, .., last] = outcomes.try_into().map(|five: [Outcome; 5]| five.map(|o| o.map(Result::ok))).expect("five");
            let [first, last] = [first, last].map(|o| only(o.expect("no panic").expect("it goes well")).bytes().to_vec());
            assert_eq!(first, last);
        }
        // Failed sessions can be used again.
        let again: Vec<_> = run_batch(&engine, &mut all, &vec![good.clone(); 5]).into_iter().map(bytes).collect();
        assert!(again.iter().all(|found| *found == again[0]), "{threads} threads");
    }
}

#[test]
fn a_session_that_panics_leaves_the_others() {
    let (engine, graph) = (CpuEngine::new(Some(2)), graph(DECODER, "f32"));
    let mut all = sessions(&engine, &graph, 3);
    let inputs = vec![tokens(0, 1); 3];
    let expected: Vec<_> = run_batch(&engine, &mut all, &inputs).into_iter().map(bytes).collect();
    // Something is wrong inside one of them.
    all[1].ongoing().expect("it has a plan").0.scratch.clear();
    let mut outcomes = run_batch(&engine, &mut all, &inputs);
    let payload: Box<dyn Any + Send> = outcomes.remove(1).expect_err("it panics");
    assert!(payload.downcast_ref::<String>().is_some_and(|what| what.contains("out of bounds")));
    assert_eq!(outcomes.into_iter().map(bytes).collect::<Vec<_>>(), [&expected[0][..], &expected[2]]);
}

#[test]
fn weights_are_read_once_for_all() {
    let (engine, graph) = (CpuEngine::new(Some(1)).with_profile(Some(clock())), graph(DECODER, "bf16"));
    let mut all = sessions(&engine, &graph, 4);
    for outcome in run_batch(&engine, &mut all, &vec![tokens(0, 1); 4]) {
        outcome.expect("no panic").expect("it goes well");
    }
    let products = |session: &mut CpuSession| session.take_spans().iter().filter(|span| span.flops > 0).count();
    let counts: Vec<usize> = all.iter_mut().map(products).collect();
    // The first session counts the joint layers: q with k and v, two residual layers, the gated
    // layer, and the logits. Attention runs per session.
    assert_eq!(counts, [6, 1, 1, 1]);
}

fn clock() -> flambeau_ir::engine::Clock {
    flambeau_ir::engine::Clock::new(|| std::time::Duration::ZERO)
}
