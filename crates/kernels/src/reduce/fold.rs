//! Sums and extremes of floats, whole vectors at a time.

use std::ops::Range;

use super::Plan;
use crate::{
    Error, Float, FloatView, Pool,
    convert::{FloatPtr, with_float},
    simd::{Isa, Kernel},
    view::Walk,
};

/// Combination of two vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Sum,
    /// The larger; NaN if there is one.
    Max,
    /// The smaller; NaN if there is one.
    Min,
}

/// Vectors of neighbouring outputs that are reduced side by side.
pub(super) const VECTORS: usize = 8;

/// Running results of a vector's lanes.
#[derive(Clone, Copy)]
struct Lanes<V> {
    value: V,
    /// NaN in lanes that met one; sums need no such note.
    nan: V,
}

impl Fold {
    #[inline(always)]
    fn empty(self) -> f32 {
        match self {
            Fold::Sum => 0.0,
            Fold::Max => f32::NEG_INFINITY,
            Fold::Min => f32::INFINITY,
        }
    }

    #[inline(always)]
    fn step<I: Isa>(self, isa: I, acc: Lanes<I::V>, x: I::V) -> Lanes<I::V> {
        let nan = if self == Fold::Sum { acc.nan } else { isa.select(isa.is_nan(x), x, acc.nan) };
        match self {
            Fold::Sum => Lanes { value: isa.add(acc.value, x), nan },
            Fold::Max => Lanes { value: isa.max(acc.value, x), nan },
            Fold::Min => Lanes { value: isa.min(acc.value, x), nan },
        }
    }

    /// The results of each lane.
    #[inline(always)]
    fn settle<I: Isa>(self, isa: I, acc: Lanes<I::V>) -> I::V {
        if self == Fold::Sum { acc.value } else { isa.select(isa.is_nan(acc.nan), acc.nan, acc.value) }
    }

    /// Joins the results of each lane.
    #[inline(always)]
    fn both<I: Isa>(self, isa: I, x: I::V, y: I::V) -> I::V {
        let first = Lanes { value: x, nan: isa.select(isa.is_nan(x), x, isa.splat(0.0)) };
        self.settle(isa, self.step(isa, first, y))
    }

    /// All lanes' results in one.
    #[inline(always)]
    fn join<I: Isa>(self, isa: I, [a, b, c, d]: [Lanes<I::V>; 4]) -> f32 {
        let low = self.both(isa, self.settle(isa, a), self.settle(isa, b));
        let joined = self.both(isa, low, self.both(isa, self.settle(isa, c), self.settle(isa, d)));
        if self == Fold::Sum {
            return isa.sum(joined);
        }
        let mut lanes = [0.0; 16];
        // SAFETY: LANES is at most 16.
        unsafe { isa.store(lanes.as_mut_ptr(), joined) };
        lanes[1..I::LANES].iter().fold(lanes[0], |best, &x| self.two(best, x))
    }

    /// Joins two results.
    #[inline(always)]
    fn two(self, a: f32, b: f32) -> f32 {
        let is_better = match self {
            Fold::Sum => return a + b,
            Fold::Max => b > a,
            Fold::Min => b < a,
        };
        if !a.is_nan() && (b.is_nan() || is_better) { b } else { a }
    }
}

/// The result for each index of the kept axes, row-major. `axes` are distinct and inside the rank.
pub(super) fn fold(pool: &Pool, x: &FloatView, axes: &[usize], fold: Fold) -> Result<Vec<f32>, Error> {
    let plan = Plan::new(x.shape(), x.strides(), axes)?;
    let (cpu, origin) = (pool.cpu(), x.origin());
    let task = |outputs, elements, slot: &mut [f32]| cpu.dispatch(Task { origin, plan: &plan, fold, outputs, elements, slot });
    Ok(plan.run(pool, (fold.empty(), VECTORS * cpu.lanes()), task, |a, b| fold.two(a, b)))
}

struct Task<'a> {
    origin: FloatPtr,
    plan: &'a Plan,
    fold: Fold,
    outputs: Range<usize>,
    elements: Range<usize>,
    slot: &'a mut [f32],
}

impl Kernel for Task<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Task { origin, plan, fold, outputs, elements, slot } = self;
        with_float!(origin, p => {
            Folding { origin: p.cast_const(), reduced: &plan.reduced, elements, fold }.run(isa, &plan.kept, outputs, slot)
        });
    }
}

