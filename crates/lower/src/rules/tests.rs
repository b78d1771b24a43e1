//! Tests of the rules' nodes and result shapes, family by family.

use flambeau_ir::Spec;
use flambeau_tensor::{DType, Expr, Symbol};

use crate::{Arg, Call, Item, Lower, Origin, OutMeta, Range, Refuse, rule_for};

/// Parses sizes: numbers or symbol names.
fn dims(text: &str) -> Vec<Expr> {
    text.split_whitespace().map(|w| w.parse().map_or_else(|_| Expr::symbol(Symbol::new(w)), Expr::Int)).collect()
}

fn tensor(cx: &mut Lower, text: &str) -> flambeau_ir::Tid {
    let (dtype, sizes) = text.split_once(' ').unwrap_or((text, ""));
    let n = cx.graph().tensors.len() as u32;
    let spec = Spec { dtype: DType::from_name(dtype).unwrap(), dims: dims(sizes).into_iter().collect() };
    cx.slot(spec, Origin::Input(n))
}

/// Parses an argument: `f32 2 3` is a tensor, `{f32 2; f32 3}` tensors, `[1 2]` integers, `'x'` a
/// string, anything else a number.
fn argument(cx: &mut Lower, text: &str) -> Arg {
    if let Some(list) = text.strip_prefix('{') {
        let one = |t: &str| if t == "None" { None } else { Some(t.to_owned()) };
        let list: Vec<Option<String>> = list.trim_end_matches('}').split("; ").map(one).collect();
        return Arg::Tensors(list.into_iter().map(|t| t.map(|t| tensor(cx, &t))).collect());
    }
    if let Some(list) = text.strip_prefix('[') {
        return Arg::Ints(dims(list.trim_end_matches(']')));
    }
    if let Some(text) = text.strip_prefix('\'') {
        return Arg::Str(text.trim_end_matches('\'').to_owned());
    }
    match text {
        "true" | "false" => Arg::Bool(text == "true"),
        _ if text.parse::<i64>().is_ok() => Arg::Int(Expr::Int(text.parse().unwrap())),
        _ if text.parse::<f64>().is_ok() => Arg::Float(text.parse().unwrap()),
        _ => Arg::Tensor(tensor(cx, text)),
    }
}

/// Lowers `target` with arguments `name=value, ..`; `outs` are the recorded results, with `-` for
/// unused ones.
fn lower(target: &str, args: &str, outs: &[&str]) -> (Lower, Result<Vec<Item>, Refuse>) {
    let mut cx = Lower::new();
    let args = args.split(", ").filter(|a| !a.is_empty()).map(|a| a.split_once('=').unwrap());
    let args: Vec<(String, Arg)> = args.map(|(name, value)| (name.to_owned(), argument(&mut cx, value))).collect();
    let schema = rule_for(target).unwrap_or_else(|| panic!("{target} has a row")).operator.schema();
    for (name, _) in &args {
        assert!(schema.param(name).is_some(), "{target} has the parameter {name}");
    }
    let outputs = outs.iter().map(|text| {
        let (dtype, sizes) = text.trim_start_matches('-').split_once(' ').unwrap_or((text.trim_start_matches('-'), ""));
        OutMeta { dtype: DType::from_name(dtype).unwrap(), dims: dims(sizes), used: !text.starts_with('-') }
    });
    let call = Call { target: target.to_owned(), args, outputs: outputs.collect() };
    let result = cx.call(&call, 0);
    (cx, result)
}

