//! Fractional max pooling: maxima of windows at random places.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    geometry::per_axis,
    ops::{self, Emitted},
    row,
    shape::{expand_to, slice_axis},
};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

/// Start of each window of an axis, `[N, C, out]` i64. Windows are evenly spaced and shifted by
/// each channel's sample; the last one ends with the axis.
fn starts(cx: &mut Lower, sample: Tid, size: i64, out: i64, kernel: i64) -> Emitted {
    let step = if out > 1 { (size - kernel) as f64 / (out - 1) as f64 } else { 0.0 };
    let sample = cx.unsqueeze(sample, 2)?;
    let places: Vec<f32> = (0..out).map(|i| i as f32).collect();
    let places = cx.floats("_windows", &places, &[places.len()])?;
    let whole = |cx: &mut Lower, t: Tid| {
        let scaled = ops::mul_number(cx, t, step)?;
        cx.cast(scaled, DType::I64)
    };
    let shifted = ops::add(cx, places, sample)?;
    let (at, from) = (whole(cx, shifted)?, whole(cx, sample)?);
    let start = ops::sub(cx, at, from)?;
    let is_last: Vec<i64> = (0..out).map(|i| i64::from(i == out - 1)).collect();
    let is_last = cx.integers("_last_window", &is_last, DType::Bool)?;
    let end = ops::number_like(cx, start, (size - kernel) as f64)?;
    ops::select(cx, is_last, end, start)
}

fn fractional_max_pool(cx: &mut Lower, call: &Call, n: usize) -> Items {
    let mut x = call.tensor("self")?;
    let mut dims = cx.spec(x).dims.to_vec();
    if dims.len() == n + 1 {
        x = cx.unsqueeze(x, 0)?;
        dims.insert(0, Expr::Int(1));
    }
    let sizes = ops::known("pooled sizes", &dims[2..])?;
    let of = |param: &str| per_axis(call, param, n)?.ok_or_else(|| Refuse::Missing(param.to_owned()));
    let (kernel, out) = (of("kernel_size")?, of("output_size")?);
    let mut samples = cx.operand(call, "random_samples", DType::F32)?;
    // Samples for more images than there are go unused.
    if cx.spec(samples).dims[0] != dims[0] {
        samples = slice_axis(cx, samples, 0, &Expr::Int(0), &dims[0], 1)?;
    }
    // In 2-D, samples run from the last axis to the first; in 3-D, from the first axis on.
    let mut index: Option<Tid> = None;
    for a in 0..n {
        let sample = ops::take_one(cx, samples, if n == 2 { n - 1 - a } else { a } as i64, 2)?;
        let start = starts(cx, sample, sizes[a], out[a], kernel[a])?;
        let start = cx.unsqueeze(start, 3)?;
        let taps = ops::count(cx, &Expr::Int(kernel[a]), DType::I64)?;
        let places = ops::add(cx, start, taps)?;
        let mut shape = cx.spec(places).dims[..2].to_vec();
        shape.extend((0..2 * n).map(|i| {
            if i == a {
                Expr::Int(out[a])
            } else if i == n + a {
                Expr::Int(kernel[a])
            } else {
                Expr::Int(1)
            }
        }));
        let places = cx.reshape(places, &shape)?;
        index = Some(match index {
            None => places,
            Some(outer) => {
                let outer = ops::mul_number(cx, outer, sizes[a] as f64)?;
                ops::add(cx, outer, places)?
            }
        });
    }
    let Some(index) = index else { return unsupported("windows without axes") };
    let count = |list: &[i64]| Expr::Int(list.iter().product());
    let shape = [dims[0].clone(), dims[1].clone(), count(&out), count(&kernel)];
    let mut spread = dims[..2].to_vec();
    spread.extend(out.iter().chain(&kernel).map(|&d| Expr::Int(d)));
    let index = expand_to(cx, index, &spread)?;
    let taken = cx.reshape(index, &[dims[0].clone(), dims[1].clone(), count(&out) * count(&kernel)])?;
    let flat = cx.reshape(x, &[dims[0].clone(), dims[1].clone(), count(&sizes)])?;
    let values = ops::take_along(cx, flat, taken, 2)?;
    let values = cx.reshape(values, &shape)?;
    let index = cx.reshape(index, &shape)?;
    let best = ops::argmax(cx, values, 3, true)?;
    let mut items = Vec::new();
    for (i, t) in [values, index].into_iter().enumerate() {
        let found = ops::take_along(cx, t, best, 3)?;
        items.push(Item::Tensor(cx.reshape(found, &call.out(i)?.dims.clone())?));
    }
    Ok(items)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.fractional_max_pool2d.default", |cx, call| fractional_max_pool(cx, call, 2)),
    row("aten.fractional_max_pool3d.default", |cx, call| fractional_max_pool(cx, call, 3)),
];
