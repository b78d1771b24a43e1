//! Operands of a product, and how they become words.

use std::ops::Range;

use half::bf16;

use super::tile::MAX_ROWS;
use crate::{
    Float, FloatView,
    convert::{FloatPtr, with_float},
    quant::QMatrix,
    simd::{Cpu, Isa, Kernel, load_partial},
};

/// A matrix by its origin and the strides of its two axes. Its creator ensures that the elements
/// stay readable while it is used, and writable for an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub(crate) origin: FloatPtr,
    pub(crate) step: [isize; 2],
}

impl Dense {
    /// # Safety
    /// Every element that the product's sizes reach is readable.
    pub(crate) unsafe fn new(origin: FloatPtr, step: [isize; 2]) -> Dense {
        Dense { origin, step }
    }

    /// The last two axes of `view`, from the element at `offset` on.
    ///
    /// # Safety
    /// The element at `offset` is inside the view, and the view's rank is at least 2.
    pub(crate) unsafe fn of(view: &FloatView, offset: isize) -> Dense {
        let s = view.strides();
        // SAFETY: the caller keeps the element at `offset` inside the view.
        Dense { origin: unsafe { view.origin().offset(offset) }, step: [s[s.len() - 2], s[s.len() - 1]] }
    }

    /// Row `i`, from column `j` on.
    ///
    /// # Safety
    /// The element is inside the matrix.
    pub(crate) unsafe fn at(&self, i: usize, j: usize) -> FloatPtr {
        // SAFETY: the caller keeps `(i, j)` inside the matrix, and the matrix's elements are valid
        // by its invariant.
        unsafe { self.origin.offset(i as isize * self.step[0] + j as isize * self.step[1]) }
    }

    /// Rows for columns.
    pub(crate) fn transposed(self) -> Dense {
        Dense { origin: self.origin, step: [self.step[1], self.step[0]] }
    }

    /// Elements `(i, j..j + n)`, the other lanes being anything.
    ///
    /// # Safety
    /// They are inside the matrix, and `n` is at most `LANES`.
    #[inline(always)]
    pub(super) unsafe fn load<I: Isa>(&self, isa: I, i: usize, j: usize, n: usize) -> I::V {
        // SAFETY: the caller keeps these elements inside the matrix; `lanes` has room for the
        // widest vector.
        unsafe {
            with_float!(self.at(i, j), p => match self.step[1] {
                1 if n == I::LANES => Float::load(isa, p.cast_const()),
                1 => load_partial(isa, p.cast_const(), n),
                0 => isa.splat((*p).to_f32()),
                step => {
                    let mut lanes = [0.0; 16];
                    lanes.iter_mut().enumerate().take(n).for_each(|(l, x)| *x = (*p.offset(l as isize * step)).to_f32());
                    isa.load(lanes.as_ptr())
                }
            })
        }
    }
}

/// A matrix of a product, read row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a> {
    Dense(Dense),
    Codes(QMatrix<'a>),
}

/// Elements that are read at a time; a multiple of every vector's pairs.
pub(crate) const STRETCH: usize = 256;

