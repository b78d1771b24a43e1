//! Attention, over operands and over the session's cache.

use flambeau_ir as ir;
use flambeau_kernels::{
    Pool,
    attention::{Mask, attention},
};
use flambeau_tensor::{Bool, DType};

use super::{copy::cast, float_dtype, index::integers, linalg::float_view, shape::join};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// Attention of `q` over keys and values of one type, which may differ from that of `q`.
fn attend(cx: &mut Cx<'_>, q: &Array, [k, v]: [&Array; 2], scale: f32, mask: &Mask<'_>) -> Result<Array> {
    let [batch, heads, time, _] = q.shape[..] else { return Err(OpError::value("`q` does not have rank 4")) };
    let width = v.shape.last().copied().unwrap_or(0);
    let mut y = cx.alloc(q.dtype, &[batch, heads, time, width])?;
    attend_into(&cx.pool(), [q, k, v], scale, mask, &mut y)?;
    Ok(y)
}

/// Attention of `q` over `k` and `v` of one type, which may differ from that of `q`, in the type of `q`.
pub(crate) fn attend_into(pool: &Pool, [q, k, v]: [&Array; 3], scale: f32, mask: &Mask<'_>, y: &mut Array) -> Result<()> {
    float_dtype!(q.dtype, T => float_dtype!(k.dtype, S => {
        Ok(attention::<T, S>(pool, &q.view()?, (&k.view()?, &v.view()?), &mut y.view_mut()?, scale, mask)?)
    }))
}

/// A mask operand, boolean or floating, as the kernel takes it; without one, `causal` decides.
pub(crate) fn mask_of(mask: Option<&Array>, causal: bool) -> Result<Mask<'_>> {
    Ok(match mask {
        Some(mask) if mask.dtype == DType::Bool => Mask::Bool(mask.view()?),
        Some(mask) => Mask::Add(float_view(mask)?),
        None if causal => Mask::Causal,
        None => Mask::None,
    })
}

impl Eval for ir::Sdpa {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (q, k, v) = (cx.get(self.q)?, cx.get(self.k)?, cx.get(self.v)?);
        let q = cast(cx, &q, spec.dtype)?;
        let shared = ir::promote(k.dtype, v.dtype);
        let (k, v) = (cast(cx, &k, shared)?, cast(cx, &v, shared)?);
        let mask = cx.get_opt(self.mask)?;
        let mask = match &mask {
            Some(mask) if mask.dtype == DType::Bool || mask.dtype.is_float() => Some(mask.clone()),
            Some(mask) => Some(cast(cx, mask, q.dtype)?),
            None => None,
        };
        let y = attend(cx, &q, [&k, &v], self.scale, &mask_of(mask.as_ref(), self.causal)?)?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// The logical run of cached positions: a view of its one physical run, or the two runs joined.
fn cached(cx: &mut Cx<'_>, pool: &Array, [first, second]: [(usize, usize); 2]) -> Result<Array> {
    let parts = [pool.narrow(2, first.0, first.1, 1), pool.narrow(2, second.0, second.1, 1)];
    if second.1 == 0 {
        let [first, _] = parts;
        return Ok(first);
    }
    let mut shape = pool.shape.clone();
    shape[2] = first.1 + second.1;
    let mut whole = cx.alloc(pool.dtype, &shape)?;
    join(&cx.pool(), &parts, 2, &mut whole)?;
    Ok(whole)
}

/// `[T, S]`: whether key `j` lies in the window of query `i`, the last query being aligned with the last key.
fn band(cx: &mut Cx<'_>, queries: usize, keys: usize, window: usize) -> Result<Array> {
    let mut mask = cx.alloc(DType::Bool, &[queries, keys])?;
    let before = keys.saturating_sub(queries);
    for (i, row) in mask.slice_mut::<Bool>()?.chunks_mut(keys.max(1)).enumerate() {
        let last = i + before;
        row.iter_mut().enumerate().for_each(|(j, m)| *m = (j <= last && last < j + window).into());
    }
    Ok(mask)
}

impl Eval for ir::UpdateAndAttend {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (Some(layer), Some(scale)) = (self.layer_id, self.scale) else {
            return Err(OpError::value("the layer id or the scale is missing"));
        };
        let (q, k, v, position) = (cx.get(self.q)?, cx.get(self.k)?, cx.get(self.v)?, cx.get(self.position)?);
        let position = *integers(cx, &position)?.first().ok_or_else(|| OpError::value("the position is empty"))?;
        let pool = cx.pool();
        let cache = cx.m.kv.as_mut().ok_or_else(|| OpError::value("the session was loaded without a cache"))?;
        let span = cache.update(&pool, layer, position, [&k, &v])?;
        let [keys, values] = cache.pools(layer)?;
        let (keys, values) = (cached(cx, &keys, span.runs)?, cached(cx, &values, span.runs)?);
        let (queries, count) = (q.shape[2], keys.shape[2]);
        let mask = span.window.map(|window| band(cx, queries, count, window)).transpose()?;
        let mask = match &mask {
            Some(mask) => Mask::Bool(mask.view()?),
            None if queries == 1 => Mask::None,
            None => Mask::Causal,
        };
        let y = attend(cx, &q, [&keys, &values], scale, &mask)?;
        drop(mask);
        let y = cast(cx, &y, spec.dtype)?;
        cx.put(self.out, y);
        Ok(())
    }
}
