//! The gated delta rule in chunks of steps, as matrix products.
//!
//! A chunk begins with the state `S₀`. Let `Γₜ` be the product of the gates up to step `t`, and `D`
//! the lower triangle `Dₜₛ = Γₜ / Γₛ`. Step `t` adds `uₜ kₜᵀ` to the state, with
//! `uₜ = βₜ (vₜ − Γₜ S₀ kₜ − Σₛ﹤ₜ Dₜₛ (kₛ·kₜ) uₛ)`. With the strict triangle `Lₜₛ = βₜ Dₜₛ (kₛ·kₜ)`
//! all of them are `U = (I + L)⁻¹ (βV − βΓK S₀ᵀ)`. The results are `Y = ΓQ S₀ᵀ + (D ∘ QKᵀ) U`, and
//! the next state is `Γ S₀ + Uᵀ (K ∘ D's last row)` (Yang et al., "Gated Delta Networks", 2024).
//! All that does not contain `S₀` is computed for all chunks at once.
//!
//! Products of gates are computed directly, not as differences of logarithms, so a gate may be zero
//! or negative.

use flambeau_tensor::DType;

use super::{DeltaRuleSizes, Operands};
use crate::{
    error::Result,
    ffi::{Array, Binary},
    ops::shape::Window,
};

/// Rows of a triangle that are solved one after the other; larger ones are put together from such.
const BLOCK: usize = 16;
/// Maximum number of steps per chunk.
const MOST: usize = 64;

/// The result `[B, T, H, Dv]` and the last state `[B, H, Dv, Dk]`.
pub(super) fn in_chunks(operands: &Operands) -> Result<(Array, Array)> {
    let DeltaRuleSizes { batch, steps, heads, dk, dv, .. } = operands.sizes;
    let size = steps.next_power_of_two().clamp(BLOCK, MOST);
    let cut = Cut { batch, steps, heads, size, count: steps.div_ceil(size) };
    let [q, k, v] = [(&operands.q, dk), (&operands.k, dk), (&operands.v, dv)].map(|(x, width)| cut.of(x, width, 0.0));
    let (q, k, v) = (q?, k?, v?);
    let (g, beta) = (cut.of(&operands.g, 1, 1.0)?, cut.of(&operands.beta, 1, 0.0)?);
    let chunks = Chunks::new(&cut, [&q, &k, &v, &g, &beta])?;

    let mut state = swapped(&operands.state)?;
    let mut results = Vec::with_capacity(cut.count);
    for i in 0..cut.count {
        let (y, next) = chunks.run(i, &state)?;
        results.push(y);
        state = next;
    }
    let y = Array::stack(q.api(), &results, 0)?.transpose(&[1, 0, 3, 2, 4])?;
    let y = y.reshape(&[batch, cut.count * size, heads, dv])?;
    Ok((Window::whole(&[batch, cut.count * size, heads, dv]).narrow(1, 0, steps, 1).of(&y)?, swapped(&state)?))
}

/// Partition of steps into chunks; the last one is padded with steps that change nothing.
struct Cut {
    batch: usize,
    steps: usize,
    heads: usize,
    size: usize,
    count: usize,
}

impl Cut {
    /// `[B, T, H, width]` as chunks `[N, B, H, C, width]`.
    fn of(&self, x: &Array, width: usize, fill: f64) -> Result<Array> {
        let &Cut { batch, steps, heads, size, count } = self;
        let x = x.reshape(&[batch, steps, heads, width])?;
        let missing = count * size - steps;
        let x = if missing == 0 {
            x
        } else {
            let rest = Array::full(x.api(), &[batch, missing, heads, width], fill, DType::F32)?;
            Array::concatenate(x.api(), &[x, rest], 1)?
        };
        Ok(x.reshape(&[batch, count, size, heads, width])?.transpose(&[1, 0, 3, 2, 4])?)
    }
}

/// The terms of each chunk that do not depend on the state before it: `[N, B, H, ..]`.
struct Chunks {
    /// `(I + L)⁻¹ βV` `[.., C, Dv]`
    additions: Array,
    /// `(I + L)⁻¹ βΓK` `[.., C, Dk]`
    known: Array,
    /// `ΓQ` `[.., C, Dk]`
    queries: Array,
    /// `D ∘ QKᵀ` `[.., C, C]`
    weights: Array,
    /// `(K ∘ D's last row)ᵀ` `[.., Dk, C]`
    keys: Array,
    /// The product of all gates `[.., 1, 1]`.
    decay: Array,
}

impl Chunks {
    fn new(cut: &Cut, [q, k, v, g, beta]: [&Array; 5]) -> Result<Chunks> {
        let (size, batch) = (cut.size, [cut.count, cut.batch, cut.heads]);
        let square = [batch[0], batch[1], batch[2], size, size];
        let decays = decays(g, &square)?;
        let prefix = g.cumprod(3, false, true)?;
        let last = |x: &Array, axis: usize| -> Result<Array> { Window::whole(&x.spec()?.1).narrow(axis, size - 1, 1, 1).of(x) };
        let keys = swapped(k)?;
        let lower = times(&times(&product(k, &keys)?, &decays)?, beta)?.tril(-1)?;
        let inverse = inverse(&lower, batch.iter().product(), size)?.reshape(&square)?;
        Ok(Chunks {
            additions: product(&inverse, &times(v, beta)?)?,
            known: product(&inverse, &times(k, &times(beta, &prefix)?)?)?,
            queries: times(q, &prefix)?,
            weights: times(&product(q, &keys)?, &decays)?,
            keys: times(&keys, &last(&decays, 3)?)?,
            decay: last(&prefix, 3)?,
        })
    }

