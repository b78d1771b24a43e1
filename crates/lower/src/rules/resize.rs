//! Resampling of images and signals: interpolation along one axis at a time.

mod open;
mod taps;

use flambeau_ir::{In, Int, Repeat, Tid};
use flambeau_tensor::{DType, Expr, Tensor, cast};

use self::{
    open::resample_symbolic,
    taps::{Axis, Interpolation, Tap},
};
use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Maximum axis size for interpolation by a matrix product; larger axes blend neighbours.
const MATRIX_UP_TO: i64 = 96;

/// Number of leading axes: batch and channels.
const LEAD: usize = 2;

/// Replaces `axis` of `x` by its product with a constant matrix `[rows, size]`.
pub(super) fn apply_matrix(cx: &mut Lower, x: Tid, axis: usize, name: &str, matrix: &[f32], rows: usize) -> Emitted {
    let columns = matrix.len() / rows.max(1);
    let rank = cx.spec(x).rank();
    if axis + 1 == rank {
        let turned: Vec<f32> = (0..matrix.len()).map(|p| matrix[(p % rows) * columns + p / rows]).collect();
        let matrix = cx.floats(&format!("{name}_{columns}_{rows}"), &turned, &[columns, rows])?;
        return super::linalg::product(cx, x, matrix);
    }
    let matrix = cx.floats(&format!("{name}_{rows}_{columns}"), matrix, &[rows, columns])?;
    let dims = cx.spec(x).dims.to_vec();
    let (lead, rest) = (&dims[..axis], &dims[axis + 1..]);
    let flat = cx.reshape(x, &[lead, &[dims[axis].clone(), ops::volume(rest)]].concat())?;
    let product = super::linalg::product(cx, matrix, flat)?;
    cx.reshape(product, &[lead, &[Expr::Int(rows as i64)], rest].concat())
}

/// Replaces `axis` of `x` by its product with a matrix `[O, S]` computed at run time.
pub(super) fn apply_tensor(cx: &mut Lower, x: Tid, axis: usize, matrix: Tid) -> Emitted {
    let (dims, rows) = (cx.spec(x).dims.to_vec(), cx.spec(matrix).dims[0].clone());
    if axis + 1 == dims.len() {
        let matrix = cx.permute(matrix, &[1, 0])?;
        return super::linalg::product(cx, x, matrix);
    }
    let (lead, rest) = (&dims[..axis], &dims[axis + 1..]);
    let flat = cx.reshape(x, &[lead, &[dims[axis].clone(), ops::volume(rest)]].concat())?;
    let product = super::linalg::product(cx, matrix, flat)?;
    cx.reshape(product, &[lead, &[rows], rest].concat())
}

/// Blends neighbours, one term per tap.
fn blend(cx: &mut Lower, x: Tid, axis: usize, taps: &[Tap<f32>]) -> Emitted {
    let rank = cx.spec(x).rank();
    let mut total: Option<Tid> = None;
    for side in 0..taps.iter().map(Vec::len).max().unwrap_or(0) {
        let side = |tap: &Tap<f32>| tap.get(side).copied().unwrap_or((tap.first().map_or(0, |t| t.0), 0.0));
        let (index, weights): (Vec<i64>, Vec<f32>) = taps.iter().map(side).unzip();
        let index = cx.integers("_resize_index", &index, DType::I32)?;
        let weights = cx.floats("_resize_weight", &weights, &[taps.len()])?;
        let weights = ops::along(cx, weights, axis, rank)?;
        let taken = ops::take(cx, x, index, axis)?;
        let part = ops::mul(cx, taken, weights)?;
        total = Some(match total {
            None => part,
            Some(sum) => ops::add(cx, sum, part)?,
        });
    }
    Ok(total.unwrap_or(x))
}

