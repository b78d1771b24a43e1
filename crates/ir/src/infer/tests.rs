//! Tests of rules by family, as tables: operands, node, results.

use flambeau_tensor::Symbol;
use proptest::prelude::*;

use super::*;
use crate::{Content, Role, Slot, field::Vid, testing::any_node};

fn size(word: &str) -> Expr {
    word.parse().map_or_else(|_| Expr::symbol(Symbol::new(word)), Expr::Int)
}

fn spec(text: &str) -> Spec {
    let (dtype, dims) = text.strip_suffix(']').and_then(|t| t.split_once('[')).unwrap();
    let dims = dims.split(',').filter(|w| !w.is_empty()).map(size).collect();
    Spec { dtype: DType::from_name(dtype).unwrap(), dims }
}

/// Runs one rule. Operands such as `f32[2,s]` fill t0, t1, …. Operands such as `v=5` and `v=s` fill
/// v0, v1, …. Returns the results.
fn run(operands: &str, node: &str) -> Result<Vec<Content>> {
    let mut env = Env::new();
    let (mut tensors, mut values) = (0, 0);
    for word in operands.split_whitespace() {
        match word.strip_prefix("v=") {
            Some(value) => {
                env.set_value(Vid(values), size(value));
                values += 1;
            }
            None => {
                env.set(Tid(tensors), spec(word));
                tensors += 1;
            }
        }
    }
    let node: Node = node.parse().unwrap();
    node.infer(&mut env)?;
    let mut out = Vec::new();
    node.walk(&mut |role, slot| match slot {
        _ if role == Role::Read => {}
        Slot::Tensor(tid) => out.extend(env.get(tid).cloned().map(Content::Tensor)),
        Slot::Value(vid) => out.extend(env.get_value(vid).cloned().map(Content::Value)),
    });
    Ok(out)
}

fn infer(operands: &str, node: &str) -> std::result::Result<String, String> {
    let results = run(operands, node).map_err(|e| e.to_string())?;
    Ok(results.iter().map(Content::to_string).collect::<Vec<_>>().join(" "))
}

/// Each row: operands, node, and either results or `!` and a part of the message.
fn check(rows: &[(&str, &str, &str)]) {
    for (operands, node, want) in rows {
        match (infer(operands, node), want.strip_prefix('!')) {
            (Ok(got), None) => assert_eq!(got, *want, "{node} on {operands}"),
            (Err(got), Some(part)) => assert!(got.contains(part), "{node} on {operands}: {got}"),
            (got, _) => panic!("{node} on {operands}: {got:?}, expected {want}"),
        }
    }
}

#[test]
fn a_shape_is_known_where_every_size_is() {
    let shape = |text| spec(text).shape().map(|shape| shape.to_vec());
    assert_eq!(
        [shape("f32[2,3]"), shape("f32[]"), shape("f32[2,n]"), shape("f32[-1]")],
        [Some(vec![2, 3]), Some(vec![]), None, None]
    );
}

#[test]
fn promotion_follows_the_table() {
    use DType::*;
    let order = [Bool, U8, I8, I16, I32, I64, U32, F16, BF16, F32];
    let rows = [
        "bool u8 i8 i16 i32 i64 u32 f16 bf16 f32",
        "u8 u8 i16 i16 i32 i64 u32 f16 bf16 f32",
        "i8 i16 i8 i16 i32 i64 i64 f16 bf16 f32",
        "i16 i16 i16 i16 i32 i64 i64 f16 bf16 f32",
        "i32 i32 i32 i32 i32 i64 i64 f16 bf16 f32",
        "i64 i64 i64 i64 i64 i64 i64 f16 bf16 f32",
        "u32 u32 i64 i64 i64 i64 u32 f16 bf16 f32",
        "f16 f16 f16 f16 f16 f16 f16 f16 f32 f32",
        "bf16 bf16 bf16 bf16 bf16 bf16 bf16 f32 bf16 f32",
        "f32 f32 f32 f32 f32 f32 f32 f32 f32 f32",
    ];
    for (a, row) in order.into_iter().zip(rows) {
        for (b, want) in order.into_iter().zip(row.split(' ')) {
            assert_eq!(promote(a, b).name(), want, "{a} with {b}");
        }
    }
}

