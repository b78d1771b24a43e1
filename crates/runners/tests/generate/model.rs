//! Language models of four tokens whose next token can be worked out by hand.

use flambeau_ir::{Graph, MetaDim, Slot, check};
use flambeau_runtime::Program;
use flambeau_tensor::DType;
use flambeau_text::Tokenizer;
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

/// Row `i` holds the logits that token `i` adds for the token after it.
pub(crate) type Table = [[f32; 4]; 4];

/// `</s>` ends the text.
pub(crate) const WORDS: [&str; 4] = ["a", "b", "c", "</s>"];
pub(crate) const END: u32 = 3;

/// Logits are the row of the last token; up to 3 tokens a step.
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

/// Logits are the sum of the rows of all tokens so far, which a cache of 8 positions keeps; up to three tokens a step. Rows beyond the
/// step's positions are left out, as attention masks them.
const MASKED: &str = r#"slots constants=1 inputs=2 outputs=1 buffers=1 temps=4 values=3
main 0
input t1
input t2
output t3
buffer t4
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[4,4]
meta t1 i64[1,1..3]
meta t2 i64[1..3]
meta t3 f32[1,4]
meta t4 f32[8,4]
chain 0
  Take x=t2 out=t5 index=0 axis=0
  ItemInt x=t5 out=v0
  SymSize a=t1 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  Take x=t0 out=t6 index=t1 axis=0
  Reshape x=t6 out=t7 shape=[v1,4]
  SliceUpdate dst=t4 update=t7 out=t4 axis=0 start=v0 stop=v2
  Slice x=t4 out=t8 axis=0 start=0 stop=v2
  Sum x=t8 out=t3 axes=[0] keepdims=true
"#;

/// The same sum, which is itself the state; one token a step.
const RUNNING: &str = r#"slots constants=1 inputs=2 outputs=1 buffers=1 temps=2 values=0
main 0
input t1
input t2
output t3
buffer t4
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[4,4]
meta t1 i64[1,1]
meta t2 i64[1]
meta t3 f32[1,4]
meta t4 f32[1,4]
chain 0
  Take x=t0 out=t5 index=t1 axis=0
  Reshape x=t5 out=t6 shape=[1,4]
  Add a=t4 b=t6 out=t3
  SliceUpdate dst=t4 update=t3 out=t4 axis=0 start=0 stop=1
"#;

/// A table in which `a` leads to `b`, `b` to `c`, and `c` to `after_c`.
pub(crate) fn cycle(after_c: u32) -> Table {
    let mut table = [[0.0; 4]; 4];
    for (from, to) in [(0, 1), (1, 2), (2, after_c as usize)] {
        table[from][to] = 1.0;
    }
    table
}

/// A model whose next token depends on the last one only.
pub(crate) fn bigrams(table: &Table, context: i64) -> Program {
    program(BIGRAMS, &[(DType::I64, &[1, 3]), (DType::I64, &[3]), (DType::F32, &[1, 3, 4])], table, context)
}

/// A model whose next token depends on all tokens so far.
pub(crate) fn history(table: &Table) -> Program {
    program(
        &flambeau_testcases::history(WORDS.len()),
        &[(DType::I64, &[1, 1]), (DType::I64, &[1]), (DType::F32, &[1, 4])],
        table,
        8,
    )
}

/// The same, whose sequence can be shortened.
pub(crate) fn masked(table: &Table) -> Program {
    program(MASKED, &[(DType::I64, &[1, 3]), (DType::I64, &[3]), (DType::F32, &[1, 4])], table, 8)
}

/// The same, whose state is that of the last position only.
pub(crate) fn running(table: &Table) -> Program {
    program(RUNNING, &[(DType::I64, &[1, 1]), (DType::I64, &[1]), (DType::F32, &[1, 4])], table, 8)
}

/// A program whose inputs, and last its output, have the given types and largest shapes.
pub(crate) fn program(graph: &str, values: &[(DType, &[u32])], table: &Table, context: i64) -> Program {
    let mut writer = ProgramWriter::new();
    add_method(&mut writer, "forward", graph, values, 1);
    finish(writer, table, context)
}

/// Adds a method whose values are its inputs, and `outputs` outputs behind them.
pub(crate) fn add_method(writer: &mut ProgramWriter<'_>, name: &str, graph: &str, values: &[(DType, &[u32])], outputs: u32) {
    let graph = check(graph.parse::<Graph>().unwrap()).unwrap();
    let is_dynamic = |slot: &Slot| match slot {
        Slot::Tensor(tid) => graph.meta[tid.0 as usize].shape.iter().any(|dim| matches!(dim, MetaDim::Dynamic { .. })),
        Slot::Value(_) => false,
    };
    let tensor = |(&(dtype, sizes), slot): (&(DType, &[u32]), &Slot)| {
        let mut value = TensorValue::new(dtype, sizes);
        value.dynamic = is_dynamic(slot);
        value.allocation = Some(Allocation { memory_id: 1, offset: 0 });
        EValue::Tensor(Box::new(value))
    };
    let count = values.len() as u32;
    let call = Instruction::DelegateCall { delegate: 0, args: (0..count).collect() };
    let plan = ExecutionPlan {
        name: name.into(),
        values: values.iter().zip(graph.inputs.iter().chain(&graph.outputs)).map(tensor).collect(),
        inputs: (0..count - outputs).collect(),
        outputs: (count - outputs..count).collect(),
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 1 << 10],
        ..ExecutionPlan::default()
    };
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).unwrap();
}

/// The program of these methods, for texts of `context` tokens.
pub(crate) fn finish(mut writer: ProgramWriter<'_>, table: &Table, context: i64) -> Program {
    writer.constant_method("get_max_ctx_len", vec![EValue::Int(context)]);
    let bytes: Vec<u8> = table.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    writer.named("table", Blob::from_bytes(bytes)).unwrap();
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    Program::from_bytes(file).unwrap()
}

pub(crate) fn tokenizer() -> Tokenizer {
    let vocab: serde_json::Map<String, serde_json::Value> =
        WORDS.iter().enumerate().map(|(i, w)| ((*w).to_owned(), i.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{ "id": END, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false }],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}
