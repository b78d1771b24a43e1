//! Programs from graphs in text form, and tokenizers with few words.

use flambeau_ir::{Graph, MetaDim, Slot, check};
use flambeau_tensor::DType;
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

/// Adds a method that runs a graph. `values` lists the types and largest shapes of its inputs,
/// followed by `outputs` outputs.
///
/// # Panics
/// Panics if the graph is invalid or has other inputs and outputs.
pub fn add_method(writer: &mut ProgramWriter<'_>, name: &str, graph: &str, values: &[(DType, &[u32])], outputs: u32) {
    let graph = check(graph.parse::<Graph>().expect("the text is a graph")).expect("the graph is valid");
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
    let slots: Vec<&Slot> = graph.inputs.iter().chain(&graph.outputs).collect();
    assert_eq!(values.len(), slots.len(), "each input and output has a value");
    let count = values.len() as u32;
    let bytes = |&(dtype, sizes): &(DType, &[u32])| sizes.iter().product::<u32>() as usize * dtype.size();
    let call = Instruction::DelegateCall { delegate: 0, args: (0..count).collect() };
    let plan = ExecutionPlan {
        name: name.into(),
        values: values.iter().zip(slots).map(tensor).collect(),
        inputs: (0..count - outputs).collect(),
        outputs: (count - outputs..count).collect(),
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, values.iter().map(bytes).max().unwrap_or(0) as u64],
        ..ExecutionPlan::default()
    };
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).expect("the method is written");
}

/// Writes a program with the constant `table`, for texts of `context` tokens; returns the file.
///
/// # Panics
/// Panics if the table is written already.
pub fn finish_program(mut writer: ProgramWriter<'_>, table: impl IntoIterator<Item = f32>, context: i64) -> Vec<u8> {
    writer.constant_method("get_max_ctx_len", vec![EValue::Int(context)]);
    let table: Vec<u8> = table.into_iter().flat_map(f32::to_le_bytes).collect();
    writer.named("table", Blob::from_bytes(table)).expect("the table is written");
    let mut file = Vec::new();
    writer.write(&mut file).expect("the program is written");
    file
}

/// A `tokenizer.json` of these words. The last word is the special end token; `unknown` replaces
/// other words.
///
/// # Panics
/// Panics if two words are equal, or if there are none.
pub fn word_tokenizer(words: &[&str], unknown: &str) -> Vec<u8> {
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    assert_eq!(vocabulary.len(), words.len(), "the words differ");
    let end = words.len() - 1;
    let special = serde_json::json!({
        "id": end, "content": words[end], "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": unknown },
    });
    tokenizer.to_string().into_bytes()
}
