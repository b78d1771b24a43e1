//! Rules of reductions and running sums.

use flambeau_tensor::{DType, Expr};

use super::{Dims, Infer, InferError, Result, ShapeCx, Spec, axis_of, bad_attribute, to_float};
use crate::{
    field::In,
    node::{All, Any, Argmax, Argmin, Cumsum, LogSumExp, Max, Mean, Median, Min, Prod, Std, Sum, Var},
};

/// Type of a sum or product. Integers below 32 bits widen to 32 bits with the same signedness.
fn accumulator(x: DType) -> DType {
    match x {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        other => other,
    }
}

/// The listed axes as a bit mask.
///
/// # Errors
/// If an axis is out of range or named twice.
fn axis_mask(axes: &[i32], rank: usize) -> Result<u64> {
    let mut mask = 0u64;
    for &axis in axes {
        let bit = 1 << axis_of(axis, rank)?;
        if mask & bit != 0 {
            return bad_attribute("axes", format!("axis {axis} twice"), "distinct axes");
        }
        mask |= bit;
    }
    Ok(mask)
}

/// The shape without the axes of the mask, or with size 1 on them.
fn reduced(dims: &[Expr], mask: u64, keepdims: bool) -> Dims {
    let on = |i: usize| mask & (1 << i) != 0;
    let kept = dims.iter().enumerate().filter(|(i, _)| keepdims || !on(*i));
    kept.map(|(i, d)| if on(i) { Expr::Int(1) } else { d.clone() }).collect()
}

/// Refuses extremes and medians of no elements.
fn need_elements(x: &Spec, mask: u64) -> Result<()> {
    let empty = |(i, d): (usize, &Expr)| mask & (1 << i) != 0 && *d == Expr::Int(0);
    match x.dims.iter().enumerate().any(empty) {
        true => Err(InferError::Shape(format!("reduces an axis of size 0 of {:?}", x.dims))),
        false => Ok(()),
    }
}

/// Meaning of an empty list of axes.
#[derive(PartialEq)]
enum NoAxes {
    All,
    None,
}

/// Result of a reduction of no elements.
#[derive(PartialEq)]
enum Empty {
    Fine,
    Refused,
}

fn reduce(cx: &dyn ShapeCx, x: In, axes: &[i32], keepdims: bool, no_axes: NoAxes, empty: Empty) -> Result<Spec> {
    let x = cx.read(x)?;
    let mask = if axes.is_empty() && no_axes == NoAxes::All { u64::MAX } else { axis_mask(axes, x.rank())? };
    if empty == Empty::Refused {
        need_elements(&x, mask)?;
    }
    Ok(Spec { dtype: x.dtype, dims: reduced(&x.dims, mask, keepdims) })
}

macro_rules! reductions {
    ($($name:ident: $dtype:expr, $no_axes:ident, $empty:ident;)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let out = reduce(cx, self.x, &self.axes, self.keepdims, NoAxes::$no_axes, Empty::$empty)?;
                let dtype: fn(DType) -> DType = $dtype;
                cx.write(self.out, dtype(out.dtype), out.dims)
            }
        }
    )* };
}

reductions! {
    Sum: accumulator, All, Fine;
    Prod: accumulator, All, Fine;
    Mean: to_float, All, Fine;
    Var: to_float, All, Fine;
    Std: to_float, All, Fine;
    Max: |x| x, All, Refused;
    Min: |x| x, All, Refused;
    Median: to_float, All, Refused;
    LogSumExp: to_float, None, Refused;
    Any: |_| DType::Bool, All, Fine;
    All: |_| DType::Bool, All, Fine;
}

macro_rules! arg_reductions {
    ($($name:ident)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let out = reduce(cx, self.x, &[self.axis], self.keepdims, NoAxes::None, Empty::Refused)?;
                cx.write(self.out, DType::U32, out.dims)
            }
        }
    )* };
}

arg_reductions!(Argmax Argmin);

impl Infer for Cumsum {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        axis_of(self.axis, x.rank())?;
        cx.write(self.out, if x.dtype == DType::Bool { DType::I32 } else { x.dtype }, x.dims)
    }
}
