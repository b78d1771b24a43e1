//! Batched steps of several sequences on MLX give the same logits as separate steps, up to
//! rounding.
#![cfg(all(feature = "mlx", feature = "text", feature = "zoo"))]

mod models;

#[path = "../../mlx/tests/support/mod.rs"]
mod installed;

use std::{process::ExitCode, sync::Arc};

use flambeau::{
    engine::Engine,
    mlx::MlxEngine,
    runners::llm::{Model, Sequence, TokenInput},
    tensor::DType,
};
use flambeau_testcases::functions;

use installed::alone;
use models::{STEPS, alone_each, begun, model, step_together};

fn engine() -> (Arc<MlxEngine>, Arc<dyn Engine>) {
    let engine = Arc::new(installed::engine());
    (Arc::clone(&engine), engine)
}

/// The largest difference relative to the largest logit.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, |most: f32, v| most.max(v.abs()));
    most(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / most(&mut expected.iter().copied())
}

/// Checks batched steps; returns whether any of them ran as a single run.
fn check(what: &str, model: &Model, mlx: &MlxEngine, bound: f32) -> bool {
    let before = mlx.joined_runs();
    for count in [2, 5] {
        let expected = alone_each(model, count);
        let mut sequences: Vec<Sequence> = (0..count).map(|number| begun(model, number)).collect();
        for step in 0..STEPS {
            let logits = step_together(&mut sequences, step);
            for (number, (logits, expected)) in logits.iter().zip(&expected).enumerate() {
                let difference = difference(logits, &expected[step]);
                assert!(difference <= bound, "{what}: {number} of {count}, step {step}: {difference}");
                // In 16 bits, several logits may be the largest.
                let is_best = bound > 1e-3 || best(logits) == best(&expected[step]);
                assert!(is_best, "{what}: {number} of {count}, step {step} chooses another token");
            }
        }
    }
    mlx.joined_runs() > before
}

fn sequences_have_the_logits_that_they_have_alone() {
    let _turn = alone();
    let (mlx, engine) = engine();
    for case in [
        "gguf-qwen2",
        "gguf-qwen3",
        "gguf-gemma2",
        "gguf-gemma3",
        "gguf-gemma4",
        "gguf-gemma4-per-layer",
        "gguf-lfm2",
        "gguf-qwen3next",
        "gguf-qwen35",
        "gguf-qwen3moe",
        "gguf-gpt-oss",
        "gguf-deepseek2",
        "folder-bundle-4",
        "folder-gptq-3-second",
    ] {
        for (dtype, bound) in [(DType::F32, 1e-5), (DType::BF16, 3e-2)] {
            let joined = check(&format!("{case} in {dtype}"), &model(case, dtype, None, &engine), &mlx, bound);
            assert!(joined, "{case}: no step was one run");
        }
    }
}

/// The token that greedy decoding chooses.
fn best(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are logits")
}

fn a_sequence_that_fails_leaves_the_others() {
    let _turn = alone();
    let (_, engine) = engine();
    let model = model("gguf-qwen2", DType::F32, Some(4), &engine);
    let expected = begun(&model, 1).step(&[3]).expect("the step runs");
    // One token is outside the vocabulary.
    let mut sequences = [1, 5, 1].map(|number| begun(&model, number));
    let mut logits = vec![Vec::new(); 3];
    let all = sequences.iter_mut().zip(&mut logits).zip([3, u32::MAX, 3]);
    let mut feeds: Vec<_> = all.map(|((sequence, logits), token)| TokenInput { sequence, token, logits }).collect();
    let outcomes: Vec<_> = Sequence::step_each(&mut feeds).into_iter().map(|outcome| outcome.expect("no panic")).collect();
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{outcomes:?}");
    for at in [0, 2] {
        assert!(difference(&logits[at], &expected) < 1e-5 && best(&logits[at]) == best(&expected), "sequence {at}");
    }
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        sequences_have_the_logits_that_they_have_alone,
        a_sequence_that_fails_leaves_the_others,
    ])
}
