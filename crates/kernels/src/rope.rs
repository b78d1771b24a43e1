//! Rotary position embedding.

use flambeau_tensor::DType;
use half::{bf16, f16};
use smallvec::SmallVec;

use crate::{
    Error, Float, FloatView, Pool, Strides, View, ViewMut,
    convert::{FloatPtr, float_view},
    error::same,
    math::{Unary, apply_in_place},
    pool::{Parts, Team},
    simd::{Isa, Kernel},
};

/// Rows of the table that a task computes.
const ROWS: usize = 64;

/// Conversion of positions to rotations.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// Leading elements of a head that rotate; even.
    pub dims: usize,
    /// Pairs are `(2i, 2i+1)` if true, else `(i, i + dims/2)`.
    pub traditional: bool,
    /// Frequencies are `base^(−2i/dims)` where `periods` is absent.
    pub base: f32,
    /// Factor of the position.
    pub scale: f32,
    /// `[dims/2]` reciprocals of the frequencies.
    pub periods: Option<&'a [f32]>,
}

/// Rotates each head of `x` `[B, H, T, D]` by its position `(t + offset) · scale`; `offsets` has
/// one entry, or one per batch entry.
///
/// Angles are `f32`. Sines, cosines and each product are rounded to the element type, as in PyTorch
/// model code and MLX's CPU path. So half-precision results are bit-identical to theirs where the
/// sines are.
///
/// # Errors
/// [`Error::Size`] if the ranks, `dims`, `offsets` or `periods` do not fit, [`Error::Parameter`]
/// for odd `dims`.
pub fn rope<T: Float>(pool: &Pool, x: &View<T>, offsets: &[i32], rope: &Rope, out: &mut ViewMut<T>) -> Result<(), Error> {
    same("rank of a rotated tensor", 4, x.rank())?;
    if x.shape() != out.shape() {
        return Err(Error::Broadcast { what: "rotated tensor", expected: out.shape().into(), found: x.shape().into() });
    }
    let (half, width) = (rope.dims / 2, x.shape()[3]);
    if rope.dims % 2 == 1 || rope.dims > width {
        return Err(Error::Parameter { what: "dims of a rotation", found: rope.dims as i64 });
    }
    if offsets.len() != 1 {
        same("offsets of a rotation", x.shape()[0], offsets.len())?;
    }
    if let Some(periods) = rope.periods {
        same("periods of a rotation", half, periods.len())?;
    }
    if x.is_empty() {
        return Ok(());
    }
    rotate(pool, float_view(x), offsets, rope, (FloatPtr::of(out.origin()), out.strides().into()));
    Ok(())
}

/// [`rope`], compiled once and here for all types; `out` is of the type of `x`.
fn rotate(pool: &Pool, x: FloatView, offsets: &[i32], rope: &Rope, (out, strides): (FloatPtr, Strides)) {
    let mut team = pool.team();
    let (dtype, round): (_, fn(f32) -> f32) = match x {
        FloatView::F32(_) => (DType::F32, <f32 as Float>::round),
        FloatView::F16(_) => (DType::F16, <f16 as Float>::round),
        FloatView::BF16(_) => (DType::BF16, <bf16 as Float>::round),
    };
    let (half, steps) = (rope.dims / 2, x.shape()[2]);
    let key = key(dtype, rope, steps, offsets);
    let numbers = team.recall(&key, offsets.len() * steps * 2 * half, |team, numbers| {
        let mut frequencies = team.take(half);
        let line: &mut [f32] = &mut bytemuck::cast_slice_mut(frequencies.words())[..half];
        match rope.periods {
            Some(periods) => line.iter_mut().zip(periods).for_each(|(f, p)| *f = 1.0 / p),
            None => {
                let frequency = |i: usize| f64::from(rope.base).powf(-(i as f64) / half as f64) as f32;
                line.iter_mut().enumerate().for_each(|(i, f)| *f = frequency(i));
            }
        }
        let angles = Angles { offsets, steps, scale: rope.scale, frequencies: line, round };
        angles.fill(team, bytemuck::cast_slice_mut(numbers));
        team.give_back(frequencies);
    });
    let table = Table { numbers: numbers.as_floats(), half, steps, offsets: offsets.len() };
    let traditional = rope.traditional;
    match (x, out) {
        (FloatView::F32(x), FloatPtr::F32(out)) => Rotate { x, out, strides, table, traditional }.run(&mut team),
        (FloatView::F16(x), FloatPtr::F16(out)) => Rotate { x, out, strides, table, traditional }.run(&mut team),
        (FloatView::BF16(x), FloatPtr::BF16(out)) => Rotate { x, out, strides, table, traditional }.run(&mut team),
        _ => unreachable!("input and output have one type"),
    }
    team.keep(&key, numbers);
}

/// All that a table depends on: the layers of a model share it.
fn key(dtype: DType, rope: &Rope, steps: usize, offsets: &[i32]) -> SmallVec<[u32; 160]> {
    let fixed = [dtype.code() as u32, rope.dims as u32, rope.base.to_bits(), rope.scale.to_bits(), steps as u32];
    let periods = rope.periods.unwrap_or_default();
    let lists = [offsets.len() as u32, periods.len() as u32];
    let offsets = offsets.iter().map(|&offset| offset as u32);
    fixed.into_iter().chain(lists).chain(offsets).chain(periods.iter().map(|p| p.to_bits())).collect()
}