#[test]
fn elementwise() {
    check(&[
        ("i32[2,s]", "Exp x=t0 out=t1", "f32[2,s]"),
        ("bf16[3]", "Silu x=t0 out=t1", "bf16[3]"),
        ("i8[3]", "Abs x=t0 out=t1", "i8[3]"),
        ("bool[3]", "Neg x=t0 out=t1", "!number type"),
        ("f32[3]", "BitwiseInvert x=t0 out=t1", "!integer type"),
        ("f32[3]", "LogicalNot x=t0 out=t1", "bool[3]"),
        ("f16[2,1] bf16[s]", "Add a=t0 b=t1 out=t2", "f32[2,s]"),
        ("i32[] i64[]", "Divide a=t0 b=t1 out=t2", "f32[]"),
        ("i32[4] u32[4]", "FloorDivide a=t0 b=t1 out=t2", "i64[4]"),
        ("f32[2] f32[3]", "Multiply a=t0 b=t1 out=t2", "!do not broadcast"),
        ("f32[s,3] f32[4,1]", "Less a=t0 b=t1 out=t2", "bool[4,3]"),
        ("i32[2] bool[2]", "BitwiseAnd a=t0 b=t1 out=t2", "i32[2]"),
        ("i32[2] f16[2]", "BitwiseXor a=t0 b=t1 out=t2", "!integer type"),
        ("f32[2]", "AsType x=t0 out=t1 scalar_type=u8", "u8[2]"),
        ("f32[2]", "AsType x=t0 out=t1 scalar_type=f64", "!`scalar_type` is f64"),
        ("i32[1] f16[3,1] i8[4]", "Where condition=t0 x=t1 y=t2 out=t3", "f16[3,4]"),
        ("i32[3] f32[]", "Clip x=t0 out=t1 a_max=t1", "f32[3]"),
        ("i32[3]", "Clip x=t0 out=t1", "!at least one"),
        ("", "Exp x=t0 out=t1", "!t0 is read before"),
    ]);
}

#[test]
fn reductions() {
    check(&[
        ("u8[2,s]", "Sum x=t0 out=t1", "u32[]"),
        ("i16[2,s]", "Prod x=t0 out=t1 axes=[-1]", "i32[2]"),
        ("f16[2,3,4]", "Sum x=t0 out=t1 axes=[0,-1] keepdims=true", "f16[1,3,1]"),
        ("i32[2,3]", "Mean x=t0 out=t1 axes=[1]", "f32[2]"),
        ("f32[2,3]", "Var x=t0 out=t1 axes=[1,-1]", "!axis -1 twice"),
        ("f32[2,3]", "Std x=t0 out=t1 axes=[2]", "!axis 2 is out of range for rank 2"),
        ("f32[2,0]", "Max x=t0 out=t1 axes=[1]", "!axis of size 0"),
        ("f32[2,0]", "Max x=t0 out=t1 axes=[0]", "f32[0]"),
        ("f32[2,0]", "Any x=t0 out=t1", "bool[]"),
        ("i32[2,3]", "LogSumExp x=t0 out=t1", "f32[2,3]"),
        ("i32[2,3]", "LogSumExp x=t0 out=t1 axes=[0]", "f32[3]"),
        ("i32[2,3]", "Median x=t0 out=t1 axes=[0]", "f32[3]"),
        ("bf16[2,s]", "Argmax x=t0 out=t1 axis=-1 keepdims=true", "u32[2,1]"),
        ("f32[0]", "Argmin x=t0 out=t1 axis=0", "!axis of size 0"),
        ("bool[4]", "Cumsum x=t0 out=t1 axis=0", "i32[4]"),
        ("f32[]", "Cumsum x=t0 out=t1 axis=0", "!out of range for rank 0"),
    ]);
}

