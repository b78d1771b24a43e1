//! Sequences that step together: each has the bits that it has alone.
#![cfg(all(feature = "cpu", feature = "text", feature = "zoo"))]

use std::{fs, path::Path, sync::Arc};

use flambeau::{
    compile::{self, Scheme, SchemeName},
    cpu::CpuEngine,
    engine::Engine,
    runners::llm::{Feed, Model, ModelOptions, Sequence},
    runtime::Program,
    tensor::DType,
    zoo::{self, Checkpoint},
};

/// Steps of each sequence behind its prompt.
const STEPS: usize = 3;

/// A checkpoint of the repository's.
fn checkpoint(case: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case);
    let read = |name: &str| fs::read(folder.join(name)).expect("the case has the file");
    if case.starts_with("gguf") {
        return Checkpoint::from_gguf(read("checkpoint.gguf").into()).expect("the file is sound");
    }
    let files = ["config.json", "model.safetensors"].map(|name| (name.to_owned(), read(&format!("checkpoint/{name}")).into()));
    Checkpoint::from_folder(files.to_vec()).expect("the folder is sound")
}

fn model(case: &str, dtype: DType, linear: Option<u32>, engine: &Arc<dyn Engine>) -> Model {
    let options = zoo::Options { dtype: Some(dtype), max_seq_len: Some(24), prefill_chunk: Some(16), ..zoo::Options::default() };
    let built = zoo::build(&checkpoint(case), &options).expect("the family is known");
    let scheme = |bits| Scheme::from_name(&format!("{bits}w"), Some(32)).expect("the scheme is known");
    let options = compile::Options { linear: linear.map(scheme), ..compile::Options::default() };
    let mut bytes = Vec::new();
    compile::compile(&built.programs(), &options, &**engine).expect("it compiles").write(&mut bytes).expect("memory takes it");
    let program = Program::from_bytes(bytes).expect("the program is sound");
    Model::load(&program, engine, &ModelOptions::default()).expect("it is a language model")
}

/// A sequence behind a prompt of its own length.
fn begun(model: &Model, number: usize) -> Sequence {
    let mut sequence = model.sequence().expect("there is room");
    let prompt: Vec<u32> = (0..=number as u32).map(|i| (i * 5 + number as u32) % 16).collect();
    sequence.step(&prompt).expect("the prompt is read");
    sequence
}

fn token(number: usize, step: usize) -> u32 {
    (number * 3 + step * 7) as u32 % 16
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn check(what: &str, model: &Model, counts: &[usize]) {
    let most = counts.iter().copied().max().unwrap_or(0);
    let alone = |number: usize| -> Vec<Vec<u32>> {
        let mut sequence = begun(model, number);
        (0..STEPS).map(|step| bits(&sequence.step(&[token(number, step)]).expect("the step runs"))).collect()
    };
    let expected: Vec<_> = (0..most).map(alone).collect();
    for &count in counts {
        let mut sequences: Vec<Sequence> = (0..count).map(|number| begun(model, number)).collect();
        let mut logits = vec![Vec::new(); count];
        for step in 0..STEPS {
            let pairs = sequences.iter_mut().zip(&mut logits).enumerate();
            let feeds = pairs.map(|(number, (sequence, logits))| Feed { sequence, token: token(number, step), logits });
            for outcome in Sequence::step_each(&mut feeds.collect::<Vec<_>>()) {
                outcome.expect("no panic").expect("the step runs");
            }
            for (number, (logits, expected)) in logits.iter().zip(&expected).enumerate() {
                assert!(bits(logits) == expected[step], "{what}: {number} of {count}, step {step}");
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
    // One token is none of the vocabulary's.
    let all = sequences.iter_mut().zip(&mut logits).zip([3, u32::MAX, 3]);
    let mut feeds: Vec<_> = all.map(|((sequence, logits), token)| Feed { sequence, token, logits }).collect();
    let outcomes: Vec<_> = Sequence::step_each(&mut feeds).into_iter().map(|outcome| outcome.expect("no panic")).collect();
    assert!(outcomes[1].is_err() && outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(sequences.map(|sequence| sequence.position()), [3, 6, 3]);
    assert!([&logits[0], &logits[2]].into_iter().all(|found| bits(found) == expected));
}