#[test]
fn bounds_of_the_program_decide_how_slices_are_cut() {
    let slice_of = |min: i64| {
        let mut cx = Lower::new();
        cx.set_range(Symbol::new("n"), Range { min: Some(min), max: None });
        let x = tensor(&mut cx, "f32 n 4");
        let args = vec![("self".to_owned(), Arg::Tensor(x)), ("end".to_owned(), Arg::Int(Expr::Int(1)))];
        let outputs = vec![OutMeta { dtype: DType::F32, dims: dims("1 4"), used: true }];
        cx.call(&Call { target: "aten.slice.Tensor".to_owned(), args, outputs }, 0).unwrap();
        let sliced = &cx.graph().tensors.last().unwrap().spec.dims;
        sliced.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(slice_of(1), "1 4");
    // The program's recorded size applies where the bounds leave it open.
    assert_eq!(slice_of(0), "1 4");
}

/// Checks the emitted nodes, with chains after the first in brackets, and that results have the
/// recorded shapes exactly.
fn check(target: &str, args: &str, outs: &[&str], want: &str) {
    let (cx, result) = lower(target, args, outs);
    let items = result.unwrap_or_else(|e| panic!("{target}({args}): {e}"));
    let names = |chain: &Vec<crate::SsaNode>| chain.iter().map(|n| n.node.name()).collect::<Vec<_>>().join(" ");
    let mut found = names(&cx.graph().chains[0]);
    for chain in &cx.graph().chains[1..] {
        found += &format!(" [{}]", names(chain));
    }
    assert_eq!(found, want, "{target}({args})");
    let tensors = items.iter().flat_map(|item| match item {
        Item::Tensor(t) => vec![Some(*t)],
        Item::Tensors(list) => list.iter().copied().map(Some).collect(),
        _ => vec![None],
    });
    for (t, out) in tensors.zip(outs) {
        let Some(t) = t else { continue };
        let spec = cx.spec(t);
        let shown = format!("{} {}", spec.dtype, spec.dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        if !out.starts_with('-') {
            assert_eq!(shown.trim_end(), *out, "{target}({args})");
        }
    }
}

fn refuses(target: &str, args: &str, outs: &[&str], reason: &str) {
    let (cx, result) = lower(target, args, outs);
    let error = result.expect_err(target).to_string();
    assert!(error.contains(reason), "{target}({args}): {error}");
    assert_eq!(cx.graph().node_count(), 0, "{target} leaves nodes behind");
}

#[test]
fn activations() {
    let x = "self=f32 s 4";
    check("aten.elu.default", x, &["f32 s 4"], "Greater Expm1 Where");
    check("aten.selu.default", x, &["f32 s 4"], "Greater Expm1 Multiply Multiply Where");
    check("aten.leaky_relu.default", x, &["f32 s 4"], "Multiply Maximum");
    check("aten.rrelu_with_noise_functional.default", "self=f32 s 4, noise=f32 s 4", &["f32 s 4", "f32 s 4"], "Multiply Maximum");
    check("aten.leaky_relu.default", &format!("{x}, negative_slope=1.5"), &["f32 s 4"], "Multiply GreaterEqual Where");
    check("aten.hardswish.default", x, &["f32 s 4"], "Add Clip Multiply Divide");
    check("aten.softplus.default", x, &["f32 s 4"], "LogAddExp");
    check(
        "aten.softplus.default",
        &format!("{x}, beta=2.0, threshold=1.0"),
        &["f32 s 4"],
        "Multiply LogAddExp Divide Greater Where",
    );
    check("aten.mish.default", x, &["f32 s 4"], "LogAddExp Tanh Multiply");
    check("aten.glu.default", x, &["f32 s 2"], "Split Sigmoid Multiply");
    check("aten.prelu.default", "self=f32 s 4 2, weight=f32 4", &["f32 s 4 2"], "Reshape Greater Multiply Where");
    refuses("aten.rrelu.default", "self=f32 2, training=true", &["f32 2"], "training");
}

#[test]
fn arithmetic() {
    check("aten.fmod.Scalar", "self=f32 3, other=2.0", &["f32 3"], "Abs Remainder Sign Multiply");
    check("aten.nan_to_num.default", "self=f16 3", &["f16 3"], "NotEqual Clip Where");
    check("aten.isfinite.default", "self=f32 3", &["bool 3"], "Abs Less");
    check("aten.__rshift__.Scalar", "self=i32 3, other=2", &["i32 3"], "FloorDivide AsType");
    check("aten.lerp.Scalar", "self=f32 3, end=f32 3, weight=0.5", &["f32 3"], "Subtract Multiply Add");
    check("aten.__lshift__.Scalar", "self=i32 3, other=40", &["i32 3"], "Multiply");
    check("aten.fmod.Scalar", "self=i32 3, other=2", &["i32 3"], "Remainder NotEqual Less LogicalAnd Subtract Where");
}

#[test]
fn reductions_and_scans() {
    check("aten.max.dim", "self=f32 s 3, dim=1", &["f32 s", "i64 s"], "Max Argmax AsType");
    check("aten.max.dim", "self=f32 s 3, dim=1", &["-f32 s", "i64 s"], "Argmax AsType");
    check("aten.var_mean.correction", "self=f32 2 3, dim=[1]", &["f32 2", "f32 2"], "Var Mean");
    check("aten.linalg_vector_norm.default", "self=f32 2 3, dim=[-1]", &["f32 2"], "Square Sum Sqrt");
    check("aten.cumsum.default", "self=bool 2 s, dim=1", &["i64 2 s"], "AsType Cumsum");
    check("aten.cumprod.default", "self=f32 2 s, dim=1", &["f32 2 s"], "Full IdCopy Scan [Multiply IdCopy IdCopy]");
    check("aten.var.correction", "self=f32 3, correction=0.5", &["f32"], "Var Multiply");
    let (_, corrected) = lower("aten.var.correction", "self=f32 n, correction=0.5", &["f32"]);
    assert!(corrected.is_ok(), "{corrected:?}");
}

#[test]
fn sorting() {
    check("aten.sort.default", "self=f32 2 s", &["f32 2 s", "-i64 2 s"], "Sort");
    check("aten.argsort.default", "self=f32 2 3, descending=true", &["i64 2 3"], "Flip Argsort Flip AsType Subtract");
    check("aten.topk.default", "self=f32 2 9, k=3", &["f32 2 3", "i64 2 3"], "Argsort Slice TakeAlongAxis AsType");
    check("aten.topk.default", "self=f32 2 9, k=3, largest=false", &["f32 2 3", "-i64 2 3"], "Sort Slice");
    check(
        "aten.topk.default",
        "self=f32 2 4096, k=3",
        &["-f32 2 3", "i64 2 3"],
        "ArgPartition Slice TakeAlongAxis Argsort Slice TakeAlongAxis AsType",
    );
    check("aten.median.default", "self=i32 5", &["i32"], "Sort Take");
    check("aten.bucketize.Tensor", "self=f32 s, boundaries=f32 4", &["i64 s"], "ExpandDims GreaterEqual LogicalNot Sum AsType");
    // Bisection: no node sees all pairs of elements.
    let step = " Add Add LessEqual Minimum Take GreaterEqual LogicalNot LogicalAnd Where".repeat(13);
    check("aten.bucketize.Tensor", "self=f32 s, boundaries=f32 5000", &["i64 s"], &format!("SymSize Full{step} AsType"));
}

#[test]
fn several_indices_beside_an_open_axis() {
    for (indices, out) in [("{None; None; i64 7 1; i64 6}", "f32 n 3 7 6"), ("{None; i32 6; None; i64 6}", "f32 6 n 4")] {
        // The rule refuses results of another shape.
        let (cx, result) = lower("aten._unsafe_index.Tensor", &format!("self=f32 n 3 4 5, indices={indices}"), &[out]);
        let items = result.unwrap_or_else(|error| panic!("{indices}: {error}"));
        assert!(
            matches!(items[..], [Item::Tensor(_)]) && cx.graph().chains[0].iter().any(|n| n.node.name() == "Take"),
            "{indices}"
        );
    }
}

#[test]
fn writes_by_index() {
    check("aten.scatter_add.default", "self=f32 4 3, dim=0, index=i64 2 3, src=f32 5 3", &["f32 4 3"], "Slice ScatterAdd");
    check(
        "aten.scatter.value",
        "self=f32 4 3, dim=0, index=i64 2 3, value=1.0",
        &["f32 4 3"],
        "Full Full ScatterAdd Greater Where",
    );
    check("aten.index_put.default", "self=f32 4 3, indices={i64 2}, values=f32 2 3", &["f32 4 3"], "IndexCopy");
    check(
        "aten.index_put.default",
        "self=f32 4 3, indices={i64 2; i64 2}, values=f32 2, accumulate=true",
        &["f32 4 3"],
        "Remainder Remainder Multiply Add Reshape ScatterAdd Reshape",
    );
    check("aten.index_put.default", "self=f32 4 3, indices={bool 4}, values=f32", &["f32 4 3"], "ExpandDims Where");
    check("aten.index_fill.int_Scalar", "self=f32 4 3, dim=1, index=i64 2, value=0.0", &["f32 4 3"], "BroadcastTo IndexCopy");
    refuses("aten.index_put.default", "self=f32 2 4, indices={None; bool 4}, values=f32 2 2", &["f32 2 4"], "mask");
    refuses("aten.nonzero.default", "self=f32 4", &["i64 u 1"], "depends on the data");
}

#[test]
fn convolutions() {
    let conv = "Transpose Transpose Conv2D Add Transpose";
    check("aten.conv2d.default", "input=f32 n 3 8 8, weight=f32 4 3 3 3, bias=f32 4", &["f32 n 4 6 6"], conv);
    check("aten.conv2d.padding", "input=f32 n 3 8 8, weight=f32 4 3 3 3, bias=f32 4, padding='same'", &["f32 n 4 8 8"], conv);
    check(
        "aten.conv1d.padding",
        "input=f32 3 8, weight=f32 4 3 4, padding='same'",
        &["f32 4 8"],
        "ExpandDims Transpose Transpose Pad Conv1D Transpose Squeeze",
    );
    check(
        "aten.conv_transpose1d.default",
        "input=f32 1 4 5, weight=f32 4 3 2, stride=[2], groups=2",
        &["f32 1 6 10"],
        "Reshape Transpose Reshape Transpose ConvTranspose1D Transpose",
    );
    refuses("aten.conv1d.padding", "input=f32 1 3 8, weight=f32 4 3 3, padding='same', stride=[2]", &["f32 1 4 4"], "stride");
}

#[test]
fn pooling() {
    check("aten.max_pool2d.default", "self=f32 n 3 8 8, kernel_size=[2 2], stride=[2 2]", &["f32 n 3 4 4"], "Reshape Max");
    check(
        "aten.max_pool2d.default",
        "self=f32 2 3 8 8, kernel_size=[3], stride=[2], padding=[1]",
        &["f32 2 3 4 4"],
        "Pad AsStrided Max",
    );
    check("aten.max_pool1d.default", "self=f32 3 7, kernel_size=[2], ceil_mode=true", &["f32 3 4"], "Pad AsStrided Max");
    check(
        "aten.avg_pool2d.default",
        "self=f32 1 3 8 8, kernel_size=[3], stride=[2], padding=[1], count_include_pad=false",
        &["f32 1 3 4 4"],
        "Pad AsStrided Sum Divide",
    );
    check("aten.adaptive_avg_pool2d.default", "self=f32 n 3 h w, output_size=[1 1]", &["f32 n 3 1 1"], "Mean");
    check("aten.adaptive_avg_pool1d.default", "self=f32 n 3 7, output_size=[2]", &["f32 n 3 2"], "Addmm");
    let bins = "self=f32 3 n, output_size=[2]";
    let (_, pooled) = lower("aten.adaptive_max_pool1d.default", bins, &["f32 3 2", "i64 3 2"]);
    assert!(pooled.is_ok(), "{pooled:?}");
}

#[test]
fn resampling_and_padding() {
    check("aten.upsample_nearest2d.vec", "input=f32 n 3 4 4, output_size=[8 8]", &["f32 n 3 8 8"], "Take Take");
    check(
        "aten.upsample_bilinear2d.vec",
        "input=f32 n 3 4 4, output_size=[8 8], align_corners=false",
        &["f32 n 3 8 8"],
        "Addmm Addmm",
    );
    check("aten.pad.default", "self=f32 2 5, pad=[1 2]", &["f32 2 8"], "Pad");
    check("aten.pad.default", "self=f32 2 5, pad=[-1 2]", &["f32 2 6"], "Slice Pad");
    check("aten.pad.default", "self=f32 2 5, pad=[1 2], mode='reflect'", &["f32 2 8"], "Take");
    check("aten.pad.default", "self=f32 2 s, pad=[1 0], mode='circular'", &[], "Slice Concatenate");
}

#[test]
fn fake_quantization() {
    let range = "zero_point=3, quant_min=0, quant_max=255";
    let nodes = "Divide Multiply Round Add Clip Subtract Multiply";
    check("aten.fake_quantize_per_tensor_affine.default", &format!("self=f32 s 4, scale=0.1, {range}"), &["f32 s 4"], nodes);
}

#[test]
fn norms() {
    let rms = |weight: &str| format!("input=bf16 s 8, normalized_shape=[8], weight={weight} 8");
    check("aten.rms_norm.default", &rms("bf16"), &["bf16 s 8"], "RMSNorm");
    check("aten.rms_norm.default", &rms("f32"), &["bf16 s 8"], "RMSNorm AsType");
    check("aten.rms_norm.default", &rms("f16"), &["bf16 s 8"], "AsType RMSNorm");
    check(
        "aten.group_norm.default",
        "input=f32 2 4 h, num_groups=2, weight=f32 4, bias=f32 4",
        &["f32 2 4 h"],
        "Reshape LayerNorm Reshape Reshape Reshape Multiply Add",
    );
    check("aten.instance_norm.default", "input=f32 2 4 3, use_input_stats=true", &["f32 2 4 3"], "LayerNorm");
    let trained = "input=f32 2 3, running_mean=f32 3, running_var=f32 3, training=true";
    let (_, items) = lower("aten.batch_norm.default", trained, &["f32 2 3", "f32 3", "f32 3"]);
    assert_eq!(items.map(|items| items.len()), Ok(3), "the result and the new running statistics");
}

#[test]
fn products() {
    check("aten.einsum.default", "equation='bij,bjk->bik', tensors={f32 b 2 3; f32 b 3 4}", &["f32 b 2 4"], "Addmm");
    check("aten.einsum.default", "equation='i,j', tensors={f32 2; f32 3}", &["f32 2 3"], "Reshape Reshape Multiply");
    check("aten.einsum.default", "equation='ii->i', tensors={f32 3 3}", &["f32 3"], "Reshape Take");
    check("aten.outer.default", "self=f32 2, vec2=f32 s", &["f32 2 s"], "ExpandDims Multiply");
    check("aten.trace.default", "self=f32 3 3", &["f32"], "Reshape Take Sum");
}

#[test]
fn recurrences() {
    let lstm = "input=f32 b t 3, hx={f32 1 b 4; f32 1 b 4}, params={f32 16 3; f32 16 4; f32 16; f32 16}, batch_first=true";
    check(
        "aten.lstm.input",
        lstm,
        &["f32 b t 4", "f32 1 b 4", "-f32 1 b 4"],
        "Take Take Transpose Addmm Add Transpose IdCopy IdCopy Scan ExpandDims \
         [Addmm Split Sigmoid Sigmoid Tanh Sigmoid Multiply Multiply Add Tanh Multiply IdCopy IdCopy IdCopy]",
    );
    check(
        "aten.rnn_tanh_cell.default",
        "input=f32 b 3, hx=f32 b 4, w_ih=f32 4 3, w_hh=f32 4 4",
        &["f32 b 4"],
        "Transpose Addmm Transpose Addmm Tanh",
    );
}

#[test]
fn experts_and_sampling() {
    let gather = |n: &str, cutoff: i64| format!("x=f32 {n} 8, expert_indices=i64 {n} 2, top_k=2, sort_cutoff={cutoff}");
    let outs = ["f32 8 1 8", "i32 8", "i32", "i32 8"];
    check(
        "mlx.moe_gather_inputs.default",
        &gather("4", 1),
        &outs,
        "Reshape Argsort AsType Argsort AsType Take AsType FloorDivide AsType Take ExpandDims Full",
    );
    check("mlx.moe_gather_inputs.default", &gather("4", 16), &outs, "Repeat Reshape AsType ExpandDims Full ARange");
    let (cx, result) = lower("mlx.moe_gather_inputs.default", &gather("n", 4), &["f32 2*n 1 8"; 0]);
    assert_eq!((result.unwrap().len(), cx.graph().chains.len()), (4, 3));
    let (cx, result) = lower("mlx.sample.default", "logits=f32 1 9, temperature=f32, top_k=i64, top_p=f32, seed=i64", &["i64 1"]);
    result.unwrap();
    let all: Vec<&str> = cx.graph().chains.iter().flatten().map(|n| n.node.name()).collect();
    for (name, n) in [("If", 1), ("RandomBits", 1), ("Argmax", 2), ("ItemInt", 3), ("Softmax", 1), ("Sort", 2), ("Where", 3)] {
        assert_eq!(all.iter().filter(|a| **a == name).count(), n, "{name}");
    }
}
