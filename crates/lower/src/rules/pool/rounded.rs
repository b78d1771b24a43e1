//! Means of bins over volumes in halves: PyTorch rounds after each addition and each division.

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Expr};

use super::{
    super::ops::{self, Emitted},
    adaptive::bin,
};
use crate::Lower;

/// Larger bins would take too many nodes.
const MAX_TAPS: i64 = 64;

/// The bins of a volume.
struct Bins {
    /// Place in the volume of each element of a bin, by bin; short bins repeat places.
    places: Vec<i64>,
    /// Which elements a bin has.
    present: Vec<i64>,
    /// Lengths of each bin by axis.
    lengths: Vec<Vec<f32>>,
    count: i64,
    taps: i64,
}

impl Bins {
    /// From (size, bins) by axis.
    fn of(axes: &[(i64, i64)]) -> Bins {
        let mut own = Bins { places: vec![0], present: vec![1], lengths: Vec::new(), count: 1, taps: 1 };
        for &(size, count) in axes {
            let bins: Vec<(i64, i64)> = (0..count).map(|i| bin(i, size, count)).collect();
            let longest = bins.iter().map(|(start, end)| end - start).max().unwrap_or(1);
            own = own.along(size, &bins, longest);
        }
        own
    }

    /// These bins with one more axis inside.
    fn along(&self, size: i64, bins: &[(i64, i64)], longest: i64) -> Bins {
        let (mut places, mut present) = (Vec::new(), Vec::new());
        for cell in 0..self.count {
            let range = (cell * self.taps) as usize..((cell + 1) * self.taps) as usize;
            for &(start, end) in bins {
                for (outer, is_outer) in self.places[range.clone()].iter().zip(&self.present[range.clone()]) {
                    places.extend((0..longest).map(|j| outer * size + (start + j).min(end - 1)));
                    present.extend((0..longest).map(|j| is_outer * i64::from(start + j < end)));
                }
            }
        }
        let repeat = |list: &Vec<f32>| list.iter().flat_map(|&length| vec![length; bins.len()]).collect();
        let mut lengths: Vec<Vec<f32>> = self.lengths.iter().map(repeat).collect();
        let own = bins.iter().map(|(start, end)| (end - start) as f32);
        lengths.push((0..self.count).flat_map(|_| own.clone()).collect());
        Bins { places, present, lengths, count: self.count * bins.len() as i64, taps: self.taps * longest }
    }
}

/// The mean of each bin of the last axes, given as (size, bins). Returns `None` for bins that are
/// too large.
pub(super) fn rounded_mean(cx: &mut Lower, x: Tid, axes: &[(i64, i64)]) -> Option<Emitted> {
    let longest = |&(size, count): &(i64, i64)| (0..count).map(|i| bin(i, size, count)).map(|(s, e)| e - s).max();
    let taps = axes.iter().try_fold(1i64, |n, axis| n.checked_mul(longest(axis)?))?;
    (taps <= MAX_TAPS).then(|| mean(cx, x, axes))
}

fn mean(cx: &mut Lower, x: Tid, axes: &[(i64, i64)]) -> Emitted {
    let bins = Bins::of(axes);
    let dims = cx.spec(x).dims.to_vec();
    let lead = &dims[..dims.len() - axes.len()];
    let volume: i64 = axes.iter().map(|(size, _)| size).product();
    let flat = cx.reshape(x, &[lead, &[Expr::Int(volume)]].concat())?;
    let table = [Expr::Int(bins.count), Expr::Int(bins.taps)];
    let index = cx.integers("_bins", &bins.places, DType::I64)?;
    let index = cx.reshape(index, &table)?;
    let mut taken = ops::take(cx, flat, index, lead.len())?;
    if bins.present.contains(&0) {
        let present = cx.integers("_in_bins", &bins.present, DType::Bool)?;
        let present = cx.reshape(present, &table)?;
        let zero = ops::number_like(cx, taken, 0.0)?;
        taken = ops::select(cx, present, taken, zero)?;
    }
    let axis = lead.len() + 1;
    let first = ops::take_one(cx, taken, 0, axis)?;
    let mut total = ops::fold_axis(cx, taken, axis, 1..bins.taps, first, ops::add)?;
    for (i, lengths) in bins.lengths.iter().enumerate() {
        let lengths = cx.floats(&format!("_bin_lengths_{i}"), lengths, &[lengths.len()])?;
        let lengths = cx.cast(lengths, cx.spec(x).dtype)?;
        total = ops::div(cx, total, lengths)?;
    }
    let out = axes.iter().map(|&(_, count)| Expr::Int(count));
    cx.reshape(total, &lead.iter().cloned().chain(out).collect::<Vec<_>>())
}
