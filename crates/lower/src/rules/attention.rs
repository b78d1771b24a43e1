//! Attention, rotary embedding and key/value caches.

use flambeau_ir::{
    AddInt, In, IndexCopy, Int, ModInt, Rope, Sdpa, SliceUpdate, Squeeze, SubtractInt, SymSize, Tid, UpdateAndAttend, VidOrTid,
};
use flambeau_tensor::{DType, Expr};

use super::{RuleRow, lifted, one, row, shape::slice_axis};
use crate::{
    Call, Item, Lower, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

type Items = Result<Vec<Item>, Refuse>;

/// Queries and the scale of the scores: the argument, or one over the square root of the head size.
/// A symbolic head size scales the queries instead.
fn scaled_queries(cx: &mut Lower, call: &Call, q: Tid) -> Result<(Tid, f32), Refuse> {
    if let Some(scale) = call.float_opt("scale")? {
        return Ok((q, scale as f32));
    }
    let size = cx.spec(q).dims.last().cloned().unwrap_or(Expr::Int(1));
    match size.as_int() {
        Some(d) => Ok((q, (1.0 / (d.max(1) as f64).sqrt()) as f32)),
        None => {
            let dtype = cx.spec(q).dtype;
            let size = super::ops::size_number(cx, &size, 1.0, 0.0, DType::F32)?;
            let scale = super::ops::rsqrt(cx, size)?;
            let scale = cx.cast(scale, dtype)?;
            Ok((super::ops::mul(cx, q, scale)?, 1.0))
        }
    }
}

/// Casts an additive mask to the type of the scores; a boolean mask stays.
fn mask_of(cx: &mut Lower, call: &Call, param: &str, dtype: DType) -> Result<Option<Tid>, Refuse> {
    match call.tensor_opt(param)? {
        Some(mask) if cx.spec(mask).dtype != DType::Bool => cx.cast(mask, dtype).map(Some),
        mask => Ok(mask),
    }
}

fn sdpa(cx: &mut Lower, call: &Call) -> Items {
    if call.float_or("dropout_p", 0.0)? != 0.0 {
        return unsupported(super::random::TRAINING_DROPOUT);
    }
    let dtype = call.out(0)?.dtype;
    let tensors = [cx.operand(call, "query", dtype)?, cx.operand(call, "key", dtype)?, cx.operand(call, "value", dtype)?];
    let ranks = tensors.map(|t| cx.spec(t).rank());
    if let Some(rank) = ranks.into_iter().find(|&rank| rank < 2) {
        return unsupported(format!("attention over tensors of rank {rank}"));
    }
    let rank = ranks.into_iter().fold(2, usize::max);
    let mut mask = mask_of(cx, call, "attn_mask", dtype)?;
    let tensors = with_batches(cx, tensors, mask, call.bool_or("enable_gqa", false)?)?;
    let [q, mut k, mut v] = folded(cx, tensors)?;
    if let Some(own) = mask.filter(|&m| rank > 4 && cx.spec(m).rank() > 3) {
        let lead = cx.spec(tensors[0]).dims[..rank - 3].to_vec();
        mask = Some(folded_mask(cx, own, &lead)?);
    }
    let (q, scale) = scaled_queries(cx, call, q)?;
    let mut causal = call.bool_or("is_causal", false)?;
    if causal && may_have_more_queries(cx, q, k) {
        (causal, mask) = (false, Some(lower_triangle(cx, q, k)?));
    }
    if causal {
        (k, v) = align_causal(cx, q, k, v)?;
    }
    let out = cx.emit(Sdpa { q: In(q), k: In(k), v: In(v), out: NEW, scale, mask: mask.map(In), causal })?;
    one(match rank {
        4 => out,
        5.. => cx.reshape(out, &call.out(0)?.dims)?,
        _ => cx.emit(Squeeze { x: In(out), out: NEW, dims: (0..4 - rank as i32).collect() })?,
    })
}

/// Queries, keys and values with at least four axes and equal batch axes. A batch axis of size 1 is
/// expanded to the others and to the mask. A single head is expanded too, unless groups share
/// heads.
fn with_batches(cx: &mut Lower, mut tensors: [Tid; 3], mask: Option<Tid>, grouped: bool) -> Result<[Tid; 3], Refuse> {
    let rank = tensors.iter().map(|&t| cx.spec(t).rank()).fold(4, usize::max);
    for t in &mut tensors {
        while cx.spec(*t).rank() < rank {
            *t = cx.unsqueeze(*t, 0)?;
        }
    }
    let (unit, mut wanted) = (|d: &Expr| d.as_int() == Some(1), tensors.map(|t| cx.spec(t).dims.to_vec()));
    let heads = rank - 3;
    for axis in 0..=heads {
        if axis == heads && grouped {
            continue;
        }
        let of_mask =
            mask.map(|m| cx.spec(m).dims.to_vec()).and_then(|dims| Some(dims[(dims.len() + axis).checked_sub(rank)?].clone()));
        let size = wanted.iter().map(|dims| &dims[axis]).chain(&of_mask).find(|d| !unit(d)).cloned();
        // A single head of keys and values serves all query heads without expansion.
        let stays = axis == heads && wanted[1..].iter().all(|dims| unit(&dims[axis]));
        for dims in wanted.iter_mut().take(if stays { 1 } else { 3 }).filter(|dims| unit(&dims[axis])) {
            dims[axis] = size.clone().unwrap_or(Expr::Int(1));
        }
    }
    for (t, dims) in tensors.iter_mut().zip(&wanted) {
        if cx.spec(*t).dims[..] != dims[..] {
            *t = super::shape::expand_to(cx, *t, dims)?;
        }
    }
    Ok(tensors)
}

/// Joins all axes before the last three into one batch axis.
fn folded(cx: &mut Lower, tensors: [Tid; 3]) -> Result<[Tid; 3], Refuse> {
    let mut fold = |t: Tid| {
        let dims = cx.spec(t).dims.to_vec();
        let lead = dims.len() - 3;
        if lead == 1 { Ok(t) } else { cx.reshape(t, &[&[super::ops::volume(&dims[..lead])], &dims[lead..]].concat()) }
    };
    Ok([fold(tensors[0])?, fold(tensors[1])?, fold(tensors[2])?])
}

/// Joins the batch axes `lead` of a mask into one.
fn folded_mask(cx: &mut Lower, mask: Tid, lead: &[Expr]) -> Result<Tid, Refuse> {
    let own = cx.spec(mask).dims.to_vec();
    let kept = &own[own.len() - 3..];
    let whole = super::shape::expand_to(cx, mask, &[lead, kept].concat())?;
    cx.reshape(whole, &[&[super::ops::volume(lead)], kept].concat())
}

/// Whether the queries may outnumber the keys.
fn may_have_more_queries(cx: &Lower, q: Tid, k: Tid) -> bool {
    let excess = cx.spec(q).dims[2].clone() - cx.spec(k).dims[2].clone();
    cx.graph().bounds(&excess).1 > 0
}

/// Causal mask `[queries, keys]`: query `i` sees keys up to `i`.
fn lower_triangle(cx: &mut Lower, q: Tid, k: Tid) -> Result<Tid, Refuse> {
    let (n_q, n_k) = (cx.spec(q).dims[2].clone(), cx.spec(k).dims[2].clone());
    let (queries, keys) = (super::ops::count(cx, &n_q, DType::I32)?, super::ops::count(cx, &n_k, DType::I32)?);
    let queries = cx.unsqueeze(queries, 1)?;
    super::ops::ge(cx, queries, keys)
}

/// Cuts off keys beyond the number of queries, which is not larger. PyTorch aligns the causal
/// triangle to the first key, MLX to the last.
fn align_causal(cx: &mut Lower, q: Tid, k: Tid, v: Tid) -> Result<(Tid, Tid), Refuse> {
    let (n_q, n_k) = (cx.spec(q).dims[2].clone(), cx.spec(k).dims[2].clone());
    if cx.graph().bounds(&(n_k - n_q.clone())) == (0, 0) {
        return Ok((k, v));
    }
    let zero = Expr::Int(0);
    Ok((slice_axis(cx, k, 2, &zero, &n_q, 1)?, slice_axis(cx, v, 2, &zero, &n_q, 1)?))
}

fn custom_sdpa(cx: &mut Lower, call: &Call) -> Items {
    if call.float_or("dropout_p", 0.0)? != 0.0 {
        return unsupported(super::random::TRAINING_DROPOUT);
    }
    let dtype = call.out(0)?.dtype;
    let (q, k, v) = (cx.operand(call, "query", dtype)?, cx.operand(call, "key", dtype)?, cx.operand(call, "value", dtype)?);
    let causal = call.bool_or("is_causal", false)?;
    let mask = if causal { None } else { mask_of(cx, call, "attn_mask", dtype)? };
    let stop = call.size("start_pos")? + cx.spec(q).dims[2].clone();
    let zero = Expr::Int(0);
    let (k, v) = (slice_axis(cx, k, 2, &zero, &stop, 1)?, slice_axis(cx, v, 2, &zero, &stop, 1)?);
    let (q, scale) = scaled_queries(cx, call, q)?;
    one(cx.emit(Sdpa { q: In(q), k: In(k), v: In(v), out: NEW, scale, mask: mask.map(In), causal })?)
}

/// Returns no first result, because the operator's own result is a dummy. The second item is the
/// cache's new content; callers bind the cache to it.
fn kv_cache_update(cx: &mut Lower, call: &Call) -> Items {
    let (cache, new) = (call.tensor("cache")?, call.tensor("new_values")?);
    let start = call.size("start_pos")?;
    let n_new = cx.spec(new).dims[2].clone();
    let ring_size = call.int_or("ring_size", 0)?;
    if ring_size != 0 {
        return Ok(vec![Item::None, Item::Tensor(ring_update(cx, cache, new, &start, ring_size)?)]);
    }
    let (start, stop) = (cx.int(&start)?, cx.int(&(start.clone() + n_new))?);
    Ok(vec![Item::None, Item::Tensor(update_axis(cx, cache, new, 2, start, stop)?)])
}

/// `dst` with `start..stop` of an axis replaced by `update`.
pub(super) fn update_axis(cx: &mut Lower, dst: Tid, update: Tid, axis: i64, start: Int, stop: Int) -> Result<Tid, Refuse> {
    cx.emit(SliceUpdate { dst: In(dst), update: In(update), out: NEW, axis: Int::Lit(axis), start, stop, step: 1 })
}

/// Writes at `start mod ring_size`; the part beyond the end wraps to the front. Either part may be
/// empty.
fn ring_update(cx: &mut Lower, cache: Tid, new: Tid, start: &Expr, ring_size: i64) -> Result<Tid, Refuse> {
    let start = cx.int(start)?;
    let at = Int::Vid(cx.emit_value(ModInt { a: start, b: Int::Lit(ring_size), out: NEW_VALUE })?);
    let room = Int::Vid(cx.emit_value(SubtractInt { a: Int::Lit(ring_size), b: at, out: NEW_VALUE })?);
    let n_new = cx.int(&cx.spec(new).dims[2].clone())?;
    let slice =
        |cx: &mut Lower, start, stop| cx.emit(flambeau_ir::Slice { x: In(new), out: NEW, axis: Int::Lit(2), start, stop, step: 1 });
    let head = slice(cx, Int::Lit(0), room)?;
    let n_head = Int::Vid(cx.emit_value(SymSize { a: In(head), dim: 2, out: NEW_VALUE })?);
    let tail = slice(cx, n_head, n_new)?;
    let head_end = Int::Vid(cx.emit_value(AddInt { a: at, b: n_head, out: NEW_VALUE })?);
    let n_tail = Int::Vid(cx.emit_value(SubtractInt { a: n_new, b: n_head, out: NEW_VALUE })?);
    let cache = update_axis(cx, cache, head, 2, at, head_end)?;
    update_axis(cx, cache, tail, 2, Int::Lit(0), n_tail)
}

fn index_copy(cx: &mut Lower, call: &Call) -> Items {
    let (x, index, source) = (call.tensor("self")?, call.tensor("index")?, call.tensor("source")?);
    let dtype = cx.spec(x).dtype;
    let (index, source) = (cx.cast(index, DType::I64)?, cx.cast(source, dtype)?);
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())? as i32;
    let index = if cx.spec(index).rank() == 0 { cx.unsqueeze(index, 0)? } else { index };
    one(cx.emit(IndexCopy { dst: In(x), update: In(source), indices: In(index), out: NEW, axis })?)
}