/// Weighted sums of neighbours, by a matrix product or by blending.
fn mix(cx: &mut Lower, x: Tid, at: usize, axis: &Axis, kind: Interpolation, taps: &[Tap<f32>]) -> Emitted {
    if axis.size > MATRIX_UP_TO && !matches!(kind, Interpolation::Antialiased { .. }) {
        return blend(cx, x, at, taps);
    }
    let mut matrix = vec![0.0; (axis.size * axis.out) as usize];
    for (i, (j, weight)) in taps.iter().enumerate().flat_map(|(i, tap)| tap.iter().map(move |t| (i, t))) {
        matrix[i * axis.size as usize + *j as usize] += weight;
    }
    apply_matrix(cx, x, at, "_resize", &matrix, axis.out as usize)
}

/// Copies of the nearest elements.
fn copy_nearest(cx: &mut Lower, x: Tid, at: usize, axis: &Axis, exact: bool) -> Emitted {
    let index = axis.nearest(exact);
    if index.iter().copied().eq(0..axis.size) {
        return Ok(x);
    }
    let index = cx.integers(&format!("_upsample_{}_{}", axis.size, axis.out), &index, DType::I32)?;
    ops::take(cx, x, index, at)
}

/// Rounds weights as PyTorch does for images of 16-bit elements: to the elements' type. With linear
/// interpolation, the lower weight is 1 minus the rounded upper weight.
fn round_weights(taps: &mut [Tap<f32>], kind: Interpolation, dtype: DType) -> Result<(), Refuse> {
    let round = |values: Vec<f32>| -> Result<Vec<f32>, Refuse> {
        let fail = |e: flambeau_tensor::Error| Refuse::Unsupported(e.to_string());
        let narrow = Tensor::from_slice(&values, &[values.len()]).and_then(|t| cast(&t, dtype)).map_err(fail)?;
        cast(&narrow, DType::F32).and_then(|t| Ok(t.as_slice::<f32>()?.to_vec())).map_err(fail)
    };
    for tap in taps {
        match (&mut tap[..], kind) {
            ([low, high], Interpolation::Linear { .. }) => {
                high.1 = round(vec![high.1])?[0];
                low.1 = round(vec![1.0 - high.1])?[0];
            }
            (tap, _) => {
                let rounded = round(tap.iter().map(|w| w.1).collect())?;
                tap.iter_mut().zip(rounded).for_each(|(w, r)| w.1 = r);
            }
        }
    }
    Ok(())
}

/// Resamples an axis of an f32 image to a known size; `stored` is the image's original element
/// type.
fn interpolate(cx: &mut Lower, x: Tid, at: usize, axis: &Axis, kind: Interpolation, stored: DType) -> Emitted {
    match kind {
        Interpolation::Nearest | Interpolation::NearestExact => {
            return copy_nearest(cx, x, at, axis, kind == Interpolation::NearestExact);
        }
        Interpolation::Linear { .. } if axis.size == axis.out => return Ok(x),
        _ if axis.size == axis.out && stored == DType::U8 => return Ok(x),
        _ => {}
    }
    if stored == DType::U8 {
        return interpolate_bytes(cx, x, at, axis, kind);
    }
    let mut taps = axis.taps(kind);
    let same = |(i, tap): (usize, &Tap<f32>)| tap.iter().all(|&(j, w)| w == 0.0 || (j == i as i64 && w == 1.0));
    if axis.size == axis.out && taps.iter().enumerate().all(same) {
        return Ok(x);
    }
    // Bilinear resampling of images uses f32 weights for every element type.
    let is_plane = cx.spec(x).rank() == LEAD + 2;
    if ops::wide(stored) != stored && !(is_plane && matches!(kind, Interpolation::Linear { .. })) {
        round_weights(&mut taps, kind, stored)?;
    }
    mix(cx, x, at, axis, kind, &taps)
}

/// Maximum number of fractional bits for which sums of products of bytes are exact in f32.
const EXACT_BITS: u32 = 15;

