//! The gated delta rule of linear attention.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{dot, input, input_as, need_shape, output, template};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    ops::{copy::copy_into, index::integers},
};

/// q, k `[B, T, Hk, Dk]`, v `[B, T, Hv, Dv]`, g, beta `[B, T, Hv]`, state `[B, Hv, Dv, Dk]`; per step `S = g·S`,
/// `S += (v − S·k)·beta ⊗ k`, `y = S·q`, all in f32. Results: y in the shape of v, and the last state.
pub(super) fn gated_delta_step(node: &ir::MetalKernel, cx: &mut Cx<'_>) -> Result<()> {
    let [dk, dv, hk, hv] = [template(node, "Dk")?, template(node, "Dv")?, template(node, "Hk")?, template(node, "Hv")?];
    let q = input_as(node, cx, 0, DType::F32)?;
    let [batch, steps, ..] = q.shape[..] else { return Err(OpError::value("`q` does not have rank 4")) };
    let [k, v] = [input_as(node, cx, 1, DType::F32)?, input_as(node, cx, 2, DType::F32)?];
    let [g, beta] = [input_as(node, cx, 3, DType::F32)?, input_as(node, cx, 4, DType::F32)?];
    let state = input_as(node, cx, 5, DType::F32)?;
    need_shape("q", &q, &[batch, steps, hk, dk])?;
    need_shape("k", &k, &[batch, steps, hk, dk])?;
    need_shape("v", &v, &[batch, steps, hv, dv])?;
    need_shape("g", &g, &[batch, steps, hv])?;
    need_shape("beta", &beta, &[batch, steps, hv])?;
    need_shape("state_in", &state, &[batch, hv, dv, dk])?;
    let count = input(node, cx, 6)?;
    if hv % hk != 0 || integers(cx, &count)?[..] != [steps as i64] {
        return Err(OpError::value(format!("{hv} value heads, {hk} key heads, {steps} steps")));
    }
    // One task a head: its state, then its results by time.
    let (cells, width) = (dv * dk, dv * dk + steps * dv);
    let mut heads = cx.alloc(DType::F32, &[batch, hv, width])?;
    let pool = cx.pool();
    let (q, k, v) = (q.slice::<f32>()?, k.slice::<f32>()?, v.slice::<f32>()?);
    let (g, beta, state) = (g.slice::<f32>()?, beta.slice::<f32>()?, state.slice::<f32>()?);
    pool.run_chunks(heads.slice_mut::<f32>()?, width, |head, chunk| {
        let (b, h) = (head / hv, head % hv);
        let (s, y) = chunk.split_at_mut(cells);
        s.copy_from_slice(&state[head * cells..(head + 1) * cells]);
        for (t, y) in y.chunks_mut(dv).enumerate() {
            let (at, key) = ((b * steps + t) * hv + h, ((b * steps + t) * hk + h / (hv / hk)) * dk);
            let (q, k, v) = (&q[key..key + dk], &k[key..key + dk], &v[at * dv..(at + 1) * dv]);
            step(s, [q, k], v, g[at], beta[at], y);
        }
    });
    let part = |start: usize, shape: &[usize]| -> Array {
        let mut part = heads.narrow(2, start, shape.iter().product(), 1);
        part.shape.truncate(2);
        part.strides.truncate(2);
        part.shape.extend_from_slice(shape);
        part.strides.extend_from_slice(&flambeau_tensor::row_major_strides(shape));
        part
    };
    let mut y = cx.alloc(DType::F32, &[batch, steps, hv, dv])?;
    copy_into(&pool, &part(cells, &[steps, dv]).permute(&[0, 2, 1, 3]), &mut y)?;
    output(node, cx, 0, &y)?;
    output(node, cx, 1, &part(0, &[dv, dk]))
}

fn step(state: &mut [f32], [q, k]: [&[f32]; 2], v: &[f32], g: f32, beta: f32, y: &mut [f32]) {
    for ((row, &v), y) in state.chunks_mut(k.len()).zip(v).zip(y) {
        row.iter_mut().for_each(|s| *s *= g);
        let delta = (v - dot(row, k)) * beta;
        row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
        *y = dot(row, q);
    }
}
