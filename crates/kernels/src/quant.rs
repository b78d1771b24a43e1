//! Matrices of packed codes: products that read them directly, and dequantization.
//!
//! A product is exact in the sense of W4A16: codes meet the activations as they are, and sums run in `f32`. Where many rows of
//! bf16 are multiplied, weights are dequantized to bf16 first, the type of the activations.

mod code;
mod dequant;
mod gemv;
mod pairs;

use flambeau_tensor::DType;
use half::{bf16, f16};
use smallvec::SmallVec;

use crate::{
    Error, Float, Pool,
    convert::FloatPtr,
    error::same,
    gemm::{self, Columns, Dense, Job, Operand, RawEpilogue},
};
pub(crate) use dequant::read;
pub use dequant::{dequantize, dequantize_rows};
pub(crate) use gemv::{Kind, Prepared, number_words, rows_times};
pub(crate) use pairs::read_pairs;

/// How values are coded. A row is one little-endian bit stream, lowest bits first, in whole `u32` words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// value = code · scale + bias, one float scale and bias a group.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Codes of a group: 16, 32, 64 or 128.
        group: usize,
    },
    /// E2M1 codes, groups of 16 with an E4M3 scale.
    Nvfp4,
    /// E2M1 codes, groups of 32 with an E8M0 scale.
    Mxfp4,
    /// E4M3 codes, groups of 32 with an E8M0 scale. The two NaN codes read as ±480.
    Mxfp8,
}

impl Format {
    /// Bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Format::Affine { bits, .. } => bits,
            Format::Nvfp4 | Format::Mxfp4 => 4,
            Format::Mxfp8 => 8,
        }
    }

    /// Codes of a group.
    pub fn group(self) -> usize {
        match self {
            Format::Affine { group, .. } => group,
            Format::Nvfp4 => 16,
            Format::Mxfp4 | Format::Mxfp8 => 32,
        }
    }

    fn check(self) -> Result<(), Error> {
        if !matches!(self.bits(), 2 | 3 | 4 | 5 | 6 | 8) {
            return Err(Error::Parameter { what: "bits of a code", found: i64::from(self.bits()) });
        }
        if !matches!(self.group(), 16 | 32 | 64 | 128) {
            return Err(Error::Parameter { what: "group size", found: self.group() as i64 });
        }
        Ok(())
    }
}

/// One number a group, row-major `[rows, cols / group]`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Scales<'a> {
    /// Plain numbers.
    F32(&'a [f32]),
    /// Plain numbers.
    F16(&'a [f16]),
    /// Plain numbers.
    BF16(&'a [bf16]),
    /// E4M3 (nvfp4) or E8M0 (mxfp4, mxfp8) codes.
    U8(&'a [u8]),
}

impl Scales<'_> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Scales::F32(s) => s.len(),
            Scales::F16(s) => s.len(),
            Scales::BF16(s) => s.len(),
            Scales::U8(s) => s.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn dtype(&self) -> DType {
        match self {
            Scales::F32(_) => DType::F32,
            Scales::F16(_) => DType::F16,
            Scales::BF16(_) => DType::BF16,
            Scales::U8(_) => DType::U8,
        }
    }
}

/// A matrix `[rows, cols]` of packed codes whose groups run along its rows. Sizes are checked when it is made.
#[derive(Clone, Copy, Debug)]
pub struct QMatrix<'a> {
    format: Format,
    words: &'a [u32],
    scales: Scales<'a>,
    biases: Option<Scales<'a>>,
    rows: usize,
    cols: usize,
}

impl<'a> QMatrix<'a> {
    /// `words` is `[rows, cols · bits / 32]`, `scales` and (affine only) `biases` are `[rows, cols / group]`.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a format outside the table, a missing or unwanted bias, or scales of the wrong kind;
    /// [`Error::Size`] if a length is not as above.
    pub fn new(
        format: Format,
        words: &'a [u32],
        scales: Scales<'a>,
        biases: Option<Scales<'a>>,
        [rows, cols]: [usize; 2],
    ) -> Result<QMatrix<'a>, Error> {
        format.check()?;
        let affine = matches!(format, Format::Affine { .. });
        if affine != biases.is_some() {
            return Err(Error::Parameter { what: "presence of biases in this format", found: i64::from(biases.is_some()) });
        }
        if affine == (scales.dtype() == DType::U8) || biases.is_some_and(|b| b.dtype() == DType::U8) {
            return Err(Error::Parameter { what: "dtype code of scales", found: i64::from(scales.dtype().code()) });
        }
        same("columns left over by groups", 0, cols % format.group())?;
        same("bits of a row left over by words", 0, cols % 32 * format.bits() as usize % 32)?;
        let row_words = cols / 32 * format.bits() as usize + cols % 32 * format.bits() as usize / 32;
        same("words", rows.saturating_mul(row_words), words.len())?;
        same("scales", rows.saturating_mul(cols / format.group()), scales.len())?;
        if let Some(biases) = biases {
            same("biases", scales.len(), biases.len())?;
        }
        Ok(QMatrix { format, words, scales, biases, rows, cols })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How values are coded.
    pub fn format(&self) -> Format {
        self.format
    }

    /// `count` rows from `start` on, both inside the matrix.
    fn rows_from(&self, start: usize, count: usize) -> QMatrix<'a> {
        let cut = |s: Scales<'a>| {
            let range = start * self.row_groups()..(start + count) * self.row_groups();
            match s {
                Scales::F32(s) => Scales::F32(&s[range]),
                Scales::F16(s) => Scales::F16(&s[range]),
                Scales::BF16(s) => Scales::BF16(&s[range]),
                Scales::U8(s) => Scales::U8(&s[range]),
            }
        };
        let words = &self.words[start * self.row_words()..(start + count) * self.row_words()];
        QMatrix { words, scales: cut(self.scales), biases: self.biases.map(cut), rows: count, ..*self }
    }

    fn row_words(&self) -> usize {
        self.cols * self.format.bits() as usize / 32
    }

    /// Bytes of a row's words.
    pub(crate) fn row_bytes(&self) -> usize {
        4 * self.row_words()
    }

    fn row_groups(&self) -> usize {
        self.cols / self.format.group()
    }
}

