//! Speculative decoding with a draft model.

use std::{sync::atomic::AtomicBool, time::Duration};

use flambeau_runners::{
    Error,
    llm::{Generation, Model, ModelOptions, Request, Session, generate},
};
use flambeau_runtime::Program;
use flambeau_text::SamplingParams;

use crate::{
    AnyEngine,
    model::{Table, bigrams, cycle, each, running, tokenizer},
    request,
};

/// The logits depend on the whole text, so a rejected token left in the caches would change it.
const TABLE: Table = [[0.0, 0.5, 1.0, 0.2], [1.0, 0.0, 0.3, 0.9], [0.4, 0.8, 0.1, 0.6], [0.7, 0.2, 0.9, 0.0]];

/// A draft model that predicts other tokens with high confidence.
const OTHER: Table = [[9.0, 0.0, 0.0, 0.0], [0.0, 9.0, 0.0, 0.0], [9.0, 0.0, 1.0, 0.0], [0.0, 9.0, 0.0, 0.0]];

fn model(engine: &AnyEngine, program: &Program) -> Model {
    Model::load(program, engine, &ModelOptions::default()).unwrap()
}

fn sharp(table: &Table) -> Table {
    table.map(|row| row.map(|x| 20.0 * x))
}

fn text(model: &Model, request: &Request) -> Generation {
    let mut sequence = model.sequence().unwrap();
    generate(&mut sequence, &tokenizer(), request, &|| Duration::ZERO, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

fn requests() -> impl Iterator<Item = Request> {
    let prompts = [&[0, 1, 0, 1][..], &[2, 3, 1, 2, 3], &[0], &[3, 2, 1, 0, 3, 2]];
    let all = prompts.into_iter().flat_map(|prompt| [1, 2, 9, 20, 100].map(|count| request(prompt, count)));
    all.flat_map(|request| [true, false].map(|ignore_eos| Request { ignore_eos, ..request.clone() }))
}

pub(crate) fn another_models_guesses_change_no_text(engine: &AnyEngine) {
    let plain = model(engine, &each(&sharp(&TABLE)));
    for (table, is_right) in [(sharp(&TABLE), true), (OTHER, false)] {
        let guessed = plain.clone().with_draft(&model(engine, &each(&table))).unwrap();
        let (mut rounds, mut tokens) = (0, 0);
        for request in requests() {
            let (plain, guessed) = (text(&plain, &request), text(&guessed, &request));
            assert_eq!((&guessed.ids, guessed.finish), (&plain.ids, plain.finish), "{request:?}");
            rounds += guessed.stats.rounds;
            tokens += guessed.ids.len();
        }
        assert!(rounds > 0 && (!is_right || rounds * 3 < tokens), "{rounds} rounds for {tokens} tokens");
    }
}

/// Tokens are sampled from the model's own logits, whatever the draft: the same seed gives the same
/// text.
pub(crate) fn another_models_guesses_change_no_draw(engine: &AnyEngine) {
    let plain = model(engine, &each(&TABLE));
    let guessed = plain.clone().with_draft(&model(engine, &each(&OTHER))).unwrap();
    let mut rounds = 0;
    for seed in 0..40 {
        let sampling = SamplingParams { temperature: 2.0, repetition_penalty: 1.1, seed, ..SamplingParams::default() };
        let request = Request { sampling, logprobs: Some(2), ignore_eos: true, ..request(&[0, 1, 2, 0], 25) };
        let (plain, guessed) = (text(&plain, &request), text(&guessed, &request));
        assert_eq!(guessed.ids, plain.ids, "seed {seed}");
        rounds += guessed.stats.rounds;
    }
    assert!(rounds > 0, "something was guessed");
}

/// The draft model follows when a text is truncated.
pub(crate) fn another_model_follows_a_conversation(engine: &AnyEngine) {
    let plain = model(engine, &each(&sharp(&TABLE)));
    let guessed = plain.clone().with_draft(&model(engine, &each(&sharp(&TABLE)))).unwrap();
    let [mut plain, mut guessed] = [plain, guessed].map(|model| Session::new(model.sequence().unwrap()));
    for prompt in [&[0, 1, 2][..], &[0, 1, 2, 1, 0], &[0, 3, 1], &[2, 2, 2, 2, 2, 2, 2], &[0, 1, 2]] {
        let [plain, guessed] = [&mut plain, &mut guessed].map(|session| {
            let request = Request { ignore_eos: true, ..request(prompt, 14) };
            session.generate(&tokenizer(), request, &|| Duration::ZERO, &AtomicBool::new(false), &mut |_| ()).unwrap()
        });
        assert_eq!(guessed.ids, plain.ids, "after {prompt:?}");
        assert!(guessed.stats.rounds > 0);
    }
}

pub(crate) fn models_that_cannot_guess_or_judge_say_so(engine: &AnyEngine) {
    let judge = model(engine, &each(&TABLE));
    let refused = |model: Model, draft: &Model| match model.with_draft(draft) {
        Err(Error::NoGuesses { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(judge.clone(), &model(engine, &running(&TABLE))).contains("cannot go back"));
    assert!(refused(model(engine, &running(&TABLE)), &judge).contains("last token alone"));
    assert!(judge.with_draft(&model(engine, &bigrams(&cycle(0), 100))).is_ok());
}
