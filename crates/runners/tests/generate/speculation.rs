//! Programs with a draft method.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use flambeau_cpu::CpuEngine;
use flambeau_runners::llm::{FinishReason, Generation, Model, ModelOptions, Request, Sequence};
use flambeau_runtime::Program;
use flambeau_tensor::DType;
use flambeau_testcases::add_method;
use flambeau_text::SamplingParams;
use flambeau_wire::{ProgramWriter, pte::EValue};

use crate::{
    AnyEngine, generate_with, load,
    model::{Table, cycle, finish},
    request,
};

/// Logits are the row of the last token, and a tap is the token itself; up to 8 tokens per step.
const TARGET: &str = r#"slots constants=1 inputs=2 outputs=2 buffers=0 temps=1 values=1
main 0
input t1
input t2
output t3
output t4
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[4,4]
meta t1 i64[1,1..8]
meta t2 i64[1..8]
meta t3 f32[1,1..8,4]
meta t4 f32[1,1..8,1]
chain 0
  Take x=t0 out=t3 index=t1 axis=0
  AsType x=t1 out=t5 scalar_type=f32
  SymSize a=t1 dim=1 out=v0
  Reshape x=t5 out=t4 shape=[1,v0,1]
"#;

/// Predicts that `a` leads to `b`, `b` to `c` and `c` to `a`, from the last tap alone; up to 3
/// tokens.
const DRAFT: &str = r#"slots constants=0 inputs=3 outputs=1 buffers=0 temps=9 values=3
main 0
input t0
input t1
input t2
output t3
name t0 "tokens"
name t1 "new_ctx"
name t2 "cache_position"
meta t0 i64[1,2..4]
meta t1 f32[1,1..8,1]
meta t2 i64[1..8]
meta t3 f32[1,1..3,4]
chain 0
  Take x=t1 out=t4 index=-1 axis=1
  SymSize a=t0 dim=1 out=v0
  AddInt a=v0 b=1 out=v1
  ARange out=t5 start=2 stop=v1 step=1 scalar_type=f32
  Add a=t4 b=t5 out=t6
  Full out=t7 shape=[] v=3.0 scalar_type=f32
  Remainder a=t6 b=t7 out=t8
  SubtractInt a=v0 b=1 out=v2
  Reshape x=t8 out=t9 shape=[1,v2,1]
  ARange out=t10 start=0 stop=4 step=1 scalar_type=f32
  Subtract a=t9 b=t10 out=t11
  Abs x=t11 out=t12
  Neg x=t12 out=t3
"#;

fn drafted(table: &Table, context: i64) -> Program {
    let mut writer = ProgramWriter::new();
    let tokens: (DType, &[u32]) = (DType::I64, &[1, 8]);
    let values = [tokens, (DType::I64, &[8]), (DType::F32, &[1, 8, 4]), (DType::F32, &[1, 8, 1])];
    add_method(&mut writer, "target", TARGET, &values, 2);
    let block: (DType, &[u32]) = (DType::I64, &[1, 4]);
    let values = [block, (DType::F32, &[1, 8, 1]), (DType::I64, &[8]), (DType::F32, &[1, 3, 4])];
    add_method(&mut writer, "draft", DRAFT, &values, 1);
    for (name, value) in [("get_max_block_len", 4), ("get_mask_token_id", 3)] {
        writer.constant_method(name, vec![EValue::Int(value)]);
    }
    finish(writer, table, context)
}

fn without_draft(engine: &AnyEngine, program: &Program) -> Sequence {
    let options = ModelOptions { method: Some("target".into()), ..ModelOptions::default() };
    Model::load(program, engine, &options).unwrap().sequence().unwrap()
}

/// Compares the texts without and with the draft; returns the latter's generation.
fn both(engine: &AnyEngine, program: &Program, request: &Request) -> Generation {
    let [plain, drafted] = [without_draft(engine, program), load(engine, program)].map(|mut model| {
        let done = generate_with(&mut model, request, &mut |_, _| ()).unwrap();
        assert!(model.position() <= request.prompt.len() + done.ids.len(), "the caches hold no more than the text");
        done
    });
    assert_eq!((&drafted.ids, drafted.finish, plain.stats.rounds), (&plain.ids, plain.finish, 0));
    drafted
}

pub(crate) fn guesses_change_the_number_of_steps_and_nothing_else(engine: &AnyEngine) {
    let greedy = |prompt: &[u32], count| Request { ignore_eos: true, ..request(prompt, count) };
    // Every draft token is right: the prompt's step returns one token, and each round four.
    let done = both(engine, &drafted(&cycle(0), 100), &greedy(&[0, 1], 13));
    assert_eq!((done.ids[..4].to_vec(), done.stats.rounds), (vec![2, 0, 1, 2], 3));
    // Draft tokens after `c` are wrong.
    let mut table = cycle(3);
    table[3][0] = 1.0;
    let done = both(engine, &drafted(&table, 100), &greedy(&[0, 1], 12));
    assert!((4..11).contains(&done.stats.rounds), "{} rounds", done.stats.rounds);
    let full = both(engine, &drafted(&cycle(0), 9), &greedy(&[0, 1], 50));
    assert_eq!(full.finish, FinishReason::Context);
    let stopped = both(engine, &drafted(&table, 100), &request(&[0], 50));
    assert_eq!(stopped.finish, FinishReason::Stop);
}

pub(crate) fn guesses_are_for_greedy_texts(engine: &AnyEngine) {
    let drawn = SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() };
    let request = Request { sampling: drawn, ignore_eos: true, ..request(&[0, 1], 12) };
    assert_eq!(both(engine, &drafted(&cycle(0), 100), &request).stats.rounds, 0);
}

/// ExecuTorch's export of a tiny model with its draft.
pub(crate) fn pair() -> Result<PathBuf, String> {
    let cases = flambeau_testcases::sessions(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut folders = cases.into_iter().filter(|case| case.folder.is_err() || case.name.contains("dflash")).map(|case| case.folder);
    folders.next().unwrap_or_else(|| Err("the sessions hold no pair of a model and a draft".into()))
}

pub(crate) fn executorch_writes_pairs_of_one_greedy_text() {
    let program = Program::open(pair().expect("it is there").join("model.pte")).unwrap();
    let engine: AnyEngine = Arc::new(CpuEngine::new(Some(2)));
    let mut plain = without_draft(&engine, &program);
    let mut drafted = load(&engine, &program);
    for prompt in [&[42, 25, 731, 88, 210, 424, 329, 801, 515, 594, 533, 290, 679][..], &[369, 318, 468, 887, 140]] {
        let request = Request { ignore_eos: true, ..request(prompt, 30) };
        let [plain, drafted] = [&mut plain, &mut drafted].map(|model| {
            model.reset();
            generate_with(model, &request, &mut |_, _| ()).unwrap()
        });
        assert_eq!(drafted.ids, plain.ids);
        assert!((1..30).contains(&drafted.stats.rounds), "{} rounds", drafted.stats.rounds);
    }
}
