//! Batched steps of several sequences give the same bits as separate steps.
#![cfg(all(feature = "cpu", feature = "text", feature = "zoo"))]

mod models;

use std::sync::Arc;

use flambeau::{
    cpu::CpuEngine,
    engine::Engine,
    runners::llm::{Model, Sequence, TokenInput},
    tensor::DType,
};

use models::{STEPS, alone_each, begun, model, step_together};

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn check(what: &str, model: &Model, counts: &[usize]) {
    let most = counts.iter().copied().max().unwrap_or(0);
    let expected = alone_each(model, most);
    for &count in counts {
        let mut sequences: Vec<Sequence> = (0..count).map(|number| begun(model, number)).collect();
        for step in 0..STEPS {
            let logits = step_together(&mut sequences, step);
            for (number, (logits, expected)) in logits.iter().zip(&expected).enumerate() {
                assert!(bits(logits) == bits(&expected[step]), "{what}: {number} of {count}, step {step}");
            }
        }
    }
}

#[test]
fn sequences_have_the_bits_that_they_have_alone() {
    let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(2)));
    // Tied heads, windows, recurrent and convolutional states, experts, sinks.
    for case in [
        "gguf-qwen2",
        "gguf-gemma2",
        "gguf-gemma3",
        "gguf-lfm2",
        "gguf-qwen3next",
        "gguf-qwen35",
        "gguf-qwen3moe",
        "gguf-gpt-oss",
        "gguf-deepseek2",
        "folder-mxfp4",
        "folder-bundle-4",
        "folder-bundle-8",
        "folder-gptq-3-second",
    ] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            check(&format!("{case} in {dtype}"), &model(case, dtype, None, &engine), &[2, 9]);
        }
    }
}

#[test]
fn any_number_of_sequences_and_of_threads_gives_the_same_bits() {
    for (threads, bits) in [(1, None), (2, Some(4)), (3, Some(8)), (16, Some(4))] {
        let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(threads)));
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let what = format!("{bits:?} bits in {dtype} on {threads} threads");
            check(&what, &model("gguf-llama-biases", dtype, bits, &engine), &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
    }
}

#[test]
fn a_sequence_that_fails_leaves_the_others() {
    let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(2)));
    let model = model("gguf-qwen2", DType::F32, Some(4), &engine);
    let expected = bits(&begun(&model, 1).step(&[3]).expect("the step runs"));
    let mut sequences = [1, 5, 1].map(|number| begun(&model, number));
    let mut logits = vec![Vec::new(); 3];
    // One token is outside the vocabulary.
    let all = sequences.iter_mut().zip(&mut logits).zip([3, u32::MAX, 3]);
    let mut feeds: Vec<_> = all.map(|((sequence, logits), token)| TokenInput { sequence, token, logits }).collect();
    let outcomes: Vec<_> = Sequence::step_each(&mut feeds).into_iter().map(|outcome| outcome.expect("no panic")).collect();
    assert!(outcomes[1].is_err() && outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(sequences.map(|sequence| sequence.position()), [3, 6, 3]);
    assert!([&logits[0], &logits[2]].into_iter().all(|found| bits(found) == expected));
}