struct Folding<'a, F> {
    origin: *const F,
    reduced: &'a Walk<1>,
    elements: Range<usize>,
    fold: Fold,
}

impl<F: Float> Folding<'_, F> {
    #[inline(always)]
    fn run<I: Isa>(&self, isa: I, kept: &Walk<1>, outputs: Range<usize>, mut slot: &mut [f32]) {
        let ([across], [along]) = (kept.inner(), self.reduced.inner());
        for ([at], n) in kept.each_run(outputs.start, outputs.end) {
            let (own, rest) = std::mem::take(&mut slot).split_at_mut(n);
            slot = rest;
            let mut i = 0;
            while i < n {
                let base = at + i as isize * across;
                let mut results = [0.0; VECTORS * 16];
                let width = match n - i {
                    left if across != 1 || along == 1 || left < I::LANES => {
                        results[0] = self.row(isa, base);
                        1
                    }
                    left if left >= VECTORS * I::LANES => self.columns::<I, VECTORS>(isa, base, &mut results),
                    _ => self.columns::<I, 1>(isa, base, &mut results),
                };
                own[i..i + width].copy_from_slice(&results[..width]);
                i += width;
            }
        }
    }

    #[inline(always)]
    fn empty<I: Isa>(&self, isa: I) -> Lanes<I::V> {
        Lanes { value: isa.splat(self.fold.empty()), nan: isa.splat(0.0) }
    }

    /// One output.
    #[inline(always)]
    fn row<I: Isa>(&self, isa: I, base: isize) -> f32 {
        let ([step], fold) = (self.reduced.inner(), self.fold);
        let mut lanes = [self.empty(isa); 4];
        for ([at], n) in self.reduced.each_run(self.elements.start, self.elements.end) {
            // SAFETY: the walks stay inside the view.
            let p = unsafe { self.origin.offset(base + at) };
            let fours = if step == 1 { n / (4 * I::LANES) * (4 * I::LANES) } else { 0 };
            for i in (0..fours).step_by(4 * I::LANES) {
                for (v, lanes) in lanes.iter_mut().enumerate() {
                    // SAFETY: the run's `n` elements are inside the view, and the vector ends
                    // before `fours`.
                    *lanes = fold.step(isa, *lanes, unsafe { F::load(isa, p.add(i + v * I::LANES)) });
                }
            }
            let mut rest = [fold.empty(); 16];
            for first in (fours..n).step_by(I::LANES) {
                let count = I::LANES.min(n - first);
                for (i, x) in rest[..I::LANES].iter_mut().enumerate() {
                    // SAFETY: the run's `n` elements are inside the view, and `first + i` is below
                    // `n`.
                    *x = if i < count { unsafe { (*p.offset((first + i) as isize * step)).to_f32() } } else { fold.empty() };
                }
                // SAFETY: LANES is at most 16.
                lanes[0] = fold.step(isa, lanes[0], unsafe { isa.load(rest.as_ptr()) });
            }
        }
        fold.join(isa, lanes)
    }

    /// `V` vectors of neighbouring outputs; how many outputs that are.
    #[inline(always)]
    fn columns<I: Isa, const V: usize>(&self, isa: I, base: isize, results: &mut [f32; VECTORS * 16]) -> usize {
        let ([step], fold) = (self.reduced.inner(), self.fold);
        let mut lanes = [self.empty(isa); V];
        for ([at], n) in self.reduced.each_run(self.elements.start, self.elements.end) {
            for i in 0..n as isize {
                // SAFETY: the walks stay inside the view, where these outputs' elements are
                // neighbours.
                let line = unsafe { self.origin.offset(base + at + i * step) };
                for (v, lanes) in lanes.iter_mut().enumerate() {
                    // SAFETY: the walks stay inside the view, where `V` vectors of neighbouring
                    // outputs start at `line`.
                    *lanes = fold.step(isa, *lanes, unsafe { F::load(isa, line.add(v * I::LANES)) });
                }
            }
        }
        for (v, lanes) in lanes.into_iter().enumerate() {
            // SAFETY: `results` has room for all vectors.
            unsafe { isa.store(results.as_mut_ptr().add(v * I::LANES), fold.settle(isa, lanes)) };
        }
        V * I::LANES
    }
}
