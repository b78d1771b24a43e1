//! Reductions over any axes.
//!
//! The order of accumulation follows from the shape and the strides alone. Floats accumulate in `f32`.

mod fold;
mod ops;

use flambeau_tensor::{DType, Element, Shape};
use half::{bf16, f16};
use smallvec::SmallVec;

use crate::{
    Error, Pool, View,
    error::same,
    pool::Parts,
    simd::{Isa, Kernel},
    view::Walk,
};
use fold::Fold;
pub use ops::{Numeric, Ordered, all, any, argmax, argmin, logsumexp, max, mean, min, prod, sum, var};

/// Elements that one task reads at least.
const GRAIN: usize = 1 << 14;

/// Elements of a part, where few outputs take many elements each.
const PART: usize = 1 << 16;

/// Partial results kept side by side, so that the compiler can keep them in vectors.
const LANES: usize = 16;

/// Outputs reduced side by side where neighbouring elements belong to neighbouring outputs.
const COLUMNS: usize = 64;

/// A way to reduce elements `T`.
pub(crate) trait Reducer<T>: Sync {
    type Acc: Copy + Send + Sync;
    /// How whole vectors of floats reduce to a float, where this is such a reduction.
    const FOLD: Option<Fold> = None;
    /// The result that such a float stands for.
    fn folded(&self, _: f32) -> Self::Acc {
        self.empty()
    }
    /// The result of no elements.
    fn empty(&self) -> Self::Acc;
    /// Adds element `x`, the `i`th of output `out`.
    fn step(&self, acc: Self::Acc, x: T, i: usize, out: usize) -> Self::Acc;
    /// Joins two results.
    fn join(&self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// A reduction laid out: outputs by the kept axes, elements by the reduced ones.
struct Plan<'a, T, R> {
    x: &'a View<'a, T>,
    kept: Walk<1>,
    reduced: Walk<1>,
    reducer: &'a R,
}

/// The result for each index of the kept axes, row-major. `axes` are distinct and inside the rank.
pub(crate) fn reduce<T: Element, R: Reducer<T>>(
    pool: &Pool,
    x: &View<T>,
    axes: &[usize],
    reducer: &R,
) -> Result<Vec<R::Acc>, Error> {
    let (kept, reduced) = split_axes(x, axes)?;
    let outputs: usize = kept.0.iter().product();
    let count: usize = reduced.0.iter().product();
    if outputs == 0 || count == 0 {
        return Ok(vec![reducer.empty(); outputs]);
    }
    let plan = Plan { x, kept: Walk::new(&kept.0, [&kept.1]), reduced: Walk::new(&reduced.0, [&reduced.1]), reducer };
    let parts = if outputs < 8 { count.div_ceil(PART) } else { 1 };
    let mut results = vec![reducer.empty(); outputs * parts];
    let slots = Parts::new(&mut results);
    if parts > 1 {
        pool.run(outputs * parts, |task| {
            let (out, part) = (task / parts, task % parts);
            // SAFETY: each task has its own slot.
            let slot = unsafe { slots.slice(task..task + 1) };
            pool.dispatch(Task { plan: &plan, outputs: out..out + 1, elements: part * PART..count.min((part + 1) * PART), slot });
        });
        return Ok(results.chunks_exact(parts).map(|p| p[1..].iter().fold(p[0], |a, &b| reducer.join(a, b))).collect());
    }
    let columns = if R::FOLD.is_some() && T::DTYPE.is_float() { fold::VECTORS * pool.cpu().lanes() } else { COLUMNS };
    let grain = (GRAIN / count).max(1).next_multiple_of(if outputs >= 2 * columns { columns } else { 1 });
    pool.run_ranges(outputs, grain, |r| {
        // SAFETY: the ranges are disjoint.
        let slot = unsafe { slots.slice(r.clone()) };
        pool.dispatch(Task { plan: &plan, outputs: r, elements: 0..count, slot });
    });
    Ok(results)
}

type Axes = (Shape, SmallVec<[isize; 6]>);

fn split_axes<T>(x: &View<T>, axes: &[usize]) -> Result<(Axes, Axes), Error> {
    let (mut kept, mut reduced) = (Axes::default(), Axes::default());
    if let Some(&axis) = axes.iter().find(|&&a| a >= x.rank()) {
        return Err(Error::Parameter { what: "axis of a reduction", found: axis as i64 });
    }
    for axis in 0..x.rank() {
        let hits = axes.iter().filter(|&&a| a == axis).count();
        same("occurrences of an axis in a reduction", hits.min(1), hits)?;
        let to = if hits == 1 { &mut reduced } else { &mut kept };
        to.0.push(x.shape()[axis]);
        to.1.push(x.strides()[axis]);
    }
    Ok((kept, reduced))
}

struct Task<'a, T, R: Reducer<T>> {
    plan: &'a Plan<'a, T, R>,
    outputs: std::ops::Range<usize>,
    elements: std::ops::Range<usize>,
    slot: &'a mut [R::Acc],
}

