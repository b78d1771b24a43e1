//! A language model that says what it is told to.

use flambeau_ir::{Graph, check};
use flambeau_tensor::DType;
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

/// Logits are the row of the last token.
fn graph(tokens: usize) -> Graph {
    let text = format!(
        r#"slots constants=1 inputs=2 outputs=1 buffers=0 temps=0 values=0
main 0
input t1
input t2
output t3
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[{tokens},{tokens}]
meta t1 i64[1,1..8]
meta t2 i64[1..8]
meta t3 f32[1,1..8,{tokens}]
chain 0
  Take x=t0 out=t3 index=t1 axis=0
"#
    );
    text.parse().expect("the graph is one")
}

/// A program (`.pte`) that answers every prompt with these pieces of text, one a token, and its `tokenizer.json`. Words of prompts are
/// unknown to it. It goes round for ever unless `ends`.
pub fn script(pieces: &[&str], context: i64, ends: bool) -> (Vec<u8>, Vec<u8>) {
    // Token 0 is any word, the last one ends the text.
    let tokens = pieces.len() + 2;
    let next = |token: usize| if token == pieces.len() && !ends { 1 } else { (token + 1).min(tokens - 1) };
    let table: Vec<u8> = (0..tokens)
        .flat_map(|token| (0..tokens).map(move |other| if other == next(token) { 20.0f32 } else { 0.0 }))
        .flat_map(f32::to_le_bytes)
        .collect();
    let mut words = vec!["<unk>".to_owned()];
    words.extend(pieces.iter().map(|piece| (*piece).to_owned()));
    words.push("</s>".to_owned());
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.iter().enumerate().map(|(id, word)| (word.clone(), id.into())).collect();
    assert_eq!(vocabulary.len(), tokens, "the pieces differ");
    let special = serde_json::json!({
        "id": tokens - 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
    });
    (program(tokens, table, context), tokenizer.to_string().into_bytes())
}

fn program(tokens: usize, table: Vec<u8>, context: i64) -> Vec<u8> {
    let graph = check(graph(tokens)).expect("the graph is valid");
    let tensor = |dtype, sizes: &[u32]| {
        let mut value = TensorValue::new(dtype, sizes);
        value.dynamic = true;
        value.allocation = Some(Allocation { memory_id: 1, offset: 0 });
        EValue::Tensor(Box::new(value))
    };
    let values = vec![tensor(DType::I64, &[1, 8]), tensor(DType::I64, &[8]), tensor(DType::F32, &[1, 8, tokens as u32])];
    let call = Instruction::DelegateCall { delegate: 0, args: vec![0, 1, 2] };
    let plan = ExecutionPlan {
        name: "forward".into(),
        values,
        inputs: vec![0, 1],
        outputs: vec![2],
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 1 << 16],
        ..ExecutionPlan::default()
    };
    let mut writer = ProgramWriter::new();
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).expect("the method is written");
    writer.constant_method("get_max_ctx_len", vec![EValue::Int(context)]);
    writer.named("table", Blob::from_bytes(table)).expect("the table is written");
    let mut file = Vec::new();
    writer.write(&mut file).expect("the program is written");
    file
}
