//! The gated delta rule, step by step.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{input, input_as, need_shape, output, size};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    ffi::{Array, Binary},
    ops::shape::Window,
};

/// See [`ir::KnownKernel::GatedDeltaStep`].
pub(super) fn gated_delta_step(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let [dk, dv, hk, hv] = [size(node, "Dk")?, size(node, "Dv")?, size(node, "Hk")?, size(node, "Hv")?];
    let [batch, steps, ..] = input(node, cx, 0)?.shape[..] else { return Err(OpError::value("`q` does not have rank 4")) };
    let shapes: [(&str, &[usize]); 6] = [
        ("q", &[batch, steps, hk, dk]),
        ("k", &[batch, steps, hk, dk]),
        ("v", &[batch, steps, hv, dv]),
        ("g", &[batch, steps, hv]),
        ("beta", &[batch, steps, hv]),
        ("state_in", &[batch, hv, dv, dk]),
    ];
    for (i, (name, shape)) in shapes.iter().enumerate() {
        need_shape(name, &input(node, cx, i)?, shape)?;
    }
    if hv % hk != 0 {
        return Err(OpError::value(format!("{hv} value heads, {hk} key heads")));
    }
    let per_key = (hv / hk) as i32;
    let all = |i: usize| input_as(node, cx, i, DType::F32);
    let (q, k) = (all(0)?.repeat(per_key, 2)?, all(1)?.repeat(per_key, 2)?);
    let (v, g, beta, mut state) = (all(2)?, all(3)?, all(4)?, all(5)?);
    let mut results = Vec::with_capacity(steps);
    for t in 0..steps {
        let at = |x: &Array, shape: &[usize]| -> Result<Array> {
            let (_, whole) = x.spec()?;
            Ok(Window::whole(&whole).narrow(1, t, 1, 1).of(x)?.reshape(shape)?)
        };
        let (q, k) = (at(&q, &[batch, hv, dk, 1])?, at(&k, &[batch, hv, 1, dk])?);
        let v = at(&v, &[batch, hv, dv, 1])?;
        let (g, beta) = (at(&g, &[batch, hv, 1, 1])?, at(&beta, &[batch, hv, 1, 1])?);
        state = state.binary(Binary::Multiply, &g)?;
        let memory = state.binary(Binary::Matmul, &k.reshape(&[batch, hv, dk, 1])?)?;
        let delta = v.binary(Binary::Subtract, &memory)?.binary(Binary::Multiply, &beta)?;
        state = state.binary(Binary::Add, &delta.binary(Binary::Multiply, &k)?)?;
        results.push(state.binary(Binary::Matmul, &q)?.reshape(&[batch, hv, dv])?);
    }
    let y = Array::stack(cx.api(), &results, 1)?;
    output(node, cx, 0, &y)?;
    output(node, cx, 1, &state)
}
