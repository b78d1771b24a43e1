//! A language model that generates a fixed text.

use flambeau_tensor::DType;
use flambeau_wire::ProgramWriter;

use crate::method::{add_method, finish_program, word_tokenizer};

/// Logits are the row of the last token.
fn graph(tokens: usize) -> String {
    format!(
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
    )
}

/// A program (`.pte`) that answers every prompt with these pieces of text, one per token, and its
/// `tokenizer.json`. Words of prompts are unknown tokens. The text repeats forever unless `ends`.
pub fn script(pieces: &[&str], context: i64, ends: bool) -> (Vec<u8>, Vec<u8>) {
    // Token 0 is the unknown token; the last token ends the text.
    let words = [&["<unk>"], pieces, &["</s>"]].concat();
    let tokens = words.len();
    let next = |token: usize| if token == pieces.len() && !ends { 1 } else { (token + 1).min(tokens - 1) };
    let table = (0..tokens).flat_map(|token| (0..tokens).map(move |other| if other == next(token) { 20.0 } else { 0.0 }));
    let mut writer = ProgramWriter::new();
    let values: [(DType, &[u32]); 3] = [(DType::I64, &[1, 8]), (DType::I64, &[8]), (DType::F32, &[1, 8, tokens as u32])];
    add_method(&mut writer, "forward", &graph(tokens), &values, 1);
    (finish_program(writer, table, context), word_tokenizer(&words, "<unk>"))
}