#[test]
fn shapes() {
    check(&[
        ("f32[2,3]", "ExpandDims x=t0 out=t1 axis=-1", "f32[2,3,1]"),
        ("f32[2]", "ExpandDims x=t0 out=t1 axis=2", "!out of range"),
        ("f32[1,s,1]", "Squeeze x=t0 out=t1", "f32[s]"),
        ("f32[1,s,1]", "Squeeze x=t0 out=t1 dims=[0,1,9]", "f32[s,1]"),
        ("f32[2,s]", "Tile x=t0 out=t1 reps=[3,1,2]", "f32[3,2,2*s]"),
        ("f32[2]", "Tile x=t0 out=t1 reps=[-1]", "!at least 0"),
        ("f32[2,s] v=n", "Repeat x=t0 out=t1 repeats=v0 axis=0", "f32[2*n,s]"),
        ("f32[2]", "Repeat x=t0 out=t1 repeats=0 axis=0", "f32[0]"),
        ("f32[1,4] v=n", "BroadcastTo x=t0 out=t1 shape=[v0,3,-1]", "f32[n,3,4]"),
        ("f32[3,4] v=n", "BroadcastTo x=t0 out=t1 shape=[v0,4]", "f32[3,4]"),
        ("f32[4]", "BroadcastTo x=t0 out=t1 shape=[-1,4]", "!none to keep"),
        ("f32[4]", "BroadcastTo x=t0 out=t1 shape=[2,5]", "!do not broadcast"),
        ("f32[4,4]", "BroadcastTo x=t0 out=t1 shape=[4]", "!do not broadcast"),
        ("f32[2,s]", "Pad x=t0 out=t1 pad_width=[0,0,1,2] mode=constant", "f32[2,s+3]"),
        ("f32[2]", "Pad x=t0 out=t1 pad_width=[1] mode=constant", "!expected 2"),
        ("f32[2]", "Pad x=t0 out=t1 pad_width=[-1,0] mode=edge", "!at least 0"),
        ("f32[0]", "Pad x=t0 out=t1 pad_width=[1,0] mode=edge", "!no edge"),
        ("f32[2]", "Pad x=t0 out=t1 pad_width=[1,0] mode=wrap", "!constant or edge"),
        ("f32[2,3]", "Transpose x=t0 out=t1 perm=[-1,0]", "f32[3,2]"),
        ("f32[2,3]", "Transpose x=t0 out=t1 perm=[0,-2]", "!twice"),
        ("f32[2,3]", "Transpose x=t0 out=t1 perm=[0]", "!permutation of 2 axes"),
        ("f32[2,3] i32[2,s]", "Concatenate tensors=[t0,t1] out=t2 axis=-1", "f32[2,s+3]"),
        ("f32[2,3] f32[3,3]", "Concatenate tensors=[t0,t1] out=t2 axis=1", "!expected 2"),
        ("", "Concatenate tensors=[] out=t2 axis=1", "!at least one"),
        ("f32[2] f16[s]", "Stack tensors=[t0,t1] out=t2 axis=-1", "f32[2,2]"),
        ("f32[2] f16[2,2]", "Stack tensors=[t0,t1] out=t2", "!rank 2, expected 1"),
        ("f32[s,3]", "Roll x=t0 out=t1 shift=[1] axes=[0,1]", "!one for each of 2"),
        ("f32[s,3]", "Roll x=t0 out=t1 shift=[1,2] axes=[0,1]", "f32[s,3]"),
        ("f32[s,3]", "Roll x=t0 out=t1 shift=[1,2,3] axes=[0,0]", "f32[s,3]"),
        ("f32[s,3]", "Flip x=t0 out=t1 axes=[2]", "!out of range"),
    ]);
}

#[test]
fn reshapes_views_and_splits() {
    check(&[
        ("f32[s,4,8]", "Reshape x=t0 out=t1 shape=[-1,32]", "f32[s,32]"),
        ("f32[2,s] v=s", "Reshape x=t0 out=t1 shape=[v0,-1]", "f32[s,2]"),
        ("f32[2,3]", "Reshape x=t0 out=t1 shape=[4]", "!expected 6"),
        ("f32[2,3]", "Reshape x=t0 out=t1 shape=[4,-1]", "!do not divide"),
        ("f32[0]", "Reshape x=t0 out=t1 shape=[0,-1]", "!do not divide"),
        ("f32[4]", "Reshape x=t0 out=t1 shape=[-1,-1]", "!at most one -1"),
        ("f32[]", "Reshape x=t0 out=t1 shape=[1,1]", "f32[1,1]"),
        ("f32[2,3]", "AsStrided x=t0 out=t1 shape=[2,2] strides=[1,-1] offset=1", "f32[2,2]"),
        ("f32[2,3]", "AsStrided x=t0 out=t1 shape=[2,2] strides=[1,-1]", "!reaches elements -1 to 1 of 6"),
        ("f32[2,3]", "AsStrided x=t0 out=t1 shape=[3] strides=[3]", "!reaches elements 0 to 6 of 6"),
        ("f32[2,3]", "AsStrided x=t0 out=t1 shape=[0] strides=[3] offset=99", "f32[0]"),
        ("f32[7]", "Split x=t0 outs=[t1,t2] sizes=[4] axis=0", "f32[4] f32[3]"),
        ("f32[9]", "Split x=t0 outs=[t1,t2] sizes=[4] axis=0", "!9 elements in chunks of 4"),
        ("f32[s]", "Split x=t0 outs=[t1,t2,t0] sizes=[2,3,9] axis=-1", "f32[2] f32[3] f32[s-5]"),
        ("f32[4]", "Split x=t0 outs=[t1,t2] sizes=[5,0] axis=0", "!more than the axis has"),
        ("f32[3]", "Split x=t0 outs=[t1,t2,t3] sizes=[1] axis=0", "f32[1] f32[1] f32[1]"),
        ("f32[3]", "Split x=t0 outs=[t1] sizes=[0] axis=0", "!at least 1"),
        ("f32[4]", "Split x=t0 outs=[t1,t2] sizes=[0,4] axis=0", "f32[0] f32[4]"),
        ("f32[4]", "Split x=t0 outs=[t1,t2] sizes=[-1,5] axis=0", "!at least 0"),
        ("f32[4]", "Split x=t0 outs=[t1] sizes=[2,2] axis=0", "!1 parts"),
    ]);
}

