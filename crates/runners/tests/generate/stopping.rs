//! End of a generation, and the text that is returned.

use std::sync::atomic::Ordering;

use flambeau_runners::llm::{FinishReason, Request};

use crate::{
    AnyEngine, generate_with, load,
    model::{END, bigrams, cycle, masked, running},
    request, run,
};

pub(crate) fn the_end_token_ends_the_text(engine: &AnyEngine) {
    let done = run(engine, &bigrams(&cycle(END), 100), &request(&[0], 50)).unwrap();
    assert_eq!((&done.ids[..], &*done.text, done.finish), (&[1, 2, END][..], "bc", FinishReason::Stop));
    assert_eq!((done.stats.prompt_tokens, done.stats.generated_tokens), (1, 3));
}

pub(crate) fn stop_ids_end_the_text_and_are_counted(engine: &AnyEngine) {
    let request = Request { stop_ids: vec![2], ..request(&[0], 50) };
    let done = run(engine, &bigrams(&cycle(0), 100), &request).unwrap();
    assert_eq!((&done.ids[..], &*done.text, done.finish), (&[1, 2][..], "b", FinishReason::Stop));
}

pub(crate) fn stop_texts_are_found_across_tokens(engine: &AnyEngine) {
    for (stop, text, tokens) in [("ca", "b", 3), ("abc", "bc", 5), ("b", "", 1), ("cab", "b", 4)] {
        let request = Request { stop: vec!["never".into(), stop.into()], ..request(&[0], 50) };
        let done = run(engine, &bigrams(&cycle(0), 100), &request).unwrap();
        assert_eq!((&*done.text, done.ids.len(), done.finish), (text, tokens, FinishReason::Stop), "{stop}");
    }
}

pub(crate) fn text_held_back_for_a_stop_text_is_shown_at_the_end(engine: &AnyEngine) {
    let request = Request { stop: vec!["bcab!".into()], ..request(&[0], 4) };
    let done = run(engine, &bigrams(&cycle(0), 100), &request).unwrap();
    assert_eq!((&*done.text, done.finish), ("bcab", FinishReason::Length));
}

pub(crate) fn end_tokens_can_be_ignored(engine: &AnyEngine) {
    // The end token's row is all zeros, so the lowest id wins.
    let request = Request { ignore_eos: true, stop_ids: vec![1], ..request(&[2], 3) };
    let done = run(engine, &bigrams(&cycle(END), 100), &request).unwrap();
    assert_eq!((&done.ids[..], done.finish), (&[END, 0, 1][..], FinishReason::Length));
}

pub(crate) fn as_many_tokens_as_asked_for(engine: &AnyEngine) {
    for count in [0, 1, 2, 7] {
        let done = run(engine, &bigrams(&cycle(0), 100), &request(&[0], count)).unwrap();
        let expected: Vec<u32> = [1, 2, 0].into_iter().cycle().take(count).collect();
        assert_eq!((done.ids, done.finish), (expected, FinishReason::Length));
    }
}

pub(crate) fn a_full_context_may_drop_older_tokens(engine: &AnyEngine) {
    let table = cycle(0);
    // A model that cannot truncate computes the kept tokens again, too.
    for program in [masked(&table), running(&table)] {
        for keep in [0, 2] {
            let shifting = Request { shift: Some(keep), ..request(&[1, 1, 2], 20) };
            let done = run(engine, &program, &shifting).unwrap();
            let (mut text, mut expected) = (shifting.prompt.clone(), Vec::new());
            while expected.len() < 20 {
                let part = run(engine, &program, &request(&text, 20 - expected.len())).unwrap();
                text.extend(&part.ids);
                expected.extend(&part.ids);
                let dropped = (text.len() - 1 - keep) / 2;
                text.drain(keep..keep + dropped);
            }
            assert_eq!((done.ids, done.finish), (expected, FinishReason::Length), "{keep} tokens stay");
            assert_eq!((done.stats.prompt_tokens, done.stats.generated_tokens), (3, 20));
        }
    }
    // Only the prompt stays, and the context must leave room behind it.
    let context = |prompt: &[u32]| {
        let kept = Request { shift: Some(usize::MAX), ..request(prompt, 50) };
        run(engine, &bigrams(&cycle(0), 4), &kept).unwrap().finish
    };
    assert_eq!([context(&[0]), context(&[0, 1, 2])], [FinishReason::Length, FinishReason::Context]);
}

pub(crate) fn a_full_context_ends_generation(engine: &AnyEngine) {
    // The last sampled token needs no position in the cache.
    for (prompt, tokens) in [(1, 4), (3, 2), (4, 1)] {
        let done = run(engine, &bigrams(&cycle(0), 4), &request(&vec![0; prompt], 50)).unwrap();
        assert_eq!((done.ids.len(), done.finish), (tokens, FinishReason::Context), "a prompt of {prompt}");
    }
    let done = run(engine, &bigrams(&cycle(0), 4), &request(&[0], 4)).unwrap();
    assert_eq!((done.ids.len(), done.finish), (4, FinishReason::Length));
}

pub(crate) fn callers_cancel_between_tokens(engine: &AnyEngine) {
    for pieces in 0..4 {
        let mut seen = 0;
        let mut model = load(engine, &bigrams(&cycle(0), 100));
        let done = generate_with(&mut model, &request(&[0, 0, 0, 0, 0], 50), &mut |text, cancel| {
            seen += usize::from(!text.is_empty());
            cancel.store(seen >= pieces, Ordering::Relaxed);
        });
        let done = done.unwrap();
        assert_eq!((&*done.text, done.finish), (&"bca"[..pieces], FinishReason::Cancelled));
        assert_eq!(done.ids.len(), pieces);
        // The sequence holds the prompt and the tokens fed back, but no tokens that were never
        // received.
        let fed = if pieces == 0 { 0 } else { 5 + pieces - 1 };
        assert!(model.position() >= fed && model.position() <= fed + 1, "position {} after {pieces}", model.position());
    }
}
