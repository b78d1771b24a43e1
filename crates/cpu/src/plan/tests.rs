mod batch;
mod codes;
mod scores;
mod windows;

use std::sync::Arc;

use flambeau_ir::{
    Graph, check,
    engine::{Constants, LoadOptions, Session, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor, Tolerance, cast, compare};

use crate::{CpuEngine, session::CpuSession};

/// Constants with varying elements, seeded by the number at the end of their name.
struct Noise<'a>(&'a Graph);

impl Constants for Noise<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        let tid: usize = key.strip_prefix('c')?.parse().ok()?;
        let meta = self.0.meta.get(tid)?;
        let shape = meta.static_shape()?;
        let n: usize = shape.iter().product();
        let mut state = 0x9e37_79b9u32.wrapping_mul(tid as u32 + 1) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        if meta.dtype == DType::U32 {
            let words: Vec<u8> = (0..n).flat_map(|_| next().to_le_bytes()).collect();
            return Some(words.into());
        }
        let values: Vec<f32> = (0..n).map(|_| (next() >> 8) as f32 / (1 << 25) as f32 - 0.2).collect();
        let tensor = Tensor::from_slice(&values, &shape).and_then(|t| cast(&t, meta.dtype)).ok()?;
        Some(tensor.bytes().clone())
    }
}

/// A decoder of one layer over caches of 16 positions: float and packed weights, rotated heads,
/// gated layer, residuals.
const DECODER: &str = "\
slots constants=13 inputs=2 outputs=1 buffers=2 temps=10 values=4
main 0
input t13
input t14
output t15
buffer t16
buffer t17
meta t0 T[96,64]
meta t1 T[64]
meta t2 T[64,64]
meta t3 T[32,64]
meta t4 T[32,64]
meta t5 T[64,64]
meta t6 T[128,64]
meta t7 T[128,64]
meta t8 u32[64,16]
meta t9 T[64,2]
meta t10 T[64,2]
meta t11 T[32]
meta t12 T[64]
meta t13 i64[1,1..16]
meta t14 i64[1..16]
meta t15 T[1,1..16,96]
meta t16 T[1,1,16,32]
meta t17 T[1,1,16,32]
chain 0
  Take x=t0 out=t18 index=t13 axis=0
  Take x=t14 out=t23 index=0 axis=0
  RMSNorm x=t18 weight=t1 out=t19 eps=0.00001
  Transpose x=t2 out=t20 perm=[1,0]
  Transpose x=t3 out=t21 perm=[1,0]
  Transpose x=t4 out=t22 perm=[1,0]
  Addmm mat1=t19 mat2=t20 out=t20 bias=t12
  Addmm mat1=t19 mat2=t21 out=t21 bias=t11
  Addmm mat1=t19 mat2=t22 out=t22
  Reshape x=t20 out=t20 shape=[1,-1,2,32]
  Transpose x=t20 out=t20 perm=[0,2,1,3]
  Rope x=t20 out=t20 dims=32 offset=t23 base=10000.0
  Reshape x=t21 out=t21 shape=[1,-1,1,32]
  Transpose x=t21 out=t21 perm=[0,2,1,3]
  Rope x=t21 out=t21 dims=32 offset=t23 base=10000.0
  Reshape x=t22 out=t22 shape=[1,-1,1,32]
  Transpose x=t22 out=t22 perm=[0,2,1,3]
  ItemInt x=t23 out=v0
  SymSize a=t13 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  SliceUpdate dst=t16 update=t21 out=t16 axis=2 start=v0 stop=v2
  IndexCopy dst=t17 update=t22 indices=t14 out=t24 axis=2
  IdCopy x=t24 out=t17
  Slice x=t16 out=t21 axis=2 start=0 stop=v2
  Slice x=t17 out=t22 axis=2 start=0 stop=v2
  Sdpa q=t20 k=t21 v=t22 out=t20 scale=0.25 causal=true
  Transpose x=t20 out=t20 perm=[0,2,1,3]
  Reshape x=t20 out=t20 shape=[1,-1,64]
  Transpose x=t5 out=t21 perm=[1,0]
  Addmm mat1=t20 mat2=t21 out=t20
  Add a=t20 b=t18 out=t18
  RMSNorm x=t18 weight=t1 out=t19 eps=0.00001
  Transpose x=t6 out=t21 perm=[1,0]
  Transpose x=t7 out=t22 perm=[1,0]
  Addmm mat1=t19 mat2=t21 out=t21
  Silu x=t21 out=t21
  Addmm mat1=t19 mat2=t22 out=t22
  Multiply a=t21 b=t22 out=t21
  QuantizedMatmul x=t21 w=t8 scales=t9 biases=t10 out=t21 group_size=64 bits=4 mode=affine transpose=true
  Add a=t18 b=t21 out=t18
  RMSNorm x=t18 weight=t1 out=t18 eps=0.00001
  Transpose x=t0 out=t21 perm=[1,0]
  Addmm mat1=t18 mat2=t21 out=t15