#[test]
fn slices() {
    check(&[
        ("f32[8,4] v=n", "Slice x=t0 out=t1 axis=0 start=0 stop=v0", "f32[n,4]"),
        ("f32[8] v=p v=e", "Slice x=t0 out=t1 axis=0 start=v0 stop=v1", "f32[e-p]"),
        ("f32[8] v=p", "Slice x=t0 out=t1 axis=0 start=v0 stop=9223372036854775807", "f32[-p+8]"),
        ("f32[s]", "Slice x=t0 out=t1 axis=0 start=1 stop=9223372036854775807", "f32[s-1]"),
        ("f32[s]", "Slice x=t0 out=t1 axis=0 start=-1 stop=9223372036854775807", "f32[1]"),
        ("f32[s]", "Slice x=t0 out=t1 axis=0 start=0 stop=-2", "f32[s-2]"),
        ("f32[s]", "Slice x=t0 out=t1 axis=0 start=0 stop=9223372036854775807 step=2", "f32[(s+1)//(2)]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=-1 start=-99 stop=99 step=2", "f32[3]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=0 start=4 stop=2", "f32[0]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=0 start=4 stop=-6 step=-1", "f32[5]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=0 start=-1 stop=0 step=-3", "f32[2]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=0 start=-9 stop=-9 step=-1", "f32[0]"),
        ("f32[s]", "Slice x=t0 out=t1 axis=0 start=-1 stop=-9223372036854775808 step=-1", "f32[s]"),
        ("f32[5]", "Slice x=t0 out=t1 axis=0 start=0 stop=1 step=0", "!any other step"),
        ("f32[5] v=a", "Slice x=t0 out=t1 axis=v0 start=0 stop=1", "f32[?0]"),
        ("f32[5] v=3", "Slice x=t0 out=t1 axis=v0 start=0 stop=1", "!axis 3 is out of range"),
        ("f32[2,8] f16[2,s] v=p v=e", "SliceUpdate dst=t0 update=t1 out=t0 axis=1 start=v0 stop=v1", "f32[2,8]"),
        ("f32[8] f32[3]", "SliceUpdate dst=t0 update=t1 out=t0 axis=0 start=0 stop=4", "!do not broadcast"),
        ("f32[8] f32[3]", "SliceUpdate dst=t0 update=t1 out=t0 axis=0 start=4 stop=4", "f32[8]"),
        ("f32[8] f32[1]", "SliceUpdate dst=t0 update=t1 out=t0 axis=0 start=4 stop=9", "f32[8]"),
        ("f32[8] f32[1]", "SliceUpdate dst=t0 update=t1 out=t0 axis=0 start=4 stop=9 step=-1", "!at least 1"),
    ]);
}

#[test]
fn lookups() {
    check(&[
        ("f32[4,s]", "Take x=t0 out=t1 index=-4 axis=0", "f32[s]"),
        ("f32[4,s]", "Take x=t0 out=t1 index=4 axis=0", "!index into 4"),
        ("f32[4,s] i64[2,3]", "Take x=t0 out=t2 index=t1 axis=1", "f32[4,2,3]"),
        ("f32[4] f32[2]", "Take x=t0 out=t2 index=t1 axis=0", "!integer type"),
        ("f32[0] i32[2]", "Take x=t0 out=t2 index=t1 axis=0", "!axis of size 0"),
        ("f32[0] i32[0]", "Take x=t0 out=t2 index=t1 axis=0", "f32[0]"),
        ("f32[4,5] u32[1,s]", "TakeAlongAxis x=t0 indices=t1 out=t2 axis=1", "f32[4,s]"),
        ("f32[4,5] u32[s]", "TakeAlongAxis x=t0 indices=t1 out=t2 axis=1", "!rank 1, expected 2"),
        ("f32[4,5] i32[s]", "Gather x=t0 indices=[t1] out=t2 axes=[0] slice_sizes=[1,5]", "f32[s,1,5]"),
        ("f32[4,5] i32[s]", "Gather x=t0 indices=[t1] out=t2 axes=[-1] slice_sizes=[1,5]", "!axis -1"),
        ("f32[4,5] i32[s]", "Gather x=t0 indices=[t1] out=t2 axes=[0] slice_sizes=[1,6]", "!0 to 5"),
        ("f32[4,5] i32[s]", "Gather x=t0 indices=[t1,t1] out=t2 axes=[0,0] slice_sizes=[1,5]", "!twice"),
        ("f32[8,4] f32[n,4] i64[n]", "IndexCopy dst=t0 update=t1 indices=t2 out=t0 axis=0", "f32[8,4]"),
        ("f32[8,4] f32[2,4] i32[2]", "IndexCopy dst=t0 update=t1 indices=t2 out=t0 axis=0", "!expected i64"),
        ("f32[8,4] f32[2,4] i64[3]", "IndexCopy dst=t0 update=t1 indices=t2 out=t0 axis=0", "!expected 3"),
        ("f32[8,4] i32[2,1] f32[2,4]", "ScatterAdd x=t0 indices=t1 updates=t2 out=t3 axis=0", "f32[8,4]"),
        ("f32[8,4] i32[2,1] f32[2,5]", "ScatterAdd x=t0 indices=t1 updates=t2 out=t3 axis=0", "!do not broadcast"),
    ]);
}

