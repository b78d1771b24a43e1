//! Attention over caches of codes.

use flambeau_ir::engine::{Session, Value};
use flambeau_tensor::{DType, Tensor, Tolerance, cast, compare};

use super::{graph, only, session};

/// Two heads of keys, then two of values, in codes with a scale for every 32 of 64 elements. The
/// caches have 16 positions. There are four heads of queries.
const CODES: &str = "\
slots constants=0 inputs=4 outputs=1 buffers=2 temps=6 values=4
main 0
input t0
input t1
input t2
input t3
output t4
buffer t5
buffer t6
meta t0 T[1,4,1..16,64]
meta t1 i8[1,4,1..16,2,32]
meta t2 T[1,4,1..16,2,1]
meta t3 i64[1]
meta t4 T[1,1..16,4,64]
meta t5 i8[1,4,16,2,32]
meta t6 T[1,4,16,2,1]
chain 0
  ItemInt x=t3 out=v0
  SymSize a=t1 dim=2 out=v1
  AddInt a=v0 b=v1 out=v2
  SliceUpdate dst=t5 update=t1 out=t5 axis=2 start=v0 stop=v2
  SliceUpdate dst=t6 update=t2 out=t6 axis=2 start=v0 stop=v2
  Slice x=t5 out=t7 axis=1 start=0 stop=2
  Slice x=t7 out=t7 axis=2 start=0 stop=v2
  Slice x=t6 out=t8 axis=1 start=0 stop=2
  Slice x=t8 out=t8 axis=2 start=0 stop=v2
  AsType x=t7 out=t7 scalar_type=TYPE
  Multiply a=t7 b=t8 out=t7
  Reshape x=t7 out=t9 shape=[1,2,-1,64]
  Slice x=t5 out=t7 axis=1 start=2 stop=4
  Slice x=t7 out=t7 axis=2 start=0 stop=v2
  Slice x=t6 out=t8 axis=1 start=2 stop=4
  Slice x=t8 out=t8 axis=2 start=0 stop=v2
  AsType x=t7 out=t7 scalar_type=TYPE
  Multiply a=t8 b=t7 out=t7
  Reshape x=t7 out=t10 shape=[1,2,-1,64]
  Sdpa q=t0 k=t9 v=t10 out=t9 scale=0.125 causal=true
  Transpose x=t9 out=t4 perm=[0,2,1,3]
";

/// Queries, codes and `scales` of them for each group, from a position on.
fn inputs(dtype: DType, (start, count): (usize, usize), scales: usize) -> Vec<Value> {
    let noise = |n: usize, seed: usize| (0..n).map(move |i| ((i * 7919 + seed * 104_729 + start * 31) % 211) as f32 / 105.0 - 1.0);
    let floats = |values: Vec<f32>, shape: &[usize]| Tensor::from_slice(&values, shape).and_then(|t| cast(&t, dtype));
    let codes: Vec<i8> = noise(4 * count * 64, 2).map(|v| (v * 127.0) as i8).collect();
    let tensors = [
        floats(noise(4 * count * 64, 1).collect(), &[1, 4, count, 64]),
        Tensor::from_slice(&codes, &[1, 4, count, 2, 32]),
        floats(noise(4 * count * 2 * scales, 3).map(|v| 0.02 + v * 0.01).collect(), &[1, 4, count, 2, scales]),
        Tensor::from_slice(&[start as i64], &[1]),
    ];
    tensors.map(|t| Value::Tensor(t.expect("the sizes agree"))).to_vec()
}

/// Runs the plan and node by node over steps of these lengths; the number of steps of the plan of
/// the last one.
fn check_steps(text: &str, dtype: DType, steps: &[usize], scales: usize) -> usize {
    let graph = graph(&text.replace("TYPE", &dtype.to_string()), &dtype.to_string());
    let (mut planned, mut plain) = (session(&graph, false), session(&graph, true));
    let mut position = 0;
    for &count in steps {
        let inputs = inputs(dtype, (position, count), scales);
        let [a, b] = [&mut planned, &mut plain].map(|s| cast(&only(s.run(&inputs).expect("the step runs")), DType::F32));
        // Decoding nodes round their results; the kernel does not.
        let relative = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        let tolerance = Tolerance { relative, absolute: relative };
        compare(&a.expect("floats"), &b.expect("floats"), tolerance)
            .unwrap_or_else(|e| panic!("{dtype}, {count} from {position}: {e}"));
        position += count;
    }
    planned.plans.steps()
}

#[test]
fn codes_are_read_where_they_lie() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        // Three integers, two updates, four windows, and attention.
        assert_eq!(check_steps(CODES, dtype, &[3, 1, 5, 1, 1], 1), 10, "{dtype}");
    }
}

#[test]
fn what_attention_cannot_read_is_decoded_ahead_of_it() {
    let each = CODES.replace("16,2,1]", "16,2,32]");
    assert!(check_steps(&each, DType::F32, &[3, 1, 1], 32) > 10);
    let kept = CODES.replace("  Sdpa q=t0", "  Add a=t9 b=t9 out=t11\n  Sdpa q=t0").replace("temps=6", "temps=7");
    assert!(check_steps(&kept, DType::BF16, &[3, 1, 1], 1) > 10);
}

#[test]
fn codes_outlast_what_replaces_them() {
    // The caches are overwritten between decoding and attention.
    let late = "  SliceUpdate dst=t5 update=t1 out=t5 axis=2 start=0 stop=v1\n  Sdpa q=t0";
    check_steps(&CODES.replace("  Sdpa q=t0", late), DType::F32, &[3, 1, 2, 1], 1);
}
