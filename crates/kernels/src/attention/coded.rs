//! Attention of a single query per head directly over keys and values in 8-bit codes.

use std::ops::Range;

use super::{
    Mask, Problem, Scoring, Stored, Target,
    single_query::{HeadRows, MOST_HEADS, PAD, Shape},
    tile::Tile,
};
use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::float_view,
    error::same,
    simd::{Cpu, Isa, Kernel},
};

/// Rows that a task decodes.
const ROWS: usize = 64;

/// Keys or values `[B, Hkv, Tk, D]` in G groups per row: an element is its code times the scale of
/// its group.
#[derive(Clone, Debug)]
pub struct Coded<'a> {
    /// `[B, Hkv, Tk, G, D / G]`
    codes: View<'a, i8>,
    /// `[B, Hkv, Tk, G, 1]`
    scales: FloatView<'a>,
}

impl<'a> Coded<'a> {
    /// Codes `[B, Hkv, Tk, G, D / G]` with scales `[B, Hkv, Tk, G, 1]`. All strides are free.
    ///
    /// # Errors
    /// [`Error::Size`] if ranks or sizes do not fit.
    pub fn new(codes: View<'a, i8>, scales: FloatView<'a>) -> Result<Coded<'a>, Error> {
        same("rank of codes", 5, codes.rank())?;
        same("rank of the scales of codes", 5, scales.shape().len())?;
        let [outer @ .., _] = codes.shape() else { unreachable!("the rank is 5") };
        for (&expected, &found) in outer.iter().chain(&[1]).zip(scales.shape()) {
            same("a size of the scales of codes", expected, found)?;
        }
        Ok(Coded { codes, scales })
    }

    fn groups(&self) -> usize {
        self.codes.shape()[3]
    }

    /// Elements of a group.
    fn group(&self) -> usize {
        self.codes.shape()[4]
    }

    /// Whether [`attention_over_codes`] supports these keys or values for `heads` query heads with
    /// `queries` queries each. It needs a single query, few query heads per key head, and dense
    /// rows. No vector may cross a group.
    pub fn suits(&self, heads: usize, queries: usize) -> bool {
        let kv_heads = self.codes.shape()[1].max(1);
        queries == 1 && heads / kv_heads <= MOST_HEADS && self.has_rows()
    }

    /// Writes the elements `[B, Hkv, Tk, D]`, row-major.
    ///
    /// # Errors
    /// [`Error::Size`] if `out` has another length.
    pub fn decode<T: Float>(&self, pool: &Pool, out: &mut [T]) -> Result<(), Error> {
        let (groups, group) = (self.groups(), self.group());
        let dim = groups * group;
        let rows: usize = self.codes.shape()[..3].iter().product();
        same("length of decoded rows", rows * dim, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let cpu = pool.team().cpu();
        pool.run_chunks(out, ROWS * dim, |task, chunk| {
            let mut scales = vec![0.0; groups];
            for (i, to) in chunk.chunks_exact_mut(dim).enumerate() {
                let row = task * ROWS + i;
                let (keys, heads) = (self.codes.shape()[2], self.codes.shape()[1]);
                let at = [row / keys / heads, row / keys % heads, row % keys];
                self.read_scales(cpu, at, &mut scales);
                cpu.dispatch(DecodeRow { coded: self, at, scales: &scales, to });
            }
        });
        Ok(())
    }

    /// The offset of a row in a view of these strides.
    fn offset(strides: &[isize], at: [usize; 3]) -> isize {
        at.iter().zip(strides).map(|(&i, &step)| i as isize * step).sum()
    }

    /// The scales of a row.
    fn read_scales(&self, cpu: Cpu, at: [usize; 3], to: &mut [f32]) {
        let s = self.scales.strides();
        // SAFETY: the row is inside the view, which has a scale for each group.
        unsafe { self.scales.origin().offset(Self::offset(s, at)).read(cpu, s[3], &mut to[..self.groups()]) };
    }
}

/// [`attention`](super::attention()) of a single query of every head over codes that
/// [suit](Coded::suits) it. Weights are multiplied by values in `f32`.
///
/// # Errors
/// As [`attention`](super::attention()); [`Error::Parameter`] if keys or values do not
/// [suit](Coded::suits) the queries.
pub fn attention_over_codes<'a, T: Float>(
    pool: &Pool,
    q: &View<T>,
    (k, v): (&Coded, &Coded),
    out: &mut ViewMut<T>,
    scoring: impl Into<Scoring<'a>>,
    mask: &Mask,
) -> Result<(), Error> {
    same("rank of an attention operand", 4, q.rank())?;
    let (heads, queries) = (q.shape()[1], q.shape()[2]);
    if !k.suits(heads, queries) || !v.suits(heads, queries) {
        return Err(Error::Parameter { what: "number of queries over codes", found: queries as i64 });
    }
    attend(pool, &float_view(q), (k, v), Target::of(out)?, scoring.into(), mask)
}

