//! Small graphs shared by the tests of several crates.

use flambeau_ir::{
    Chain, Graph, Slot, SlotCounts, TensorMeta, Tid, Vid,
    engine::{EngineError, Session, Value},
};
use flambeau_tensor::{DType, Tensor};

/// A language model over `tokens` tokens in text form. A token `[1, 1]` and its position `[1]` give
/// logits `[1, tokens]`: the sum of the rows of the constant `table` `[tokens, tokens]` for all
/// tokens so far. Its cache has 8 positions.
pub fn history(tokens: usize) -> String {
    format!(
        r#"slots constants=1 inputs=2 outputs=1 buffers=1 temps=2 values=0
main 0
input t1
input t2
output t3
buffer t4
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
meta t0 f32[{tokens},{tokens}]
meta t1 i64[1,1]
meta t2 i64[1]
meta t3 f32[1,{tokens}]
meta t4 f32[8,{tokens}]
chain 0
  Take x=t0 out=t5 index=t1 axis=0
  Reshape x=t5 out=t6 shape=[1,{tokens}]
  IndexCopy dst=t4 update=t6 indices=t2 out=t4 axis=0
  Sum x=t4 out=t3 axes=[0] keepdims=true
"#
    )
}

/// A graph of the given chains over slots of f32 `[4]`: constant 0 `c`, input 1, output 2, buffer
/// 3, temporaries from 4 on. Value 0 is the second input.
pub fn with_buffer(chains: Vec<Chain>, init: Option<u32>) -> Graph {
    let slots = SlotCounts { constants: 1, inputs: 1, outputs: 1, buffers: 1, temps: 4 };
    Graph {
        slots,
        values: 1,
        chains,
        main: 0,
        init,
        inputs: vec![Slot::Tensor(Tid(1)), Slot::Value(Vid(0))],
        outputs: vec![Slot::Tensor(Tid(2))],
        buffers: vec![Tid(3)],
        names: vec![("c".into(), Slot::Tensor(Tid(0)))],
        meta: vec![TensorMeta::fixed(DType::F32, &[4]); 4],
    }
}

/// Runs a graph of [`with_buffer`].
///
/// # Errors
/// Returns the session's error.
///
/// # Panics
/// Panics if the result is not a single f32 tensor.
pub fn run_with_buffer(session: &mut dyn Session, x: [f32; 4], v: i32) -> Result<Vec<f32>, EngineError> {
    let x = Tensor::from_slice(&x, &[4]).expect("four elements");
    match &session.run(&[Value::Tensor(x), Value::Int(v)])?[..] {
        [Value::Tensor(y)] => Ok(y.as_slice::<f32>().expect("f32 elements").to_vec()),
        other => panic!("{other:?}"),
    }
}
