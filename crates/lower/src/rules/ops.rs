//! Shorthand for emitting nodes: operands in, result out.

use std::ops::Range;

use flambeau_ir::{
    ARange, Abs, Add, All, Any, Argmax, Argsort, AsStrided, AsType, Ceil, Clip, Concatenate, Cos, Cumsum, Divide, Equal, Exp,
    Expm1, Flip, Float, Floor, FloorDivide, Full, Greater, GreaterEqual, In, Index, Int, Less, LessEqual, Log, Log1p, LogAddExp,
    LogSumExp, LogicalAnd, LogicalNot, LogicalOr, Max, Maximum, Mean, Min, Minimum, Multiply, Neg, Node, NotEqual, Pad, Power,
    Prod, Reciprocal, Remainder, Rsqrt, ScatterAdd, Sigmoid, Sign, Sin, Slot, Softmax, Sort, Split, Sqrt, Square, Subtract, Sum,
    Take, TakeAlongAxis, Tanh, Tid, Trunc, Var, Where,
};
use flambeau_tensor::{DType, Expr};

use crate::{Call, Lower, Refuse, call::unsupported, lower::NEW};

pub(super) type Emitted = Result<Tid, Refuse>;

macro_rules! unary {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        pub(super) fn $name(cx: &mut Lower, x: Tid) -> Emitted {
            cx.emit($node { x: In(x), out: NEW })
        }
    )* };
}

unary! {
    abs => Abs, ceil => Ceil, cos => Cos, exp => Exp, expm1 => Expm1, floor => Floor, log => Log, log1p => Log1p, logical_not => LogicalNot, neg => Neg,
    reciprocal => Reciprocal,     rsqrt => Rsqrt, sigmoid => Sigmoid, sign => Sign, sin => Sin, sqrt => Sqrt, square => Square,
    tanh => Tanh, trunc => Trunc,
}

macro_rules! binary {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        pub(super) fn $name(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
            cx.emit($node { a: In(a), b: In(b), out: NEW })
        }
    )* };
}

binary! {
    add => Add, div => Divide, eq => Equal, ge => GreaterEqual, gt => Greater, le => LessEqual, logaddexp => LogAddExp,
    logical_and => LogicalAnd, logical_or => LogicalOr, lt => Less, maximum => Maximum, minimum => Minimum, mul => Multiply,
    ne => NotEqual, power => Power, remainder => Remainder, sub => Subtract,
}

macro_rules! reduction {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        pub(super) fn $name(cx: &mut Lower, x: Tid, axes: &[usize], keepdims: bool) -> Emitted {
            cx.emit($node { x: In(x), out: NEW, axes: axes.iter().map(|&a| a as i32).collect(), keepdims })
        }
    )* };
}

reduction! { all => All, any => Any, max => Max, mean => Mean, min => Min, prod => Prod, sum => Sum }

macro_rules! along_axis {
    ($($name:ident => $node:ident),* $(,)?) => { $(
        pub(super) fn $name(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
            cx.emit($node { x: In(x), out: NEW, axis: axis as i32 })
        }
    )* };
}

along_axis! { argsort => Argsort, sort => Sort }

/// The integer quotient rounded toward minus infinity.
///
/// A cast to the same type follows, for other runtimes that compute the quotient in floats. This
/// runtime does not need it.
pub(super) fn floor_div(cx: &mut Lower, a: Tid, b: Tid) -> Emitted {
    let quotient = cx.emit(FloorDivide { a: In(a), b: In(b), out: NEW })?;
    let scalar_type = cx.spec(quotient).dtype;
    if scalar_type.is_float() {
        return Ok(quotient);
    }
    first(&cx.emit_all(Node::AsType(AsType { x: In(quotient), out: NEW, scalar_type }))?)
}

pub(super) fn first(slots: &[Slot]) -> Emitted {
    match slots.first() {
        Some(Slot::Tensor(t)) => Ok(*t),
        _ => unsupported("the node has no tensor result"),
    }
}

