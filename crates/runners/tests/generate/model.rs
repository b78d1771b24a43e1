//! Language models of four tokens whose next token can be computed by hand.

use flambeau_runtime::Program;
use flambeau_tensor::DType;
use flambeau_testcases::{add_method, finish_program, word_tokenizer};
use flambeau_text::Tokenizer;
use flambeau_wire::ProgramWriter;

/// Row `i` holds the logits that token `i` adds for the next token.
pub(crate) type Table = [[f32; 4]; 4];

/// The words of the tokens; `</s>` ends the text.
pub(crate) const WORDS: [&str; 4] = ["a", "b", "c", "</s>"];
pub(crate) const END: u32 = 3;

/// Logits are the row of the last token; up to 3 tokens per step.
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

/// Logits are the sum of the rows of all tokens so far, stored in a cache of 8 positions; up to
/// three tokens per step. Rows after the step's positions are ignored, as with an attention mask.
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

/// The same sum after each token of a step of up to eight tokens; a cache of 40 positions.
const EACH: &str = r#"slots constants=1 inputs=2 outputs=1 buffers=1 temps=6 values=3
main 0
input t1
input t2
output t3
buffer t4
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[4,4]
meta t1 i64[1,1..8]
meta t2 i64[1..8]
meta t3 f32[1,1..8,4]
meta t4 f32[40,4]
chain 0
  Take x=t2 out=t5 index=0 axis=0
  ItemInt x=t5 out=v0
  SymSize a=t1 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  Take x=t0 out=t6 index=t1 axis=0
  Reshape x=t6 out=t7 shape=[v1,4]
  SliceUpdate dst=t4 update=t7 out=t4 axis=0 start=v0 stop=v2
  Slice x=t4 out=t8 axis=0 start=0 stop=v2
  Cumsum x=t8 out=t9 axis=0
  Slice x=t9 out=t10 axis=0 start=v0 stop=v2
  Reshape x=t10 out=t3 shape=[1,v1,4]
"#;

/// The same sum, stored as the state; one token per step.
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

/// A model whose next token depends only on the last one.
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

/// [`history`] as a model whose sequences can be truncated.
pub(crate) fn masked(table: &Table) -> Program {
    program(MASKED, &[(DType::I64, &[1, 3]), (DType::I64, &[3]), (DType::F32, &[1, 4])], table, 8)
}

/// [`masked`] as a model that returns the logits after each token.
pub(crate) fn each(table: &Table) -> Program {
    program(EACH, &[(DType::I64, &[1, 8]), (DType::I64, &[8]), (DType::F32, &[1, 8, 4])], table, 40)
}

/// [`history`] as a model with a recurrent state.
pub(crate) fn running(table: &Table) -> Program {
    program(RUNNING, &[(DType::I64, &[1, 1]), (DType::I64, &[1]), (DType::F32, &[1, 4])], table, 8)
}

/// A program whose inputs and output have the given types and largest shapes; the output comes
/// last.
pub(crate) fn program(graph: &str, values: &[(DType, &[u32])], table: &Table, context: i64) -> Program {
    let mut writer = ProgramWriter::new();
    add_method(&mut writer, "forward", graph, values, 1);
    finish(writer, table, context)
}

/// A program with these methods, for texts of `context` tokens.
pub(crate) fn finish(writer: ProgramWriter<'_>, table: &Table, context: i64) -> Program {
    Program::from_bytes(finish_program(writer, table.iter().flatten().copied(), context)).unwrap()
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(&word_tokenizer(&WORDS, "a")).unwrap()
}
