//! Prompt lookup.

use flambeau_runners::{
    Error,
    llm::{FinishReason, Generation, Request},
};
use flambeau_text::SamplingParams;

use crate::{
    AnyEngine, generate_with, load,
    model::{Table, cycle, each, running},
    request,
};

/// The logits depend on the whole text, so a rejected token left in the caches would change it.
const TABLE: Table = [[0.0, 0.5, 1.0, 0.2], [1.0, 0.0, 0.3, 0.9], [0.4, 0.8, 0.1, 0.6], [0.7, 0.2, 0.9, 0.0]];

/// Compares the texts without and with prompt lookup; returns the latter's generation.
fn both(engine: &AnyEngine, table: &Table, request: &Request) -> Generation {
    let program = each(table);
    let [plain, guessed] = [false, true].map(|prompt_lookup| {
        let mut model = load(engine, &program);
        let request = Request { prompt_lookup, ..request.clone() };
        let first = generate_with(&mut model, &request, &mut |_, _| ()).unwrap();
        assert!(model.position() <= request.prompt.len() + first.ids.len(), "the caches hold no more than the text");
        // The caches match the text: both sequences continue alike.
        let next = Request { prompt: vec![1], before: [&request.prompt[..], &first.ids].concat(), max_new_tokens: 3, ..request };
        let room = model.room().unwrap();
        let more = (room > 4).then(|| generate_with(&mut model, &next, &mut |_, _| ()).unwrap().ids);
        (first, more)
    });
    assert_eq!((&guessed.0.ids, guessed.0.finish, &guessed.1), (&plain.0.ids, plain.0.finish, &plain.1));
    assert_eq!(plain.0.stats.rounds, 0);
    guessed.0
}

fn endless(prompt: &[u32], count: usize) -> Request {
    Request { ignore_eos: true, ..request(prompt, count) }
}

pub(crate) fn texts_that_repeat_themselves_take_fewer_steps(engine: &AnyEngine) {
    // `a b c` repeated: after the first repetition, every draft token is right.
    let done = both(engine, &cycle(0).map(|row| row.map(|x| 100.0 * x)), &endless(&[0, 1, 2, 0, 1], 25));
    assert_eq!(done.ids.len(), 25);
    assert!((1..8).contains(&done.stats.rounds), "{} rounds", done.stats.rounds);
}

pub(crate) fn guesses_change_no_text(engine: &AnyEngine) {
    for prompt in [&[0, 1, 0, 1][..], &[2, 3, 1, 2, 3], &[0, 0, 0], &[3, 2, 1, 0, 3, 2]] {
        for count in [1, 2, 9, 20, 100] {
            both(engine, &TABLE, &endless(prompt, count));
            both(engine, &TABLE, &request(prompt, count));
        }
    }
    let full = both(engine, &TABLE, &endless(&[0, 1, 0, 1], 100));
    assert_eq!((full.finish, full.ids.len()), (FinishReason::Context, 37));
}

/// Tokens are sampled from the model's logits, whatever the draft.
pub(crate) fn guesses_change_no_draw(engine: &AnyEngine) {
    let mut rounds = 0;
    for seed in 0..20 {
        let sampling = SamplingParams { temperature: 2.0, repetition_penalty: 1.1, seed, ..SamplingParams::default() };
        let request = Request { sampling, logprobs: Some(2), ..endless(&[0, 1, 2, 0, 1, 2], 20) };
        rounds += both(engine, &TABLE, &request).stats.rounds;
    }
    assert!(rounds > 0, "something was guessed");
}

pub(crate) fn who_cannot_judge_guesses_says_so(engine: &AnyEngine) {
    let request = Request { prompt_lookup: true, ..request(&[0], 3) };
    match generate_with(&mut load(engine, &running(&TABLE)), &request, &mut |_, _| ()) {
        Err(Error::NoGuesses { what, .. }) => assert!(what.contains("last token alone"), "{what}"),
        other => panic!("{other:?}"),
    }
}