impl Operand<'_> {
    /// Whether both are the same memory, seen alike.
    pub(crate) fn is_same(&self, other: &Operand) -> bool {
        match (self, other) {
            (Operand::Dense(a), Operand::Dense(b)) => {
                a.step == b.step && a.origin.dtype() == b.origin.dtype() && a.origin.words() == b.origin.words()
            }
            (Operand::Codes(a), Operand::Codes(b)) => a.is_same(b),
            _ => false,
        }
    }

    /// Elements `k` of row `i`; for codes `k` starts at a multiple of 16.
    ///
    /// # Safety
    /// They are inside the matrix.
    unsafe fn read(&self, cpu: Cpu, i: usize, k: Range<usize>, to: &mut [f32]) {
        match self {
            // SAFETY: the caller keeps row and columns inside the matrix.
            Operand::Dense(d) => unsafe { d.at(i, k.start).read(cpu, d.step[1], &mut to[..k.len()]) },
            Operand::Codes(w) => crate::quant::read(cpu, w, i, k.start, &mut to[..k.len()]),
        }
    }

    /// The words of a row, if they can be read in place.
    fn words_in_place(&self, k: usize, pairs: bool) -> Option<Dense> {
        match self {
            Operand::Dense(d) if d.step[1] == 1 || k == 1 => match d.origin {
                FloatPtr::F32(_) if !pairs => Some(*d),
                FloatPtr::BF16(_) if pairs && k.is_multiple_of(2) => Some(*d),
                _ => None,
            },
            _ => None,
        }
    }

    /// Words from a row to the one `count` rows later, if the words are read in place; otherwise 0.
    pub(crate) fn next_rows(&self, (k, pairs): (usize, bool), count: usize) -> isize {
        let per_word = if pairs { 2 } else { 1 };
        self.words_in_place(k, pairs).map_or(0, |d| d.step[0] * count as isize / per_word)
    }

    /// Words of `buffer` that [`Operand::rows`] needs for each row.
    pub(crate) fn row_words(&self, k: usize, pairs: bool) -> usize {
        if self.words_in_place(k, pairs).is_some() { 0 } else { words(k, pairs).next_multiple_of(16) }
    }

    /// Pointers to the words of `count` rows from `first` on; rows beyond `rows` repeat the last.
    ///
    /// # Safety
    /// The matrix has `rows` rows of `k` elements. The pointers are valid as long as the operand
    /// and `buffer`.
    pub(crate) unsafe fn rows(
        &self,
        cpu: Cpu,
        Range { start: first, end: rows }: Range<usize>,
        (k, pairs): (usize, bool),
        count: usize,
        buffer: &mut [u32],
    ) -> [*const u32; MAX_ROWS] {
        let last = rows - 1;
        if let Some(d) = self.words_in_place(k, pairs) {
            // SAFETY: these rows are inside the matrix.
            return std::array::from_fn(|i| unsafe { d.at((first + i.min(count - 1)).min(last), 0).words() });
        }
        let width = self.row_words(k, pairs);
        for (i, to) in buffer.chunks_exact_mut(width.max(1)).enumerate().take(count.min(rows - first)) {
            // SAFETY: the row is inside the matrix.
            unsafe { self.row_to_words(cpu, first + i, k, pairs, to) };
        }
        std::array::from_fn(|i| buffer[(i.min(count - 1)).min(last - first) * width..].as_ptr())
    }

    /// # Safety
    /// Row `i` has `k` elements.
    unsafe fn row_to_words(&self, cpu: Cpu, i: usize, k: usize, pairs: bool, to: &mut [u32]) {
        if let (Operand::Codes(w), true) = (self, pairs) {
            return crate::quant::read_pairs(cpu, w, i, 0..k, to);
        }
        let mut values = [0.0; STRETCH];
        for start in (0..k).step_by(STRETCH) {
            let part = start..k.min(start + STRETCH);
            // SAFETY: `part` is inside the `k` elements of row `i`.
            unsafe { self.read(cpu, i, part.clone(), &mut values) };
            values[part.len()..].fill(0.0);
            let to = &mut to[words(start, pairs)..];
            let len = words(part.len(), pairs).next_multiple_of(16).min(to.len());
            to_words(cpu, &values, pairs, &mut to[..len]);
        }
    }
}

/// Words that hold `k` elements.
pub(crate) fn words(k: usize, pairs: bool) -> usize {
    if pairs { k.div_ceil(2) } else { k }
}

/// `to` = the first of `values` as words, a multiple of 16.
fn to_words(cpu: Cpu, values: &[f32; STRETCH], pairs: bool, to: &mut [u32]) {
    if pairs {
        cpu.dispatch_dot(ToPairs { values, to });
    } else {
        to.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_bits());
    }
}

