//! State of a model between steps and generations.

use std::{sync::atomic::AtomicBool, time::Duration};

use flambeau_runners::{
    Error,
    llm::{FinishReason, Model, ModelOptions, Session},
};
use flambeau_runtime::Program;
use flambeau_tensor::DType;

use crate::{
    AnyEngine, generate_with, load,
    model::{Table, bigrams, cycle, history, masked, program, running, tokenizer},
    request, run,
};

/// Whole numbers, so that every order of summation gives the same result.
const TABLE: Table = [[3.0, 8.0, 1.0, 0.0], [9.0, 2.0, 4.0, 0.0], [1.0, 3.0, 7.0, 0.0], [5.0, 5.0, 5.0, 0.0]];

/// Appends the prompt and the generated tokens to a sequence, except for the last token.
fn continued(sequence: &mut Vec<u32>, prompt: &[u32], count: usize) -> Vec<u32> {
    sequence.extend(prompt);
    let mut ids = Vec::new();
    while ids.len() < count {
        sequence.extend(ids.last());
        let sum = |column: usize| sequence.iter().map(|&token| TABLE[token as usize][column]).sum::<f32>();
        ids.push((0..4).max_by(|&a, &b| sum(a).total_cmp(&sum(b)).then(b.cmp(&a))).expect("four tokens") as u32);
    }
    ids
}

pub(crate) fn long_prompts_are_taken_in_chunks(engine: &AnyEngine) {
    let program = bigrams(&cycle(0), 100);
    assert_eq!(load(engine, &program).chunk(), 3);
    for length in 1..8 {
        let prompt: Vec<u32> = [0, 1, 2].into_iter().cycle().take(length).collect();
        let done = run(engine, &program, &request(&prompt, 2)).unwrap();
        let next = (prompt[length - 1] + 1) % 3;
        assert_eq!((done.ids, done.finish), (vec![next, (next + 1) % 3], FinishReason::Length), "a prompt of {length}");
    }
}

pub(crate) fn sequences_continue_until_they_are_reset(engine: &AnyEngine) {
    let mut model = load(engine, &history(&TABLE));
    for _ in 0..2 {
        let mut sequence = Vec::new();
        for (prompt, count) in [(&[0, 2][..], 2), (&[2][..], 3)] {
            let expected = continued(&mut sequence, prompt, count);
            let done = generate_with(&mut model, &request(prompt, count), &mut |_, _| ()).unwrap();
            assert_eq!((done.ids, done.finish), (expected, FinishReason::Length), "after {sequence:?}");
            assert_eq!(model.position(), sequence.len());
        }
        model.reset();
        assert_eq!((model.position(), model.room()), (0, Some(8)));
    }
}

pub(crate) fn prompts_must_fit_what_is_left_of_the_context(engine: &AnyEngine) {
    let program = bigrams(&cycle(0), 4);
    assert!(matches!(run(engine, &program, &request(&[], 1)), Err(Error::EmptyPrompt)));
    let error = run(engine, &program, &request(&[0; 5], 1)).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { prompt: 5, context: 4 }), "{error}");
    let mut model = load(engine, &program);
    model.step(&[0, 1]).unwrap();
    let error = generate_with(&mut model, &request(&[0; 3], 1), &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { prompt: 5, context: 4 }), "{error}");
    assert_eq!(generate_with(&mut model, &request(&[0; 2], 1), &mut |_, _| ()).unwrap().ids, [1]);
}