/// `out[M, N] = x[M, K] · wᵀ`, with `w` being `[N, K]`.
///
/// # Errors
/// [`Error::Size`] if `x` or `out` is not as above.
pub fn linear<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    let m = rows_of(x.len(), w.cols, "activations")?;
    same("outputs", m * w.rows, out.len())?;
    let job = job(*w, &mut *out, w.rows);
    // SAFETY: `x` is `[m, cols]`.
    unsafe { gemm::linear(&mut pool.team(), [m, w.cols], &row_major(x, w.cols), &[job]) };
    Ok(())
}

fn row_major<X: Float>(x: &[X], cols: usize) -> Dense {
    // SAFETY: every element of a row-major matrix of `cols` columns is inside the slice, which outlives the product.
    unsafe { Dense::new(FloatPtr::reading(x.as_ptr()), [cols as isize, 1]) }
}

/// A product by `wᵀ` that goes to row-major `out`.
fn job<'a, Y: Float>(w: QMatrix<'a>, out: &mut [Y], columns: usize) -> Job<'a> {
    let epilogue = RawEpilogue::plain(FloatPtr::of(out.as_mut_ptr()), [columns as isize, 1]);
    Job { rows: w.rows, operand: Operand::Codes(w), gate: None, epilogue, transposed: true }
}

/// `out[M, N] = x[M, K] · w`, with `w` being `[K, N]` and its groups running along N.
///
/// # Errors
/// [`Error::Size`] if `x` or `out` is not as above.
pub fn matmul<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, out: &mut [Y]) -> Result<(), Error> {
    let m = rows_of(x.len(), w.rows, "activations")?;
    same("outputs", m * w.cols, out.len())?;
    let epilogue = RawEpilogue::plain(FloatPtr::of(out.as_mut_ptr()), [w.cols as isize, 1]);
    let operand = Operand::Dense(row_major(x, w.rows));
    let job = Job { rows: m, operand, gate: None, epilogue, transposed: false };
    // SAFETY: the operands have these sizes.
    unsafe { gemm::blocks(&mut pool.team(), [w.cols, w.rows], Columns::Lines(Operand::Codes(*w)), &[job]) };
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

/// `out[i] = x[lhs[i]] · w[rhs[i]]` (transposed where the gather says so): `x` is `[A, M, K]`, `w` stacks E matrices by rows,
/// `out` is `[I, M, N]`. Neighbouring products that share a weight matrix, or all if they share
/// the activations, are computed together.
///
/// # Errors
/// [`Error::Size`] if the operands do not fit, [`Error::Parameter`] for an index out of range.
pub fn gather_linear<X: Float, Y: Float>(pool: &Pool, x: &[X], w: &QMatrix, gather: &Gather, out: &mut [Y]) -> Result<(), Error> {
    let expert_rows = rows_of(w.rows, gather.experts, "rows of the stacked weights")?;
    let (k, n) = if gather.transpose { (w.cols, expert_rows) } else { (expert_rows, w.cols) };
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
        unsafe { gemm::linear(&mut pool.team(), [gather.rows, k], &row_major(x, k), &jobs) };
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

#[cfg(test)]
mod tests;
