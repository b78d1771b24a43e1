//! The gated delta rule: by a kernel on CUDA; elsewhere step by step for few steps, in chunks for
//! many.

mod chunks;
mod recurrent;

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{input, input_as, need_shape, output, size};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    ffi::{Array, Binary},
    ops::shape::Window,
};

/// Minimum number of steps for which chunks take fewer launches than single steps.
const MANY_STEPS: usize = 8;

/// Operands in f32.
struct Operands {
    /// `[B, T, Hk, Dk]`
    q: Array,
    /// `[B, T, Hk, Dk]`
    k: Array,
    /// `[B, T, H, Dv]`
    v: Array,
    /// `[B, T, H]`
    g: Array,
    /// `[B, T, H]`
    beta: Array,
    /// `[B, H, Dv, Dk]`
    state: Array,
    sizes: DeltaRuleSizes,
}

#[derive(Clone, Copy)]
struct DeltaRuleSizes {
    batch: usize,
    steps: usize,
    key_heads: usize,
    heads: usize,
    dk: usize,
    dv: usize,
}

impl Operands {
    /// With a key and a query for each value head.
    fn with_keys_for_all(self) -> Result<Operands> {
        let DeltaRuleSizes { heads, key_heads, .. } = self.sizes;
        let per_key = (heads / key_heads) as i32;
        let (q, k) = (self.q.repeat(per_key, 2)?, self.k.repeat(per_key, 2)?);
        Ok(Operands { q, k, sizes: DeltaRuleSizes { key_heads: heads, ..self.sizes }, ..self })
    }
}

/// See [`ir::KnownKernel::GatedDeltaStep`].
pub(super) fn gated_delta_step(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let operands = operands(node, cx)?;
    let (y, state) = match recurrent::run(cx, &operands)? {
        Some(results) => results,
        None => {
            let operands = operands.with_keys_for_all()?;
            if operands.sizes.steps < MANY_STEPS { step_by_step(operands)? } else { chunks::in_chunks(&operands)? }
        }
    };
    output(node, cx, 0, &y)?;
    output(node, cx, 1, &state)
}

fn operands(node: &ir::MetalKernel, cx: &Cx<'_>) -> Result<Operands> {
    let [dk, dv, hk, heads] = [size(node, "Dk")?, size(node, "Dv")?, size(node, "Hk")?, size(node, "Hv")?];
    let [batch, steps, ..] = input(node, cx, 0)?.shape[..] else { return Err(OpError::value("`q` does not have rank 4")) };
    let shapes: [(&str, &[usize]); 6] = [
        ("q", &[batch, steps, hk, dk]),
        ("k", &[batch, steps, hk, dk]),
        ("v", &[batch, steps, heads, dv]),
        ("g", &[batch, steps, heads]),
        ("beta", &[batch, steps, heads]),
        ("state_in", &[batch, heads, dv, dk]),
    ];
    for (i, (name, shape)) in shapes.iter().enumerate() {
        need_shape(name, &input(node, cx, i)?, shape)?;
    }
    if heads % hk != 0 {
        return Err(OpError::value(format!("{heads} value heads, {hk} key heads")));
    }
    let all = |i: usize| input_as(node, cx, i, DType::F32);
    Ok(Operands {
        q: all(0)?,
        k: all(1)?,
        v: all(2)?,
        g: all(3)?,
        beta: all(4)?,
        state: all(5)?,
        sizes: DeltaRuleSizes { batch, steps, key_heads: hk, heads, dk, dv },
    })
}

/// The result `[B, T, H, Dv]` and the last state.
fn step_by_step(operands: Operands) -> Result<(Array, Array)> {
    let Operands { q, k, v, g, beta, mut state, sizes } = operands;
    let DeltaRuleSizes { batch, steps, heads, dk, dv, .. } = sizes;
    let mut results = Vec::with_capacity(steps);
    for t in 0..steps {
        let at = |x: &Array, shape: &[usize]| -> Result<Array> {
            let (_, whole) = x.spec()?;
            Ok(Window::whole(&whole).narrow(1, t, 1, 1).of(x)?.reshape(shape)?)
        };
        let (q, k) = (at(&q, &[batch, heads, dk, 1])?, at(&k, &[batch, heads, 1, dk])?);
        let v = at(&v, &[batch, heads, dv, 1])?;
        let (g, beta) = (at(&g, &[batch, heads, 1, 1])?, at(&beta, &[batch, heads, 1, 1])?);
        state = state.binary(Binary::Multiply, &g)?;
        let memory = state.binary(Binary::Matmul, &k.reshape(&[batch, heads, dk, 1])?)?;
        let delta = v.binary(Binary::Subtract, &memory)?.binary(Binary::Multiply, &beta)?;
        state = state.binary(Binary::Add, &delta.binary(Binary::Multiply, &k)?)?;
        results.push(state.binary(Binary::Matmul, &q)?.reshape(&[batch, heads, dv])?);
    }
    let y = Array::stack(q.api(), &results, 1)?;
    Ok((y, state))
}