fn rope(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("x")?;
    let offset = match cx.int(&call.size("pos")?)? {
        Int::Vid(v) => VidOrTid::Vid(v),
        Int::Lit(v) => VidOrTid::Tid(cx.number(v as f64, DType::I32)?),
    };
    let freqs = call.tensor_opt("freqs")?;
    if freqs.is_some_and(|f| cx.spec(f).rank() != 1) {
        return unsupported("rotary angles given per position");
    }
    let freqs = freqs.map(|f| cx.cast(f, DType::F32)).transpose()?.map(In);
    let (base, scale) = (call.float_or("base", 500_000.0)? as f32, call.float_or("scale", 1.0)? as f32);
    let traditional = call.bool_or("traditional", false)?;
    one(cx.emit(Rope { x: In(x), out: NEW, dims: call.int("dims")? as i32, offset, freqs, traditional, base, scale })?)
}

fn update_and_attend(cx: &mut Lower, call: &Call) -> Items {
    let [q, k, v, position] = ["q", "k", "v", "position"].map(|p| call.tensor(p));
    one(cx.emit(UpdateAndAttend {
        q: In(q?),
        k: In(k?),
        v: In(v?),
        position: In(position?),
        out: NEW,
        layer_id: Some(call.int("layer_id")? as i32),
        scale: Some(call.float_or("scale", 1.0)? as f32),
        out_dtype: call.dtype_opt("out_dtype")?,
    })?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.index_copy.default", |cx, call| lifted(cx, call, &["self", "source"], index_copy)),
    row("aten.scaled_dot_product_attention.default", sdpa),
    row("kvcache.update_and_attend.default", update_and_attend),
    row("mlx.custom_sdpa.default", custom_sdpa),
    row("mlx.kv_cache_update.default", kv_cache_update),
    row("mlx.rope.default", rope),
];
