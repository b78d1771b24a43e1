//! Attention, over operands and over the session's cache.

use std::borrow::Cow;

use flambeau_ir as ir;
use flambeau_kernels::{
    Float, Pool,
    attention::{Coded, Mask, Scoring, attention, attention_over_codes},
};
use flambeau_tensor::{Bool, DType};
use smallvec::{SmallVec, smallvec};

use super::{float_dtype, index::listed, linalg::float_view, shape::join};
use crate::{
    array::Array,
    error::{OpError, Result},
    kv,
    machine::Context,
    obstacle::Prepared,
    plan::{Cost, Keys, MemRef, Planner, Spans, pairs},
    prepare::Prepare,
};

/// Attention of `q` over `k` and `v`, computed in the type of `q`. `k` and `v` share a type and may
/// differ from `q`.
fn attend<'a>(pool: &Pool, [q, k, v]: [&Array; 3], scoring: impl Into<Scoring<'a>>, mask: &Mask<'_>, y: &mut Array) -> Result<()> {
    let scoring = scoring.into();
    float_dtype!(q.dtype, T => float_dtype!(k.dtype, S => {
        Ok(attention::<T, S>(pool, &q.view()?, (&k.view()?, &v.view()?), &mut y.view_mut()?, scoring, mask)?)
    }))
}

/// A mask operand, boolean or floating, as the kernel takes it; without one, `causal` decides.
fn mask_of(mask: Option<&Array>, causal: bool) -> Result<Mask<'_>> {
    Ok(match mask {
        Some(mask) if mask.dtype == DType::Bool => Mask::Bool(mask.view()?),
        Some(mask) => Mask::Add(float_view(mask)?),
        None if causal => Mask::Causal,
        None => Mask::None,
    })
}

/// Attention of `q` over keys and values in codes. It reads the codes directly if a kernel supports
/// their layout, else it decodes them first. The operands are queries, codes of keys and of values,
/// and the scales of both.
fn attend_codes(cx: &mut Context, ins: &[Array], scale: f32, mask: &Mask<'_>, y: &mut Array) -> Result<()> {
    let [q, k, v, k_scales, v_scales, ..] = ins else { return Err(OpError::value("an operand is missing")) };
    let (scales_of_k, scales_of_v) = (spread(k_scales, k)?, spread(v_scales, v)?);
    let (keys, values) = (coded(k, &scales_of_k)?, coded(v, &scales_of_v)?);
    let (heads, queries, pool) = (q.shape[1], q.shape[2], cx.pool());
    if keys.suits(heads, queries) && values.suits(heads, queries) {
        return float_dtype!(q.dtype, T => {
            Ok(attention_over_codes::<T>(&pool, &q.view()?, (&keys, &values), &mut y.view_mut()?, scale, mask)?)
        });
    }
    let (keys, values) = (decoded(cx, (&keys, k), q.dtype)?, decoded(cx, (&values, v), q.dtype)?);
    let result = attend(&pool, [q, &keys, &values], scale, mask, y);
    [keys, values].into_iter().for_each(|array| cx.free(array));
    result
}

/// Scales for each group of the codes.
fn spread(scales: &Array, codes: &Array) -> Result<Array> {
    let mut shape = codes.shape.clone();
    shape[4] = 1;
    scales.broadcast(&shape).ok_or_else(|| OpError::value(format!("codes {:?} with scales {:?}", codes.shape, scales.shape)))
}

fn coded<'a>(codes: &'a Array, scales: &'a Array) -> Result<Coded<'a>> {
    Ok(Coded::new(codes.view()?, float_view(scales)?)?)
}

