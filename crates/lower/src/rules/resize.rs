//! Resampling of images and signals: interpolation along each axis in turn.

use flambeau_ir::{In, Int, Repeat, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow, one,
    ops::{self, Emitted},
    row,
};
use crate::{Arg, Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

/// Up to this many input elements a matrix product interpolates an axis; beyond, neighbours are blended.
const MATRIX_UP_TO: i64 = 96;

/// Places before the leading axes: batch and channels.
const LEAD: usize = 2;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nearest,
    NearestExact,
    Linear {
        align_corners: bool,
    },
    Cubic {
        align_corners: bool,
    },
    /// Support (1 linear, 2 cubic) grows with the scale.
    Antialiased {
        support: i64,
        align_corners: bool,
    },
}

/// One resampled axis.
struct Axis {
    size: i64,
    out: i64,
    /// The factor that the caller gave, if it is to be used rather than the ratio of the sizes.
    factor: Option<f64>,
}

impl Axis {
    /// Input elements per output element.
    fn scale(&self, align_corners: bool) -> f32 {
        match self.factor {
            _ if align_corners => {
                if self.out > 1 {
                    (self.size - 1) as f32 / (self.out - 1) as f32
                } else {
                    0.0
                }
            }
            Some(factor) if factor > 0.0 => (1.0 / factor) as f32,
            _ => self.size as f32 / self.out as f32,
        }
    }

    /// Place in the input of an output element.
    fn source(&self, i: i64, align_corners: bool) -> f32 {
        let scale = self.scale(align_corners);
        if align_corners { scale * i as f32 } else { scale * (i as f32 + 0.5) - 0.5 }
    }

    fn nearest(&self, exact: bool) -> Vec<i64> {
        let (scale, shift) = (self.scale(false), if exact { 0.5 } else { 0.0 });
        let place = |i: i64| ((((i as f32) + shift) * scale).floor() as i64).clamp(0, self.size - 1);
        (0..self.out).map(place).collect()
    }

    /// (index, weight) of what each output element is made of.
    fn taps(&self, kind: Kind) -> Vec<Vec<(i64, f32)>> {
        (0..self.out).map(|i| self.tap(i, kind)).collect()
    }

    fn tap(&self, i: i64, kind: Kind) -> Vec<(i64, f32)> {
        let inside = |j: i64| j.clamp(0, self.size - 1);
        match kind {
            Kind::Nearest | Kind::NearestExact => Vec::new(),
            Kind::Linear { align_corners } => {
                let at = self.source(i, align_corners).max(0.0);
                let low = (at.floor() as i64).min(self.size - 1);
                let part = (at - low as f32).clamp(0.0, 1.0);
                vec![(low, 1.0 - part), (inside(low + 1), part)]
            }
            Kind::Cubic { align_corners } => {
                let at = self.source(i, align_corners);
                let (low, part) = (at.floor(), at - at.floor());
                let weight = |j: i64| (inside(low as i64 + j), cubic((part - j as f32).abs(), -0.75));
                (-1..=2).map(weight).collect()
            }
            Kind::Antialiased { support, align_corners } => self.antialiased(i, support, align_corners),
        }
    }

    fn antialiased(&self, i: i64, support: i64, align_corners: bool) -> Vec<(i64, f32)> {
        let scale = self.scale(align_corners);
        let stretch = scale.max(1.0);
        let reach = support as f32 * stretch;
        let center = scale * (i as f32 + 0.5);
        let first = ((center - reach + 0.5) as i64).max(0);
        let last = ((center + reach + 0.5) as i64).min(self.size);
        let filter = |x: f32| if support == 1 { (1.0 - x.abs()).max(0.0) } else { cubic(x.abs(), -0.5) };
        let weights: Vec<(i64, f32)> = (first..last).map(|j| (j, filter((j as f32 - center + 0.5) / stretch))).collect();
        let total: f32 = weights.iter().map(|w| w.1).sum();
        weights.into_iter().map(|(j, w)| (j, w / total)).collect()
    }
}

