//! Softmax and its logarithm, and the norms over the last axis.

use flambeau_tensor::DType;

use super::{Result, build::Build};
use crate::{
    In,
    infer::{promote, to_float},
    node::{Abs, Divide, Equal, Exp, LayerNorm, Log, LogSumExp, Max, Mean, RMSNorm, Rsqrt, Softmax, Square, Squeeze, Sum, Where},
};

pub(super) fn softmax(b: &mut Build, n: &Softmax) -> Result<In> {
    let spec = b.spec(n.x)?;
    let last = n.axis == -1 || n.axis + 1 == spec.rank() as i32;
    let x = b.f32(n.x)?;
    let y = softmax_f32(b, x, n.axis)?;
    b.cast(y, if last { to_float(spec.dtype) } else { spec.dtype })
}

/// `e^(x - max) / sum` along an axis.
pub(super) fn softmax_f32(b: &mut Build, x: In, axis: i32) -> Result<In> {
    let max = b.emit(|out| Max { x, out, axes: vec![axis], keepdims: true })?;
    let below = b.sub(x, max)?;
    let e = b.emit(|out| Exp { x: below, out })?;
    let sum = b.emit(|out| Sum { x: e, out, axes: vec![axis], keepdims: true })?;
    b.emit(|out| Divide { a: e, b: sum, out })
}

/// `max + ln(sum(e^(x - max)))`. An infinite maximum is not subtracted, because infinity minus
/// infinity is NaN. Without the subtraction, sums of infinities and zeros give the correct
/// infinities.
pub(super) fn log_sum_exp(b: &mut Build, n: &LogSumExp) -> Result<In> {
    let dtype = to_float(b.spec(n.x)?.dtype);
    if n.axes.is_empty() {
        return b.cast(n.x, dtype);
    }
    let x = b.f32(n.x)?;
    let max = b.emit(|out| Max { x, out, axes: n.axes.clone(), keepdims: true })?;
    let magnitude = b.emit(|out| Abs { x: max, out })?;
    let [infinity, zero] = [b.scalar(f32::INFINITY, DType::F32)?, b.scalar(0.0, DType::F32)?];
    let infinite = b.emit(|out| Equal { a: magnitude, b: infinity, out })?;
    let shift = b.emit(|out| Where { condition: infinite, x: zero, y: max, out })?;
    let below = b.sub(x, shift)?;
    let e = b.emit(|out| Exp { x: below, out })?;
    let sum = b.emit(|out| Sum { x: e, out, axes: n.axes.clone(), keepdims: true })?;
    let log = b.emit(|out| Log { x: sum, out })?;
    let mut y = b.add(log, shift)?;
    if !n.keepdims {
        y = b.emit(|out| Squeeze { x: y, out, dims: n.axes.clone() })?;
    }
    b.cast(y, dtype)
}

/// `x / sqrt(mean(x^2) + eps)` over the last axis.
fn over_rms(b: &mut Build, x: In, eps: f32) -> Result<In> {
    let square = b.emit(|out| Square { x, out })?;
    let mean = b.emit(|out| Mean { x: square, out, axes: vec![-1], keepdims: true })?;
    let eps = b.scalar(eps, DType::F32)?;
    let sum = b.add(mean, eps)?;
    let scale = b.emit(|out| Rsqrt { x: sum, out })?;
    b.mul(x, scale)
}

/// The common type of a norm's operands.
fn common_dtype(b: &Build, x: In, others: [Option<In>; 2]) -> Result<DType> {
    others.into_iter().flatten().try_fold(b.spec(x)?.dtype, |dtype, slot| Ok(promote(dtype, b.spec(slot)?.dtype)))
}

pub(super) fn rms_norm(b: &mut Build, n: &RMSNorm) -> Result<In> {
    let dtype = common_dtype(b, n.x, [n.weight, None])?;
    let x = b.f32(n.x)?;
    let y = over_rms(b, x, n.eps)?;
    let y = b.cast(y, dtype)?;
    n.weight.map_or(Ok(y), |weight| b.mul(y, weight))
}

pub(super) fn layer_norm(b: &mut Build, n: &LayerNorm) -> Result<In> {
    let dtype = common_dtype(b, n.x, [n.weight, n.bias])?;
    let x = b.f32(n.x)?;
    let mean = b.emit(|out| Mean { x, out, axes: vec![-1], keepdims: true })?;
    let centred = b.sub(x, mean)?;
    let mut y = over_rms(b, centred, n.eps)?;
    if let Some(weight) = n.weight {
        let weight = b.f32(weight)?;
        y = b.mul(y, weight)?;
    }
    if let Some(bias) = n.bias {
        let bias = b.f32(bias)?;
        y = b.add(y, bias)?;
    }
    b.cast(y, dtype)
}