#[test]
fn products() {
    check(&[
        ("f16[s,4] f16[4,8] f16[8]", "Addmm mat1=t0 mat2=t1 out=t3 bias=t2", "f16[s,8]"),
        ("f16[2,1,3,4] f32[5,4,8]", "Addmm mat1=t0 mat2=t1 out=t3", "f32[2,5,3,8]"),
        ("f16[4] f16[4]", "Addmm mat1=t0 mat2=t1 out=t3", "f16[]"),
        ("f16[3,4] f16[5,8]", "Addmm mat1=t0 mat2=t1 out=t3", "!`b` is 5, expected 4"),
        ("i32[3,4] i32[4,8]", "Addmm mat1=t0 mat2=t1 out=t3", "!floating"),
        ("f32[3,4] f32[4,8] f32[2,3,8]", "Addmm mat1=t0 mat2=t1 out=t3 bias=t2", "!do not broadcast"),
        ("f32[3,s,4] f32[5,4,8] u32[6]", "GatherMm a=t0 b=t1 out=t3 rhs_indices=t2 lhs_indices=t2", "f32[6,s,8]"),
        ("f32[3,1,1,4] f32[5,4,8] i32[3,2]", "GatherMm a=t0 b=t1 out=t3 rhs_indices=t2", "f32[3,2,1,8]"),
        ("f32[3,4] f32[4,8] f32[2]", "GatherMm a=t0 b=t1 out=t3 rhs_indices=t2", "!integer type"),
    ]);
}

#[test]
fn quantized() {
    let qmm = "QuantizedMatmul x=t0 w=t1 scales=t2 out=t9";
    check(&[
        ("bf16[s,64] u32[8,8] bf16[8,2] bf16[8,2]", &format!("{qmm} biases=t3 group_size=32 bits=4 mode=affine"), "bf16[s,8]"),
        ("f32[64] u32[8,6] f16[8,1] bf16[8,1]", &format!("{qmm} biases=t3 group_size=64 bits=3 mode=affine"), "f32[8]"),
        (
            "f16[3,8] u32[8,8] f16[8,1] f16[8,1]",
            &format!("{qmm} biases=t3 group_size=64 bits=4 mode=affine transpose=false"),
            "f16[3,64]",
        ),
        ("f16[3,64] u32[8,8] f16[8,2]", &format!("{qmm} group_size=32 bits=4 mode=affine"), "!present if and only if"),
        ("f16[3,64] u32[8,8] u8[8,2]", &format!("{qmm} group_size=32 bits=4 mode=mxfp4"), "f16[3,8]"),
        ("f16[3,64] u32[8,8] f16[8,2]", &format!("{qmm} group_size=32 bits=4 mode=mxfp4"), "!expected u8"),
        ("f16[3,64] u32[8,8] u8[8,2]", &format!("{qmm} group_size=32 bits=4 mode=nvfp4"), "!group_size"),
        ("f16[3,64] u32[8,8] f16[8,2] f16[8,2]", &format!("{qmm} biases=t3 group_size=32 bits=7 mode=affine"), "!bits"),
        ("f16[3,64] u32[8,9] f16[8,2] f16[8,2]", &format!("{qmm} biases=t3 group_size=32 bits=4 mode=affine"), "!`w` is 288"),
        ("f16[3,96] u32[8,8] f16[8,2] f16[8,2]", &format!("{qmm} biases=t3 group_size=32 bits=4 mode=affine"), "!expected 96"),
        ("f16[3,64] i32[8,8] f16[8,2] f16[8,2]", &format!("{qmm} biases=t3 group_size=32 bits=4 mode=affine"), "!expected u32"),
        ("u32[s,8] u8[s,4]", "Dequantize w=t0 scales=t1 out=t9 group_size=16 bits=4 mode=nvfp4", "bf16[s,64]"),
        (
            "u32[s,8] f16[s,2] f16[s,2]",
            "Dequantize w=t0 scales=t1 out=t9 biases=t2 group_size=32 bits=4 mode=affine dtype=f32",
            "f32[s,64]",
        ),
        (
            "u32[s,8] u8[s,2] f32[]",
            "Dequantize w=t0 scales=t1 out=t9 group_size=32 bits=4 mode=mxfp4 global_scale=t2",
            "!unless the mode is nvfp4",
        ),
        (
            "f16[2,1,64] u32[5,8,8] f16[5,8,2] f16[5,8,2] i32[2,3]",
            "GatherQmm x=t0 w=t1 scales=t2 out=t9 mode=affine biases=t3 rhs_indices=t4 group_size=32 bits=4",
            "!do not broadcast",
        ),
        (
            "f16[2,1,1,64] u32[5,8,8] f16[5,8,2] f16[5,8,2] i32[2,3]",
            "GatherQmm x=t0 w=t1 scales=t2 out=t9 mode=affine biases=t3 rhs_indices=t4 group_size=32 bits=4",
            "f16[2,3,1,8]",
        ),
    ]);
}

