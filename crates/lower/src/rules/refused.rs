//! Operators that nodes cannot express, or only with a constant operand, each with the reason to
//! report.

use flambeau_tensor::{DType, Tensor, cast};

use super::{RuleRow, one, row};
use crate::{Call, ConstExpr, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

fn data_dependent(_: &mut Lower, call: &Call) -> Items {
    unsupported(format!(
        "the size of {}'s result depends on the data, which a graph cannot express; mask or pad instead",
        call.target
    ))
}

/// Indices repeated by the counts of a constant.
fn repeated(cx: &Lower, call: &Call) -> Result<Option<Vec<i64>>, Refuse> {
    let Some(constant) = cx.graph().constant(call.tensor("repeats")?) else { return Ok(None) };
    let ConstExpr::Literal(bytes) = &constant.expr else { return Ok(None) };
    let counts = Tensor::new(constant.dtype, &constant.shape, bytes.clone()).and_then(|t| cast(&t, DType::I64));
    let counts = counts.map_err(|e| Refuse::Unsupported(e.to_string()))?;
    let counts = counts.as_slice::<i64>().map_err(|e| Refuse::Unsupported(e.to_string()))?;
    if counts.iter().any(|c| !(0..=1 << 16).contains(c)) {
        return unsupported("a count that is negative or over 65536");
    }
    let one = |(i, &n): (usize, &i64)| std::iter::repeat_n(i as i64, n as usize);
    Ok(Some(counts.iter().enumerate().flat_map(one).collect()))
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._unique2.default", data_dependent),
    row("aten.argwhere.default", data_dependent),
    row("aten.bincount.default", data_dependent),
    row("aten.masked_select.default", data_dependent),
    row("aten.nonzero.default", data_dependent),
    row("aten.nonzero_numpy.default", data_dependent),
    row("aten.repeat_interleave.Tensor", |cx, call| match repeated(cx, call)? {
        Some(index) => one(cx.integers("_repeated", &index, DType::I64)?),
        None => data_dependent(cx, call),
    }),
    row("aten.repeat_interleave.self_Tensor", |cx, call| {
        let Some(index) = repeated(cx, call)? else { return data_dependent(cx, call) };
        let (x, axis) = super::ops::axis_or_flat(cx, call)?;
        let index = cx.integers("_repeated", &index, DType::I64)?;
        one(super::ops::take(cx, x, index, axis)?)
    }),
    row("aten.unique_consecutive.default", data_dependent),
    row("aten.unique_dim.default", data_dependent),
    row("aten.unique_dim_consecutive.default", data_dependent),
    row("aten.where.default", data_dependent),
];
