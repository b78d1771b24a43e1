//! Activations.

use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};

use flambeau_tensor::DType;

use super::{Result, build::Build};
use crate::{
    In,
    infer::to_float,
    node::{Divide, Erf, Gelu, Sigmoid, Silu, Tanh},
};

/// `x * sigmoid(x)`.
pub(super) fn silu(b: &mut Build, n: &Silu) -> Result<In> {
    let dtype = to_float(b.spec(n.x)?.dtype);
    let x = b.f32(n.x)?;
    let gate = b.emit(|out| Sigmoid { x, out })?;
    let y = b.mul(x, gate)?;
    b.cast(y, dtype)
}

/// `0.5 * x * (1 + f(x))`. `f` is an error function, or its approximation by a hyperbolic tangent.
pub(super) fn gelu(b: &mut Build, n: &Gelu) -> Result<In> {
    let dtype = to_float(b.spec(n.x)?.dtype);
    let x = b.f32(n.x)?;
    let [one, half] = [b.scalar(1.0, DType::F32)?, b.scalar(0.5, DType::F32)?];
    let f = if n.approximate == "tanh" {
        let [cubic, outer] = [b.scalar(0.044715, DType::F32)?, b.scalar(FRAC_2_SQRT_PI / SQRT_2, DType::F32)?];
        let square = b.mul(x, x)?;
        let cube = b.mul(x, square)?;
        let bend = b.mul(cubic, cube)?;
        let inner = b.add(x, bend)?;
        let inner = b.mul(outer, inner)?;
        b.emit(|out| Tanh { x: inner, out })?
    } else {
        let root = b.scalar(SQRT_2, DType::F32)?;
        let inner = b.emit(|out| Divide { a: x, b: root, out })?;
        b.emit(|out| Erf { x: inner, out })?
    };
    let gate = b.add(one, f)?;
    let y = b.mul(x, gate)?;
    let y = b.mul(half, y)?;
    b.cast(y, dtype)
}