#[test]
fn convolutions() {
    check(&[
        ("f32[n,l,4] f32[8,3,4]", "Conv1D x=t0 w=t1 out=t2 padding=1", "f32[n,l,8]"),
        ("f32[1,9,4] f32[8,3,2]", "Conv1D x=t0 w=t1 out=t2 stride=2 dilation=2 groups=2", "f32[1,3,8]"),
        ("f32[1,9,4] f32[8,3,2]", "Conv1D x=t0 w=t1 out=t2", "!`x` is 4, expected 2"),
        ("f32[1,9,4] f32[7,3,2]", "Conv1D x=t0 w=t1 out=t2 groups=2", "!divisor of 7"),
        ("f32[1,2,4] f32[8,3,4]", "Conv1D x=t0 w=t1 out=t2", "!does not fit"),
        ("f32[1,9,4] f32[8,3,4]", "Conv1D x=t0 w=t1 out=t2 stride=0", "!at least 1"),
        ("i32[1,9,4] i32[8,3,4]", "Conv1D x=t0 w=t1 out=t2", "!floating"),
        ("f16[1,9,9,4] f32[8,3,1,4]", "Conv2D x=t0 w=t1 out=t2 stride_w=4", "f32[1,7,3,8]"),
        ("f16[1,9,9,9,4] f16[8,3,3,3,2]", "Conv3D x=t0 w=t1 out=t2 groups=2", "!expected 1"),
        ("f16[1,9,9,9,4] f16[8,3,3,3,4]", "Conv3D x=t0 w=t1 out=t2 padding_d=1", "f16[1,9,7,7,8]"),
        ("f32[1,l,4] f32[8,3,4]", "ConvTranspose1D x=t0 w=t1 out=t2 stride=2 padding=1 output_padding=1", "f32[1,2*l,8]"),
        ("f32[1,1,4] f32[8,1,4]", "ConvTranspose1D x=t0 w=t1 out=t2 padding=1", "!negative"),
    ]);
}

#[test]
fn norms_and_attention() {
    let heads = "f16[1,8,t,64] f16[1,2,s,64] f16[1,2,s,32]";
    check(&[
        ("f16[2,s,8] f32[8]", "RMSNorm x=t0 weight=t1 out=t2 eps=1.0", "f32[2,s,8]"),
        ("f16[2,8] f16[7]", "RMSNorm x=t0 weight=t1 out=t2 eps=1.0", "!`weight` is 7, expected 8"),
        ("i32[2,8]", "RMSNorm x=t0 out=t2 eps=1.0", "!floating"),
        ("f16[8] f16[8] f16[8]", "LayerNorm x=t0 weight=t1 bias=t2 out=t2 eps=1.0", "f16[8]"),
        ("i32[2,8]", "Softmax x=t0 out=t1 axis=0", "i32[2,8]"),
        ("i32[2,8]", "Softmax x=t0 out=t1 axis=1", "f32[2,8]"),
        (heads, "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0 causal=true", "f16[1,8,t,32]"),
        (&format!("{heads} bool[1,1,t,s]"), "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0 mask=t3", "f16[1,8,t,32]"),
        (&format!("{heads} bool[t,s]"), "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0 mask=t3 causal=true", "!false where there is a mask"),
        (&format!("{heads} bool[3,1,t,s]"), "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0 mask=t3", "!do not broadcast"),
        ("f16[1,3,4,8] f16[1,2,4,8] f16[1,2,4,8]", "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0", "!3 query heads"),
        ("f16[1,2,4,8] f16[1,2,4,8] f16[1,2,5,8]", "Sdpa q=t0 k=t1 v=t2 out=t3 scale=1.0", "!`v` is 5"),
        ("bf16[2,4,t,64] v=p", "Rope x=t0 out=t1 dims=64 offset=v0", "bf16[2,4,t,64]"),
        ("bf16[2,4,t,64] i32[2] f32[16]", "Rope x=t0 out=t3 dims=32 offset=t1 freqs=t2", "bf16[2,4,t,64]"),
        ("bf16[2,4,t,64] i32[3]", "Rope x=t0 out=t3 dims=32 offset=t1", "!`offset` is 3"),
        ("bf16[2,4,t,64] f32[]", "Rope x=t0 out=t3 dims=32 offset=t1", "!integer type"),
        ("bf16[2,4,t,64] v=0", "Rope x=t0 out=t3 dims=66 offset=v0", "!even number"),
        (
            "bf16[1,4,t,8] bf16[1,2,t,8] bf16[1,2,t,8] i64[t]",
            "UpdateAndAttend q=t0 k=t1 v=t2 position=t3 out=t4 layer_id=0 scale=1.0 out_dtype=f32",
            "f32[1,4,t,8]",
        ),
        (
            "bf16[1,4,t,8] bf16[1,2,t,8] bf16[1,2,t,8] i64[t]",
            "UpdateAndAttend q=t0 k=t1 v=t2 position=t3 out=t4 scale=1.0",
            "!layer_id",
        ),
    ]);
}

