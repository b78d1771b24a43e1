use super::*;
use crate::Content;

/// A graph with one node. Its operands are inputs with the given metadata, and its output has any
/// type and shape.
fn one_node(operands: &[&str], node: &str) -> Checked {
    let n = operands.len();
    let values = "input v0\n".repeat(usize::from(node.contains("v0")));
    let inputs: String = (0..n).map(|i| format!("input t{i}\n")).collect();
    let meta: String = operands.iter().enumerate().map(|(i, m)| format!("meta t{i} {m}\n")).collect();
    let text = format!(
        "slots inputs={n} outputs=1 temps=1 values=1\nmain 0\n{inputs}{values}output t{n}\n{meta}meta t{n} f32[]\nchain 0\n  {node}\n"
    );
    let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    check(graph).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn dims_of(content: &Content) -> (String, usize, Vec<Option<i64>>) {
    match content {
        Content::Tensor(spec) => (spec.dtype.to_string(), spec.rank(), spec.dims.iter().map(|d| d.as_int()).collect()),
        Content::Value(_) => panic!("a value"),
    }
}

/// Decomposes the node and compares the inferred results. The kinds of the new nodes must be
/// `want`.
fn check_kinds(operands: &[&str], node: &str, want: &str) {
    let fused = one_node(operands, node);
    let plain = decompose(&fused, &|_| true).unwrap();
    let kinds: Vec<_> = plain.chains[0].iter().map(Node::name).collect();
    assert_eq!(kinds.join(" "), want, "{node} on {operands:?}");
    assert_eq!(dims_of(&plain.results()[0]), dims_of(&fused.results()[0]), "{node} on {operands:?}");
}

#[test]
fn activations_and_norms() {
    check_kinds(&["f32[2,3]"], "Silu x=t0 out=t1", "Sigmoid Multiply");
    check_kinds(&["i32[2,3]"], "Silu x=t0 out=t1", "AsType Sigmoid Multiply");
    check_kinds(
        &["f16[4]"],
        "Gelu x=t0 out=t1 approximate=\"none\"",
        "AsType Full Full Full Divide Erf Add Multiply Multiply AsType",
    );
    check_kinds(
        &["f32[4]"],
        "Gelu x=t0 out=t1 approximate=\"tanh\"",
        "Full Full Full Full Multiply Multiply Multiply Add Multiply Tanh Add Multiply Multiply",
    );
    check_kinds(&["bf16[2,1..9]"], "Softmax x=t0 out=t1 axis=1", "AsType Max Subtract Exp Sum Divide AsType");
    check_kinds(&["i32[2,3]"], "Softmax x=t0 out=t1 axis=0", "AsType Max Subtract Exp Sum Divide AsType");
    check_kinds(&["i32[2,3]"], "LogSumExp x=t0 out=t1", "AsType");
    check_kinds(&["f32[2,3]"], "LogSumExp x=t0 out=t1", "IdCopy");
    check_kinds(&["f32[2,3]"], "LogSumExp x=t0 out=t1 axes=[0]", "Max Abs Full Full Equal Where Subtract Exp Sum Log Add Squeeze");
    check_kinds(&["f32[2,8]", "f32[8]"], "RMSNorm x=t0 weight=t1 out=t2 eps=0.1", "Square Mean Full Add Rsqrt Multiply Multiply");
    check_kinds(
        &["bf16[2,8]", "bf16[8]", "bf16[8]"],
        "LayerNorm x=t0 weight=t1 bias=t2 out=t3 eps=0.1",
        "AsType Mean Subtract Square Mean Full Add Rsqrt Multiply AsType Multiply AsType Add AsType",
    );
}

#[test]
fn attention() {
    check_kinds(
        &["f32[1,2,3,8]"],
        "Rope x=t0 out=t1 dims=8 offset=v0",
        "ARange Full Add AsType ExpandDims ARange Full Multiply Full Power Multiply ExpandDims Cos Sin Slice Slice Multiply Multiply \
         Subtract Multiply Multiply Add Concatenate",
    );
    check_kinds(
        &["bf16[2,1..9,8]", "i64[2]", "f32[2]"],
        "Rope x=t0 out=t3 dims=4 offset=t1 freqs=t2 traditional=true scale=2.0",
        "SymSize ARange AsType Reshape Add AsType Full Multiply ExpandDims Reciprocal Multiply Cos Sin AsType Slice Slice Multiply \
         Multiply Subtract Multiply Multiply Add SymSize Stack Reshape Slice Concatenate AsType",
    );
    check_kinds(
        &["f32[1,4,1..9,8]", "f32[1,2,5,8]", "f32[1,2,5,8]"],
        "Sdpa q=t0 k=t1 v=t2 out=t3 scale=0.5 causal=true",
        "Repeat Repeat Full Multiply Transpose Addmm SymSize SubtractInt ARange ExpandDims ARange LessEqual Full Where Max Subtract \
         Exp Sum Divide Addmm Max NotEqual Full Where",
    );
    check_kinds(
        &["f32[1,2,3,8]", "f32[1,2,5,8]", "f32[1,2,5,4]", "f16[3,5]"],
        "Sdpa q=t0 k=t1 v=t2 out=t4 scale=0.5 mask=t3",
        "Full Multiply Transpose Addmm AsType Add Full Max Subtract Exp Sum Divide Addmm Max NotEqual Full Where",
    );
}

#[test]
fn quantized_products() {
    check_kinds(
        &["bf16[1..9,64]", "u32[8,8]", "bf16[8,2]", "bf16[8,2]"],
        "QuantizedMatmul x=t0 w=t1 scales=t2 biases=t3 out=t4 group_size=32 bits=4 mode=affine",
        "AsType AsType AsType Dequantize Transpose Addmm AsType",
    );
    check_kinds(
        &["f32[3,8]", "u32[8,8]", "u8[8,2]"],
        "QuantizedMatmul x=t0 w=t1 scales=t2 out=t3 group_size=32 bits=4 mode=mxfp4 transpose=false",
        "Dequantize Addmm",
    );
    check_kinds(
        &["f32[3,1,1,64]", "u32[5,8,8]", "f32[5,8,2]", "f32[5,8,2]", "u32[3,2]"],
        "GatherQmm x=t0 w=t1 scales=t2 biases=t3 rhs_indices=t4 out=t5 group_size=32 bits=4 mode=affine",
        "Dequantize Transpose GatherMm",
    );
}

#[test]
fn what_is_not_wanted_or_not_possible_stays() {
    let fused = one_node(&["f32[2,3]"], "Silu x=t0 out=t1");
    assert_eq!(*decompose(&fused, &|node| node.name() == "Gelu").unwrap(), *fused);
    check_kinds(&["f32[2,0]"], "Softmax x=t0 out=t1 axis=1", "Softmax");
    check_kinds(&["f32[2,3]"], "Exp x=t0 out=t1", "Exp");
}