impl<T: Element, R: Reducer<T>> Kernel for Task<'_, T, R> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        if R::FOLD.is_some() {
            match T::DTYPE {
                DType::F32 => return self.fold::<f32, I>(isa),
                DType::F16 => return self.fold::<f16, I>(isa),
                DType::BF16 => return self.fold::<bf16, I>(isa),
                _ => {}
            }
        }
        let ([across], [along]) = (self.plan.kept.inner(), self.plan.reduced.inner());
        let mut slot = 0;
        let plan = self.plan;
        let first = self.outputs.start;
        let side_by_side = across == 1 && along != 1;
        plan.kept.runs(self.outputs.start, self.outputs.end, |[at], n| {
            let mut i = 0;
            while i < n {
                let base = at + i as isize * across;
                if side_by_side && n - i >= LANES {
                    let width = COLUMNS.min(n - i);
                    self.columns(base, first + slot, slot, width);
                    (i, slot) = (i + width, slot + width);
                } else {
                    self.slot[slot] = self.row(base, first + slot);
                    (i, slot) = (i + 1, slot + 1);
                }
            }
        });
    }
}

impl<T: Element, R: Reducer<T>> Task<'_, T, R> {
    /// One output.
    #[inline(always)]
    fn row(&self, base: isize, out: usize) -> R::Acc {
        let (plan, r) = (self.plan, self.plan.reducer);
        let [step] = plan.reduced.inner();
        let mut lanes = [r.empty(); LANES];
        let mut number = self.elements.start;
        plan.reduced.runs(self.elements.start, self.elements.end, |[at], n| {
            // SAFETY: the walks stay inside the view.
            let p = unsafe { plan.x.origin().offset(base + at) };
            let whole = if step == 1 { n / LANES * LANES } else { 0 };
            for i in (0..whole).step_by(LANES) {
                for (lane, acc) in lanes.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *acc = r.step(*acc, unsafe { *p.add(i + lane) }, number + i + lane, out);
                }
            }
            for i in whole..n {
                // SAFETY: as above.
                lanes[i % LANES] = r.step(lanes[i % LANES], unsafe { *p.offset(i as isize * step) }, number + i, out);
            }
            number += n;
        });
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = r.join(lanes[i], lanes[i + width]);
            }
        }
        lanes[0]
    }

    /// `width` neighbouring outputs.
    #[inline(always)]
    fn columns(&mut self, base: isize, out: usize, slot: usize, width: usize) {
        let (plan, r) = (self.plan, self.plan.reducer);
        let [step] = plan.reduced.inner();
        let mut accs = [r.empty(); COLUMNS];
        let mut number = self.elements.start;
        plan.reduced.runs(self.elements.start, self.elements.end, |[at], n| {
            // SAFETY: the walks stay inside the view, where these outputs' elements are neighbours.
            let line =
                |i: usize| unsafe { std::slice::from_raw_parts(plan.x.origin().offset(base + at + i as isize * step), width) };
            let fours = n / 4 * 4;
            for i in (0..fours).step_by(4) {
                let [a, b, c, d] = [line(i), line(i + 1), line(i + 2), line(i + 3)];
                for (j, acc) in accs[..width].iter_mut().enumerate() {
                    let two = r.step(r.step(*acc, a[j], number + i, out + j), b[j], number + i + 1, out + j);
                    *acc = r.step(r.step(two, c[j], number + i + 2, out + j), d[j], number + i + 3, out + j);
                }
            }
            for i in fours..n {
                for (j, (acc, &x)) in accs.iter_mut().zip(line(i)).enumerate() {
                    *acc = r.step(*acc, x, number + i, out + j);
                }
            }
            number += n;
        });
        self.slot[slot..slot + width].copy_from_slice(&accs[..width]);
    }
}

#[cfg(test)]
mod tests;
