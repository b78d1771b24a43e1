//! Attention, over operands and over the session's cache.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Binary, Reduce, Unary},
    kv,
    ops::linalg::product_type,
    values::{Slot, cast, integers},
};

/// The keys visible to a query.
enum Visible<'a> {
    All,
    /// Keys up to its own position, the last query being aligned with the last key.
    Causal,
    /// Attention weights are kept where a bool mask is true; an additive mask is added to the
    /// scores.
    Masked(&'a Slot),
}

/// Attention in the type of `q`, queries without any visible key giving zeros as PyTorch's do.
fn attend(cx: &Cx<'_>, q: &Array, [k, v]: [&Array; 2], scale: f32, visible: &Visible<'_>, counts: [usize; 2]) -> Result<Array> {
    let [queries, keys] = counts;
    match visible {
        Visible::All => Ok(q.attention(k, v, scale, "", None)?),
        Visible::Causal if queries <= keys => Ok(q.attention(k, v, scale, "causal", None)?),
        Visible::Causal => {
            let ones = Array::full(cx.api(), &[queries, keys], 1.0, DType::Bool)?;
            let mask = ones.tril(keys as i32 - queries as i32)?;
            masked(cx, q, [k, v], scale, &mask, true)
        }
        Visible::Masked(mask) if mask.dtype == DType::Bool => masked(cx, q, [k, v], scale, &mask.array, true),
        Visible::Masked(mask) => masked(cx, q, [k, v], scale, &cast(mask, q.spec()?.0)?, false),
    }
}

fn masked(cx: &Cx<'_>, q: &Array, [k, v]: [&Array; 2], scale: f32, mask: &Array, is_bool: bool) -> Result<Array> {
    let (dtype, shape) = mask.spec()?;
    // Masks broadcast from the left.
    let mut full = vec![1; 4usize.saturating_sub(shape.len())];
    full.extend_from_slice(&shape);
    let mask = mask.reshape(&full)?;
    let y = q.attention(k, v, scale, "array", Some(&mask))?;
    let seen = if is_bool { mask } else { mask.binary(Binary::Greater, &cx.scalar(f64::NEG_INFINITY, dtype)?)? };
    let sees = seen.reduce(Reduce::Any, &[3], true, 0)?;
    let zero = y.binary(Binary::Multiply, &cx.scalar(0.0, y.spec()?.0)?)?;
    let zero = zero.unary(Unary::IsNan)?.choose(&cx.scalar(0.0, y.spec()?.0)?, &zero)?;
    Ok(sees.choose(&y, &zero)?)
}

impl Eval for ir::Sdpa {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let through = product_type(cx, spec.dtype);
        let (q, k, v) = (cx.get_as(self.q, through)?, cx.get_as(self.k, through)?, cx.get_as(self.v, through)?);
        let mask = cx.get_opt(self.mask)?;
        let visible = match &mask {
            Some(mask) => Visible::Masked(mask),
            None if self.causal => Visible::Causal,
            None => Visible::All,
        };
        let counts = [spec.shape[2], cx.peek(self.k.0)?.shape[2]];
        if let Some(mask) = open_mask(cx, self)? {
            let y = q.attention(&k, &v, self.scale, "array", Some(&mask))?;
            return cx.put(self.out, y);
        }
        let y = if spec.shape.contains(&0) || counts[1] == 0 {
            Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?
        } else {
            attend(cx, &q, [&k, &v], self.scale, &visible, counts)?
        };
        cx.put(self.out, y)
    }
}

/// Mask over padded keys that shows each query its keys, if a trace leaves their number open;
/// `None` if the number is known.
///
/// # Errors
/// If a trace cannot leave it open.
fn open_mask(cx: &mut Cx<'_>, node: &ir::Sdpa) -> Result<Option<Array>> {
    let [q, k, v] = [cx.peek(node.q.0)?, cx.peek(node.k.0)?, cx.peek(node.v.0)?];
    let padded = match [q.padded, k.padded, v.padded] {
        [None, None, None] => return Ok(None),
        [None, Some(k), Some(v)] if k == v && k.axis == 2 && node.mask.is_none() => k,
        _ => return Err(OpError::value("cannot trace such an attention")),
    };
    let (queries, keys) = (q.shape[2], k.array.spec()?.1[2]);
    let length = cx.open_array(padded.length)?;
    let column = Array::arange(cx.api(), 0.0, keys as f64, 1.0, DType::I32)?.reshape(&[1, 1, 1, keys])?;
    let end = if node.causal {
        // The last query is aligned with the last key.
        let row = Array::arange(cx.api(), 1.0 - queries as f64, 1.0, 1.0, DType::I32)?.reshape(&[1, 1, queries, 1])?;
        length.binary(Binary::Add, &row)?
    } else {
        length
    };
    Ok(Some(column.binary(Binary::Less, &end)?))
}

/// `[T, S]`: whether key `j` is in the window of query `i`. The last query aligns with the last
/// key.
fn band(cx: &Cx<'_>, queries: usize, keys: usize, window: usize) -> Result<Slot> {
    let (before, shape) = (keys as i32 - queries as i32, [queries, keys]);
    let ones = Array::full(cx.api(), &shape, 1.0, DType::Bool)?;
    let mask = ones.tril(before)?.triu(before - window as i32 + 1)?;
    Ok(Slot::new(mask, DType::Bool, shape.as_slice().into()))
}

impl Eval for ir::UpdateAndAttend {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (Some(layer), Some(scale)) = (self.layer_id, self.scale) else {
            return Err(OpError::value("the layer id or the scale is missing"));
        };
        let position = integers(&cx.read(self.position.0)?)?;
        let position = *position.first().ok_or_else(|| OpError::value("the position is empty"))?;
        let (q, k, v) = (cx.get(self.q)?, cx.get(self.k)?, cx.get(self.v)?);
        let through = product_type(cx, q.dtype);
        let api = cx.api();
        let cache = cx.m.kv.as_mut().ok_or_else(|| OpError::value("the session was loaded without a cache"))?;
        let span = kv::update(cache, api, layer, position, [&k, &v])?;
        let (queries, keys) = (q.shape[2], span.count);
        let mask;
        let visible = match span.window {
            Some(window) => {
                mask = band(cx, queries, keys, window)?;
                Visible::Masked(&mask)
            }
            None if queries == 1 => Visible::All,
            None => Visible::Causal,
        };
        let [keys_array, values] = [span.keys.cast(through)?, span.values.cast(through)?];
        let y = attend(cx, &cast(&q, through)?, [&keys_array, &values], scale, &visible, [queries, keys])?;
        cx.put(self.out, y.cast(q.dtype)?)
    }
}
