//! Lookups and writes by masked indices, or by row-major element index.

use flambeau_ir::Tid;
use flambeau_tensor::DType;

use super::{
    RuleRow,
    index::index,
    one, ops,
    reduce::norm_of,
    row,
    scatter::{index_put, put_at},
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Writes by indices into the row-major elements.
fn put(cx: &mut Lower, call: &Call) -> Items {
    let dtype = call.out(0)?.dtype;
    let (x, source) = (cx.operand(call, "self", dtype)?, cx.operand(call, "source", dtype)?);
    let index = call.tensor("index")?;
    let (dims, numel, n) = (cx.spec(x).dims.to_vec(), cx.spec(x).numel(), cx.spec(index).numel());
    let flat = cx.reshape(x, &[numel])?;
    let (index, source) = (cx.reshape(index, std::slice::from_ref(&n))?, cx.reshape(source, &[n])?);
    let written = put_at(cx, flat, &[(0, index)], source, call.bool_or("accumulate", false)?)?;
    one(cx.reshape(written, &dims)?)
}

/// Writes to the elements that strides select, each as a row-major element index.
fn as_strided_scatter(cx: &mut Lower, call: &Call) -> Items {
    let (size, stride) = (ops::known("size", &call.sizes("size")?)?, ops::known("stride", &call.sizes("stride")?)?);
    let mut places = vec![call.int_or("storage_offset", 0)?];
    for (&size, &stride) in size.iter().zip(&stride) {
        places = places.iter().flat_map(|place| (0..size).map(move |i| place + i * stride)).collect();
    }
    let index = cx.integers("_places", &places, DType::I64)?;
    let mut inner = call.clone();
    inner.args.retain(|(name, _)| matches!(&name[..], "self" | "src"));
    inner.args.iter_mut().filter(|(name, _)| name == "src").for_each(|(name, _)| *name = "source".to_owned());
    inner.args.push(("index".to_owned(), Arg::Tensor(index)));
    put(cx, &inner)
}

/// The call with indices clamped to the axes.
fn clamped_indices(cx: &mut Lower, call: &Call, x: Tid) -> Result<Call, Refuse> {
    let dims = cx.spec(x).dims.to_vec();
    let mut clamped = call.tensors_opt("indices")?;
    for (index, size) in clamped.iter_mut().zip(&dims) {
        let Some(index) = index else { continue };
        let size = cx.size_tensor(size)?;
        let wide = cx.cast(*index, DType::I64)?;
        let (low, high) = (ops::neg(cx, size)?, ops::add_number(cx, size, -1.0)?);
        let high = ops::maximum(cx, high, low)?;
        let bounded = ops::maximum(cx, wide, low)?;
        *index = ops::minimum(cx, bounded, high)?;
    }
    let mut call = call.clone();
    call.args.iter_mut().filter(|(name, _)| name == "indices").for_each(|(_, arg)| *arg = Arg::Tensors(clamped.clone()));
    Ok(call)
}

/// Elements by index, and a number where the mask is false; masked indices may be out of range.
fn masked_index(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let inner = clamped_indices(cx, call, x)?;
    let Some(Item::Tensor(found)) = index(cx, &inner)?.first().cloned() else {
        return unsupported("a lookup without a result");
    };
    let mask = cx.operand(call, "mask", DType::Bool)?;
    let fill = cx.operand(call, "fill", cx.spec(found).dtype)?;
    one(ops::select(cx, mask, found, fill)?)
}

/// Adds values by index where the mask is true; masked indices may be out of range.
fn masked_index_add(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let mut inner = clamped_indices(cx, call, x)?;
    let (mask, values) = (cx.operand(call, "mask", DType::Bool)?, cx.operand(call, "values", cx.spec(x).dtype)?);
    let zero = ops::number_like(cx, values, 0.0)?;
    let values = ops::select(cx, mask, values, zero)?;
    inner.args.retain(|(name, _)| name != "values");
    inner.args.push(("values".to_owned(), Arg::Tensor(values)));
    inner.args.push(("accumulate".to_owned(), Arg::Bool(true)));
    index_put(cx, &inner)
}

/// Scales the indexed rows down to `max_norm` if they are longer.
fn embedding_renorm(cx: &mut Lower, call: &Call) -> Items {
    /// PyTorch's addend to a length before a division.
    const EPS: f64 = 1e-7;
    let (x, indices) = (call.tensor("self")?, call.tensor("indices")?);
    let n = cx.spec(indices).numel();
    let index = cx.reshape(indices, &[n])?;
    let rows = ops::take(cx, x, index, 0)?;
    let wide = cx.cast(rows, DType::F32)?;
    // PyTorch rounds lengths and scales to the table's type.
    let rounded = |cx: &mut Lower, t: Tid| {
        let narrow = cx.cast(t, cx.spec(x).dtype)?;
        cx.cast(narrow, DType::F32)
    };
    let length = norm_of(cx, wide, call.float_or("norm_type", 2.0)?, &[1], true)?;
    let length = rounded(cx, length)?;
    let most = call.float_or("max_norm", 1.0)?;
    let (limit, unit) = (ops::number_like(cx, length, most)?, ops::number_like(cx, length, 1.0)?);
    let grown = ops::add_number(cx, length, EPS)?;
    let scale = ops::div(cx, limit, grown)?;
    let longer = ops::gt(cx, length, limit)?;
    let scale = ops::select(cx, longer, scale, unit)?;
    let scale = rounded(cx, scale)?;
    let scaled = ops::mul(cx, wide, scale)?;
    let scaled = cx.cast(scaled, cx.spec(x).dtype)?;
    one(put_at(cx, x, &[(0, index)], scaled, false)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._unsafe_masked_index.default", masked_index),
    row("aten._unsafe_masked_index_put_accumulate.default", masked_index_add),
    row("aten.embedding_renorm.default", embedding_renorm),
    row("aten.as_strided_scatter.default", as_strided_scatter),
    row("aten.put.default", put),
];
