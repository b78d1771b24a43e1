use super::*;

/// One decoder layer: its linear layers are lines that begin with `@`, then operand, matrix and
/// result.
const LAYER: &str = "
  RMSNorm x=t23 weight=t0 out=t30 eps=0.00001
  @ t30 1 t31
  @ t30 4 t32
  @ t30 7 t30
  Reshape x=t31 out=t31 shape=[1,-1,2,64]
  Transpose x=t31 out=t31 perm=[0,2,1,3]
  Reshape x=t32 out=t32 shape=[1,-1,1,64]
  Transpose x=t32 out=t32 perm=[0,2,1,3]
  Reshape x=t30 out=t30 shape=[1,-1,1,64]
  Transpose x=t30 out=t30 perm=[0,2,1,3]
  Take x=t24 out=t33 index=0 axis=0
  ItemInt x=t33 out=v0
  Rope x=t31 out=t31 dims=64 offset=v0 base=10000.0
  Rope x=t32 out=t32 dims=64 offset=v0 base=10000.0
  SymSize a=t23 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  SliceUpdate dst=t26 update=t32 out=t26 axis=2 start=v0 stop=v2
  SliceUpdate dst=t27 update=t30 out=t27 axis=2 start=v0 stop=v2
  Slice x=t26 out=t32 axis=2 start=0 stop=v2
  Slice x=t27 out=t30 axis=2 start=0 stop=v2
  Sdpa q=t31 k=t32 v=t30 out=t31 scale=0.125 causal=true
  Transpose x=t31 out=t31 perm=[0,2,1,3]
  Reshape x=t31 out=t31 shape=[1,-1,128]
  @ t31 10 t31
  Add a=t23 b=t31 out=t31
  RMSNorm x=t31 weight=t13 out=t32 eps=0.00001
  @ t32 14 t33
  Silu x=t33 out=t33
  @ t32 17 t32
  Multiply a=t33 b=t32 out=t32
  @ t32 20 t32
  Add a=t31 b=t32 out=t25
";

/// Rows and columns of the matrices by the number of their first slot.
const MATRICES: [(usize, usize, usize); 7] =
    [(1, 128, 64), (4, 64, 64), (7, 64, 64), (10, 64, 128), (14, 96, 64), (17, 96, 64), (20, 64, 96)];

/// The steps of layers: first node, one past the last, and the kind.
fn steps(layer: &str, is_coded: bool) -> Vec<(usize, usize, &'static str)> {
    let plan = plan(layer, is_coded);
    let kind = |step: &FusedNodes| match step.kind {
        Kind::Linear(_) => "linear",
        Kind::Attention(_) => "attention",
        Kind::Mixture(_) => "mixture",
        Kind::Delta(_) => "delta",
    };
    let mut steps: Vec<_> = plan.steps.iter().map(|(&at, step)| (at, step.end, kind(step))).collect();
    steps.sort_unstable();
    steps
}

/// The plan of layers that follow one another; each reads caches of its own.
fn plan(layer: &str, is_coded: bool) -> Plan {
    let mut text = String::from("slots constants=23 inputs=2 outputs=1 buffers=4 temps=6 values=6\nmain 0\n");
    text += "input t23\ninput t24\noutput t25\nbuffer t26\nbuffer t27\nbuffer t28\nbuffer t29\n";
    let mut meta = vec![String::from("bf16[64]"); 23];
    for (slot, rows, columns) in MATRICES {
        meta[slot] = if is_coded { format!("u32[{rows},{}]", columns / 8) } else { format!("bf16[{rows},{columns}]") };
        meta[slot + 1] = format!("bf16[{rows},{}]", columns / 32);
        meta[slot + 2] = meta[slot + 1].clone();
    }
    for more in
        ["bf16[1,1..8,64]", "i64[1..8]", "bf16[1,1..8,64]", "bf16[1,1,8,64]", "bf16[1,1,8,64]", "bf16[1,1,8,64]", "bf16[1,1,8,64]"]
    {
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
            Some(at) => format!("  Transpose x=t{} out=t34 perm=[1,0]\n  Addmm mat1={} mat2=t34 out={}\n", at[1], at[0], at[2]),
        };
    }
    let graph = flambeau_ir::check(text.parse().expect("the text parses")).expect("the graph is valid");
    Plan::of(&graph, true)
}