/// The cubic convolution kernel of parameter `a` at distance `x`.
fn cubic(x: f32, a: f32) -> f32 {
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// `x` with `axis` replaced by its product with a constant matrix `[rows, size]`.
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

/// Blends two neighbours.
fn blend(cx: &mut Lower, x: Tid, axis: usize, taps: &[Vec<(i64, f32)>]) -> Emitted {
    let rank = cx.spec(x).rank();
    let mut total: Option<Tid> = None;
    for side in 0..2 {
        let index: Vec<i64> = taps.iter().map(|t| t[side].0).collect();
        let weights: Vec<f32> = taps.iter().map(|t| t[side].1).collect();
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

fn interpolate(cx: &mut Lower, x: Tid, at: usize, axis: &Axis, kind: Kind) -> Emitted {
    if let Kind::Nearest | Kind::NearestExact = kind {
        let index = axis.nearest(kind == Kind::NearestExact);
        if index.iter().copied().eq(0..axis.size) {
            return Ok(x);
        }
        let index = cx.integers(&format!("_upsample_{}_{}", axis.size, axis.out), &index, DType::I32)?;
        return ops::take(cx, x, index, at);
    }
    let taps = axis.taps(kind);
    let same = |(i, tap): (usize, &Vec<(i64, f32)>)| tap.iter().all(|&(j, w)| w == 0.0 || (j == i as i64 && w == 1.0));
    if axis.size == axis.out && taps.iter().enumerate().all(same) {
        return Ok(x);
    }
    if axis.size > MATRIX_UP_TO && matches!(kind, Kind::Linear { .. }) {
        return blend(cx, x, at, &taps);
    }
    let mut matrix = vec![0.0; (axis.size * axis.out) as usize];
    for (i, (j, weight)) in taps.iter().enumerate().flat_map(|(i, tap)| tap.iter().map(move |t| (i, t))) {
        matrix[i * axis.size as usize + *j as usize] += weight;
    }
    apply_matrix(cx, x, at, "_resize", &matrix, axis.out as usize)
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

/// A symbolic axis can be resampled where every element is repeated as often.
fn repeat_whole(cx: &mut Lower, x: Tid, at: usize, target: &Expr, factor: Option<f64>, kind: Kind) -> Emitted {
    match factor {
        Some(f) if f.fract() == 0.0 && f >= 1.0 && matches!(kind, Kind::Nearest | Kind::NearestExact) => {
            cx.emit(Repeat { x: In(x), out: NEW, repeats: Int::Lit(f as i64), axis: at as i32 })
        }
        _ => resample_symbolic(cx, x, at, target, factor, kind),
    }
}

/// Places in the input computed from the sizes that a run has.
fn resample_symbolic(cx: &mut Lower, x: Tid, at: usize, target: &Expr, factor: Option<f64>, kind: Kind) -> Emitted {
    let size = cx.spec(x).dims[at].clone();
    let float = |cx: &mut Lower, size: &Expr| {
        let size = cx.size_tensor(size)?;
        cx.cast(size, DType::F32)
    };
    let last = float(cx, &(size.clone() - Expr::Int(1)))?;
    let zero = cx.number(0.0, DType::F32)?;
    let places = ops::count(cx, target, DType::F32)?;
    let aligned = matches!(kind, Kind::Linear { align_corners: true });
    let scale = match factor.filter(|_| !aligned) {
        Some(factor) => cx.number(1.0 / factor, DType::F32)?,
        None => {
            let shift = i64::from(aligned);
            let (from, to) = (float(cx, &(size - Expr::Int(shift)))?, float(cx, &(target.clone() - Expr::Int(shift)))?);
            let unit = cx.number(1.0, DType::F32)?;
            let to = ops::maximum(cx, to, unit)?;
            ops::div(cx, from, to)?
        }
    };
    let half = if matches!(kind, Kind::NearestExact | Kind::Linear { align_corners: false }) { 0.5 } else { 0.0 };
    let shifted = ops::add_number(cx, places, half)?;
    let source = ops::mul(cx, shifted, scale)?;
    let clip =
        |cx: &mut Lower, t: Tid| cx.emit(flambeau_ir::Clip { x: In(t), out: NEW, a_min: Some(In(zero)), a_max: Some(In(last)) });
    match kind {
        Kind::Nearest | Kind::NearestExact => {
            let low = cx.emit(flambeau_ir::Floor { x: In(source), out: NEW })?;
            let low = clip(cx, low)?;
            let index = cx.cast(low, DType::I32)?;
            ops::take(cx, x, index, at)
        }
        Kind::Linear { .. } => {
            let source = ops::add_number(cx, source, -half)?;
            let source = ops::maximum(cx, source, zero)?;
            let low = cx.emit(flambeau_ir::Floor { x: In(source), out: NEW })?;
            let low = clip(cx, low)?;
            let part = ops::sub(cx, source, low)?;
            let part = ops::clip(cx, part, 0.0, 1.0)?;
            let next = ops::add_number(cx, low, 1.0)?;
            let next = clip(cx, next)?;
            let rank = cx.spec(x).rank();
            let rest = ops::number_minus(cx, 1.0, part)?;
            let mut side = |index: Tid, weight: Tid| {
                let index = cx.cast(index, DType::I32)?;
                let taken = ops::take(cx, x, index, at)?;
                let weight = ops::along(cx, weight, at, rank)?;
                ops::mul(cx, taken, weight)
            };
            let (near, far) = (side(low, rest)?, side(next, part)?);
            ops::add(cx, near, far)
        }
        Kind::Cubic { .. } | Kind::Antialiased { .. } => unsupported("cubic or antialiased resampling of a symbolic axis"),
    }
}

fn resample(cx: &mut Lower, call: &Call, n: usize, kind: Kind) -> Items {
    let param = if call.arg("input").is_some() { "input" } else { "self" };
    let mut x = call.tensor(param)?;
    if cx.spec(x).rank() != LEAD + n {
        return unsupported(format!("resampling {n} axes of a tensor of rank {}", cx.spec(x).rank()));
    }
    let stored = cx.spec(x).dtype;
    if !matches!(kind, Kind::Nearest | Kind::NearestExact) {
        x = cx.cast(x, DType::F32)?;
    }
    let factors = factors(call, n)?;
    let out = call.out(0)?.dims.clone();
    // From the last axis on: products with a matrix on the right come cheapest there.
    for i in (0..n).rev() {
        let at = LEAD + i;
        let Some(target) = out.get(at) else { return unsupported("a result of another rank") };
        x = match (cx.spec(x).dims[at].as_int(), target.as_int()) {
            (Some(size), Some(out)) if size > 0 && out > 0 => {
                interpolate(cx, x, at, &Axis { size, out, factor: factors[i] }, kind)?
            }
            _ => repeat_whole(cx, x, at, target, factors[i], kind)?,
        };
    }
    if !stored.is_float() && cx.spec(x).dtype.is_float() {
        // Integers are rounded, and overshoot is cut to what the type holds.
        let whole = cx.emit(flambeau_ir::Round { x: In(x), out: NEW, decimals: 0 })?;
        x = ops::clip(cx, whole, ops::lowest(stored), ops::highest(stored))?;
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
    nearest1d(1) => |call| Kind::Nearest;
    nearest2d(2) => |call| Kind::Nearest;
    nearest3d(3) => |call| Kind::Nearest;
    exact1d(1) => |call| Kind::NearestExact;
    exact2d(2) => |call| Kind::NearestExact;
    exact3d(3) => |call| Kind::NearestExact;
    linear1d(1) => |call| Kind::Linear { align_corners: align(call)? };
    bilinear2d(2) => |call| Kind::Linear { align_corners: align(call)? };
    trilinear3d(3) => |call| Kind::Linear { align_corners: align(call)? };
    bicubic2d(2) => |call| Kind::Cubic { align_corners: align(call)? };
    bilinear2d_aa(2) => |call| Kind::Antialiased { support: 1, align_corners: align(call)? };
    bicubic2d_aa(2) => |call| Kind::Antialiased { support: 2, align_corners: align(call)? };
}

const VEC: &str = "input output_size scale_factors";
const VEC_ALIGN: &str = "input output_size align_corners scale_factors";
const ALIGN_2D: &str = "self output_size align_corners scales_h scales_w";

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._upsample_bicubic2d_aa.default", ALIGN_2D, bicubic2d_aa),
    row("aten._upsample_bicubic2d_aa.vec", VEC_ALIGN, bicubic2d_aa),
    row("aten._upsample_bilinear2d_aa.default", ALIGN_2D, bilinear2d_aa),
    row("aten._upsample_bilinear2d_aa.vec", VEC_ALIGN, bilinear2d_aa),
    row("aten._upsample_nearest_exact1d.default", "self output_size scales", exact1d),
    row("aten._upsample_nearest_exact1d.vec", VEC, exact1d),
    row("aten._upsample_nearest_exact2d.default", "self output_size scales_h scales_w", exact2d),
    row("aten._upsample_nearest_exact2d.vec", VEC, exact2d),
    row("aten._upsample_nearest_exact3d.default", "self output_size scales_d scales_h scales_w", exact3d),
    row("aten._upsample_nearest_exact3d.vec", VEC, exact3d),
    row("aten.upsample_bicubic2d.default", ALIGN_2D, bicubic2d),
    row("aten.upsample_bicubic2d.vec", VEC_ALIGN, bicubic2d),
    row("aten.upsample_bilinear2d.default", ALIGN_2D, bilinear2d),
    row("aten.upsample_bilinear2d.vec", VEC_ALIGN, bilinear2d),
    row("aten.upsample_linear1d.default", "self output_size align_corners scales", linear1d),
    row("aten.upsample_linear1d.vec", VEC_ALIGN, linear1d),
    row("aten.upsample_nearest1d.default", "self output_size scales", nearest1d),
    row("aten.upsample_nearest1d.vec", VEC, nearest1d),
    row("aten.upsample_nearest2d.default", "self output_size scales_h scales_w", nearest2d),
    row("aten.upsample_nearest2d.vec", VEC, nearest2d),
    row("aten.upsample_nearest3d.default", "self output_size scales_d scales_h scales_w", nearest3d),
    row("aten.upsample_nearest3d.vec", VEC, nearest3d),
    row("aten.upsample_trilinear3d.default", "self output_size align_corners scales_d scales_h scales_w", trilinear3d),
    row("aten.upsample_trilinear3d.vec", VEC_ALIGN, trilinear3d),
];
