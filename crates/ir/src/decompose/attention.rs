//! Rotary embeddings and attention.

use flambeau_tensor::{DType, Expr};

use super::{Result, build::Build, norm::softmax_f32};
use crate::{
    field::{Float, In, Int, VidOrTid},
    infer::promote,
    node::{
        ARange, Addmm, Concatenate, Cos, FloorDivideInt, Full, LessEqual, Max, NotEqual, Power, Reciprocal, Repeat, Reshape, Rope,
        Sdpa, Sin, Slice, Stack, SubtractInt, Transpose, Where,
    },
};

fn slice(b: &mut Build, x: In, start: i64, stop: i64, step: i32) -> Result<In> {
    b.emit(|out| Slice { x, out, axis: Int::Lit(-1), start: Int::Lit(start), stop: Int::Lit(stop), step })
}

/// Offsets as i32 `[B or 1, 1]`.
fn offsets(b: &mut Build, offset: VidOrTid) -> Result<In> {
    match offset {
        VidOrTid::Vid(v) => {
            b.emit(|out| Full { out, shape: vec![Int::Lit(1), Int::Lit(1)], v: Float::Vid(v), scalar_type: DType::I32 })
        }
        VidOrTid::Tid(t) => {
            let narrow = b.cast(In(t), DType::I32)?;
            b.emit(|out| Reshape { x: narrow, out, shape: vec![Int::Lit(-1), Int::Lit(1)] })
        }
    }
}

/// Angle per position and pair, f32 `[dims / 2]`.
fn frequencies(b: &mut Build, n: &Rope) -> Result<In> {
    if let Some(periods) = n.freqs {
        let periods = b.f32(periods)?;
        return b.emit(|out| Reciprocal { x: periods, out });
    }
    let half = n.dims / 2;
    let (start, stop, step) = (Int::Lit(0), Int::Lit(half.into()), Int::Lit(1));
    let index = b.emit(|out| ARange { out, start, stop, step, scalar_type: Some(DType::F32) })?;
    let per_index = b.scalar(-1.0 / half as f32, DType::F32)?;
    let exponent = b.mul(index, per_index)?;
    let base = b.scalar(n.base, DType::F32)?;
    b.emit(|out| Power { a: base, b: exponent, out })
}

/// Angles, f32 `[B or 1, 1.., T, dims / 2]` with the rank of `x`.
fn angles(b: &mut Build, n: &Rope, rank: usize) -> Result<In> {
    let stop = b.size(n.x, rank - 2)?;
    let steps = b.emit(|out| ARange { out, start: Int::Lit(0), stop, step: Int::Lit(1), scalar_type: Some(DType::I32) })?;
    let offsets = offsets(b, n.offset)?;
    let position = b.add(offsets, steps)?;
    let mut position = b.f32(position)?;
    if n.scale != 1.0 {
        let scale = b.scalar(n.scale, DType::F32)?;
        position = b.mul(position, scale)?;
    }
    let column = b.expand(position, -1)?;
    let frequencies = frequencies(b, n)?;
    let mut angles = b.mul(column, frequencies)?;
    for _ in 3..rank {
        angles = b.expand(angles, 1)?;
    }
    Ok(angles)
}

pub(super) fn rope(b: &mut Build, n: &Rope) -> Result<In> {
    let spec = b.spec(n.x)?;
    let (rank, dims) = (spec.rank(), i64::from(n.dims));
    let angles = angles(b, n, rank)?;
    let cos = b.emit(|out| Cos { x: angles, out })?;
    let sin = b.emit(|out| Sin { x: angles, out })?;
    let x = b.f32(n.x)?;
    let (x1, x2) = if n.traditional {
        (slice(b, x, 0, dims, 2)?, slice(b, x, 1, dims, 2)?)
    } else {
        (slice(b, x, 0, dims / 2, 1)?, slice(b, x, dims / 2, dims, 1)?)
    };
    let (a, c) = (b.mul(x1, cos)?, b.mul(x2, sin)?);
    let y1 = b.sub(a, c)?;
    let (a, c) = (b.mul(x1, sin)?, b.mul(x2, cos)?);
    let y2 = b.add(a, c)?;
    let mut y = if n.traditional { interleave(b, y1, y2)? } else { join(b, vec![y1, y2])? };
    if spec.dims.last() != Some(&Expr::Int(dims)) {
        let rest = slice(b, x, dims, i64::MAX, 1)?;
        y = join(b, vec![y, rest])?;
    }
    b.cast(y, spec.dtype)
}