#[test]
fn creation_sorting_and_scalars() {
    check(&[
        ("v=n", "ARange out=t0 start=0 stop=v0 step=1", "i32[n]"),
        ("", "ARange out=t0 start=5 stop=0 step=-2 scalar_type=f32", "f32[3]"),
        ("", "ARange out=t0 start=5 stop=0 step=1", "i32[0]"),
        ("", "ARange out=t0 start=5 stop=0 step=0", "!any other step"),
        ("", "ARange out=t0 start=0 stop=5 step=1 scalar_type=bool", "!number type"),
        ("v=n", "Full out=t0 shape=[2,v0] v=1.5 scalar_type=i64", "i64[2,n]"),
        ("", "Full out=t0 shape=[65536,65536] v=1.5 scalar_type=i64", "!more bytes"),
        ("", "Full out=t0 shape=[-1] v=1.5 scalar_type=i64", "!negative"),
        ("", "Full out=t0 shape=[] v=v0 scalar_type=f32", "!v0 is read before"),
        ("", "Full out=t0 shape=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] v=0.0 scalar_type=f32", "!more dims"),
        ("f16[s]", "FullLike x=t0 out=t1 v=0.0", "f16[s]"),
        ("", "Tri out=t0 n=2 m=3 scalar_type=bool", "bool[2,3]"),
        ("f32[3]", "Tril x=t0 out=t1", "!at least 2"),
        ("v=7", "RandomBits out=t0 shape=[3] seed=v0 width=2", "u16[3]"),
        ("", "RandomBits out=t0 shape=[3] width=3", "!1, 2 or 4"),
        ("f16[s,3]", "Argsort x=t0 out=t1 axis=-1", "u32[s,3]"),
        ("f16[s,3]", "Partition x=t0 out=t1 kth=-3 axis=1", "f16[s,3]"),
        ("f16[s,3]", "ArgPartition x=t0 out=t1 kth=3 axis=1", "!index into 3"),
        ("v=a v=b", "AddInt a=v0 b=v1 out=v2", "a+b"),
        ("v=a", "SubtractInt a=v0 b=3 out=v0", "a-3"),
        ("v=2147483647", "AddInt a=v0 b=1 out=v0", "!does not fit 32 bits"),
        ("v=-2147483648", "FloorDivideInt a=v0 b=-1 out=v0", "!does not fit 32 bits"),
        ("v=-7", "FloorDivideInt a=v0 b=2 out=v0", "-4"),
        ("v=-7", "ModInt a=v0 b=2 out=v0", "1"),
        ("v=-7", "ModInt a=v0 b=0 out=v0", "!divides -7 by zero"),
        ("f32[2,s]", "SymSize a=t0 dim=-1 out=v0", "s"),
        ("f32[2,s]", "SymSize a=t0 dim=2 out=v0", "!out of range"),
        ("i64[1,1]", "ItemInt x=t0 out=v0", "?0"),
        ("i64[2]", "ItemInt x=t0 out=v0", "!expected 1"),
        ("f32[]", "ItemInt x=t0 out=v0", "!integer type or bool"),
    ]);
}

