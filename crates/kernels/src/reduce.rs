//! Reductions over any axes.
//!
//! The order of accumulation follows from the shape and the strides alone. Floats accumulate in
//! `f32`.

mod fold;
mod ops;

use std::ops::Range;

use flambeau_tensor::{Element, Shape};
use smallvec::SmallVec;

use crate::{
    Error, Pool, View,
    error::same,
    pool::Parts,
    simd::{Isa, Kernel},
    view::Walk,
};
use fold::{Fold, fold};
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
    /// The result of no elements.
    fn empty(&self) -> Self::Acc;
    /// Adds element `x`, the `i`th of output `out`.
    fn step(&self, acc: Self::Acc, x: T, i: usize, out: usize) -> Self::Acc;
    /// Joins two results.
    fn join(&self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// A reduction laid out: outputs by the kept axes, elements by the reduced ones.
struct Plan {
    kept: Walk<1>,
    reduced: Walk<1>,
    /// Outputs, and elements of each.
    size: [usize; 2],
}

impl Plan {
    /// `axes` are distinct and inside the rank.
    fn new(shape: &[usize], strides: &[isize], axes: &[usize]) -> Result<Plan, Error> {
        let (kept, reduced) = split_axes(shape, strides, axes)?;
        let size = [kept.0.iter().product(), reduced.0.iter().product()];
        Ok(Plan { kept: Walk::new(&kept.0, [&kept.1]), reduced: Walk::new(&reduced.0, [&reduced.1]), size })
    }

    /// The result for each output, row-major. `task` reduces a range of elements for a range of
    /// outputs into the passed results. Reducing `columns` outputs together is fastest.
    fn run<A: Copy + Send + Sync>(
        &self,
        pool: &Pool,
        (empty, columns): (A, usize),
        task: impl Fn(Range<usize>, Range<usize>, &mut [A]) + Sync,
        join: impl Fn(A, A) -> A,
    ) -> Vec<A> {
        let [outputs, count] = self.size;
        if outputs == 0 || count == 0 {
            return vec![empty; outputs];
        }
        let parts = if outputs < 8 { count.div_ceil(PART) } else { 1 };
        let mut results = vec![empty; outputs * parts];
        let slots = Parts::new(&mut results);
        if parts > 1 {
            pool.run(outputs * parts, |i| {
                let (out, part) = (i / parts, i % parts);
                // SAFETY: each task has its own slot.
                let slot = unsafe { slots.slice(i..i + 1) };
                task(out..out + 1, part * PART..count.min((part + 1) * PART), slot);
            });
            return results.chunks_exact(parts).map(|p| p[1..].iter().fold(p[0], |a, &b| join(a, b))).collect();
        }
        let grain = (GRAIN / count).max(1).next_multiple_of(if outputs >= 2 * columns { columns } else { 1 });
        pool.run_ranges(outputs, grain, |r| {
            // SAFETY: the ranges are disjoint.
            let slot = unsafe { slots.slice(r.clone()) };
            task(r, 0..count, slot);
        });
        results
    }
}

/// The result for each index of the kept axes, row-major. `axes` are distinct and inside the rank.
pub(crate) fn reduce<T: Element, R: Reducer<T>>(
    pool: &Pool,
    x: &View<T>,
    axes: &[usize],
    reducer: &R,
) -> Result<Vec<R::Acc>, Error> {
    let plan = Plan::new(x.shape(), x.strides(), axes)?;
    let task = |outputs, elements, slot: &mut [R::Acc]| {
        pool.cpu().dispatch_plain(Task { x, plan: &plan, reducer, outputs, elements, slot });
    };
    Ok(plan.run(pool, (reducer.empty(), COLUMNS), task, |a, b| reducer.join(a, b)))
}

type Axes = (Shape, SmallVec<[isize; 6]>);

fn split_axes(shape: &[usize], strides: &[isize], axes: &[usize]) -> Result<(Axes, Axes), Error> {
    let (mut kept, mut reduced) = (Axes::default(), Axes::default());
    if let Some(&axis) = axes.iter().find(|&&a| a >= shape.len()) {
        return Err(Error::Parameter { what: "axis of a reduction", found: axis as i64 });
    }
    for axis in 0..shape.len() {
        let hits = axes.iter().filter(|&&a| a == axis).count();
        same("occurrences of an axis in a reduction", hits.min(1), hits)?;
        let to = if hits == 1 { &mut reduced } else { &mut kept };
        to.0.push(shape[axis]);
        to.1.push(strides[axis]);
    }
    Ok((kept, reduced))
}

struct Task<'a, T, R: Reducer<T>> {
    x: &'a View<'a, T>,
    plan: &'a Plan,
    reducer: &'a R,
    outputs: Range<usize>,
    elements: Range<usize>,
    slot: &'a mut [R::Acc],
}

impl<T: Element, R: Reducer<T>> Kernel for Task<'_, T, R> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(mut self, _: I) {
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
        let (plan, r) = (self.plan, self.reducer);
        let [step] = plan.reduced.inner();
        let mut lanes = [r.empty(); LANES];
        let mut number = self.elements.start;
        plan.reduced.runs(self.elements.start, self.elements.end, |[at], n| {
            // SAFETY: the walks stay inside the view.
            let p = unsafe { self.x.origin().offset(base + at) };
            let whole = if step == 1 { n / LANES * LANES } else { 0 };
            for i in (0..whole).step_by(LANES) {
                for (lane, acc) in lanes.iter_mut().enumerate() {
                    // SAFETY: the run's `n` elements are inside the view, and `i + lane` is below
                    // `n`.
                    *acc = r.step(*acc, unsafe { *p.add(i + lane) }, number + i + lane, out);
                }
            }
            for i in whole..n {
                // SAFETY: the run's `n` elements are inside the view, and `i` is below `n`.
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
        let (plan, r) = (self.plan, self.reducer);
        let [step] = plan.reduced.inner();
        let mut accs = [r.empty(); COLUMNS];
        let mut number = self.elements.start;
        plan.reduced.runs(self.elements.start, self.elements.end, |[at], n| {
            // SAFETY: the walks stay inside the view, where these outputs' elements are neighbours.
            let line =
                |i: usize| unsafe { std::slice::from_raw_parts(self.x.origin().offset(base + at + i as isize * step), width) };
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
