//! The running softmax state over keys, and the merge of the states of two ranges of keys.

use crate::{
    math::exp,
    simd::{Isa, Kernel},
};

/// Layout of a tile's state: weighted values `[value column][row]`, then a row of maxima and a row
/// of sums of exponentials.
pub(super) struct State;

impl State {
    /// Elements of a state of `rows` rows.
    pub(super) fn len(width: usize, rows: usize) -> usize {
        (width + 2) * rows
    }
}

/// Merges the state `part` into `whole`.
pub(super) struct Join<'a> {
    pub(super) whole: &'a mut [f32],
    pub(super) part: &'a [f32],
    pub(super) width: usize,
    /// Rows of both, a multiple of LANES.
    pub(super) rows: usize,
}

impl Kernel for Join<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Join { whole, part, width, rows } = self;
        assert!(whole.len() >= State::len(width, rows) && part.len() >= State::len(width, rows), "states have one size");
        for r in (0..rows).step_by(I::LANES) {
            // SAFETY: by the assertion.
            unsafe {
                let (a, b) = (whole.as_mut_ptr().add(r), part.as_ptr().add(r));
                let tops = (isa.load(a.add(width * rows)), isa.load(b.add(width * rows)));
                let top = isa.max(tops.0, tops.1);
                let base = finite(isa, top);
                let (fa, fb) = (weight(isa, tops.0, base), weight(isa, tops.1, base));
                isa.store(a.add(width * rows), top);
                for i in (0..width).chain([width + 1]) {
                    let (a, b) = (a.add(i * rows), isa.load(b.add(i * rows)));
                    isa.store(a, isa.fma(b, fb, isa.mul(isa.load(a), fa)));
                }
            }
        }
    }
}

/// `x`, or 0 where it is −∞.
#[inline(always)]
pub(super) fn finite<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.select(isa.lt(x, isa.splat(f32::MIN)), isa.splat(0.0), x)
}

/// e^(score − base), 0 for a score of −∞.
#[inline(always)]
pub(super) fn weight<I: Isa>(isa: I, score: I::V, base: I::V) -> I::V {
    isa.select(isa.lt(score, isa.splat(f32::MIN)), isa.splat(0.0), exp(isa, isa.sub(score, base)))
}
