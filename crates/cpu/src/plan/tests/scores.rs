//! Attention written as products and a softmax.

use std::sync::Arc;

use flambeau_ir::{
    check,
    engine::{Constants, LoadOptions, Session, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor, Tolerance, cast, compare};

use super::{Noise, graph, only};
use crate::{CpuEngine, session::CpuSession};

/// Four heads of queries t4 over two heads of keys and values, in caches of 16 positions. Constants
/// are a scale, a cap, −∞ and sinks. Further nodes put a mask in t13 `[T, Tk]`, true for hidden
/// keys. They turn the products of queries and keys in t14 into shares. t17 and t18 are free.
const ATTENTION: &str = "\
slots constants=4 inputs=4 outputs=1 buffers=2 temps=8 values=3
main 0
input t4
input t5
input t6
input t7
output t8
buffer t9
buffer t10
meta t0 f32[]
meta t1 f32[]
meta t2 f32[]
meta t3 f32[1,2,2,1,1]
meta t4 T[1,4,1..16,32]
meta t5 T[1,2,1..16,32]
meta t6 T[1,2,1..16,32]
meta t7 i64[1..16]
meta t8 T[1,4,1..16,32]
meta t9 T[1,2,16,32]
meta t10 T[1,2,16,32]
chain 0
  Take x=t7 out=t11 index=0 axis=0
  ItemInt x=t11 out=v0
  SymSize a=t4 dim=2 out=v1
  AddInt a=v0 b=v1 out=v2
  SliceUpdate dst=t9 update=t5 out=t9 axis=2 start=v0 stop=v2
  SliceUpdate dst=t10 update=t6 out=t10 axis=2 start=v0 stop=v2
  ARange out=t12 start=0 stop=v2 step=1 scalar_type=i64
  ExpandDims x=t7 out=t13 axis=1
  MASK
  Reshape x=t4 out=t14 shape=[1,2,2,-1,32]
  Slice x=t9 out=t15 axis=2 start=0 stop=v2
  ExpandDims x=t15 out=t15 axis=2
  Slice x=t10 out=t16 axis=2 start=0 stop=v2
  ExpandDims x=t16 out=t16 axis=2
  Transpose x=t15 out=t15 perm=[0,1,2,4,3]
  Addmm mat1=t14 mat2=t15 out=t14
  AsType x=t14 out=t14 scalar_type=f32
  SHARES
  AsType x=t14 out=t14 scalar_type=TYPE
  Addmm mat1=t14 mat2=t16 out=t14
  Reshape x=t14 out=t8 shape=[1,4,-1,32]
";

/// Keys after the query, and those more than three before it.
const WINDOW: &str = "  Full out=t17 shape=[1] v=4.0 scalar_type=i64
  Subtract a=t13 b=t12 out=t18
  Less a=t18 b=t17 out=t18
  GreaterEqual a=t13 b=t12 out=t13
  LogicalAnd a=t13 b=t18 out=t13
  LogicalNot x=t13 out=t13";

const CAPPED: &str = "  Multiply a=t14 b=t0 out=t14
  Divide a=t14 b=t1 out=t14
  Tanh x=t14 out=t14
  Multiply a=t1 b=t14 out=t14
  Where condition=t13 x=t2 y=t14 out=t14
  Softmax x=t14 out=t14 axis=4 precise=true";

const WITH_SINKS: &str = "  Multiply a=t14 b=t0 out=t14
  Where condition=t13 x=t2 y=t14 out=t14
  Softmax x=t14 out=t17 axis=-1 precise=true
  LogSumExp x=t14 out=t14 axes=[4] keepdims=true
  Subtract a=t14 b=t3 out=t14
  Sigmoid x=t14 out=t14
  Multiply a=t17 b=t14 out=t14";

struct Numbers<'a>(Noise<'a>);

impl Constants for Numbers<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        let number = match key {
            "c0" => 0.7f32,
            "c1" => 1.5,
            "c2" => f32::NEG_INFINITY,
            _ => return self.0.get(key),
        };
        Some(number.to_le_bytes().to_vec().into())
    }
}