/// The operand `self` and the axis `dim`. Without `dim`, the elements in one row and axis 0.
pub(super) fn axis_or_flat(cx: &mut Lower, call: &Call) -> Result<(Tid, usize), Refuse> {
    let x = call.tensor("self")?;
    if call.arg("dim").is_some() {
        let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
        return Ok((x, axis));
    }
    let numel = cx.spec(x).numel();
    Ok((cx.reshape(x, &[numel])?, 0))
}

/// Variance over `axes`: squared distances from the mean, summed and divided by the count minus
/// `ddof`.
pub(super) fn variance(cx: &mut Lower, x: Tid, axes: &[usize], keepdims: bool, ddof: i32) -> Emitted {
    cx.emit(Var { x: In(x), out: NEW, axes: axes.iter().map(|&a| a as i32).collect(), keepdims, ddof })
}

pub(super) fn argmax(cx: &mut Lower, x: Tid, axis: usize, keepdims: bool) -> Emitted {
    cx.emit(Argmax { x: In(x), out: NEW, axis: axis as i32, keepdims })
}

/// `condition ? x : y`.
pub(super) fn select(cx: &mut Lower, condition: Tid, x: Tid, y: Tid) -> Emitted {
    cx.emit(Where { condition: In(condition), x: In(x), y: In(y), out: NEW })
}

/// A rank-0 constant of the type of `x`.
pub(super) fn number_like(cx: &mut Lower, x: Tid, value: f64) -> Emitted {
    let dtype = cx.spec(x).dtype;
    cx.number(value, dtype)
}

pub(super) fn add_number(cx: &mut Lower, x: Tid, value: f64) -> Emitted {
    if value == 0.0 {
        return Ok(x);
    }
    let value = number_like(cx, x, value)?;
    add(cx, x, value)
}

pub(super) fn mul_number(cx: &mut Lower, x: Tid, value: f64) -> Emitted {
    if value == 1.0 {
        return Ok(x);
    }
    let value = number_like(cx, x, value)?;
    mul(cx, x, value)
}

pub(super) fn div_number(cx: &mut Lower, x: Tid, value: f64) -> Emitted {
    if value == 1.0 {
        return Ok(x);
    }
    let value = number_like(cx, x, value)?;
    div(cx, x, value)
}

/// `value - x`.
pub(super) fn number_minus(cx: &mut Lower, value: f64, x: Tid) -> Emitted {
    let value = number_like(cx, x, value)?;
    sub(cx, value, x)
}

pub(super) fn clip(cx: &mut Lower, x: Tid, low: f64, high: f64) -> Emitted {
    let (low, high) = (number_like(cx, x, low)?, number_like(cx, x, high)?);
    cx.emit(Clip { x: In(x), out: NEW, a_min: Some(In(low)), a_max: Some(In(high)) })
}

pub(super) fn concat(cx: &mut Lower, tensors: &[Tid], axis: usize) -> Emitted {
    match tensors {
        [only] => Ok(*only),
        _ => cx.emit(Concatenate { tensors: tensors.iter().map(|&t| In(t)).collect(), out: NEW, axis: axis as i32 }),
    }
}

pub(super) fn cumsum(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    cx.emit(Cumsum { x: In(x), out: NEW, axis: axis as i32, reverse: false, inclusive: true })
}

pub(super) fn flip(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    cx.emit(Flip { x: In(x), out: NEW, axes: vec![axis as i32] })
}

pub(super) fn softmax(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    cx.emit(Softmax { x: In(x), out: NEW, axis: axis as i32, precise: true })
}

/// `x - ln Σ eˣ`. A row with an infinity gives NaN, as in PyTorch, which subtracts the largest
/// element first.
pub(super) fn log_softmax(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    let total = cx.emit(LogSumExp { x: In(x), out: NEW, axes: vec![axis as i32], keepdims: true })?;
    let (infinity, nan) = (number_like(cx, total, f64::INFINITY)?, number_like(cx, total, f64::NAN)?);
    let diverges = eq(cx, total, infinity)?;
    let total = select(cx, diverges, nan, total)?;
    sub(cx, x, total)
}

/// Looks up `index` along an axis; the shape of `index` replaces the axis.
pub(super) fn take(cx: &mut Lower, x: Tid, index: Tid, axis: usize) -> Emitted {
    cx.emit(Take { x: In(x), out: NEW, index: Index::Tid(index), axis: axis as i32 })
}