fn join(b: &mut Build, tensors: Vec<In>) -> Result<In> {
    b.emit(|out| Concatenate { tensors, out, axis: -1 })
}

/// Interleaves the elements of two tensors along the last axis.
fn interleave(b: &mut Build, even: In, odd: In) -> Result<In> {
    let rank = b.spec(even)?.rank();
    let mut shape = (0..rank - 1).map(|i| b.size(even, i)).collect::<Result<Vec<_>>>()?;
    let pairs = b.emit(|out| Stack { tensors: vec![even, odd], out, axis: -1 })?;
    let width = b.spec(even)?.dims.last().and_then(Expr::as_int).map_or(-1, |h| 2 * h);
    shape.push(Int::Lit(width));
    b.emit(|out| Reshape { x: pairs, out, shape })
}

/// Repeats each head of keys or values for every query head that shares it.
fn spread_heads(b: &mut Build, x: In, q: In) -> Result<In> {
    let (hq, hkv) = (b.size(q, 1)?, b.size(x, 1)?);
    let fold = |a: i64, b: i64| a.checked_div(b);
    let repeats = b.integer(hq, hkv, fold, |a, b, out| FloorDivideInt { a, b, out })?;
    if repeats == Int::Lit(1) { Ok(x) } else { b.emit(|out| Repeat { x, out, repeats, axis: 1 }) }
}

/// Causal mask, bool `[Tq, Tk]`. The last query sees all keys.
fn causal(b: &mut Build, q: In, k: In) -> Result<In> {
    let (tq, tk) = (b.size(q, 2)?, b.size(k, 2)?);
    let ahead = b.integer(tk, tq, |a, b| a.checked_sub(b), |a, b, out| SubtractInt { a, b, out })?;
    let range = |start, stop| move |out| ARange { out, start, stop, step: Int::Lit(1), scalar_type: Some(DType::I32) };
    let last_seen = b.emit(range(ahead, tk))?;
    let last_seen = b.expand(last_seen, -1)?;
    let keys = b.emit(range(Int::Lit(0), tk))?;
    b.emit(|out| LessEqual { a: keys, b: last_seen, out })
}

pub(super) fn sdpa(b: &mut Build, n: &Sdpa) -> Result<In> {
    let q_dtype = b.spec(n.q)?.dtype;
    let dtype = promote(q_dtype, promote(b.spec(n.k)?.dtype, b.spec(n.v)?.dtype));
    let (q, k, v) = (b.f32(n.q)?, b.f32(n.k)?, b.f32(n.v)?);
    let (k, v) = (spread_heads(b, k, q)?, spread_heads(b, v, q)?);
    let scale = b.scalar(n.scale, DType::F32)?;
    let q = b.mul(q, scale)?;
    let columns = b.emit(|out| Transpose { x: k, out, perm: vec![0, 1, 3, 2] })?;
    let mut scores = b.emit(|out| Addmm { mat1: q, mat2: columns, out, bias: None, alpha: 1.0, beta: 1.0 })?;
    let kept = match n.mask {
        Some(mask) if b.spec(mask)?.dtype == DType::Bool => Some(mask),
        Some(mask) => {
            let mask = b.cast(mask, q_dtype)?;
            let mask = b.f32(mask)?;
            scores = b.add(scores, mask)?;
            None
        }
        None if n.causal => Some(causal(b, q, k)?),
        None => None,
    };
    let hidden = b.scalar(f32::NEG_INFINITY, DType::F32)?;
    if let Some(condition) = kept {
        scores = b.emit(|out| Where { condition, x: scores, y: hidden, out })?;
    }
    let weights = softmax_f32(b, scores, -1)?;
    let mut y = b.emit(|out| Addmm { mat1: weights, mat2: v, out, bias: None, alpha: 1.0, beta: 1.0 })?;
    if kept.is_some() || n.mask.is_some() {
        // The result of a query without visible keys is zero, as in PyTorch.
        let highest = b.emit(|out| Max { x: scores, out, axes: vec![-1], keepdims: true })?;
        let condition = b.emit(|out| NotEqual { a: highest, b: hidden, out })?;
        let zero = b.scalar(0.0, DType::F32)?;
        y = b.emit(|out| Where { condition, x: y, y: zero, out })?;
    }
    b.cast(y, dtype)
}