    /// The results `[B, H, C, Dv]` of a chunk behind a state `[B, H, Dk, Dv]`, and the next state.
    fn run(&self, index: usize, state: &Array) -> Result<(Array, Array)> {
        let at = |x: &Array| -> Result<Array> {
            let (_, shape) = x.spec()?;
            Ok(Window::whole(&shape).narrow(0, index, 1, 1).of(x)?.reshape(&shape[1..])?)
        };
        let additions = at(&self.additions)?.binary(Binary::Subtract, &product(&at(&self.known)?, state)?)?;
        let known = product(&at(&self.queries)?, state)?;
        let y = known.binary(Binary::Add, &product(&at(&self.weights)?, &additions)?)?;
        let kept = times(state, &at(&self.decay)?)?;
        Ok((y, kept.binary(Binary::Add, &product(&at(&self.keys)?, &additions)?)?))
    }
}

/// Products of gates `[.., C, 1]` between steps: the lower triangle of `square`, ones on its
/// diagonal.
fn decays(g: &Array, square: &[usize]) -> Result<Array> {
    let ones = Array::full(g.api(), square, 1.0, DType::F32)?;
    let below = ones.tril(-1)?.cast(DType::Bool)?;
    Ok(below.choose(&g.broadcast(square)?, &ones)?.cumprod(3, false, true)?.tril(0)?)
}

/// `(I + L)⁻¹` of `count` strict lower triangles of `size` rows: `[count, size, size]`.
fn inverse(lower: &Array, count: usize, size: usize) -> Result<Array> {
    // Blocks of a matrix with `step` rows and columns from one to the next.
    let blocks = |rows: usize, step: usize, offset: usize| {
        let strides = [size * size, step * (size + 1), size, 1].map(|s| s as i64);
        lower.as_strided(&[count, size / step, rows, rows], &strides, offset as u64)
    };
    let mut inverse = solved(&blocks(BLOCK, BLOCK, 0)?, count * size / BLOCK)?;
    let mut rows = BLOCK;
    while rows < size {
        let pairs = count * size / (2 * rows);
        let below = blocks(rows, 2 * rows, rows * size)?.reshape(&[pairs, rows, rows])?;
        let half = |i: usize| -> Result<Array> {
            let whole = inverse.reshape(&[pairs, 2, rows, rows])?;
            Ok(Window::whole(&[pairs, 2, rows, rows]).narrow(1, i, 1, 1).of(&whole)?.reshape(&[pairs, rows, rows])?)
        };
        let (first, second) = (half(0)?, half(1)?);
        let zeros = Array::full(lower.api(), &[pairs, rows, rows], 0.0, DType::F32)?;
        let left = zeros.binary(Binary::Subtract, &product(&product(&second, &below)?, &first)?)?;
        let top = Array::concatenate(lower.api(), &[first, zeros], 2)?;
        let bottom = Array::concatenate(lower.api(), &[left, second], 2)?;
        inverse = Array::concatenate(lower.api(), &[top, bottom], 1)?;
        rows *= 2;
    }
    Ok(inverse)
}

/// `(I + L)⁻¹` of `count` strict lower triangles of [`BLOCK`] rows, solved row by row:
/// `[count, BLOCK, BLOCK]`.
fn solved(lower: &Array, count: usize) -> Result<Array> {
    let api = lower.api();
    let lower = lower.reshape(&[count, BLOCK, BLOCK])?;
    let unit = |row: usize| -> Result<Array> {
        let at = Array::arange(api, 0.0, BLOCK as f64, 1.0, DType::F32)?;
        let unit = at.binary(Binary::Equal, &Array::full(api, &[1], row as f64, DType::F32)?)?.cast(DType::F32)?;
        Ok(unit.reshape(&[1, 1, BLOCK])?.broadcast(&[count, 1, BLOCK])?)
    };
    let mut rows = unit(0)?;
    for i in 1..BLOCK {
        let left = Window::whole(&[count, BLOCK, BLOCK]).narrow(1, i, 1, 1).narrow(2, 0, i, 1).of(&lower)?;
        let row = unit(i)?.binary(Binary::Subtract, &product(&left, &rows)?)?;
        rows = Array::concatenate(api, &[rows, row], 1)?;
    }
    Ok(rows)
}

fn product(a: &Array, b: &Array) -> Result<Array> {
    Ok(a.binary(Binary::Matmul, b)?)
}

fn times(a: &Array, b: &Array) -> Result<Array> {
    Ok(a.binary(Binary::Multiply, b)?)
}

/// With its last two axes exchanged.
fn swapped(x: &Array) -> Result<Array> {
    let rank = x.spec()?.1.len() as i64;
    let perm: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    Ok(x.transpose(&perm)?)
}
