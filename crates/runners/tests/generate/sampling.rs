//! Sampling of tokens.

use std::time::Duration;

use flambeau_runners::llm::{Generator, Request};
use flambeau_text::{Sampler, SamplingParams};

use crate::{
    AnyEngine, load,
    model::{Table, bigrams, tokenizer},
    request, run,
};

/// Every token may follow every token.
const TABLE: Table = [[0.0, 0.5, 1.0, 0.2], [1.0, 0.0, 0.3, 0.9], [0.4, 0.8, 0.1, 0.6], [0.7, 0.2, 0.9, 0.0]];
const COUNT: usize = 30;

/// Tokens that the sampler draws from the table's rows.
fn drawn(params: &SamplingParams, prompt: &[u32]) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone()).unwrap();
    let mut history = prompt.to_vec();
    for _ in 0..COUNT {
        let last = *history.last().expect("a prompt");
        history.push(sampler.sample(&TABLE[last as usize], &history).unwrap());
    }
    history.split_off(prompt.len())
}

fn check(engine: &AnyEngine, sampling: SamplingParams) -> Vec<u32> {
    let prompt = [0, 1];
    let expected = drawn(&sampling, &prompt);
    let request = Request { sampling, ignore_eos: true, ..request(&prompt, COUNT) };
    let done = run(engine, &bigrams(&TABLE, 100), &request).unwrap();
    assert_eq!(done.ids, expected, "{:?}", request.sampling);
    done.ids
}

pub(crate) fn drawn_tokens_are_those_of_the_seed(engine: &AnyEngine) {
    let draw = |seed| check(engine, SamplingParams { temperature: 1.5, top_p: 0.95, seed, ..SamplingParams::default() });
    let texts: Vec<Vec<u32>> = (0..8).map(draw).collect();
    for (seed, ids) in texts.iter().enumerate() {
        assert!(!texts[..seed].contains(ids), "seed {seed} draws what another one drew: {ids:?}");
        assert!((0..4).all(|token| ids.contains(&token)), "seed {seed} never draws some token: {ids:?}");
    }
    assert_eq!(draw(3), texts[3]);
    let best = SamplingParams { temperature: 1.5, top_k: 1, seed: 9, ..SamplingParams::default() };
    assert_eq!(check(engine, best)[..4], [0, 2, 1, 0]);
}

pub(crate) fn penalties_count_the_prompt_and_what_was_generated(engine: &AnyEngine) {
    let params = SamplingParams { temperature: 0.0, frequency_penalty: 0.3, repeat_last_n: 64, ..SamplingParams::default() };
    let plain = check(engine, SamplingParams { frequency_penalty: 0.0, ..params.clone() });
    let penalized = check(engine, params);
    assert_ne!(plain, penalized);
    let most = |ids: &[u32]| (0..4).map(|token| ids.iter().filter(|&&id| id == token).count()).max();
    assert!(most(&penalized) < most(&plain), "{penalized:?} repeats as often as {plain:?}");
}

pub(crate) fn steps_tell_how_likely_tokens_were(engine: &AnyEngine) {
    // The bias determines the token; the reported probabilities are without it.
    let sampling = SamplingParams { logit_bias: vec![(3, 5.0)], ..SamplingParams::default() };
    let asked = Request { sampling, logprobs: Some(2), ignore_eos: true, ..request(&[0], 3) };
    let mut sequence = load(engine, &bigrams(&TABLE, 100));
    let mut generator = Generator::new(&mut sequence, &tokenizer(), asked, &|| Duration::ZERO).unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let step = generator.step(&mut sequence, &|| Duration::ZERO).unwrap();
        let row = &TABLE[last as usize];
        let total = row.iter().map(|z| z.exp()).sum::<f32>().ln();
        let mut best: Vec<(u32, f32)> = (0..4).map(|id| (id, row[id as usize] - total)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (found, token) = (step.logprobs.unwrap(), step.token.unwrap());
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} and {b}");
        assert_eq!((token, found.top.len()), (3, 2));
        near(found.chosen, row[3] - total);
        for (found, expected) in found.top.iter().zip(&best) {
            assert_eq!(found.0, expected.0);
            near(found.1, expected.1);
        }
        last = token;
    }
}

pub(crate) fn parameters_out_of_range_are_refused(engine: &AnyEngine) {
    for sampling in [
        SamplingParams { temperature: -1.0, ..SamplingParams::default() },
        SamplingParams { top_p: 0.0, ..SamplingParams::default() },
        SamplingParams { min_p: 2.0, ..SamplingParams::default() },
    ] {
        assert!(run(engine, &bigrams(&TABLE, 100), &Request { sampling, ..request(&[0], 1) }).is_err());
    }
}