";

fn graph(text: &str, dtype: &str) -> Graph {
    let mut graph: Graph = text.replace(" T[", &format!(" {dtype}[")).parse().expect("the text is a graph");
    graph.names = (0..graph.slots.constants).map(|i| (format!("c{i}"), flambeau_ir::Slot::Tensor(flambeau_ir::Tid(i)))).collect();
    graph
}

fn session(graph: &Graph, node_by_node: bool) -> CpuSession {
    let checked = Arc::new(check(graph.clone()).expect("the graph is sound"));
    let mut session = CpuEngine::new(Some(2)).session(checked, &Noise(graph), &LoadOptions::default()).expect("it loads");
    session.node_by_node = node_by_node;
    session
}

fn tokens(start: usize, count: usize) -> Vec<Value> {
    let ids: Vec<i64> = (start..start + count).map(|i| (i * 37 % 96) as i64).collect();
    let positions: Vec<i64> = (start as i64..(start + count) as i64).collect();
    let tensors = [Tensor::from_slice(&ids, &[1, count]), Tensor::from_slice(&positions, &[count])];
    tensors.map(|t| Value::Tensor(t.expect("the counts agree"))).to_vec()
}

fn only(values: Vec<Value>) -> Tensor {
    match &values[..] {
        [Value::Tensor(tensor)] => tensor.clone(),
        other => panic!("{other:?}"),
    }
}

/// Runs both ways over steps of these lengths; every result must have the same bits.
fn check_steps(text: &str, dtype: &str, steps: &[usize]) {
    let graph = graph(text, dtype);
    let (mut planned, mut plain) = (session(&graph, false), session(&graph, true));
    for round in 0..2 {
        let mut position = 0;
        for &count in steps {
            let inputs = tokens(position, count);
            let [a, b] = [&mut planned, &mut plain].map(|s| only(s.run(&inputs).expect("the step runs")));
            assert_eq!((a.shape(), a.bytes()), (b.shape(), b.bytes()), "{dtype}, round {round}, {count} from {position}");
            position += count;
        }
        planned.reset();
        plain.reset();
    }
}

#[test]
fn planned_runs_have_the_bits_of_node_by_node_runs() {
    for dtype in ["f32", "bf16", "f16"] {
        check_steps(DECODER, dtype, &[3, 1, 1, 4, 1, 3]);
    }
}

#[test]
fn the_last_row_alone_is_what_it_is_among_all() {
    for dtype in ["f32", "bf16"] {
        let graph = graph(DECODER, dtype);
        let (mut all, mut last) = (session(&graph, false), session(&graph, false));
        for (position, count) in [(0, 5), (5, 1), (6, 2)] {
            let whole = only(all.run(&tokens(position, count)).expect("the step runs"));
            let row = only(last.run_last(&tokens(position, count)).expect("the step runs"));
            assert_eq!(row.shape(), [1, 1, 96]);
            let size = row.bytes().len();
            let expected = whole.bytes().slice(whole.bytes().len() - size..);
            let expected = Tensor::new(row.dtype(), row.shape(), expected).expect("the size is that of the row");
            // Products of one row and of several rows use different summation orders.
            let tolerance = Tolerance { relative: if dtype == "f32" { 1e-5 } else { 1e-2 }, absolute: 1e-3 };
            compare(&row, &expected, tolerance).expect("the row is the same");
        }
    }
}

