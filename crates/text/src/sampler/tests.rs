use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn params() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

fn draws(params: SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    (0..n).map(|_| sampler.sample(logits, &[]).unwrap()).collect()
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f64> = logits.iter().map(|z| f64::from(z - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

#[test]
fn greedy_takes_the_first_largest_number() {
    let check = |logits: &[f32], want: Option<u32>| {
        let mut sampler = Sampler::new(SamplingParams::default()).unwrap();
        assert_eq!(sampler.sample(logits, &[]).ok(), want, "{logits:?}");
    };
    check(&[0.0, 2.0, 1.0], Some(1));
    check(&[2.0, 2.0, 1.0], Some(0));
    check(&[f32::NAN, -5.0, f32::NAN], Some(1));
    check(&[1.0, f32::INFINITY], Some(1));
    check(&[], None);
    check(&[f32::NAN, f32::NEG_INFINITY], None);
}

#[test]
fn a_seed_fixes_the_sequence() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let with = |seed| draws(SamplingParams { seed, ..params() }, &logits, 50);
    assert_eq!(with(3), with(3));
    assert_ne!(with(3), with(4));
}

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [1.0, 0.0, -1.0, 2.0, f32::NAN, f32::NEG_INFINITY];
    let check = |temperature: f32| {
        let n = 100_000;
        let drawn = draws(SamplingParams { temperature, ..params() }, &logits, n);
        let scaled: Vec<f32> = logits[..4].iter().map(|z| z / temperature).collect();
        for (id, p) in softmax(&scaled).into_iter().enumerate() {
            let share = drawn.iter().filter(|&&t| t as usize == id).count() as f64 / n as f64;
            assert!((share - p).abs() < 0.006, "temperature {temperature}: token {id} has share {share}, not {p}");
        }
        assert!(drawn.iter().all(|&t| t < 4));
    };
    [0.5, 1.0, 2.0].into_iter().for_each(check);
}

#[test]
fn penalties_and_bias_change_the_logits_as_documented() {
    let check = |change: &dyn Fn(&mut SamplingParams), history: &[u32], want: u32| {
        let mut params = SamplingParams::default();
        change(&mut params);
        let got = Sampler::new(params).unwrap().sample(&[2.0, 1.5, -1.0], history).unwrap();
        assert_eq!(got, want, "{history:?}");
    };
    check(&|p| p.repetition_penalty = 1.2, &[0], 0);
    check(&|p| p.repetition_penalty = 2.0, &[0], 1);
    check(&|p| p.repetition_penalty = 2.0, &[0, 1, 99], 0);
    check(&|p| p.frequency_penalty = 0.3, &[0], 0);
    check(&|p| p.frequency_penalty = 0.3, &[0, 0], 1);
    check(&|p| p.presence_penalty = 0.6, &[0], 1);
    check(&|p| (p.presence_penalty, p.repeat_last_n) = (0.6, 2), &[0, 2, 2], 0);
    check(&|p| p.logit_bias = vec![(2, 4.0), (77, 9.0)], &[], 2);
    check(&|p| p.repetition_penalty = 0.1, &[2], 0);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let check = |change: &dyn Fn(&mut SamplingParams), name: &str| {
        let mut params = SamplingParams::default();
        change(&mut params);
        let message = Sampler::new(params).unwrap_err().to_string();
        assert!(message.starts_with(&format!("sampling parameter {name} is ")), "{message}");
    };
    check(&|p| p.temperature = -0.1, "temperature");
    check(&|p| p.temperature = f32::NAN, "temperature");
    check(&|p| p.top_p = 0.0, "top_p");
    check(&|p| p.top_p = f32::NAN, "top_p");
    check(&|p| p.min_p = 1.5, "min_p");
    check(&|p| p.repetition_penalty = 0.0, "repetition_penalty");
    check(&|p| p.frequency_penalty = f32::INFINITY, "frequency_penalty");
    check(&|p| p.logit_bias = vec![(0, f32::NAN)], "logit_bias");
}

#[test]
fn infinite_logits_exclude_the_rest() {
    let logits = [f32::INFINITY, 3.0, f32::INFINITY];
    let seen: HashSet<u32> = draws(params(), &logits, 200).into_iter().collect();
    assert_eq!(seen, HashSet::from([0, 2]));
}

#[test]
fn log_probabilities_are_those_of_the_softmax() {
    let logits = [1.0, -2.0, 0.5];
    let got = log_probabilities(&logits, &[2, 0, 9]);
    let want = softmax(&logits);
    assert!((f64::from(got[0]) - want[2].ln()).abs() < 1e-6 && (f64::from(got[1]) - want[0].ln()).abs() < 1e-6);
    assert_eq!(got[2], f32::NEG_INFINITY);
}

/// Ids that may be drawn, by definition: sort everything, then cut.
fn members(logits: &[f32], p: &SamplingParams) -> HashSet<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if p.top_k > 0 {
        order.truncate(p.top_k);
    }
    let kept: Vec<f32> = order.iter().map(|&id| logits[id as usize] / p.temperature).collect();
    let probabilities = softmax(&kept);
    let mut sum = 0.0;
    // A share that is within rounding of the border may go either way.
    let slack = 1e-5;
    let mut allowed = HashSet::new();
    for (id, probability) in order.into_iter().zip(&probabilities) {
        if *probability >= f64::from(p.min_p) * probabilities[0] - slack {
            allowed.insert(id);
        }
        sum += probability;
        if sum >= f64::from(p.top_p) + slack {
            break;
        }
    }
    allowed
}

proptest! {
    #[test]
    fn only_members_of_the_filtered_set_are_drawn(
        logits in prop::collection::vec(-8.0f32..8.0, 1..300),
        temperature in 0.2f32..3.0,
        top_k in 0usize..40,
        top_p in 0.05f32..1.0,
        min_p in 0.0f32..0.5,
        seed: u64,
    ) {
        let params = SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() };
        let allowed = members(&logits, &params);
        for id in draws(params, &logits, 40) {
            prop_assert!(allowed.contains(&id), "{} is not in {:?}", id, allowed);
        }
    }

    #[test]
    fn every_member_of_a_top_k_set_is_drawn(logits in prop::collection::vec(-1.0f32..1.0, 8..60), seed: u64) {
        let params = SamplingParams { top_k: 5, seed, ..params() };
        let seen: HashSet<u32> = draws(params.clone(), &logits, 1000).into_iter().collect();
        prop_assert_eq!(seen, members(&logits, &params));
    }

    #[test]
    fn top_p_keeps_the_largest_for_any_vocabulary(logits in prop::collection::vec(-4.0f32..4.0, 1..2000), seed: u64) {
        let params = SamplingParams { top_p: 1e-6, seed, ..params() };
        let best = argmax(&logits).unwrap().0;
        prop_assert!(draws(params, &logits, 3).into_iter().all(|id| id == best));
    }
}