/// The elements of codes of this shape.
fn decoded(cx: &mut Context, (coded, codes): (&Coded<'_>, &Array), dtype: DType) -> Result<Array> {
    let &[batch, heads, keys, groups, group] = &codes.shape[..] else { return Err(OpError::value("codes do not have rank 5")) };
    let mut out = cx.alloc(dtype, &[batch, heads, keys, groups * group])?;
    float_dtype!(dtype, T => Ok(coded.decode::<T>(&cx.pool, out.slice_mut()?)?))?;
    Ok(out)
}

/// An operand in an element type. Without a conversion, its sizes may be known only at run time.
fn in_type(p: &mut Planner<'_>, slot: ir::In, dtype: DType) -> Prepared<MemRef> {
    if p.dtype(slot)? == dtype {
        return Ok(p.get(slot)?);
    }
    let x = p.operand(slot)?;
    p.in_type(x, dtype)
}

/// The form of an attention's mask.
enum MaskForm {
    Array(MemRef),
    Spans(Spans),
}

impl MaskForm {
    fn of(p: &mut Planner<'_>, slot: ir::In, queries: usize, dtype: DType) -> Prepared<MaskForm> {
        if let Some(spans) = p.spans_of_mask(slot, queries) {
            return Ok(MaskForm::Spans(spans));
        }
        let own = p.dtype(slot)?;
        let is_usable = own == DType::Bool || own.is_float();
        Ok(MaskForm::Array(in_type(p, slot, if is_usable { own } else { dtype })?))
    }

    fn operand(&self) -> &MemRef {
        match self {
            MaskForm::Array(mask) => mask,
            MaskForm::Spans(spans) => &spans.bounds,
        }
    }
}

/// Spans of keys for `keys` keys, from a mask of `seen` keys.
fn spans_of(x: &Array, seen: usize, keys: usize) -> Result<Cow<'_, [[i64; 2]]>> {
    let spans = pairs(x)?;
    match seen {
        _ if seen == keys => Ok(spans.into()),
        // A mask of one key broadcasts.
        1 => Ok(spans.iter().map(|&[first, end]| if first <= 0 && end > 0 { [0, i64::MAX] } else { [0, 0] }).collect()),
        _ => Err(OpError::value(format!("a mask of {seen} keys for {keys}"))),
    }
}

/// Attention with a bound of scores or with sinks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scored {
    pub(crate) scale: f32,
    pub(crate) cap: Option<f32>,
    /// The keys of a mask of spans.
    pub(crate) seen: Option<Keys>,
    /// Whether sinks [H] follow the other operands.
    pub(crate) has_sinks: bool,
}

/// Attention of queries, keys, values, and spans where the form has some. Queries that see no key
/// give NaN, as a softmax of −∞ does.
pub(crate) fn attend_scored(cx: &mut Context, ins: &[Array], form: Scored, y: &mut Array) -> Result<()> {
    let [q, k, v, rest @ ..] = ins else { return Err(OpError::value("an operand is missing")) };
    let keys = k.shape[2];
    let spans = match (form.seen, rest) {
        (Some(seen), [spans, ..]) => Some(spans_of(spans, seen.count(cx)?, keys)?),
        _ => None,
    };
    let sinks = rest.last().filter(|_| form.has_sinks).map(Array::slice::<f32>).transpose()?;
    let mask = spans.as_ref().map_or(Mask::None, |spans| Mask::Spans(spans));
    attend(&cx.pool, [q, k, v], Scoring { scale: form.scale, cap: form.cap, sinks }, &mask, y)?;
    let sees = |&[first, end]: &[i64; 2]| first.max(0) < end.min(keys as i64);
    let whole = [[0, i64::MAX]];
    let spans = spans.as_deref().unwrap_or(&whole);
    if spans.iter().all(sees) {
        return Ok(());
    }
    let (queries, width) = (q.shape[2].max(1), v.shape[3].max(1));
    float_dtype!(y.dtype, T => {
        for (i, row) in y.slice_mut::<T>()?.chunks_mut(width).enumerate() {
            if !sees(&spans[(i % queries).min(spans.len() - 1)]) {
                row.fill(T::from_f32(f32::NAN));
            }
        }
        Ok(())
    })
}

/// Keys, values and mask may have sizes known only at run time, if they need no conversion.
impl Prepare for ir::Sdpa {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (q, spec) = (p.operand(self.q)?, p.spec(self.out)?);
        let (scale, causal) = (self.scale, self.causal);
        let codes = p.codes_of_attention()?;
        let is_coded = codes.is_some();
        let kv: SmallVec<[MemRef; 4]> = match codes {
            Some([k, v]) => smallvec![k.codes, v.codes, k.scales, v.scales],
            None => {
                let shared = ir::promote(p.dtype(self.k)?, p.dtype(self.v)?);
                smallvec![in_type(p, self.k, shared)?, in_type(p, self.v, shared)?]
            }
        };
        let queries = q.array.shape.get(2).copied().unwrap_or(0);
        let mask = self.mask.map(|mask| MaskForm::of(p, mask, queries, spec.dtype)).transpose()?;
        let q = p.in_type(q, spec.dtype)?;
        let ins: SmallVec<[&MemRef; 6]> = std::iter::once(&q).chain(&kv).chain(mask.as_ref().map(MaskForm::operand)).collect();
        let at = 1 + kv.len();
        let seen = if let Some(MaskForm::Spans(spans)) = &mask { Some(spans.keys) } else { None };
        let y = p.call_of(Cost::Attention, &ins, (spec.dtype, &spec.shape), move |cx, ins, y| {
            let spans = match (seen, ins.get(at)) {
                (Some(seen), Some(spans)) => Some(spans_of(spans, seen.count(cx)?, ins[1].shape[2])?),
                _ => None,
            };
            let mask = match &spans {
                Some(spans) => Mask::Spans(spans),
                None => mask_of(ins.get(at), causal)?,
            };
            match is_coded {
                true => attend_codes(cx, ins, scale, &mask, y),
                false => attend(&cx.pool, [&ins[0], &ins[1], &ins[2]], scale, &mask, y),
            }
        })?;
        p.put(self.out, y);
        Ok(())
    }
}