/// [`attention_over_codes`], compiled once and here for all types.
fn attend(
    pool: &Pool,
    q: &FloatView,
    (k, v): (&Coded, &Coded),
    target: Target,
    scoring: Scoring<'_>,
    mask: &Mask,
) -> Result<(), Error> {
    Problem::new(q, k, v, target, scoring, mask)?.run(pool);
    Ok(())
}

impl Stored for Coded<'_> {
    type Weight = f32;
    type Rows = CodedRows;

    fn sizes(&self) -> Result<[usize; 4], Error> {
        let s = self.codes.shape();
        Ok([s[0], s[1], s[2], s[3] * s[4]])
    }

    fn has_rows(&self) -> bool {
        let (s, group) = (self.codes.strides(), self.group());
        let is_run = s[4] == 1 && (self.groups() == 1 || s[3] == group as isize);
        is_run && (self.groups() == 1 || group.is_power_of_two() && group >= 16)
    }

    fn row_floats(&self, keys: usize) -> usize {
        keys * self.groups()
    }

    fn head_rows(&self, cpu: Cpu, [batch, head]: [usize; 2], keys: Range<usize>, scratch: &mut [f32]) -> CodedRows {
        let (groups, s) = (self.groups(), self.scales.strides());
        let scratch = &mut scratch[..keys.len() * groups];
        if s[3] == 1 && s[2] == groups as isize && !keys.is_empty() {
            let first = Self::offset(s, [batch, head, keys.start]);
            // SAFETY: the scales of these keys are inside the view, one after the other.
            unsafe { self.scales.origin().offset(first).read(cpu, 1, scratch) };
        } else {
            for (key, to) in keys.clone().zip(scratch.chunks_exact_mut(groups.max(1))) {
                self.read_scales(cpu, [batch, head, key], to);
            }
        }
        let step = self.codes.strides();
        let shift = if groups == 1 { usize::BITS - 1 } else { self.group().trailing_zeros() };
        // SAFETY: batch and head are inside the view.
        let codes = unsafe { self.codes.origin().offset(Self::offset(step, [batch, head, 0])) };
        CodedRows { codes, step: step[2], scales: scratch.as_ptr(), first: keys.start, groups, shift }
    }

    fn compute(_: Tile<Self>, _: bool) {
        unreachable!("codes suit a single query of few heads, which is no tile")
    }
}

/// The rows of a head, and the scales of those keys that may be read.
#[derive(Clone, Copy)]
pub(super) struct CodedRows {
    codes: *const i8,
    step: isize,
    /// `[key - first][group]`
    scales: *const f32,
    first: usize,
    groups: usize,
    /// Column `c` is in group `c >> shift`.
    shift: u32,
}

/// A row's codes and scales.
type Row = (*const i8, *const f32);

impl CodedRows {
    /// # Safety
    /// The key may be read.
    #[inline(always)]
    unsafe fn row(self, key: usize) -> Row {
        // SAFETY: the caller passes a key inside the view with loaded scales.
        unsafe { (self.codes.offset(key as isize * self.step), self.scales.add((key - self.first) * self.groups)) }
    }

    /// Elements of a row from `column` on, `count` of them or a whole vector.
    ///
    /// # Safety
    /// The row has as many elements from there on.
    #[inline(always)]
    unsafe fn elements<I: Isa>(self, isa: I, (codes, scales): Row, column: usize, count: usize) -> I::V {
        // SAFETY: `count` readable codes of one group start at `column`, so the group's scale is
        // readable too.
        unsafe {
            let codes = if count < I::LANES { load_codes(isa, codes.add(column), count) } else { isa.load_i8(codes.add(column)) };
            isa.mul(codes, isa.splat(*scales.add(column >> self.shift)))
        }
    }

    /// Adds the products of `count` elements of four rows, or of a whole vector, with the same
    /// elements of the queries. Queries are `padded` words apart.
    ///
    /// # Safety
    /// Rows and queries have as many elements, and queries a whole vector of words.
    #[inline(always)]
    unsafe fn add<I: Isa, const H: usize>(
        self,
        isa: I,
        (rows, column, count): ([Row; 4], usize, usize),
        queries: *const u32,
        padded: usize,
        sums: &mut [[I::V; 4]; H],
    ) {
        // SAFETY: rows and queries have `count` elements at `column`, and queries a whole vector of
        // words.
        unsafe {
            let mut elements = [isa.splat(0.0); 4];
            for (to, row) in elements.iter_mut().zip(rows) {
                *to = self.elements(isa, row, column, count);
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let q = isa.load(queries.add(h * padded).cast());
                for (sum, &element) in sums.iter_mut().zip(&elements) {
                    *sum = isa.fma(q, element, *sum);
                }
            }
        }
    }