struct ToPairs<'a> {
    values: &'a [f32; STRETCH],
    to: &'a mut [u32],
}

impl Kernel for ToPairs<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let to = self.to.as_mut_ptr().cast::<u16>();
        for at in (0..2 * self.to.len()).step_by(I::LANES) {
            // SAFETY: `to` has room for twice its words, a multiple of LANES and at most STRETCH.
            unsafe { isa.store_bf16(to.add(at), isa.load(self.values.as_ptr().add(at))) };
        }
    }
}

/// The columns of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Columns<'a> {
    /// Column `j` is row `j` of the operand.
    Rows(Operand<'a>),
    /// Element `k` of all columns is row `k` of the operand.
    Lines(Operand<'a>),
}

impl Columns<'_> {
    pub(crate) fn operand(&self) -> &Operand<'_> {
        match self {
            Columns::Rows(o) | Columns::Lines(o) => o,
        }
    }

    /// Packs up to `width` of the columns `n` as `[step][width]` words, padded with zeros. `panel`
    /// has room for a multiple of 16 steps.
    ///
    /// # Safety
    /// The columns are inside the operand and have `k` elements.
    pub(crate) unsafe fn pack(&self, cpu: Cpu, (k, pairs): (usize, bool), n: Range<usize>, width: usize, panel: &mut [u32]) {
        let n = n.start..n.end.min(n.start + width);
        // SAFETY: the caller ensures that the operand has these columns of `k` elements, and room
        // in the panel.
        unsafe {
            match self {
                Columns::Rows(o) => pack_rows(cpu, o, (k, pairs), n, width, panel),
                Columns::Lines(o) => pack_lines(cpu, o, (k, pairs), n, width, panel),
            }
        }
    }
}

/// # Safety
/// As [`Columns::pack`].
unsafe fn pack_rows(cpu: Cpu, o: &Operand, (k, pairs): (usize, bool), n: Range<usize>, width: usize, panel: &mut [u32]) {
    let mut block = [[0u32; STRETCH]; 16];
    let ready = o.words_in_place(k, pairs);
    for start in (0..k).step_by(STRETCH) {
        let len = STRETCH.min(k - start);
        for first in (0..width).step_by(16) {
            for (c, line) in block.iter_mut().enumerate() {
                let (column, count) = (n.start + first + c, words(len, pairs));
                line[..count.next_multiple_of(16)].fill(0);
                if column >= n.end {
                    continue;
                }
                if let Some(d) = ready {
                    // SAFETY: the column is inside the operand and `start + len` at most `k`; words
                    // are readable in place with any alignment.
                    unsafe {
                        std::ptr::copy_nonoverlapping(d.at(column, start).words().cast::<u8>(), line.as_mut_ptr().cast(), 4 * count)
                    };
                } else if let (Operand::Codes(w), true) = (o, pairs) {
                    crate::quant::read_pairs(cpu, w, column, start..start + len, line);
                } else {
                    let mut values = [0.0; STRETCH];
                    // SAFETY: the column is inside the operand and `start + len` at most `k`.
                    unsafe { o.read(cpu, column, start..start + len, &mut values) };
                    to_words(cpu, &values, pairs, &mut line[..count.next_multiple_of(16)]);
                }
            }
            let (steps, panel) = (words(len, pairs), &mut panel[words(start, pairs) * width + first..]);
            cpu.dispatch(Transpose { block: &block, steps, columns: 16.min(width - first), width, panel });
        }
    }
}

/// `panel[step][c] = block[c][step]`
struct Transpose<'a> {
    block: &'a [[u32; STRETCH]; 16],
    steps: usize,
    columns: usize,
    width: usize,
    panel: &'a mut [u32],
}