/// The single symbol of the operands takes every value from 2 to 16. Results for the symbol must
/// equal results for the value.
#[test]
fn symbolic_results_hold_for_every_size() {
    let rows = [
        ("f32[$,4,8]", "Reshape x=t0 out=t1 shape=[-1,32]"),
        ("f32[$,6] v=$", "Reshape x=t0 out=t1 shape=[2,v0,-1]"),
        ("f32[16] v=$", "Slice x=t0 out=t1 axis=0 start=1 stop=v0"),
        ("f32[16] v=$", "Slice x=t0 out=t1 axis=0 start=v0 stop=16 step=3"),
        ("f32[$]", "Slice x=t0 out=t1 axis=0 start=-2 stop=9223372036854775807"),
        ("f32[$]", "Slice x=t0 out=t1 axis=0 start=0 stop=5"),
        ("f32[$]", "Slice x=t0 out=t1 axis=0 start=1 stop=-1 step=2"),
        ("f32[$]", "Slice x=t0 out=t1 axis=0 start=-1 stop=-9223372036854775808 step=-1"),
        ("f32[$]", "Slice x=t0 out=t1 axis=0 start=9223372036854775807 stop=0 step=-2"),
        ("f32[$]", "Split x=t0 outs=[t1,t2] sizes=[1,9] axis=0"),
        ("f32[$,2]", "Tile x=t0 out=t1 reps=[2,1,3]"),
        ("f32[$] f32[3]", "Concatenate tensors=[t0,t1,t0] out=t2 axis=0"),
        ("v=$", "ARange out=t0 start=2 stop=v0 step=3"),
        ("v=$", "ARange out=t0 start=v0 stop=-1 step=-2"),
        ("f32[1,$,4] f32[8,3,4]", "Conv1D x=t0 w=t1 out=t2 stride=2 padding=1"),
        ("f32[1,$,4] f32[8,3,4]", "ConvTranspose1D x=t0 w=t1 out=t2 stride=3 dilation=2"),
        ("f32[$,1,$] f32[5,1]", "Add a=t0 b=t1 out=t2"),
        ("f32[$,3] i32[$,$]", "Take x=t0 out=t2 index=t1 axis=1"),
        ("v=$", "FloorDivideInt a=v0 b=-3 out=v0"),
        ("v=$", "ModInt a=v0 b=-3 out=v0"),
    ];
    for (operands, node) in rows {
        let symbolic = run(operands, node).unwrap();
        for n in 2..=16 {
            let known = run(&operands.replace('$', &n.to_string()), node).unwrap();
            let bind = |e: &Expr| Expr::Int(e.eval(&|s| (s.name() == "$").then_some(n)).unwrap());
            let bound: Vec<Content> = symbolic
                .iter()
                .map(|content| match content {
                    Content::Tensor(spec) => {
                        Content::Tensor(Spec { dtype: spec.dtype, dims: spec.dims.iter().map(bind).collect() })
                    }
                    Content::Value(value) => Content::Value(bind(value)),
                })
                .collect();
            assert_eq!(bound, known, "{node} on {operands}, {n}");
        }
    }
}

#[test]
fn control() {
    let kernel = "MetalKernel name=\"k\" source=\"\" inputs=[t0] outputs=[t1] grid=[1,1,1] threadgroup=[1,1,1]";
    check(&[
        ("", "Noop", ""),
        ("", "If cond=v0 then_chain_idx=0 else_chain_idx=0", "!v0 is read"),
        ("f32[2,t]", "Scan originals=[t0] sliced=[] outputs=[] carry=[] body_chain_idx=0", "!`sliced`"),
        ("f32[2,0]", "Scan originals=[t0] sliced=[t1] outputs=[] carry=[] body_chain_idx=0", "!no steps"),
        ("f32[2]", "Scan originals=[t0] sliced=[t1] outputs=[] carry=[] body_chain_idx=0", "!out of range"),
        (
            "f32[2] v=n",
            &format!(
                "{kernel} input_names=[\"a\"] output_names=[\"b\"] output_shapes_flat=[v0,2] output_shape_lengths=[2] output_dtypes=[f16]"
            ),
            "f16[n,2]",
        ),
        ("f32[2]", kernel, "!input_names"),
        (
            "f32[2]",
            &format!(
                "{kernel} input_names=[\"a\"] output_names=[\"b\"] output_shapes_flat=[2] output_shape_lengths=[2] output_dtypes=[f16]"
            ),
            "!output_shapes_flat",
        ),
    ]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn no_rule_panics(
        node in any_node(),
        specs in prop::collection::vec((0u8..10, prop::collection::vec(-1i64..5, 0..5)), 9),
        values in prop::collection::vec(-1i64..5, 3),
    ) {
        use DType::*;
        let mut env = Env::new();
        let size = |n: i64| if n < 0 { Expr::symbol(Symbol::new("s")) } else { Expr::Int(n) };
        for (i, (dtype, dims)) in specs.into_iter().enumerate() {
            let dtype = [F32, F32, F32, F16, BF16, I32, I64, U32, U8, Bool][usize::from(dtype)];
            env.set(Tid(i as u32), Spec { dtype, dims: dims.into_iter().map(size).collect() });
        }
        for (i, value) in values.into_iter().enumerate() {
            env.set_value(Vid(i as u32), size(value));
        }
        if node.infer(&mut env).is_ok() {
            node.walk(&mut |role, slot| if let (Role::Write, Slot::Tensor(tid)) = (role, slot) {
                assert!(env.get(tid).is_some(), "{node} left {tid} unset");
            });
        }
    }
}