/// Generates two tokens after a prompt; returns the number of computed prompt tokens.
fn answer(session: &mut Session, prompt: &[u32]) -> usize {
    let done =
        session.generate(&tokenizer(), request(prompt, 2), &|| Duration::ZERO, &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert_eq!(done.ids, continued(&mut Vec::new(), prompt, 2), "after {prompt:?}");
    let expected: Vec<u32> = prompt.iter().copied().chain(done.ids.iter().copied().take(1)).collect();
    assert_eq!(session.cached().ids(), expected);
    done.stats.prompt_tokens
}

pub(crate) fn sessions_compute_what_is_new(engine: &AnyEngine) {
    let mut session = Session::new(load(engine, &masked(&TABLE)));
    assert!(session.sequence().model().can_truncate());
    assert_eq!(answer(&mut session, &[0, 2]), 2);
    let longer = [session.cached().ids(), &[2, 0]].concat();
    assert_eq!(answer(&mut session, &longer), 2);
    assert_eq!(answer(&mut session, &[0, 2, 1]), 1, "a prompt that leaves the last one after two tokens");
    assert_eq!(answer(&mut session, &[0, 2, 1]), 1, "the same prompt: its last token");
    assert_eq!(answer(&mut session, &[1]), 1);
    let too_long = session.generate(&tokenizer(), request(&[1; 9], 2), &|| Duration::ZERO, &AtomicBool::new(false), &mut |_| ());
    assert!(matches!(too_long, Err(Error::PromptTooLong { prompt: 9, context: 8 })));
    assert_eq!(answer(&mut session, &[1, 0]), 1);
}

pub(crate) fn sequences_are_shortened_where_caches_keep_rows(engine: &AnyEngine) {
    let mut model = load(engine, &masked(&TABLE));
    model.step(&[0, 1, 2]).unwrap();
    assert_eq!((model.truncate(5), model.truncate(2), model.position()), (3, 2, 2));
    assert_eq!(model.step(&[3]).unwrap(), [17.0, 15.0, 10.0, 0.0]);
    assert_eq!((model.truncate(0), model.room()), (0, Some(8)));
}

pub(crate) fn sequences_begin_anew_where_state_is_that_of_the_last_token(engine: &AnyEngine) {
    let mut model = load(engine, &running(&TABLE));
    assert!(!model.model().can_truncate());
    model.step(&[0]).unwrap();
    model.step(&[1]).unwrap();
    assert_eq!((model.truncate(2), model.truncate(1)), (2, 0));
    assert_eq!(model.step(&[2]).unwrap(), TABLE[2]);
    let mut session = Session::new(model);
    assert_eq!(answer(&mut session, &[0, 2]), 2);
    let longer = [session.cached().ids(), &[2, 0]].concat();
    assert_eq!((answer(&mut session, &longer), answer(&mut session, &[0, 2, 1])), (2, 3));
}

pub(crate) fn programs_that_are_no_language_models_are_refused(engine: &AnyEngine) {
    let copies = |dtype: &str| {
        format!(
            "slots constants=0 inputs=2 outputs=1 buffers=0 temps=0 values=0\nmain 0\ninput t0\ninput t1\noutput t2\n\
             meta t0 {dtype}[1,1]\nmeta t1 i64[1]\nmeta t2 {dtype}[1,1]\nchain 0\n  IdCopy x=t0 out=t2\n"
        )
    };
    let program = |name: &str, dtype| {
        let values: [(DType, &[u32]); 3] = [(dtype, &[1, 1]), (DType::I64, &[1]), (dtype, &[1, 1])];
        program(&copies(name), &values, &TABLE, 4)
    };
    let load = |program: &Program, options: &ModelOptions| Model::load(program, engine, options).map(drop).unwrap_err();
    assert!(matches!(load(&program("f32", DType::F32), &ModelOptions::default()), Error::Signature { .. }));
    let named = ModelOptions { method: Some("backward".into()), ..ModelOptions::default() };
    assert!(load(&program("i64", DType::I64), &named).to_string().contains("backward"));
    // Returned tokens are not logits.
    let error = run(engine, &program("i64", DType::I64), &request(&[0], 1)).unwrap_err();
    assert!(matches!(error, Error::Logits { .. }), "{error}");
}

pub(crate) fn the_clock_is_read_where_the_figures_say(engine: &AnyEngine) {
    let done = run(engine, &bigrams(&cycle(0), 100), &request(&[0; 6], 5)).unwrap();
    let pipelined = load(engine, &bigrams(&cycle(0), 100)).can_pipeline();
    // One second per reading: after the prompt, at the first token, at the end. If the engine
    // samples, the prompt ends with the first token.
    let seconds = Duration::from_secs;
    assert_eq!(done.stats.prefill, seconds(if pipelined { 2 } else { 1 }));
    assert_eq!((done.stats.first_token, done.stats.decode), (Some(seconds(2)), seconds(1)));
    assert_eq!(done.stats.prefill_rate(), Some(if pipelined { 3.0 } else { 6.0 }));
    assert_eq!(done.stats.decode_rate(), Some(4.0));
}

/// Another sequence continues from a snapshot as the first one does.
pub(crate) fn copies_hold_what_a_sequence_holds(engine: &AnyEngine) {
    for (program, can_go_back) in [(masked(&TABLE), true), (running(&TABLE), false)] {
        let model = Model::load(&program, engine, &ModelOptions::default()).unwrap();
        assert_eq!((model.can_truncate(), model.can_snapshot()), (can_go_back, true));
        let (mut first, mut second) = (model.sequence().unwrap(), model.sequence().unwrap());
        for token in [0, 2, 1] {
            first.step(&[token]).unwrap();
        }
        let Some(copy) = first.snapshot(3).unwrap() else {
            assert_ne!(engine.name(), "cpu", "the CPU engine hands its state out");
            return;
        };
        assert!(copy.position() == 3 && copy.bytes() > 0);
        assert_eq!(first.snapshot(2).unwrap().is_some(), can_go_back);
        assert!(first.snapshot(4).unwrap().is_none());
        second.step(&[2, 2][..second.chunk().min(2)]).unwrap();
        assert_eq!((second.restore(&copy, 3).unwrap(), second.position()), (3, 3));
        assert_eq!(second.step(&[0]).unwrap(), first.step(&[0]).unwrap());
        // Restores only a part of it.
        assert_eq!(second.restore(&copy, 2).unwrap(), if can_go_back { 2 } else { 0 });
        let mut expected = model.sequence().unwrap();
        for token in [0, 2].into_iter().filter(|_| can_go_back) {
            expected.step(&[token]).unwrap();
        }
        assert_eq!(second.step(&[1]).unwrap(), expected.step(&[1]).unwrap());
        // A snapshot of another model is refused and leaves the sequence empty.
        let other = Model::load(&bigrams(&cycle(0), 100), engine, &ModelOptions::default()).unwrap();
        assert!(other.sequence().unwrap().restore(&copy, 3).is_err());
    }
}