    /// Scores of `H` heads from the first on that `queries` and `to` begin with.
    #[inline(always)]
    fn products<I: Isa, const H: usize>(self, isa: I, s: Shape, queries: &[u32], keys: Range<usize>, to: &mut [f32]) {
        let padded = s.depth.next_multiple_of(PAD);
        assert!(queries.len() >= H * padded, "queries are as many as heads");
        for first in keys.clone().step_by(4) {
            // Past the end, the last key is read again and its results are ignored. SAFETY: these
            // keys may be read.
            let rows: [Row; 4] = std::array::from_fn(|i| unsafe { self.row((first + i).min(keys.end - 1)) });
            let mut sums = [[isa.splat(0.0); 4]; H];
            let whole = s.depth / I::LANES * I::LANES;
            // SAFETY: rows have `depth` elements, queries as many and zeros up to `padded`.
            unsafe {
                for at in (0..whole).step_by(I::LANES) {
                    self.add(isa, (rows, at, I::LANES), queries.as_ptr().add(at), padded, &mut sums);
                }
                if whole < s.depth {
                    self.add(isa, (rows, whole, s.depth - whole), queries.as_ptr().add(whole), padded, &mut sums);
                }
            }
            for (h, sums) in sums.into_iter().enumerate() {
                to[h * s.line() + first - keys.start..][..4].copy_from_slice(&isa.sum4(sums));
            }
        }
    }
}

impl HeadRows for CodedRows {
    #[inline(always)]
    fn scores<I: Isa>(self, isa: I, s: Shape, queries: &[u32], keys: Range<usize>, to: &mut [f32]) {
        // As many sums as registers hold beside the elements.
        let most = if I::LANES == 16 { 4 } else { 2 };
        let padded = s.depth.next_multiple_of(PAD);
        for head in (0..s.heads).step_by(most) {
            let (queries, to) = (&queries[head * padded..], &mut to[head * s.line()..]);
            match most.min(s.heads - head) {
                1 => self.products::<I, 1>(isa, s, queries, keys.clone(), to),
                2 => self.products::<I, 2>(isa, s, queries, keys.clone(), to),
                3 => self.products::<I, 3>(isa, s, queries, keys.clone(), to),
                _ => self.products::<I, 4>(isa, s, queries, keys.clone(), to),
            }
        }
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I, key: usize, column: usize) -> I::V {
        // SAFETY: the caller makes LANES elements of the row readable.
        unsafe { self.elements(isa, self.row(key), column, I::LANES) }
    }

    #[inline(always)]
    unsafe fn load_first<I: Isa>(self, isa: I, key: usize, column: usize, count: usize) -> I::V {
        // SAFETY: the caller makes `count` elements of the row readable.
        unsafe { self.elements(isa, self.row(key), column, count) }
    }
}

/// `count` codes, fewer than LANES, as floats; the other lanes are zero.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load_codes<I: Isa>(isa: I, codes: *const i8, count: usize) -> I::V {
    let mut lanes = [0; 16];
    for (i, lane) in lanes.iter_mut().enumerate().take(count) {
        // SAFETY: `i < count`.
        *lane = unsafe { *codes.add(i) };
    }
    // SAFETY: LANES is at most 16.
    unsafe { isa.load_i8(lanes.as_ptr()) }
}

/// One row's elements.
struct DecodeRow<'a, T> {
    coded: &'a Coded<'a>,
    at: [usize; 3],
    scales: &'a [f32],
    to: &'a mut [T],
}

impl<T: Float> Kernel for DecodeRow<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (codes, group) = (&self.coded.codes, self.coded.group());
        let s = codes.strides();
        let row = Coded::offset(s, self.at);
        for (g, (to, &scale)) in self.to.chunks_exact_mut(group).zip(self.scales).enumerate() {
            // SAFETY: row and group are inside the view.
            let from = unsafe { codes.origin().offset(row + g as isize * s[3]) };
            let whole = if s[4] == 1 { group / I::LANES * I::LANES } else { 0 };
            for i in (0..whole).step_by(I::LANES) {
                // SAFETY: `i + LANES` does not exceed the length of the group, and `to` has the
                // same length.
                unsafe { T::store(isa, to.as_mut_ptr().add(i), isa.mul(isa.load_i8(from.add(i)), isa.splat(scale))) };
            }
            for (i, to) in to.iter_mut().enumerate().skip(whole) {
                // SAFETY: the element is inside the group.
                *to = T::from_f32(f32::from(unsafe { *from.offset(i as isize * s[4]) }) * scale);
            }
        }
    }
}