#[test]
fn a_decoder_runs_in_few_steps() {
    let graph = graph(DECODER, "bf16");
    let mut session = session(&graph, false);
    session.run(&tokens(0, 1)).expect("the step runs");
    // 12 kernels: lookup, three norms, q with k and v, two rotations, attention, its residual
    // layer, the gated layer, its residual layer, the logits. Further steps: two updates, two
    // windows, three integers, and the position's view as a node.
    assert!(session.plans.steps() <= 20, "{} steps", session.plans.steps());
}

/// Layers with packed weights and scales wider than the activations. One f32 product is narrowed;
/// the other's weight is unpacked first, in groups of 16.
const WIDE_SCALES: &str = "\
slots constants=6 inputs=1 outputs=1 buffers=0 temps=2 values=0
main 0
input t6
output t7
meta t0 u32[64,8]
meta t1 f32[64,2]
meta t2 f32[64,2]
meta t3 u32[32,12]
meta t4 f32[32,4]
meta t5 f32[32,4]
meta t6 T[1..16,64]
meta t7 T[1..16,32]
chain 0
  QuantizedMatmul x=t6 w=t0 scales=t1 out=t8 biases=t2 group_size=32 bits=4 mode=affine
  AsType x=t8 out=t8 scalar_type=TYPE
  Add a=t6 b=t8 out=t8
  Dequantize w=t3 scales=t4 out=t9 biases=t5 group_size=16 bits=6 mode=affine dtype=TYPE
  Transpose x=t9 out=t9 perm=[1,0]
  Addmm mat1=t8 mat2=t9 out=t7
";

#[test]
fn layers_take_packed_weights_of_any_scales_as_they_are() {
    // In f32 the cast narrows nothing, and the sum is a step of its own.
    for (dtype, relative, steps) in [(DType::F16, 1e-2, 2), (DType::BF16, 2e-2, 2), (DType::F32, 1e-5, 3)] {
        let name = dtype.to_string();
        let graph = graph(&WIDE_SCALES.replace("TYPE", &name), &name);
        let (mut planned, mut plain) = (session(&graph, false), session(&graph, true));
        for rows in [1, 3, 16] {
            let values: Vec<f32> = (0..rows * 64).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
            let x = Tensor::from_slice(&values, &[rows, 64]).and_then(|x| cast(&x, dtype)).expect("the counts agree");
            let [a, b] = [&mut planned, &mut plain].map(|s| only(s.run(&[Value::Tensor(x.clone())]).expect("it runs")));
            let [a, b] = [a, b].map(|y| cast(&y, DType::F32).expect("floats"));
            let most = b.as_slice::<f32>().expect("floats").iter().fold(0f32, |most, y| most.max(y.abs()));
            let tolerance = Tolerance { relative: relative.into(), absolute: (relative * most).into() };
            compare(&a, &b, tolerance).unwrap_or_else(|error| panic!("{dtype}, {rows} rows: {error}"));
        }
        assert_eq!(planned.plans.steps(), steps, "{dtype}");
    }
}

/// A graph's noise with slot 2, where it is `[.., groups]`, made of slot 1: the biases of 4-bit
/// codes around zero.
struct Symmetric<'a>(Noise<'a>);

impl Constants for Symmetric<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        let from = if key == "c2" { "c1" } else { key };
        let bytes = self.0.get(from)?;
        if key != "c2" {
            return Some(bytes);
        }
        let scales = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Some(scales.flat_map(|scale| (-8.0 * scale).to_le_bytes()).collect::<Vec<u8>>().into())
    }
}

