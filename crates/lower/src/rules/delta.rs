//! The gated delta rule, and the codes of compressed caches.

use flambeau_ir::{In, Int, MetalKernel, Node, Repeat, Slot, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
    scan::{LoopStep, scan},
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Lanes of a SIMD group, which share one row of the state.
const LANES: i64 = 32;

/// Metal source of the rule with one SIMD group per row of the state. Each lane keeps `Dk / 32`
/// elements; dot products are sums over lanes.
const GATED_DELTA_SOURCE: &str = "
    constexpr int N = Dk / 32;
    const uint lane = thread_position_in_threadgroup.x;
    const uint row = thread_position_in_grid.y;
    const uint pair = thread_position_in_grid.z;
    const uint batch = pair / Hv;
    const uint head = pair % Hv;
    const uint key_head = head / (Hv / Hk);
    const uint base = (pair * Dv + row) * Dk + lane * N;
    float s[N];
    for (int i = 0; i < N; ++i) {
        s[i] = static_cast<float>(state_in[base + i]);
    }
    for (int t = 0; t < T; ++t) {
        const uint step = batch * T + t;
        const uint key = (step * Hk + key_head) * Dk + lane * N;
        const uint gate = step * Hv + head;
        const float decay = static_cast<float>(g[gate]);
        float known = 0.0f;
        for (int i = 0; i < N; ++i) {
            s[i] *= decay;
            known += s[i] * static_cast<float>(k[key + i]);
        }
        known = simd_sum(known);
        const float delta = (static_cast<float>(v[gate * Dv + row]) - known) * static_cast<float>(beta[gate]);
        float answer = 0.0f;
        for (int i = 0; i < N; ++i) {
            s[i] += delta * static_cast<float>(k[key + i]);
            answer += s[i] * static_cast<float>(q[key + i]);
        }
        answer = simd_sum(answer);
        if (lane == 0) {
            y[gate * Dv + row] = static_cast<InT>(answer);
        }
    }
    for (int i = 0; i < N; ++i) {
        state_out[base + i] = static_cast<InT>(s[i]);
    }
";

/// Operands of the rule: q, k `[B, T, Hk, Dk]`; v `[B, T, Hv, Dv]`; g `[B, T, Hv]` or
/// `[B, T, Hv, Dk]`; beta `[B, T, Hv]`; state `[B, Hv, Dv, Dk]`.
struct Delta {
    operands: [Tid; 5],
    state: Tid,
    batch: Expr,
    steps: Expr,
    key_heads: i64,
    heads: i64,
    dk: i64,
    dv: i64,
}

fn read(cx: &mut Lower, call: &Call) -> Result<Delta, Refuse> {
    let dtype = call.out(0)?.dtype;
    let [q, k, v, g, beta] = ["q", "k", "v", "g", "beta"].map(|p| cx.operand(call, p, dtype));
    let (q, v) = (q?, v?);
    let state = cx.operand(call, "state", dtype)?;
    let ([batch, steps, key_heads, dk], [_, _, heads, dv]) = (&cx.spec(q).dims[..], &cx.spec(v).dims[..]) else {
        return unsupported("queries or values are not of rank 4");
    };
    let [key_heads, dk, heads, dv] = ops::known("head sizes", &[key_heads.clone(), dk.clone(), heads.clone(), dv.clone()])?[..]
    else {
        return unsupported("four head sizes");
    };
    if key_heads < 1 || heads % key_heads != 0 {
        return unsupported(format!("{heads} value heads over {key_heads} key heads"));
    }
    let (batch, steps) = (batch.clone(), steps.clone());
    Ok(Delta { operands: [q, k?, v, g?, beta?], state, batch, steps, key_heads, heads, dk, dv })
}

/// Returns the result and the new state; callers bind the state to the new one.
fn gated_delta_rule(cx: &mut Lower, call: &Call) -> Items {
    let delta = read(cx, call)?;
    let whole = cx.spec(delta.operands[3]).rank() == 3;
    let kernel = call.bool_or("use_custom_kernel", true)? && whole && delta.dk % LANES == 0;
    let (y, state) = if kernel { delta_kernel(cx, &delta)? } else { delta_scan(cx, &delta)? };
    let dtype = cx.spec(call.tensor("state")?).dtype;
    Ok(vec![Item::Tensor(y), Item::Tensor(cx.cast(state, dtype)?)])
}

fn delta_kernel(cx: &mut Lower, d: &Delta) -> Result<(Tid, Tid), Refuse> {
    let dtype = cx.spec(d.operands[0]).dtype;
    let v = match cx.int(&d.steps)? {
        Int::Lit(n) => flambeau_ir::Float::Lit(n as f64),
        Int::Vid(v) => flambeau_ir::Float::Vid(v),
    };
    let steps = cx.emit(flambeau_ir::Full { out: NEW, shape: Vec::new(), v, scalar_type: DType::I32 })?;
    let (heads, dv, dk) = (Expr::Int(d.heads), Expr::Int(d.dv), Expr::Int(d.dk));
    let shapes = [d.batch.clone(), d.steps.clone(), heads.clone(), dv.clone(), d.batch.clone(), heads.clone(), dv.clone(), dk];
    let grid = [Expr::Int(LANES), dv, d.batch.clone() * heads];
    let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let kernel = MetalKernel {
        name: "gated_delta_step".to_owned(),
        source: GATED_DELTA_SOURCE.to_owned(),
        inputs: d.operands.iter().chain([&d.state, &steps]).map(|&t| In(t)).collect(),
        outputs: vec![NEW, NEW],
        grid: cx.ints(&grid)?,
        threadgroup: vec![Int::Lit(LANES), Int::Lit(4), Int::Lit(1)],
        header: None,
        input_names: names(&["q", "k", "v", "g", "beta", "state_in", "T"]),
        output_names: names(&["y", "state_out"]),
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: cx.ints(&shapes)?,
        output_shape_lengths: vec![4, 4],
        output_dtypes: vec![dtype, dtype],
        template_arg_names: names(&["InT", "Dk", "Dv", "Hk", "Hv"]),
        template_arg_kinds: vec![2, 0, 0, 0, 0],
        template_arg_values: vec![i32::from(dtype.code()), d.dk as i32, d.dv as i32, d.key_heads as i32, d.heads as i32],
        init_value: None,
    };
    match cx.emit_all(Node::MetalKernel(kernel))?[..] {
        [Slot::Tensor(y), Slot::Tensor(state)] => Ok((y, state)),
        _ => unsupported("a kernel of two results"),
    }
}

/// `s = s g; delta = (v - s k) beta; s = s + delta k; y = s q` for each step.
fn delta_scan(cx: &mut Lower, d: &Delta) -> Result<(Tid, Tid), Refuse> {
    let [mut q, mut k, v, g, beta] = d.operands;
    let repeats = Int::Lit(d.heads / d.key_heads);
    for t in [&mut q, &mut k] {
        if d.heads != d.key_heads {
            *t = cx.emit(Repeat { x: In(*t), out: NEW, repeats, axis: 2 })?;
        }
    }
    let (last, outputs) = scan(cx, &[q, k, v, g, beta], 1, &[d.state], |cx, slices, state| {
        let &[q, k, v, g, beta] = slices else { return unsupported("five slices") };
        let mut g = cx.unsqueeze(g, 2)?;
        // A decay per head applies to all elements of the head's keys.
        if cx.spec(g).rank() == 3 {
            g = cx.unsqueeze(g, 3)?;
        }
        let decayed = ops::mul(cx, state[0], g)?;
        let k = cx.unsqueeze(k, 2)?;
        let known = ops::mul(cx, decayed, k)?;
        let known = ops::sum(cx, known, &[3], false)?;
        let missing = ops::sub(cx, v, known)?;
        let beta = cx.unsqueeze(beta, 2)?;
        let change = ops::mul(cx, missing, beta)?;
        let change = cx.unsqueeze(change, 3)?;
        let change = ops::mul(cx, change, k)?;
        let next = ops::add(cx, decayed, change)?;
        let q = cx.unsqueeze(q, 2)?;
        let answer = ops::mul(cx, next, q)?;
        let answer = ops::sum(cx, answer, &[3], false)?;
        Ok(LoopStep { carry: vec![next], collect: vec![answer] })
    })?;
    Ok((outputs[0], last[0]))
}

/// Length along the last axis, which stays with size 1. Squares are computed in f32, because halves
/// overflow.
fn tq_norm(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("x")?;
    let x = cx.cast(x, DType::F32)?;
    let Some(last) = cx.spec(x).rank().checked_sub(1) else { return unsupported("a vector without an axis") };
    let squares = ops::square(cx, x)?;
    let total = ops::sum(cx, squares, &[last], true)?;
    one(ops::sqrt(cx, total)?)
}

/// `[.., D]` to `[.., D / 2, 2]`, or back.
fn paired(cx: &mut Lower, x: Tid) -> Emitted {
    let mut dims = cx.spec(x).dims.to_vec();
    let half = dims.last().and_then(|d| d.exact_div(&Expr::Int(2)));
    let (Some(last), Some(half)) = (dims.last_mut(), half) else { return unsupported("an odd number of elements") };
    *last = half;
    dims.push(Expr::Int(2));
    cx.reshape(x, &dims)
}

/// Codes `[.., D / 2]` u8, the first of each two in the high half. A code is the number of
/// boundaries below the value.
fn tq4_compress(cx: &mut Lower, call: &Call) -> Items {
    let (values, boundaries) = (call.tensor("values")?, call.tensor("boundaries")?);
    let (values, boundaries) = (cx.cast(values, DType::F32)?, cx.cast(boundaries, DType::F32)?);
    let rank = cx.spec(values).rank();
    let values = cx.unsqueeze(values, rank)?;
    let above = ops::gt(cx, values, boundaries)?;
    let codes = ops::sum(cx, above, &[rank], false)?;
    let pairs = paired(cx, codes)?;
    let weights = cx.integers("_nibble_weights", &[16, 1], DType::I32)?;
    let weighted = ops::mul(cx, pairs, weights)?;
    let bytes = ops::sum(cx, weighted, &[rank], false)?;
    one(cx.cast(bytes, DType::U8)?)
}

/// Centroids of the codes `[.., D / 2]` times the norms `[.., 1]`. A table splits a byte into its
/// two codes.
fn tq_dequant(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let packed = call.tensor("packed")?;
    let (norms, centroids) = (cx.operand(call, "norms", dtype)?, cx.operand(call, "centroids", dtype)?);
    let table: Vec<i64> = (0..256).flat_map(|byte| [byte >> 4, byte & 15]).collect();
    let table = cx.integers("_nibbles", &table, DType::U8)?;
    let table = cx.reshape(table, &[Expr::Int(256), Expr::Int(2)])?;
    let pairs = ops::take(cx, table, packed, 0)?;
    let mut dims = cx.spec(packed).dims.to_vec();
    let Some(last) = dims.last_mut() else { return unsupported("codes without an axis") };
    *last = last.clone() * Expr::Int(2);
    let codes = cx.reshape(pairs, &dims)?;
    let values = ops::take(cx, centroids, codes, 0)?;
    one(ops::mul(cx, values, norms)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("mlx.gated_delta_rule.default", gated_delta_rule),
    row("mlx.tq4_compress.default", tq4_compress),
    row("mlx.tq_dequant.default", tq_dequant),
    row("mlx.tq_norm.default", tq_norm),
];