#[test]
fn a_decoder_layer_becomes_five_steps() {
    let (linear, attention) = ("linear", "attention");
    assert_eq!(steps(LAYER, true), [(0, 4, linear), (4, 23, attention), (23, 25, linear), (25, 30, linear), (30, 32, linear)]);
    assert_eq!(steps(LAYER, false), [(0, 7, linear), (7, 26, attention), (26, 29, linear), (29, 36, linear), (36, 39, linear)]);
}

#[test]
fn nodes_stay_alone_where_something_else_reads_between_them() {
    let read_later = LAYER.replace("Add a=t31 b=t32 out=t25", "Add a=t31 b=t32 out=t25\n  Tanh x=t33 out=t33");
    assert!(!steps(&read_later, true).iter().any(|s| s.0 == 25), "the gate is read after the product");
    let not_causal = LAYER.replace(" causal=true", "");
    assert!(steps(&not_causal, true).iter().all(|s| s.2 == "linear"), "a mask decides what is seen");
}

#[test]
fn a_norm_that_nothing_reads_is_no_step() {
    let unread = format!("  RMSNorm x=t23 weight=t0 out=t34 eps=0.00001{LAYER}");
    assert_eq!(steps(&unread, true)[0], (1, 5, "linear"));
}

/// A layer that passes its row on, and one behind it with caches of its own.
fn two_layers() -> (String, String) {
    let second = LAYER.replace("t23", "t35").replace("t26", "t28").replace("t27", "t29");
    (LAYER.replace("t25", "t35"), second.replace("v2", "v5").replace("v1", "v4").replace("v0", "v3"))
}

/// Limit of one launch over several layers.
fn layers(text: &str) -> Option<(usize, usize)> {
    plan(text, true).layers.map(|layers| (layers.at, layers.end))
}

#[test]
fn like_layers_become_one_launch() {
    let (first, second) = two_layers();
    assert_eq!(layers(&format!("{first}{second}")), Some((0, 64)));
    assert_eq!(layers(LAYER), None, "one layer is not worth it");
}

#[test]
fn layers_stay_apart_where_they_differ_or_are_read_between() {
    let (first, second) = two_layers();
    let refused = [
        (first.clone(), second.replace("base=10000.0", "base=500000.0"), "other rotation"),
        (first.clone(), second.replace("eps=0.00001", "eps=0.001"), "other constant of the norms"),
        (first.clone(), format!("{second}  Tanh x=t35 out=t35\n"), "the row between is read later"),
        (first.clone(), second.replace("SymSize a=t35", "SymSize a=t30"), "a size is that of a projection"),
        (format!("{first}  Tanh x=t35 out=t35\n"), second, "something lies between"),
    ];
    for (first, second, why) in refused {
        assert_eq!(layers(&format!("{first}{second}")), None, "{why}");
    }
}

#[test]
fn a_gate_and_its_operand_of_two_formats_are_no_step() {
    let codes = |slot: u32| {
        let slots = (slot..slot + 3).map(Tid).collect();
        linear::Weights { format: linear::Format::Coded { bits: 4, group: 64 }, slots, bias: None }
    };
    let floats = linear::Weights { format: linear::Format::Float, slots: vec![Tid(3)], bias: None };
    let linear = |gated, weights| Linear { gated, ..Linear::plain(Tid(9), weights, vec![Tid(10)]) };
    assert!(linear(false, vec![codes(0), floats.clone()]).has_known_formats());
    assert!(!linear(true, vec![codes(0), floats]).has_known_formats());
}
