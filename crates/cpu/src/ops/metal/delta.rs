//! The gated delta rule of linear attention.

use flambeau_ir as ir;
use flambeau_kernels::Pool;
use flambeau_tensor::DType;

use super::{dot, inputs, need_shape, output, template};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    ops::{copy::copy_into, index::listed},
    plan::{MemRef, Planner},
};

/// DeltaRuleSizes of a gated delta rule: steps, key width, value width, key heads, value heads.
#[derive(Clone, Copy)]
struct DeltaRuleSizes {
    steps: usize,
    dk: usize,
    dv: usize,
    hk: usize,
    hv: usize,
}

/// q, k `[B, T, Hk, Dk]`, v `[B, T, Hv, Dv]`, g, beta `[B, T, Hv]`, state `[B, Hv, Dv, Dk]`; per
/// step `S = g·S`, `S += (v − S·k)·beta ⊗ k`, `y = S·q`, all in f32. Results: y in the shape of v,
/// and the last state.
pub(super) fn gated_delta_step(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let [dk, dv, hk, hv] = [template(node, "Dk")?, template(node, "Dv")?, template(node, "Hk")?, template(node, "Hv")?];
    let [q, k, v, g, beta, state, count] = inputs(node, p)?;
    let [batch, steps, ..] = q.array.shape[..] else { return Err(OpError::value("`q` does not have rank 4").into()) };
    need_shape("q", &q.array, &[batch, steps, hk, dk])?;
    need_shape("k", &k.array, &[batch, steps, hk, dk])?;
    need_shape("v", &v.array, &[batch, steps, hv, dv])?;
    need_shape("g", &g.array, &[batch, steps, hv])?;
    need_shape("beta", &beta.array, &[batch, steps, hv])?;
    need_shape("state_in", &state.array, &[batch, hv, dv, dk])?;
    if hk == 0 || hv % hk != 0 {
        return Err(OpError::value(format!("{hv} value heads, {hk} key heads")).into());
    }
    let mut ins = [q, k, v, g, beta, state];
    for x in &mut ins {
        *x = p.rows_in_type(x.clone(), DType::F32)?;
    }
    let count = p.contiguous(count)?;
    let [q, k, v, g, beta, state] = &ins;
    let sizes = DeltaRuleSizes { steps, dk, dv, hk, hv };
    // One task a head: its state, then its results by time.
    let heads = [batch, hv, dv * dk + steps * dv];
    let heads = p.call(&[q, k, v, g, beta, state, &count], (DType::F32, &heads), move |cx, ins, heads| {
        if listed(&ins[6])?[..] != [steps as i64] {
            return Err(OpError::value(format!("`T` is not the number of steps, {steps}")));
        }
        run_heads(&cx.pool, ins, sizes, heads)
    })?;
    let part = |start: usize, shape: &[usize]| -> MemRef {
        let mut part = heads.array.narrow(2, start, shape.iter().product(), 1);
        part.shape.truncate(2);
        part.strides.truncate(2);
        part.shape.extend_from_slice(shape);
        part.strides.extend_from_slice(&flambeau_tensor::row_major_strides(shape));
        heads.seen(part)
    };
    let (by_head, state) = (part(dv * dk, &[steps, dv]), part(0, &[dv, dk]));
    let by_time = by_head.seen(by_head.array.permute(&[0, 2, 1, 3]));
    let y = p.call(&[&by_time], (DType::F32, &[batch, steps, hv, dv]), |cx, ins, y| copy_into(&cx.pool, &ins[0], y))?;
    output(node, p, 0, y)?;
    output(node, p, 1, state)
}

fn run_heads(pool: &Pool, ins: &[Array], sizes: DeltaRuleSizes, heads: &mut Array) -> Result<()> {
    let DeltaRuleSizes { steps, dk, dv, hk, hv } = sizes;
    let (q, k, v) = (ins[0].slice::<f32>()?, ins[1].slice::<f32>()?, ins[2].slice::<f32>()?);
    let (g, beta, state) = (ins[3].slice::<f32>()?, ins[4].slice::<f32>()?, ins[5].slice::<f32>()?);
    let (cells, width) = (dv * dk, dv * dk + steps * dv);
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
    Ok(())
}

fn step(state: &mut [f32], [q, k]: [&[f32]; 2], v: &[f32], g: f32, beta: f32, y: &mut [f32]) {
    for ((row, &v), y) in state.chunks_mut(k.len()).zip(v).zip(y) {
        row.iter_mut().for_each(|s| *s *= g);
        let delta = (v - dot(row, k)) * beta;
        row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
        *y = dot(row, q);
    }
}