/// Takes one element of an axis and removes the axis.
pub(super) fn take_one(cx: &mut Lower, x: Tid, index: i64, axis: usize) -> Emitted {
    cx.emit(Take { x: In(x), out: NEW, index: Index::Lit(index), axis: axis as i32 })
}

/// Joins a first value and each of these elements of an axis, one after another.
pub(super) fn fold_axis(
    cx: &mut Lower,
    x: Tid,
    axis: usize,
    places: Range<i64>,
    first: Tid,
    join: fn(&mut Lower, Tid, Tid) -> Emitted,
) -> Emitted {
    let mut total = first;
    for place in places {
        let next = take_one(cx, x, place, axis)?;
        total = join(cx, total, next)?;
    }
    Ok(total)
}

pub(super) fn take_along(cx: &mut Lower, x: Tid, indices: Tid, axis: usize) -> Emitted {
    cx.emit(TakeAlongAxis { x: In(x), indices: In(indices), out: NEW, axis: axis as i32 })
}

pub(super) fn scatter_add(cx: &mut Lower, x: Tid, indices: Tid, updates: Tid, axis: usize) -> Emitted {
    cx.emit(ScatterAdd { x: In(x), indices: In(indices), updates: In(updates), out: NEW, axis: axis as i32 })
}

/// A tensor with every element equal to `value`.
pub(super) fn full(cx: &mut Lower, value: f64, dims: &[Expr], scalar_type: DType) -> Emitted {
    let shape = cx.ints(dims)?;
    cx.emit(Full { out: NEW, shape, v: Float::Lit(value), scalar_type })
}

/// `[0, 1, .., n)`.
pub(super) fn count(cx: &mut Lower, n: &Expr, scalar_type: DType) -> Emitted {
    let stop = cx.int(n)?;
    cx.emit(ARange { out: NEW, start: Int::Lit(0), stop, step: Int::Lit(1), scalar_type: Some(scalar_type) })
}

/// Splits an axis into parts of these lengths.
pub(super) fn split(cx: &mut Lower, x: Tid, lengths: &[Expr], axis: usize) -> Result<Vec<Tid>, Refuse> {
    if lengths.len() == 1 {
        return Ok(vec![x]);
    }
    let sizes = cx.ints(lengths)?;
    let slots = cx.emit_all(Node::Split(Split { x: In(x), outs: vec![NEW; lengths.len()], sizes, axis: axis as i32 }))?;
    Ok(slots.into_iter().filter_map(|s| if let Slot::Tensor(t) = s { Some(t) } else { None }).collect())
}

/// A size divided by `n`. A symbolic size divides without rest, since the program ran at capture;
/// `None` if a known one does not.
pub(super) fn share(size: &Expr, n: &Expr) -> Option<Expr> {
    size.exact_div(n).or_else(|| size.as_int().is_none().then(|| size.floor_div(n)))
}

/// Splits an axis into `n` equal parts.
pub(super) fn split_evenly(cx: &mut Lower, x: Tid, n: usize, axis: usize) -> Result<Vec<Tid>, Refuse> {
    let size = &cx.spec(x).dims[axis];
    match share(size, &Expr::Int(n as i64)) {
        Some(part) => split(cx, x, &vec![part; n], axis),
        None => unsupported(format!("an axis of {size} elements does not divide into {n} parts")),
    }
}

/// `x` with (before, after) elements added on each axis.
pub(super) fn pad(cx: &mut Lower, x: Tid, widths: &[(Expr, Expr)], mode: &str, constant_value: f64) -> Emitted {
    if widths.iter().all(|(lo, hi)| *lo == Expr::Int(0) && *hi == Expr::Int(0)) {
        return Ok(x);
    }
    let flat: Vec<Expr> = widths.iter().flat_map(|(lo, hi)| [lo.clone(), hi.clone()]).collect();
    let pad_width = cx.ints(&flat)?;
    cx.emit(Pad { x: In(x), out: NEW, pad_width, mode: mode.to_owned(), constant_value: constant_value as f32 })
}