/// Resamples bytes, held as f32, in fixed point: each sum is exact and is rounded and clipped to a
/// byte once.
fn interpolate_bytes(cx: &mut Lower, x: Tid, at: usize, axis: &Axis, kind: Interpolation) -> Emitted {
    let fixed = axis.fixed(kind);
    let part = |of: fn(i32) -> i32, bits: u32| {
        let unit = f32::powi(0.5, bits as i32);
        let scaled = |tap: &Tap<i32>| tap.iter().map(|&(j, w)| (j, of(w) as f32 * unit)).collect();
        fixed.taps.iter().map(scaled).collect::<Vec<Tap<f32>>>()
    };
    let sum = if fixed.bits <= EXACT_BITS {
        mix(cx, x, at, axis, kind, &part(|w| w, fixed.bits))?
    } else {
        // Sums high and low weight bits separately. The low part, beyond whole units of the high
        // part, cannot change the rounding.
        let (high, low) = (part(|w| w >> 8, fixed.bits - 8), part(|w| w & 0xff, 8));
        let (high, low) = (mix(cx, x, at, axis, kind, &high)?, mix(cx, x, at, axis, kind, &low)?);
        let carry = cx.emit(flambeau_ir::Floor { x: In(low), out: NEW })?;
        let carry = ops::mul_number(cx, carry, f64::powi(0.5, fixed.bits as i32 - 8))?;
        ops::add(cx, high, carry)?
    };
    let shifted = ops::add_number(cx, sum, 0.5)?;
    let rounded = cx.emit(flambeau_ir::Floor { x: In(shifted), out: NEW })?;
    ops::clip(cx, rounded, 0.0, 255.0)
}

/// Factors by axis: `scale_factors`, or `scales_d`, `scales_h`, `scales_w` (`scales` for one axis).
fn factors(call: &Call, n: usize) -> Result<Vec<Option<f64>>, Refuse> {
    match call.arg("scale_factors") {
        Some(Arg::Floats(list)) if list.len() == n => return Ok(list.iter().map(|&f| Some(f)).collect()),
        Some(Arg::Float(one)) => return Ok(vec![Some(*one); n]),
        Some(Arg::Ints(list)) if list.len() == n => {
            return Ok(list.iter().map(|f| f.as_int().map(|f| f as f64)).collect());
        }
        Some(other) => return unsupported(format!("scale factors {other:?}")),
        None => {}
    }
    let names: &[&str] = if n == 1 { &["scales"] } else { &["scales_d", "scales_h", "scales_w"][3 - n..] };
    names.iter().map(|name| call.float_opt(name)).collect()
}

/// Resamples a symbolic axis. Nearest modes with a whole factor repeat elements; other cases call
/// [`resample_symbolic`].
fn repeat_whole(cx: &mut Lower, x: Tid, at: usize, target: &Expr, factor: Option<f64>, kind: Interpolation) -> Emitted {
    match factor {
        Some(f) if f.fract() == 0.0 && f >= 1.0 && matches!(kind, Interpolation::Nearest | Interpolation::NearestExact) => {
            cx.emit(Repeat { x: In(x), out: NEW, repeats: Int::Lit(f as i64), axis: at as i32 })
        }
        _ => resample_symbolic(cx, x, at, target, factor, kind),
    }
}

