//! Operators that graphs cannot express, or only where an operand is a constant, each with the reason to report.

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

/// Indices repeated as often as a constant says.
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

fn complex(_: &mut Lower, _: &Call) -> Items {
    unsupported("complex numbers have no place in an MLX graph; work on real and imaginary parts")
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._fft_c2c.default", "self dim normalization forward", complex),
    row("aten._fft_r2c.default", "self dim normalization onesided", complex),
    row("aten._unique2.default", "self sorted return_inverse return_counts", data_dependent),
    row("aten.bincount.default", "self weights minlength", data_dependent),
    row("aten.complex.default", "real imag", complex),
    row("aten.fft_fft.default", "self n dim norm", complex),
    row("aten.fft_rfft.default", "self n dim norm", complex),
    row("aten.masked_select.default", "self mask", data_dependent),
    row("aten.nonzero.default", "self", data_dependent),
    row("aten.nonzero_numpy.default", "self", data_dependent),
    row("aten.polar.default", "abs angle", complex),
    row("aten.repeat_interleave.Tensor", "repeats output_size", |cx, call| match repeated(cx, call)? {
        Some(index) => one(cx.integers("_repeated", &index, DType::I64)?),
        None => data_dependent(cx, call),
    }),
    row("aten.repeat_interleave.self_Tensor", "self repeats dim output_size", |cx, call| {
        let Some(index) = repeated(cx, call)? else { return data_dependent(cx, call) };
        let (x, axis) = super::ops::axis_or_flat(cx, call)?;
        let index = cx.integers("_repeated", &index, DType::I64)?;
        one(super::ops::take(cx, x, index, axis)?)
    }),
    row("aten.stft.default", "self n_fft hop_length win_length window normalized onesided return_complex align_to_window", complex),
    row("aten.unique_consecutive.default", "self return_inverse return_counts dim", data_dependent),
    row("aten.view_as_complex.default", "self", complex),
    row("aten.view_as_real.default", "self", complex),
];