fn inputs(dtype: DType, (start, count): (usize, usize)) -> Vec<Value> {
    let noise = |heads: usize, seed: usize| {
        let n = heads * count * 32;
        let values: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729 + start * 31) % 211) as f32 / 105.0 - 1.0).collect();
        Tensor::from_slice(&values, &[1, heads, count, 32]).and_then(|t| cast(&t, dtype))
    };
    let positions: Vec<i64> = (start as i64..(start + count) as i64).collect();
    let tensors = [noise(4, 1), noise(2, 2), noise(2, 3), Tensor::from_slice(&positions, &[count])];
    tensors.map(|t| Value::Tensor(t.expect("the sizes agree"))).to_vec()
}

/// Compares planned runs with runs node by node; the names of the nodes that waited for their turn.
fn check_steps(mask: &str, shares: &str, dtype: DType) -> Vec<String> {
    let text = ATTENTION.replace("  MASK", mask).replace("  SHARES", shares).replace("TYPE", &dtype.to_string());
    let graph = graph(&text, &dtype.to_string());
    let checked = Arc::new(check(graph.clone()).unwrap_or_else(|error| panic!("{error}\n{text}")));
    let load = |node_by_node| {
        let numbers = Numbers(Noise(&graph));
        let session = CpuEngine::new(Some(2)).session(Arc::clone(&checked), &numbers, &LoadOptions::default());
        CpuSession { node_by_node, ..session.expect("it loads") }
    };
    let (mut planned, mut plain) = (load(false), load(true));
    let mut position = 0;
    for count in [1, 6, 1, 1, 4] {
        let inputs = inputs(dtype, (position, count));
        let [a, b] = [&mut planned, &mut plain].map(|s| cast(&only(s.run(&inputs).expect("the step runs")), DType::F32));
        // Nodes round each result to halves, the kernel does not.
        let relative = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        let tolerance = Tolerance { relative, absolute: relative };
        compare(&a.expect("floats"), &b.expect("floats"), tolerance)
            .unwrap_or_else(|e| panic!("{dtype}, {count} from {position}: {e}\n{mask}\n{shares}"));
        position += count;
    }
    planned.steps().expect("the engine counts").node_by_node.iter().map(|n| n.node.to_owned()).collect()
}

#[test]
fn bounded_scores_and_sinks_are_attention() {
    let plain = "  Multiply a=t0 b=t14 out=t14\n  Softmax x=t14 out=t14 axis=4 precise=true";
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (mask, shares) in [(WINDOW, CAPPED), (WINDOW, WITH_SINKS), ("", plain)] {
            assert_eq!(check_steps(mask, shares, dtype), [""; 0], "{dtype}\n{mask}\n{shares}");
        }
    }
}

#[test]
fn queries_that_see_nothing_give_nan() {
    let nothing = "  Full out=t17 shape=[1] v=30.0 scalar_type=i64
  Subtract a=t13 b=t12 out=t18
  GreaterEqual a=t18 b=t17 out=t13
  LogicalNot x=t13 out=t13";
    for shares in [CAPPED, WITH_SINKS] {
        assert_eq!(check_steps(nothing, shares, DType::F32), [""; 0]);
    }
}

#[test]
fn caches_may_change_before_attention_runs() {
    let written = "\n  SliceUpdate dst=t9 update=t6 out=t9 axis=2 start=v0 stop=v2
  SliceUpdate dst=t10 update=t5 out=t10 axis=2 start=v0 stop=v2";
    for shares in [CAPPED, WITH_SINKS] {
        assert_eq!(check_steps(WINDOW, &format!("{shares}{written}"), DType::F32), [""; 0]);
    }
}

#[test]
fn scores_that_another_node_reads_are_computed() {
    let other = CAPPED.replace("  Where", "  Abs x=t14 out=t14\n  Where");
    assert!(check_steps(WINDOW, &other, DType::F32).contains(&"Abs".to_owned()));
    // The total belongs to other scores.
    let total = WITH_SINKS.replace("  LogSumExp", "  Multiply a=t14 b=t0 out=t14\n  LogSumExp");
    assert!(check_steps(WINDOW, &total, DType::F32).contains(&"LogSumExp".to_owned()));
    // Hidden keys have a finite score.
    let finite = CAPPED.replace("x=t2", "x=t1");
    assert!(check_steps(WINDOW, &finite, DType::F32).contains(&"Where".to_owned()));
}
