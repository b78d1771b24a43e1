use super::*;

/// One decoder layer: its linear layers are lines that begin with `@`, then operand, matrix and result.
const LAYER: &str = "
  RMSNorm x=t23 weight=t0 out=t28 eps=0.00001
  @ t28 1 t29
  @ t28 4 t30
  @ t28 7 t28
  Reshape x=t29 out=t29 shape=[1,-1,2,64]
  Transpose x=t29 out=t29 perm=[0,2,1,3]
  Reshape x=t30 out=t30 shape=[1,-1,1,64]
  Transpose x=t30 out=t30 perm=[0,2,1,3]
  Reshape x=t28 out=t28 shape=[1,-1,1,64]
  Transpose x=t28 out=t28 perm=[0,2,1,3]
  Take x=t24 out=t31 index=0 axis=0
  ItemInt x=t31 out=v0
  Rope x=t29 out=t29 dims=64 offset=v0 base=10000.0
  Rope x=t30 out=t30 dims=64 offset=v0 base=10000.0
  SymSize a=t23 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  SliceUpdate dst=t26 update=t30 out=t26 axis=2 start=v0 stop=v2
  SliceUpdate dst=t27 update=t28 out=t27 axis=2 start=v0 stop=v2
  Slice x=t26 out=t30 axis=2 start=0 stop=v2
  Slice x=t27 out=t28 axis=2 start=0 stop=v2
  Sdpa q=t29 k=t30 v=t28 out=t29 scale=0.125 causal=true
  Transpose x=t29 out=t29 perm=[0,2,1,3]
  Reshape x=t29 out=t29 shape=[1,-1,128]
  @ t29 10 t29
  Add a=t23 b=t29 out=t29
  RMSNorm x=t29 weight=t13 out=t30 eps=0.00001
  @ t30 14 t31
  Silu x=t31 out=t31
  @ t30 17 t30
  Multiply a=t31 b=t30 out=t30
  @ t30 20 t30
  Add a=t29 b=t30 out=t25
";

/// Rows and columns of the matrices by the number of their first slot.
const MATRICES: [(usize, usize, usize); 7] =
    [(1, 128, 64), (4, 64, 64), (7, 64, 64), (10, 64, 128), (14, 96, 64), (17, 96, 64), (20, 64, 96)];

/// The steps of a layer: first node, one past the last, and the kind.
fn steps(layer: &str, is_coded: bool) -> Vec<(usize, usize, &'static str)> {
    let mut text = String::from("slots constants=23 inputs=2 outputs=1 buffers=2 temps=5 values=3\nmain 0\n");
    text += "input t23\ninput t24\noutput t25\nbuffer t26\nbuffer t27\n";
    let mut meta = vec![String::from("bf16[64]"); 23];
    for (slot, rows, columns) in MATRICES {
        meta[slot] = if is_coded { format!("u32[{rows},{}]", columns / 8) } else { format!("bf16[{rows},{columns}]") };
        meta[slot + 1] = format!("bf16[{rows},{}]", columns / 32);
        meta[slot + 2] = meta[slot + 1].clone();
    }
    for more in ["bf16[1,1..8,64]", "i64[1..8]", "bf16[1,1..8,64]", "bf16[1,1,8,64]", "bf16[1,1,8,64]"] {
        meta.push(more.into());
    }
    for (i, meta) in meta.iter().enumerate() {
        text += &format!("name t{i} \"{i}\"\nmeta t{i} {meta}\n");
    }
    text += "chain 0\n";
    for line in layer.lines() {
        text += &match line.trim().strip_prefix("@ ").map(|l| l.split(' ').collect::<Vec<_>>()) {
            None => format!("{line}\n"),
            Some(at) if is_coded => {
                let (x, w, out) = (at[0], at[1].parse::<usize>().expect("a slot"), at[2]);
                let (s, b) = (w + 1, w + 2);
                format!("  QuantizedMatmul x={x} w=t{w} scales=t{s} out={out} biases=t{b} group_size=32 bits=4 mode=affine\n")
            }
            Some(at) => format!("  Transpose x=t{} out=t32 perm=[1,0]\n  Addmm mat1={} mat2=t32 out={}\n", at[1], at[0], at[2]),
        };
    }
    let graph = flambeau_ir::check(text.parse().expect("the text parses")).expect("the graph is valid");
    let mut steps: Vec<_> = Plan::of(&graph)
        .steps
        .iter()
        .map(|(&at, step)| (at, step.end, if matches!(step.kind, Kind::Linear(_)) { "linear" } else { "attention" }))
        .collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_decoder_layer_becomes_five_steps() {
    let (linear, attention) = ("linear", "attention");
    assert_eq!(steps(LAYER, true), [(0, 4, linear), (4, 23, attention), (23, 25, linear), (25, 30, linear), (30, 32, linear)]);
    assert_eq!(steps(LAYER, false), [(0, 7, linear), (7, 26, attention), (26, 29, linear), (29, 36, linear), (36, 39, linear)]);
}

#[test]
fn nodes_stay_alone_where_something_else_reads_between_them() {
    let read_later = LAYER.replace("Add a=t29 b=t30 out=t25", "Add a=t29 b=t30 out=t25\n  Tanh x=t31 out=t31");
    assert!(!steps(&read_later, true).iter().any(|s| s.0 == 25), "the gate is read after the product");
    let not_causal = LAYER.replace(" causal=true", "");
    assert!(steps(&not_causal, true).iter().all(|s| s.2 == "linear"), "a mask decides what is seen");
}
