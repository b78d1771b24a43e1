//! Products with matrices of packed codes.
//!
//! Products are exact in the sense of W4A16: codes are multiplied by unrounded activations, and
//! sums run in `f32`. There is one exception: many rows of 16 bits, with results of 16 bits, on a
//! CPU that multiplies pairs of bf16. Weights are then dequantized to bf16 and f16 activations
//! rounded to bf16, for almost twice the speed. Products of few rows stay exact, and so do the
//! logits after a prompt. If AVX2 has to multiply integers, 16-bit activations lose at most a
//! sixteenth of the f16 rounding error of their largest neighbour.

use smallvec::SmallVec;

use super::{Columns, Dense, Job, Operand, RawEpilogue, blocks, linear as linear_jobs};
use crate::{Error, Float, Pool, convert::FloatPtr, error::same, quant::QMatrix};

/// `out[M, N] = x[M, K] · wᵀ`, with `w` being `[N, K]`.
///
/// # Errors
/// [`Error::Size`] if the length of `x` or `out` does not fit these sizes.
pub fn linear<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    let m = rows_of(x.len(), w.cols(), "activations")?;
    same("outputs", m * w.rows(), out.len())?;
    let job = job(*w, &mut *out, w.rows());
    // SAFETY: `x` is `[m, cols]`.
    unsafe { linear_jobs(&mut pool.team(), [m, w.cols()], &row_major(x, w.cols()), &[job]) };
    Ok(())
}

fn row_major<X: Float>(x: &[X], cols: usize) -> Dense {
    // SAFETY: every element of a row-major matrix of `cols` columns is inside the slice, which
    // outlives the product.
    unsafe { Dense::new(FloatPtr::reading(x.as_ptr()), [cols as isize, 1]) }
}

/// A product by `wᵀ` into row-major `out`.
fn job<'a, Y: Float>(w: QMatrix<'a>, out: &mut [Y], columns: usize) -> Job<'a> {
    let epilogue = RawEpilogue::plain(FloatPtr::of(out.as_mut_ptr()), [columns as isize, 1]);
    Job { rows: w.rows(), operand: Operand::Codes(w), gate: None, epilogue, transposed: true }
}

/// `out[M, N] = x[M, K] · w`, with `w` being `[K, N]` and its groups running along N.
///
/// # Errors
/// [`Error::Size`] if the length of `x` or `out` does not fit these sizes.
pub fn matmul<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    let m = rows_of(x.len(), w.rows(), "activations")?;
    same("outputs", m * w.cols(), out.len())?;
    let epilogue = RawEpilogue::plain(FloatPtr::of(out.as_mut_ptr()), [w.cols() as isize, 1]);
    let operand = Operand::Dense(row_major(x, w.rows()));
    let job = Job { rows: m, operand, gate: None, epilogue, transposed: false };
    // SAFETY: the operands have these sizes.
    unsafe { blocks(&mut pool.team(), [w.cols(), w.rows()], Columns::Lines(Operand::Codes(*w)), &[job]) };
    Ok(())
}

/// The number of rows in `len` elements of `width` each.
fn rows_of(len: usize, width: usize, what: &'static str) -> Result<usize, Error> {
    if width == 0 {
        return Err(Error::Size { what, expected: 1, found: 0 });
    }
    same(what, len / width * width, len)?;
    Ok(len / width)
}

/// Which matrices a gathered product pairs.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// Index of the activation matrix of each product.
    pub lhs: &'a [u32],
    /// Index of the weight matrix of each product.
    pub rhs: &'a [u32],
    /// Rows of one activation matrix (M).
    pub rows: usize,
    /// Number of weight matrices stacked in `w` (E).
    pub experts: usize,
    /// Whether each weight matrix is `[N, K]` and used transposed, rather than `[K, N]`.
    pub transpose: bool,
}

/// `out[i] = x[lhs[i]] · w[rhs[i]]` (`w` transposed if the gather says so): `x` is `[A, M, K]`, `w`
/// stacks E matrices by rows, `out` is `[I, M, N]`. Consecutive products that share a weight matrix
/// are computed together; so are all products if they share the activations.
///
/// # Errors
/// [`Error::Size`] if the operands do not fit, [`Error::Parameter`] for an index out of range.
pub fn gather_linear<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, gather: &Gather, out: &mut [Y]) -> Result<(), Error> {
    let expert_rows = rows_of(w.rows(), gather.experts, "rows of the stacked weights")?;
    let (k, n) = if gather.transpose { (w.cols(), expert_rows) } else { (expert_rows, w.cols()) };
    let matrices = rows_of(x.len(), gather.rows * k, "gathered activations")?;
    same("gather indices", gather.lhs.len(), gather.rhs.len())?;
    same("gathered outputs", gather.lhs.len() * gather.rows * n, out.len())?;
    let outside = |index: &[u32], len: usize| index.iter().find(|&&i| i as usize >= len).copied();
    if let Some(i) = outside(gather.lhs, matrices).or(outside(gather.rhs, gather.experts)) {
        return Err(Error::Parameter { what: "gather index", found: i64::from(i) });
    }
    if gather.transpose && gather.lhs.iter().all(|&i| i == gather.lhs[0]) && n > 0 {
        let x = &x[gather.lhs[0] as usize * gather.rows * k..][..gather.rows * k];
        let part = |e: u32| w.rows_from(e as usize * expert_rows, expert_rows);
        let jobs: SmallVec<[Job; 8]> =
            gather.rhs.iter().zip(out.chunks_exact_mut(gather.rows * n)).map(|(&e, out)| job(part(e), out, n)).collect();
        // SAFETY: `x` is `[rows, k]`, and each output `[rows, n]`.
        unsafe { linear_jobs(&mut pool.team(), [gather.rows, k], &row_major(x, k), &jobs) };
        return Ok(());
    }
    let mut start = 0;
    let mut batch: Vec<X> = Vec::new();
    while start < gather.rhs.len() {
        let expert = gather.rhs[start] as usize;
        let run = gather.rhs[start..].iter().take_while(|&&e| e as usize == expert).count();
        batch.clear();
        for &i in &gather.lhs[start..start + run] {
            batch.extend_from_slice(&x[i as usize * gather.rows * k..][..gather.rows * k]);
        }
        let part = w.rows_from(expert * expert_rows, expert_rows);
        let out = &mut out[start * gather.rows * n..][..run * gather.rows * n];
        if gather.transpose {
            linear(pool, &batch, &part, out)?
        } else {
            matmul(pool, &batch, &part, out)?
        }
        start += run;
    }
    Ok(())
}