/// A strided view of `x`, whose memory is row-major.
pub(super) fn as_strided(cx: &mut Lower, x: Tid, dims: &[Expr], strides: &[Expr], offset: u64) -> Emitted {
    let (shape, strides) = (cx.ints(dims)?, cx.ints(strides)?);
    cx.emit(AsStrided { x: In(x), out: NEW, shape, strides, offset })
}

/// Reshapes a vector to broadcast along one axis of a tensor of rank `rank`.
pub(super) fn along(cx: &mut Lower, vector: Tid, axis: usize, rank: usize) -> Emitted {
    let mut dims = vec![Expr::Int(1); rank];
    if let (Some(dim), Some(n)) = (dims.get_mut(axis), cx.spec(vector).dims.first()) {
        *dim = n.clone();
    }
    cx.reshape(vector, &dims)
}

/// Moves `axis` last.
pub(super) fn axis_last(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    let mut perm: Vec<usize> = (0..cx.spec(x).rank()).filter(|&a| a != axis).collect();
    perm.push(axis);
    cx.permute(x, &perm)
}

/// Moves `axis` first.
pub(super) fn axis_first(cx: &mut Lower, x: Tid, axis: usize) -> Emitted {
    let rest = (0..cx.spec(x).rank()).filter(|&a| a != axis);
    let perm: Vec<usize> = std::iter::once(axis).chain(rest).collect();
    cx.permute(x, &perm)
}

/// The lowest value of a type.
pub(super) fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I64 => i64::MIN as f64,
        DType::I32 => f64::from(i32::MIN),
        DType::I16 => f64::from(i16::MIN),
        DType::I8 => f64::from(i8::MIN),
        DType::U8 | DType::U32 | DType::Bool => 0.0,
        _ => f64::NEG_INFINITY,
    }
}

/// The highest value of a type.
pub(super) fn highest(dtype: DType) -> f64 {
    match dtype {
        DType::I64 => i64::MAX as f64,
        DType::I32 => f64::from(i32::MAX),
        DType::I16 => f64::from(i16::MAX),
        DType::I8 => f64::from(i8::MAX),
        DType::U8 => f64::from(u8::MAX),
        DType::U32 => f64::from(u32::MAX),
        DType::Bool => 1.0,
        _ => f64::INFINITY,
    }
}

/// The type in which PyTorch computes: f32 for 16-bit floats, else the type itself.
pub(super) fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Evaluates a polynomial by Horner's rule, with the highest power first.
pub(super) fn polynomial(cx: &mut Lower, x: Tid, coefficients: &[f64]) -> Emitted {
    let mut y = number_like(cx, x, coefficients.first().copied().unwrap_or(0.0))?;
    for &c in coefficients.iter().skip(1) {
        let product = mul(cx, y, x)?;
        y = add_number(cx, product, c)?;
    }
    Ok(y)
}

/// Product of sizes.
pub(super) fn volume(dims: &[Expr]) -> Expr {
    dims.iter().cloned().fold(Expr::Int(1), |n, d| n * d)
}

/// Sum of sizes.
pub(super) fn total_of(dims: &[Expr]) -> Expr {
    dims.iter().cloned().fold(Expr::Int(0), |n, d| n + d)
}

/// `size * factor + shift` as a rank-0 tensor; a constant if the size is known.
pub(super) fn size_number(cx: &mut Lower, size: &Expr, factor: f64, shift: f64, dtype: DType) -> Emitted {
    if let Some(size) = size.as_int() {
        return cx.number(size as f64 * factor + shift, dtype);
    }
    let size = cx.size_tensor(size)?;
    let size = cx.cast(size, dtype)?;
    let scaled = mul_number(cx, size, factor)?;
    add_number(cx, scaled, shift)
}

/// Sizes that must be known at compile time.
pub(super) fn known(what: &str, dims: &[Expr]) -> Result<Vec<i64>, Refuse> {
    let one = |d: &Expr| d.as_int().ok_or_else(|| Refuse::Dynamic { param: what.to_owned(), found: d.to_string() });
    dims.iter().map(one).collect()
}
