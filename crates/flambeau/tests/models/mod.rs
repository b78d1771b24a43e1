//! Models of the committed checkpoints, and sequences with different prompts.

use std::{fs, path::Path, sync::Arc};

use flambeau::{
    compile::{self, Scheme, SchemeName},
    engine::Engine,
    runners::llm::{Model, ModelOptions, Sequence, TokenInput},
    runtime::Program,
    tensor::DType,
    zoo::{self, Checkpoint},
};

/// Number of steps of each sequence after its prompt.
pub(crate) const STEPS: usize = 3;

/// Reads a committed checkpoint.
fn checkpoint(case: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case);
    let read = |name: &str| fs::read(folder.join(name)).expect("the case has the file");
    if case.starts_with("gguf") {
        return Checkpoint::from_gguf(read("checkpoint.gguf").into()).expect("the file is sound");
    }
    let files = ["config.json", "model.safetensors"].map(|name| (name.to_owned(), read(&format!("checkpoint/{name}")).into()));
    Checkpoint::from_folder(files.to_vec()).expect("the folder is sound")
}

/// Compiles a checkpoint as a model; `linear` is the number of bits of its linear layers.
pub(crate) fn model(case: &str, dtype: DType, linear: Option<u32>, engine: &Arc<dyn Engine>) -> Model {
    let options = zoo::Options { dtype: Some(dtype), max_seq_len: Some(24), prefill_chunk: Some(16), ..zoo::Options::default() };
    let built = zoo::build(&checkpoint(case), &options).expect("the family is known");
    let scheme = |bits| Scheme::from_name(&format!("{bits}w"), Some(32)).expect("the scheme is known");
    let options = compile::Options { linear: linear.map(scheme), ..compile::Options::default() };
    let mut bytes = Vec::new();
    compile::compile(&built.programs(), &options, &**engine).expect("it compiles").write(&mut bytes).expect("memory takes it");
    let program = Program::from_bytes(bytes).expect("the program is sound");
    Model::load(&program, engine, &ModelOptions::default()).expect("it is a language model")
}

/// A sequence that has read a prompt; each number has a prompt of another length.
pub(crate) fn begun(model: &Model, number: usize) -> Sequence {
    let mut sequence = model.sequence().expect("there is room");
    let prompt: Vec<u32> = (0..=number as u32).map(|i| (i * 5 + number as u32) % 16).collect();
    sequence.step(&prompt).expect("the prompt is read");
    sequence
}

/// Logits of each step of each sequence, computed one sequence at a time.
pub(crate) fn alone_each(model: &Model, count: usize) -> Vec<Vec<Vec<f32>>> {
    let steps = |number: usize| {
        let mut sequence = begun(model, number);
        (0..STEPS).map(|step| sequence.step(&[token(number, step)]).expect("the step runs")).collect()
    };
    (0..count).map(steps).collect()
}

/// Logits of each sequence from one batched step.
pub(crate) fn step_together(sequences: &mut [Sequence], step: usize) -> Vec<Vec<f32>> {
    let mut logits = vec![Vec::new(); sequences.len()];
    let pairs = sequences.iter_mut().zip(&mut logits).enumerate();
    let feeds = pairs.map(|(number, (sequence, logits))| TokenInput { sequence, token: token(number, step), logits });
    for outcome in Sequence::step_each(&mut feeds.collect::<Vec<_>>()) {
        outcome.expect("no panic").expect("the step runs");
    }
    logits
}

/// The token fed to a sequence in a step after its prompt.
pub(crate) fn token(number: usize, step: usize) -> u32 {
    (number * 3 + step * 7) as u32 % 16
}
