//! Dequantized rows as pairs of bf16, the words of products over many rows.

use std::{marker::PhantomData, ops::Range};

use super::{
    QMatrix,
    code::{Code, read_numbers, with_code},
};
use crate::simd::{Cpu, Isa, Kernel};

/// Groups whose numbers are read together.
const GROUPS: usize = 16;

/// The most bytes that reading a vector of codes may touch.
const REACH: usize = 32;

/// Dequantizes these columns of a row to `to`, rounded to bf16, two per word. They begin and end
/// with a group.
pub(crate) fn read_pairs(cpu: Cpu, w: &QMatrix, row: usize, columns: Range<usize>, to: &mut [u32]) {
    assert!(columns.start <= columns.end && columns.end <= w.cols && row < w.rows, "the columns are inside the matrix");
    assert!(columns.len() <= 2 * to.len(), "the words hold the columns");
    with_code!(w.format, C => cpu.dispatch_dot(ReadPairs::<C> { w, row, columns, to, code: PhantomData }));
}

struct ReadPairs<'a, C> {
    w: &'a QMatrix<'a>,
    row: usize,
    columns: Range<usize>,
    to: &'a mut [u32],
    code: PhantomData<C>,
}

impl<C: Code> Kernel for ReadPairs<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let group = self.w.format.group();
        let to = self.to.as_mut_ptr().cast::<u16>();
        let groups = self.columns.start / group..self.columns.end / group;
        for first in groups.clone().step_by(GROUPS) {
            let count = GROUPS.min(groups.end - first);
            let (mut scales, mut biases) = ([0.0; GROUPS], [0.0; GROUPS]);
            let number = self.row * self.w.row_groups() + first;
            let zero = self.w.format.zero();
            read_numbers(isa, self.w, number, zero, &mut scales[..count], &mut biases[..count]);
            let numbers = Numbers { first, count, scales, biases };
            // SAFETY: by the assertions of `read_pairs`, `to` has room for the columns up to these
            // groups' last.
            unsafe {
                let to = to.add((first - groups.start) * group);
                match &C::VALUES {
                    Some(values) if group >= 2 * I::LANES => self.look_up(isa, values, &numbers, to),
                    _ => self.compute(isa, &numbers, to),
                }
            }
        }
    }
}

/// Scales and biases of groups from `first` on.
struct Numbers {
    first: usize,
    count: usize,
    scales: [f32; GROUPS],
    biases: [f32; GROUPS],
}

impl<C: Code> ReadPairs<'_, C> {
    /// Through a table of each group's values.
    ///
    /// # Safety
    /// The groups' elements are writable at `to`.
    #[inline(always)]
    unsafe fn look_up<I: Isa>(&self, isa: I, values: &[u16; 32], n: &Numbers, to: *mut u16) {
        let mut tables = [[0u16; 32]; GROUPS];
        for (g, table) in tables.iter_mut().enumerate().take(n.count) {
            for at in (0..32).step_by(I::LANES) {
                // SAFETY: both tables have 32 entries.
                unsafe {
                    let value = isa.load_bf16(values.as_ptr().add(at));
                    isa.store_bf16(table.as_mut_ptr().add(at), isa.fma(value, isa.splat(n.scales[g]), isa.splat(n.biases[g])));
                }
            }
        }
        let group = self.w.format.group();
        for (g, table) in tables.iter().enumerate().take(n.count) {
            for at in (0..group).step_by(2 * I::LANES) {
                let bit = (n.first + g) * group + at;
                // SAFETY: `from` passes a pointer to REACH readable bytes, and the caller made the
                // groups' elements writable at `to`.
                unsafe {
                    let values = self.from(bit * C::BITS as usize, |p, bit| isa.lookup32(C::halves_at(isa, p.add(bit / 8)), table));
                    isa.store(to.add(g * group + at).cast(), isa.with_bits(values));
                }
            }
        }
    }

    /// One by one.
    ///
    /// # Safety
    /// As [`ReadPairs::look_up`].
    #[inline(always)]
    unsafe fn compute<I: Isa>(&self, isa: I, n: &Numbers, to: *mut u16) {
        let group = self.w.format.group();
        for g in 0..n.count {
            for at in (0..group).step_by(I::LANES) {
                let bit = ((n.first + g) * group + at) * C::BITS as usize;
                // SAFETY: `from` passes a pointer to REACH readable bytes, and the caller made the
                // groups' elements writable at `to`.
                unsafe {
                    let value = self.from(bit, |p, bit| C::value(isa, C::at(isa, p, bit)));
                    isa.store_bf16(to.add(g * group + at), isa.fma(value, isa.splat(n.scales[g]), isa.splat(n.biases[g])));
                }
            }
        }
    }

    /// Calls `f` with a pointer, and the offset in bits from it to bit `bit` of the row. [`REACH`]
    /// bytes are readable from the pointer on.
    #[inline(always)]
    fn from<T>(&self, bit: usize, f: impl FnOnce(*const u8, usize) -> T) -> T {
        let words = &self.w.words[self.row * self.w.row_words() + bit / 32..];
        if size_of_val(words) >= REACH + size_of::<u32>() {
            return f(words.as_ptr().cast(), bit % 32);
        }
        let mut spill = [0u32; REACH / 4 + 1];
        spill[..words.len()].copy_from_slice(words);
        f(spill.as_ptr().cast(), bit % 32)
    }
}