impl Kernel for Transpose<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let whole = self.steps.next_multiple_of(I::LANES);
        assert!((whole - 1) * self.width + self.columns <= self.panel.len(), "a panel has room for whole blocks");
        for c in (0..self.columns).step_by(I::LANES) {
            for step in (0..whole).step_by(I::LANES) {
                // SAFETY: the block is inside `block`, and inside the panel by the assertion.
                unsafe {
                    let from = self.block.as_ptr().cast::<u32>().add(c * STRETCH + step);
                    isa.transpose(from, STRETCH, self.panel.as_mut_ptr().add(step * self.width + c), self.width);
                }
            }
        }
    }
}

/// # Safety
/// As [`Columns::pack`].
unsafe fn pack_lines(cpu: Cpu, o: &Operand, (k, pairs): (usize, bool), n: Range<usize>, width: usize, panel: &mut [u32]) {
    if let Operand::Dense(d @ Dense { origin: FloatPtr::BF16(_), step: [_, 1] }) = o
        && pairs
    {
        return cpu.dispatch(Pair { lines: *d, k, n, width, panel });
    }
    let (mut low, mut high) = ([0.0; STRETCH], [0.0; STRETCH]);
    for (step, to) in panel.chunks_exact_mut(width).enumerate().take(words(k, pairs)) {
        // SAFETY: these lines are below `k`, the operand has the columns `n`, and a panel is at
        // most STRETCH wide.
        unsafe {
            if pairs {
                o.read(cpu, 2 * step, n.clone(), &mut low);
                if 2 * step + 1 < k { o.read(cpu, 2 * step + 1, n.clone(), &mut high) } else { high.fill(0.0) }
            } else {
                o.read(cpu, step, n.clone(), &mut low);
            }
        }
        cpu.dispatch(Interleave { low: &low, high: pairs.then_some(&high), to });
    }
}

/// Sets `panel[step][c]` to elements `2 · step` and `2 · step + 1` of column `n[c]`, for contiguous
/// lines of bf16.
struct Pair<'a> {
    /// It has `k` lines and columns `n`.
    lines: Dense,
    k: usize,
    n: Range<usize>,
    width: usize,
    panel: &'a mut [u32],
}

impl Kernel for Pair<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let FloatPtr::BF16(origin) = self.lines.origin else { return };
        for (step, to) in self.panel.chunks_exact_mut(self.width).enumerate().take(self.k.div_ceil(2)) {
            for (c, to) in to.chunks_exact_mut(I::LANES).enumerate() {
                let column = self.n.start + c * I::LANES;
                let count = I::LANES.min(self.n.end.saturating_sub(column));
                let line = |i: usize| {
                    if i >= self.k || count == 0 {
                        return isa.splat_u(0);
                    }
                    // SAFETY: these elements are inside the operand.
                    unsafe {
                        let p = origin.cast_const().offset(i as isize * self.lines.step[0] + column as isize);
                        isa.bits(if count == I::LANES { bf16::load(isa, p) } else { load_partial(isa, p, count) })
                    }
                };
                let word = isa.or(isa.shr(line(2 * step), 16), line(2 * step + 1));
                // SAFETY: the chunk is LANES long.
                unsafe { isa.store(to.as_mut_ptr().cast(), isa.with_bits(word)) };
            }
        }
    }
}

struct Interleave<'a> {
    low: &'a [f32; STRETCH],
    high: Option<&'a [f32; STRETCH]>,
    to: &'a mut [u32],
}

impl Kernel for Interleave<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (i, to) in self.to.chunks_exact_mut(I::LANES).enumerate() {
            // SAFETY: `to` is not longer than a stretch.
            unsafe {
                let low = isa.load(self.low.as_ptr().add(i * I::LANES));
                let word = match self.high {
                    Some(high) => {
                        let high = isa.load(high.as_ptr().add(i * I::LANES));
                        isa.or(isa.bf16_bits(low), isa.shl(isa.bf16_bits(high), 16))
                    }
                    None => isa.bits(low),
                };
                isa.store(to.as_mut_ptr().cast(), isa.with_bits(word));
            }
        }
    }
}