#[test]
fn biases_that_follow_from_scales_are_not_read() {
    let graph = graph(&WIDE_SCALES.replace("TYPE", "f16"), "f16");
    let checked = Arc::new(check(graph.clone()).expect("the graph is sound"));
    let load = |constants: &dyn Constants, node_by_node| {
        let mut session =
            CpuEngine::new(Some(2)).session(Arc::clone(&checked), constants, &LoadOptions::default()).expect("it loads");
        session.node_by_node = node_by_node;
        session
    };
    let values: Vec<f32> = (0..3 * 64).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect();
    let x = Tensor::from_slice(&values, &[3, 64]).and_then(|x| cast(&x, DType::F16)).expect("the counts agree");
    let run = |session: &mut CpuSession| only(session.run(&[Value::Tensor(x.clone())]).expect("it runs"));
    let (mut symmetric, mut other) = (load(&Symmetric(Noise(&graph)), false), load(&Noise(&graph), false));
    let (_, y) = (run(&mut other), run(&mut symmetric));
    let found = |session: &CpuSession| session.machine.symmetric.values().map(|format| format.is_some()).collect::<Vec<_>>();
    assert_eq!([found(&symmetric), found(&other)], [[true, false], [false, false]]);
    let expected = run(&mut load(&Symmetric(Noise(&graph)), true));
    let tolerance = Tolerance { relative: 1e-2, absolute: 2e-2 };
    compare(&y, &expected, tolerance).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_step_allocates_nothing_but_its_result() {
    for dtype in ["f32", "bf16"] {
        let graph = graph(DECODER, dtype);
        let mut session = session(&graph, false);
        let mut result = Vec::new();
        for position in 0..8 {
            let inputs = tokens(position, 1);
            drop(std::mem::take(&mut result));
            let counted = allocation_counter::measure(|| result = session.run_last(&inputs).expect("the step runs"));
            // The list of results, and the caller's handle to the storage of the only result.
            let expected = 2;
            assert!(position < 3 || counted.count_total == expected, "{dtype}, step {position}: {counted:?}");
        }
    }
}

/// Sums into buffer 3 `[4]`, or twice as much, as value 0 says, and shows what the buffer held
/// before. Input 1, outputs 2 and the buffer are `[4]`.
const BRANCHES: &str = "\
slots constants=1 inputs=1 outputs=1 buffers=1 temps=3 values=1
main 0
input t1
input v0
output t2
buffer t3
meta t0 f32[4]
meta t1 f32[4]
meta t2 f32[4]
meta t3 f32[4]
chain 0
  IdCopy x=t3 out=t4
  Add a=t1 b=t0 out=t5
  If cond=v0 then_chain_idx=1 else_chain_idx=2
  Multiply a=t4 b=t5 out=t6
  Add a=t6 b=t3 out=t2
chain 1
  Add a=t3 b=t5 out=t3
chain 2
  Add a=t5 b=t5 out=t6
  Add a=t3 b=t6 out=t3
  Add a=t5 b=t5 out=t5
";

fn four(v: f32, branch: i32) -> Vec<Value> {
    vec![Value::Tensor(Tensor::from_slice(&[v, 2.0 * v, -v, 0.5], &[4]).expect("four elements")), Value::Int(branch)]
}

#[test]
fn branches_may_replace_what_others_still_see() {
    let graph = graph(BRANCHES, "f32");
    let (mut planned, mut plain) = (session(&graph, false), session(&graph, true));
    for (step, branch) in [(1.0, 1), (2.0, 0), (3.0, 0), (4.0, 1)] {
        let inputs = four(step, branch);
        let [a, b] = [&mut planned, &mut plain].map(|s| only(s.run(&inputs).expect("the step runs")));
        assert_eq!(a.bytes(), b.bytes(), "step {step}");
    }
    let steps = planned.steps().expect("the engine counts");
    let nodes: Vec<_> = steps.node_by_node.iter().map(|n| (n.node, n.why.as_str(), n.count)).collect();
    assert_eq!(nodes, [("Add", "a node runs its chain", 8), ("If", "it runs other chains", 4)]);
    assert!(steps.planned >= 12, "{}", steps.planned);
}

/// Running products of input 0 `[3,2]` along its first axis, and the last of them.
const PRODUCTS: &str = "\
slots constants=0 inputs=1 outputs=2 buffers=0 temps=3 values=0
main 0
input t0
output t1
output t2
meta t0 f32[3,2]
meta t1 f32[3,2]
meta t2 f32[2]
chain 0
  Full out=t3 shape=[2] v=2.0 scalar_type=f32
  Scan originals=[t0] sliced=[t4] outputs=[t1] carry=[t3] body_chain_idx=1 scan_axis=0
  IdCopy x=t3 out=t2
chain 1
  Multiply a=t4 b=t3 out=t5
  IdCopy x=t5 out=t1
  IdCopy x=t5 out=t3
";

#[test]
fn running_products_are_one_step_carried_in_doubles() {
    let x = Tensor::from_slice(&[1e-30f32, 3.0, 1e-30, 5.0, 1e30, 7.0], &[3, 2]).expect("six elements");
    let x = [Value::Tensor(x)];
    let run = |session: &mut CpuSession| match &session.run(&x).expect("it runs")[..] {
        [Value::Tensor(all), Value::Tensor(last)] => [all, last].map(|t| t.as_slice::<f32>().expect("floats").to_vec()),
        other => panic!("{other:?}"),
    };
    let mut session = session(&graph(PRODUCTS, "f32"), false);
    assert_eq!(run(&mut session), [vec![2e-30, 6.0, 0.0, 30.0, 2e-30, 210.0], vec![2e-30, 210.0]]);
    assert_eq!(session.steps().expect("the engine counts").node_by_node, []);
    // Another body is a loop.
    let sums = PRODUCTS.replace("Multiply a=t4", "Add a=t4");
    let mut looped = self::session(&graph(&sums, "f32"), false);
    assert_eq!(run(&mut looped)[1], [1e30, 17.0]);
    assert!(!looped.steps().expect("the engine counts").node_by_node.is_empty());
}

/// Two buffers `[4]` swap their contents. The result is the first one's old contents, and input 1
/// is written into it.
const EXCHANGE: &str = "\
slots constants=1 inputs=1 outputs=1 buffers=2 temps=2 values=0
main 0
input t1
output t2
buffer t3
buffer t4
meta t0 f32[4]
meta t1 f32[1..4]
meta t2 f32[4]
meta t3 f32[4]
meta t4 f32[4]
chain 0
  Add a=t3 b=t1 out=t3
  IdCopy x=t3 out=t5
  IdCopy x=t4 out=t3
  IdCopy x=t5 out=t4
  IdCopy x=t5 out=t2
";

#[test]
fn buffers_may_take_each_others_place() {
    let graph = graph(EXCHANGE, "f32");
    let mut session = session(&graph, false);
    let mut run = |v: f32| {
        let x = Tensor::from_slice(&[v; 4], &[4]).expect("four elements");
        only(session.run(&[Value::Tensor(x)]).expect("the step runs")).as_slice::<f32>().expect("floats")[0]
    };
    // The first result comes back two runs later.
    assert_eq!([run(1.0), run(10.0), run(100.0), run(1000.0)], [1.0, 10.0, 101.0, 1010.0]);
    assert_eq!(session.steps().expect("the engine counts").node_by_node, []);
}

#[test]
fn inputs_that_do_not_fit_change_nothing_for_the_next_run() {
    let graph = graph(EXCHANGE, "f32");
    let mut session = session(&graph, false);
    let x = |n: usize| [Value::Tensor(Tensor::from_slice(&vec![1.0f32; n], &[n]).expect("the sizes agree"))];
    for expected in [1.0, 1.0, 2.0] {
        let error = session.run(&x(3)).expect_err("three do not broadcast to four");
        assert!(error.to_string().starts_with("chain 0, instruction 0 (Add)"), "{error}");
        assert_eq!(only(session.run(&x(4)).expect("it fits")).as_slice::<f32>().expect("floats"), [expected; 4]);
    }
    let steps = session.steps().expect("the engine counts");
    assert!(steps.planned > 0 && steps.node_by_node.is_empty(), "{steps:?}");
}

#[test]
fn a_run_leaves_buffers_as_they_are_declared_or_fails() {
    // As many elements as the value says go into the buffer.
    let text = BRANCHES.split("chain 0").next().unwrap_or_default().to_owned()
        + "chain 0\n  Full out=t4 shape=[v0] v=1.0 scalar_type=f32\n  IdCopy x=t4 out=t3\n  IdCopy x=t3 out=t2\n";
    let graph = graph(&text, "f32");
    let mut session = session(&graph, false);
    let error = session.run(&four(1.0, 3)).expect_err("three elements are not four").to_string();
    assert!(error.contains("t3 is left as f32 [3], and declared as f32 [4]"), "{error}");
    assert_eq!(only(session.run(&four(1.0, 4)).expect("it fits")).as_slice::<f32>().expect("floats"), [1.0; 4]);
    let steps = session.steps().expect("the engine counts");
    let nodes: Vec<_> = steps.node_by_node.iter().map(|n| (n.node, n.why.as_str(), n.count)).collect();
    assert_eq!(nodes, [("Full", "sizes of its results depend on data", 2)]);
}