/// `[offset][t][cos … sin …]`
#[derive(Clone, Copy)]
struct Table<'a> {
    numbers: &'a [f32],
    half: usize,
    steps: usize,
    offsets: usize,
}

impl Table<'_> {
    fn row(&self, batch: usize, t: usize) -> (&[f32], &[f32]) {
        let batch = if self.offsets == 1 { 0 } else { batch };
        self.numbers[(batch * self.steps + t) * 2 * self.half..][..2 * self.half].split_at(self.half)
    }
}

/// The inputs of a table of sines and cosines.
struct Angles<'a> {
    offsets: &'a [i32],
    steps: usize,
    scale: f32,
    frequencies: &'a [f32],
    round: fn(f32) -> f32,
}

impl Angles<'_> {
    /// Writes a table.
    fn fill(&self, team: &mut Team, numbers: &mut [f32]) {
        let (half, count, cpu) = (self.frequencies.len(), self.offsets.len() * self.steps, team.cpu());
        let parts = Parts::new(numbers);
        team.run_ranges(count, ROWS, 0, |rows, _| {
            for row in rows {
                // SAFETY: each row is written by one task.
                let line = unsafe { parts.slice(row * 2 * half..(row + 1) * 2 * half) };
                let position = i64::from(self.offsets[row / self.steps]) + (row % self.steps) as i64;
                let position = position as f32 * self.scale;
                let (cos, sin) = line.split_at_mut(half);
                cos.iter_mut().zip(self.frequencies).for_each(|(slot, &f)| *slot = position * f);
                sin.copy_from_slice(cos);
                apply_in_place(cpu, Unary::Cos, cos);
                apply_in_place(cpu, Unary::Sin, sin);
                cos.iter_mut().chain(sin).for_each(|v| *v = (self.round)(*v));
            }
        });
    }
}

struct Rotate<'a, T> {
    x: View<'a, T>,
    out: *mut T,
    strides: Strides,
    table: Table<'a>,
    traditional: bool,
}

// SAFETY: tasks write disjoint rows through `out`; the rest is shared.
unsafe impl<T: Sync> Sync for Rotate<'_, T> {}

struct Rows<'a, T>(&'a Rotate<'a, T>, std::ops::Range<usize>);

impl<T: Float> Kernel for Rows<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rows(task, rows) = self;
        let (shape, s, o) = (task.x.shape(), task.x.strides(), &task.strides[..]);
        for row in rows {
            let (t, head, batch) = (row % shape[2], row / shape[2] % shape[1], row / shape[2] / shape[1]);
            let index = [batch as isize, head as isize, t as isize];
            let at = |s: &[isize]| (0..3).map(|i| index[i] * s[i]).sum::<isize>();
            // SAFETY: the row's index is inside both views; each row is written by one task.
            unsafe {
                let (from, to) = (task.x.origin().offset(at(s)), task.out.offset(at(o)));
                let (cos, sin) = task.table.row(batch, t);
                task.rotate(isa, (from, s[3]), (to, o[3]), cos, sin);
                for d in 2 * task.table.half as isize..shape[3] as isize {
                    *to.offset(d * o[3]) = *from.offset(d * s[3]);
                }
            }
        }
    }
}

impl<T: Float> Rotate<'_, T> {
    fn run(&self, team: &mut Team) {
        let (width, cpu) = (self.x.shape()[3], team.cpu());
        let (count, grain) = (self.x.len() / width, (8192 / width).max(1));
        team.run_ranges(count, grain, 0, |rows, _| cpu.dispatch(Rows(self, rows)));
    }

    /// # Safety
    /// Both rows have `2 · half` elements at their steps.
    #[inline(always)]
    unsafe fn rotate<I: Isa>(
        &self,
        isa: I,
        (x, step): (*const T, isize),
        (y, out_step): (*mut T, isize),
        cos: &[f32],
        sin: &[f32],
    ) {
        let half = self.table.half;
        let mut i = 0;
        // SAFETY: the caller keeps `2 · half` elements of both rows valid at their steps; both
        // loops stay below `half`.
        unsafe {
            while !self.traditional && step == 1 && out_step == 1 && i + I::LANES <= half {
                let (a, b) = (T::load(isa, x.add(i)), T::load(isa, x.add(half + i)));
                let (c, s) = (isa.load(cos.as_ptr().add(i)), isa.load(sin.as_ptr().add(i)));
                let (ac, bs) = (T::round_lanes(isa, isa.mul(a, c)), T::round_lanes(isa, isa.mul(b, s)));
                let (sa, cb) = (T::round_lanes(isa, isa.mul(a, s)), T::round_lanes(isa, isa.mul(b, c)));
                T::store(isa, y.add(i), isa.sub(ac, bs));
                T::store(isa, y.add(half + i), isa.add(sa, cb));
                i += I::LANES;
            }
            for i in i..half {
                let (p, q) = if self.traditional { (2 * i, 2 * i + 1) } else { (i, half + i) };
                let (p, q) = (p as isize, q as isize);
                let (a, b) = ((*x.offset(p * step)).to_f32(), (*x.offset(q * step)).to_f32());
                *y.offset(p * out_step) = T::from_f32(T::round(a * cos[i]) - T::round(b * sin[i]));
                *y.offset(q * out_step) = T::from_f32(T::round(a * sin[i]) + T::round(b * cos[i]));
            }
        }
    }
}

#[cfg(test)]
mod tests;
