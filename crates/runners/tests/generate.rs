//! Generation with a model whose next token depends on the last one only.

use std::{
    cell::Cell,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{Graph, check};
use flambeau_runners::{
    Error,
    llm::{FinishReason, Generation, LanguageModel, ModelOptions, Request, generate},
};
use flambeau_runtime::{Engine, Program, Sampling};
use flambeau_tensor::DType;
use flambeau_text::{SamplingParams, Tokenizer};
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

/// Row `i` of the table holds the logits of the token after token `i`.
const BIGRAMS: &str = r#"slots constants=1 inputs=2 outputs=1 buffers=0 temps=0 values=0
main 0
input t1
input t2
output t3
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[4,4]
meta t1 i64[1,2..3]
meta t2 i64[2..3]
meta t3 f32[1,2..3,4]
chain 0
  Take x=t0 out=t3 index=t1 axis=0
"#;

#[path = "../../mlx/tests/support/mod.rs"]
mod installed;

const WORDS: [&str; 4] = ["a", "b", "c", "</s>"];

/// a → b → c → a …, and nothing leads to the end token unless `ends`.
fn program(ends: bool, context: i64) -> Program {
    let graph = check(BIGRAMS.parse::<Graph>().unwrap()).unwrap();
    let tensor = |dtype, sizes: &[u32]| {
        let mut value = TensorValue::new(dtype, sizes);
        value.dynamic = true;
        value.allocation = Some(Allocation { memory_id: 1, offset: 0 });
        EValue::Tensor(Box::new(value))
    };
    let plan = ExecutionPlan {
        name: "forward".into(),
        values: vec![tensor(DType::I64, &[1, 3]), tensor(DType::I64, &[3]), tensor(DType::F32, &[1, 3, 4])],
        inputs: vec![0, 1],
        outputs: vec![2],
        chains: vec![Chain {
            instructions: vec![Instruction::DelegateCall { delegate: 0, args: vec![0, 1, 2] }],
            ..Chain::default()
        }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 1 << 10],
        ..ExecutionPlan::default()
    };
    let mut table = [[0.0f32; 4]; 4];
    for (from, to) in [(0, 1), (1, 2), (2, if ends { 3 } else { 0 })] {
        table[from][to] = 1.0;
    }
    let mut writer = ProgramWriter::new();
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).unwrap();
    writer.constant_method("get_max_ctx_len", vec![EValue::Int(context)]);
    let bytes: Vec<u8> = table.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    writer.named("table", Blob::from_bytes(bytes)).unwrap();
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    Program::from_bytes(file).unwrap()
}

fn tokenizer() -> Tokenizer {
    let vocab: serde_json::Map<String, serde_json::Value> =
        WORDS.iter().enumerate().map(|(i, w)| ((*w).to_owned(), i.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{ "id": 3, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false }],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

/// An engine that samples here, and one that draws tokens itself if it is installed: both give the same.
fn run(program: &Program, request: &Request, cancelled: bool) -> Result<(Generation, String), Error> {
    let result = run_on(&(Arc::new(CpuEngine::new(Some(1))) as Arc<dyn Engine>), program, request, cancelled);
    if let (Ok((done, _)), Some(mlx)) = (&result, installed::engine()) {
        let (pipelined, _) = run_on(&(Arc::new(mlx) as Arc<dyn Engine>), program, request, cancelled)?;
        assert_eq!((&pipelined.ids, &pipelined.text, pipelined.finish), (&done.ids, &done.text, done.finish));
    }
    result
}

fn run_on(engine: &Arc<dyn Engine>, program: &Program, request: &Request, cancelled: bool) -> Result<(Generation, String), Error> {
    let mut model = LanguageModel::load(program, engine, &ModelOptions::default())?;
    let clock = Cell::new(0);
    let now = || {
        clock.set(clock.get() + 1);
        Duration::from_secs(clock.get())
    };
    let mut streamed = String::new();
    let cancel = AtomicBool::new(cancelled);
    let done = generate(&mut model, &tokenizer(), request, &now, &cancel, &mut |text| streamed.push_str(text))?;
    Ok((done, streamed))
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens, ..Request::default() }
}

#[test]
fn text_goes_on_until_the_end_token() {
    let (done, streamed) = run(&program(true, 100), &request(&[0], 50), false).unwrap();
    assert_eq!((done.ids.as_slice(), done.finish), (&[1, 2, 3][..], FinishReason::Stop));
    assert_eq!((done.text.as_str(), streamed.as_str()), ("bc", "bc"));
    assert_eq!((done.stats.prompt_tokens, done.stats.generated_tokens), (1, 3));
    assert!(done.stats.prefill_rate().is_some() && done.stats.decode_rate().is_some() && done.stats.first_token.is_some());
}

#[test]
fn long_prompts_are_taken_in_chunks() {
    let (done, _) = run(&program(false, 100), &request(&[0, 0, 0, 0, 0, 0, 1], 2), false).unwrap();
    assert_eq!((done.ids.as_slice(), done.finish), (&[2, 0][..], FinishReason::Length));
}

#[test]
fn stop_texts_the_context_and_the_caller_end_generation() {
    let stop = Request { stop: vec!["ca".into()], ..request(&[0], 50) };
    let (done, streamed) = run(&program(false, 100), &stop, false).unwrap();
    assert_eq!((done.text.as_str(), streamed.as_str(), done.finish), ("b", "b", FinishReason::Stop));
    let (done, _) = run(&program(false, 4), &request(&[0], 50), false).unwrap();
    assert_eq!((done.ids.len(), done.finish), (4, FinishReason::Context));
    let (done, _) = run(&program(false, 100), &request(&[0], 50), true).unwrap();
    assert_eq!((done.ids.len(), done.finish), (0, FinishReason::Cancelled));
    let ignored = Request { ignore_eos: true, ..request(&[2], 2) };
    assert_eq!(run(&program(true, 100), &ignored, false).unwrap().0.ids.len(), 2);
}

#[test]
fn drawn_tokens_follow_the_seed() {
    for seed in 0..20 {
        let sampling = SamplingParams { temperature: 1.5, top_p: 0.95, seed, ..SamplingParams::default() };
        let (done, _) = run(&program(true, 100), &Request { sampling, ..request(&[0, 1], 30) }, false).unwrap();
        assert!(!done.ids.is_empty());
    }
}

#[test]
fn a_model_goes_on_behind_what_it_received() {
    let Some(mlx) = installed::engine() else { return };
    let engine: Arc<dyn Engine> = Arc::new(mlx);
    let mut model = LanguageModel::load(&program(false, 100), &engine, &ModelOptions::default()).unwrap();
    assert!(model.can_pipeline());
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
    model.submit(&[0, 1], greedy).unwrap();
    model.submit_next(greedy).unwrap();
    assert_eq!((model.receive().unwrap(), model.position()), (2, 3));
    model.cancel();
    assert_eq!(model.position(), 2);
    assert_eq!(model.step(&[2]).unwrap(), [1.0, 0.0, 0.0, 0.0]);
    assert!(model.receive().unwrap_err().to_string().contains("no submitted run"));
}

#[test]
fn prompts_must_fit_the_context() {
    let message = run(&program(false, 4), &request(&[0; 5], 1), false).unwrap_err().to_string();
    assert!(message.contains('5') && message.contains('4'), "{message}");
    assert!(matches!(run(&program(false, 4), &request(&[], 1), false), Err(Error::EmptyPrompt)));
}
