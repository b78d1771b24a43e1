//! Caches of keys and values in fewer bits than the activations.

use std::{fs, path::Path, sync::Arc};

use flambeau::{
    compile,
    engine::{Engine, LoadOptions},
    runtime::{Program, Value},
    tensor::{Bytes, DType, Tensor},
    zoo::{self, Checkpoint, KvCache},
};

use crate::flambeau;

/// Tiny checkpoints beside transformers' logits of their texts.
const CHECKPOINTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints");

/// Most tokens of a call; windows are shorter than the texts.
const CHUNK: usize = 5;

fn checkpoint(case: &str) -> Checkpoint {
    let file = Path::new(CHECKPOINTS).join(case).join("checkpoint.gguf");
    Checkpoint::from_gguf(fs::read(file).expect("the case is there").into()).expect("the file is a checkpoint")
}

/// The elements of the only tensor in a file of a case. The number of tensors, a type, the rank
/// and the sizes precede them.
fn elements(case: &str, name: &str) -> Vec<[u8; 4]> {
    let bytes = fs::read(Path::new(CHECKPOINTS).join(case).join(name)).expect("the case is there");
    let (words, _) = bytes.as_chunks::<4>();
    words[3 + u32::from_le_bytes(words[2]) as usize..].to_vec()
}

/// Logits behind each call of `chunk` tokens.
fn logits(case: &str, tokens: &[i32], kv_cache: KvCache, chunk: usize) -> Vec<(usize, Vec<f32>)> {
    let options = zoo::Options {
        dtype: Some(DType::F32),
        max_seq_len: Some(tokens.len()),
        prefill_chunk: Some(CHUNK),
        kv_cache,
        ..zoo::Options::default()
    };
    let engine: Arc<dyn Engine> = flambeau::engines(Some(2), false).get("cpu").expect("there is a CPU");
    let model = zoo::build(&checkpoint(case), &options).expect("the options suit");
    let mut file = Vec::new();
    let output = compile::compile(&model.programs(), &compile::Options::default(), &*engine);
    output.expect("it compiles").write(&mut file).expect("memory takes it");
    let program = Program::from_bytes(Bytes::from(file)).expect("it is a program");
    let mut method = program.method("forward", &engine, &LoadOptions::default()).expect("it loads");
    let mut out = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let ids: Vec<i64> = part.iter().map(|&id| id.into()).collect();
        let places: Vec<i64> = ((i * chunk) as i64..).take(ids.len()).collect();
        let inputs = [Tensor::from_slice(&ids, &[1, ids.len()]), Tensor::from_slice(&places, &[ids.len()])];
        let inputs = inputs.map(|t| Value::Tensor(t.expect("the sizes agree")));
        let [Value::Tensor(y)] = &method.run(&inputs).expect("the call runs")[..] else { panic!("logits alone come out") };
        out.push((i * chunk + part.len() - 1, y.aligned().as_slice().expect("floats").to_vec()));
    }
    out
}

/// The largest difference, over the standard deviation of `expected`.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    let n = expected.len() as f32;
    let mean = expected.iter().sum::<f32>() / n;
    let deviation = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / deviation
}

#[test]
fn logits_over_8_bits_are_near_those_over_floats() {
    // Plain, in turn behind windows, by formula for bounded scores and sinks, shared by layers,
    // gated, and with few heads of keys.
    for case in ["llama-biases", "gemma3", "gemma2", "gpt-oss", "gemma4-per-layer", "qwen35", "glm4"] {
        let case = format!("gguf-{case}");
        let tokens: Vec<i32> = elements(&case, "tokens.bin").into_iter().map(i32::from_le_bytes).collect();
        let expected: Vec<f32> = elements(&case, "expected_logits.bin").into_iter().map(f32::from_le_bytes).collect();
        let vocab = expected.len() / tokens.len();
        for chunk in [1, CHUNK] {
            let found = logits(&case, &tokens, KvCache::Int8, chunk);
            let worst = found.iter().map(|(at, y)| distance(y, &expected[at * vocab..(at + 1) * vocab])).fold(0.0, f32::max);
            assert!(worst > 1e-5 && worst < 0.1, "{case}, chunks of {chunk}: {worst}");
        }
    }
}

#[test]
fn caches_that_a_model_cannot_have_are_refused() {
    let options = zoo::Options { kv_cache: KvCache::Int8, ..zoo::Options::default() };
    let error = zoo::build(&checkpoint("gguf-deepseek2"), &options).unwrap_err().to_string();
    assert!(error.contains("kv_cache") && error.contains("latent"), "{error}");
}

#[test]
fn commands_take_the_kind_of_cache() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");
    for (kind, file, code) in [("float", "a.pte", 0), ("int8", "b.pte", 0), ("int3", "c.pte", 2)] {
        let done = flambeau(dir.path(), &["export", tiny, "-o", file, "--kv-cache", kind]);
        assert_eq!(done.code, code, "{}", done.stderr);
    }
    let generate = |model: &str, flags: &[&str]| {
        flambeau(
            dir.path(),
            &[&["generate", model, "-p", "the cat", "--raw", "--temperature", "0", "--max-new-tokens", "8"], flags].concat(),
        )
    };
    assert_eq!(generate("a.pte", &[]).stdout, generate("b.pte", &[]).stdout);
    assert_eq!(generate(tiny, &["--kv-cache", "int8"]).code, 0);
    let done = generate("b.pte", &["--kv-cache", "int8"]);
    assert!(done.code == 2 && done.stderr.contains("--kv-cache is for checkpoints"), "{}", done.stderr);
}