/// The logical run of cached positions: a view of its one physical run, or the two runs joined.
fn cached(cx: &mut Context, pool: &Array, [first, second]: [(usize, usize); 2]) -> Result<Array> {
    let parts = [pool.narrow(2, first.0, first.1, 1), pool.narrow(2, second.0, second.1, 1)];
    if second.1 == 0 {
        let [first, _] = parts;
        return Ok(first);
    }
    let mut shape = pool.shape.clone();
    shape[2] = first.1 + second.1;
    let mut whole = cx.alloc(pool.dtype, &shape)?;
    join(&cx.pool, &parts, 2, &mut whole)?;
    Ok(whole)
}

/// `[T, S]`: whether key `j` is in the window of query `i`. The last query aligns with the last
/// key.
fn band(cx: &mut Context, queries: usize, keys: usize, window: usize) -> Result<Array> {
    let mut mask = cx.alloc(DType::Bool, &[queries, keys])?;
    let before = keys.saturating_sub(queries);
    for (i, row) in mask.slice_mut::<Bool>()?.chunks_mut(keys.max(1)).enumerate() {
        let last = i + before;
        row.iter_mut().enumerate().for_each(|(j, m)| *m = (j <= last && last < j + window).into());
    }
    Ok(mask)
}

/// Appends keys and values to the session's cache and attends over the updated cache.
fn update_and_attend(cx: &mut Context, ins: &[Array], (layer, scale): (i32, f32), y: &mut Array) -> Result<()> {
    let [q, k, v, position] = ins else { return Err(OpError::value("an operand is missing")) };
    let position = *listed(position)?.first().ok_or_else(|| OpError::value("the position is empty"))?;
    let pool = cx.pool();
    let cache = cx.kv.as_mut().ok_or_else(|| OpError::value("the session was loaded without a cache"))?;
    let span = kv::update(cache, &pool, layer, position, [k, v])?;
    let [keys, values] = cache.layer(layer)?.clone();
    let (keys, values) = (cached(cx, &keys, span.runs)?, cached(cx, &values, span.runs)?);
    let (queries, count) = (q.shape[2], keys.shape[2]);
    let mask = span.window.map(|window| band(cx, queries, count, window)).transpose()?;
    let mask = match &mask {
        Some(mask) => Mask::Bool(mask.view()?),
        None if queries == 1 => Mask::None,
        None => Mask::Causal,
    };
    attend(&pool, [q, &keys, &values], scale, &mask, y)
}

impl Prepare for ir::UpdateAndAttend {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (q, k, v, position) = (p.operand(self.q)?, p.operand(self.k)?, p.operand(self.v)?, p.operand(self.position)?);
        let spec = p.spec(self.out)?;
        let (Some(layer), Some(scale)) = (self.layer_id, self.scale) else {
            return Err(OpError::value("the layer id or the scale is missing").into());
        };
        let ([batch, heads, time, _], Some(&width)) = (&q.array.shape[..], v.array.shape.last()) else {
            return Err(OpError::value("`q` does not have rank 4").into());
        };
        let (shape, dtype) = ([*batch, *heads, *time, width], q.array.dtype);
        let position = p.contiguous(position)?;
        let y =
            p.call(&[&q, &k, &v, &position], (dtype, &shape), move |cx, ins, y| update_and_attend(cx, ins, (layer, scale), y))?;
        let y = p.in_type(y, spec.dtype)?;
        p.put(self.out, y);
        Ok(())
    }
}