fn resample(cx: &mut Lower, call: &Call, n: usize, kind: Interpolation) -> Items {
    let param = if call.arg("input").is_some() { "input" } else { "self" };
    let mut x = call.tensor(param)?;
    if cx.spec(x).rank() != LEAD + n {
        return unsupported(format!("resampling {n} axes of a tensor of rank {}", cx.spec(x).rank()));
    }
    let stored = cx.spec(x).dtype;
    let copies = matches!(kind, Interpolation::Nearest | Interpolation::NearestExact);
    if !copies {
        if !stored.is_float() && (stored != DType::U8 || n != 2) {
            return unsupported(format!("blending elements of {stored} along {n} axes"));
        }
        x = cx.cast(x, DType::F32)?;
    }
    let factors = factors(call, n)?;
    let out = call.out(0)?.dims.clone();
    // Starts with the last axis, where a product with a matrix on the right is cheapest.
    for i in (0..n).rev() {
        let at = LEAD + i;
        let Some(target) = out.get(at) else { return unsupported("a result of another rank") };
        x = match (cx.spec(x).dims[at].as_int(), target.as_int()) {
            (Some(size), Some(out)) if size > 0 && out > 0 => {
                interpolate(cx, x, at, &Axis { size, out, factor: factors[i] }, kind, stored)?
            }
            _ if !copies && !stored.is_float() => return unsupported("blending integers along a symbolic axis"),
            _ => repeat_whole(cx, x, at, target, factors[i], kind)?,
        };
    }
    one(x)
}

fn align(call: &Call) -> Result<bool, Refuse> {
    call.bool_or("align_corners", false)
}

macro_rules! resamplers {
    ($($name:ident($n:literal) => |$call:ident| $kind:expr;)*) => { $(
        fn $name(cx: &mut Lower, $call: &Call) -> Items {
            resample(cx, $call, $n, $kind)
        }
    )* };
}

resamplers! {
    nearest1d(1) => |call| Interpolation::Nearest;
    nearest2d(2) => |call| Interpolation::Nearest;
    nearest3d(3) => |call| Interpolation::Nearest;
    exact1d(1) => |call| Interpolation::NearestExact;
    exact2d(2) => |call| Interpolation::NearestExact;
    exact3d(3) => |call| Interpolation::NearestExact;
    linear1d(1) => |call| Interpolation::Linear { align_corners: align(call)? };
    bilinear2d(2) => |call| Interpolation::Linear { align_corners: align(call)? };
    trilinear3d(3) => |call| Interpolation::Linear { align_corners: align(call)? };
    bicubic2d(2) => |call| Interpolation::Cubic { align_corners: align(call)? };
    bilinear2d_aa(2) => |call| Interpolation::Antialiased { support: 1, align_corners: align(call)? };
    bicubic2d_aa(2) => |call| Interpolation::Antialiased { support: 2, align_corners: align(call)? };
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._upsample_bicubic2d_aa.default", bicubic2d_aa),
    row("aten._upsample_bicubic2d_aa.vec", bicubic2d_aa),
    row("aten._upsample_bilinear2d_aa.default", bilinear2d_aa),
    row("aten._upsample_bilinear2d_aa.vec", bilinear2d_aa),
    row("aten._upsample_nearest_exact1d.default", exact1d),
    row("aten._upsample_nearest_exact1d.vec", exact1d),
    row("aten._upsample_nearest_exact2d.default", exact2d),
    row("aten._upsample_nearest_exact2d.vec", exact2d),
    row("aten._upsample_nearest_exact3d.default", exact3d),
    row("aten._upsample_nearest_exact3d.vec", exact3d),
    row("aten.upsample_bicubic2d.default", bicubic2d),
    row("aten.upsample_bicubic2d.vec", bicubic2d),
    row("aten.upsample_bilinear2d.default", bilinear2d),
    row("aten.upsample_bilinear2d.vec", bilinear2d),
    row("aten.upsample_linear1d.default", linear1d),
    row("aten.upsample_linear1d.vec", linear1d),
    row("aten.upsample_nearest1d.default", nearest1d),
    row("aten.upsample_nearest1d.vec", nearest1d),
    row("aten.upsample_nearest2d.default", nearest2d),
    row("aten.upsample_nearest2d.vec", nearest2d),
    row("aten.upsample_nearest3d.default", nearest3d),
    row("aten.upsample_nearest3d.vec", nearest3d),
    row("aten.upsample_trilinear3d.default", trilinear3d),
    row("aten.upsample_trilinear3d.vec", trilinear3d),
];
