//! Quantized matrices, computed on several threads.

use std::ops::Range;

use flambeau_ir::QuantMode;
use flambeau_lower::{QuantPart, Scheme};
use flambeau_tensor::{AlignedBytes, DType, Tensor};

use super::{Fitted, Importance, widen};
use crate::{InputStatistics, quantize::with_columns};

/// Quantized matrices.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    codes: Tensor,
    scales: Tensor,
    /// Biases of affine codes.
    biases: Option<Tensor>,
}

impl Parts {
    /// Computes quantized matrices `[.., N, K]` on several threads. Each thread holds a few rows of
    /// floats at a time. With statistics of the inputs, affine codes have the least error of the
    /// products with such inputs, whatever the scheme's fit.
    pub(crate) fn new(
        weight: &Tensor,
        scheme: Scheme,
        inputs: Option<&InputStatistics>,
        threads: usize,
    ) -> Result<Parts, flambeau_tensor::Error> {
        let columns = weight.shape().last().copied().unwrap_or(0);
        let rows = weight.numel() / columns.max(1);
        let is_affine = scheme.mode == QuantMode::Affine;
        let importance = Importance::new(weight.shape(), inputs.filter(|_| is_affine), scheme.bits);
        let (words, groups) = (columns * usize::from(scheme.bits) / 32, columns / scheme.group_size as usize);
        let dtype = if is_affine { weight.dtype() } else { DType::U8 };
        let biases = if is_affine { groups } else { 0 };
        let widths = [words * DType::U32.size(), groups * dtype.size(), biases * dtype.size()];
        let mut outs = widths.map(|width| AlignedBytes::zeroed(rows * width));
        let source = weight.bytes();
        let row_bytes = columns * weight.dtype().size();
        let together = importance.batch_rows();
        rows_in_parallel(outs.each_mut().map(AlignedBytes::as_mut_slice), (rows, widths), threads, |run, mut outs| {
            let (mut values, mut codes) = (vec![0.0; together * columns], vec![0; together * columns]);
            for first in run.clone().step_by(together) {
                let n = together.min(run.end - first);
                let (values, codes) = (&mut values[..n * columns], &mut codes[..n * columns]);
                widen(&source[first * row_bytes..][..n * row_bytes], weight.dtype(), values);
                let fitted = Fitted { values, scheme, dtype: weight.dtype(), importance: &importance, first };
                fitted.write(codes, split_off(&mut outs, widths.map(|width| n * width)));
            }
        });
        let [codes, scales, biases] = outs.map(AlignedBytes::into_bytes);
        let of = |dtype, width, bytes| Tensor::new(dtype, &with_columns(weight.shape(), width), bytes);
        Ok(Parts {
            codes: of(DType::U32, words, codes)?,
            scales: of(dtype, groups, scales)?,
            biases: is_affine.then(|| of(dtype, groups, biases)).transpose()?,
        })
    }

    /// One of the parts. `None` if the scheme has no such part.
    pub(crate) fn get(&self, part: QuantPart) -> Option<&Tensor> {
        match part {
            QuantPart::Codes => Some(&self.codes),
            QuantPart::Scales => Some(&self.scales),
            QuantPart::Biases => self.biases.as_ref(),
        }
    }
}

/// Takes bytes from the starts of slices.
fn split_off<'a>(rest: &mut [&'a mut [u8]; 3], bytes: [usize; 3]) -> [&'a mut [u8]; 3] {
    let mut bytes = bytes.into_iter();
    rest.each_mut().map(|rest| {
        let (taken, after) = std::mem::take(rest).split_at_mut(bytes.next().unwrap_or(0));
        *rest = after;
        taken
    })
}

/// Splits rows of results, with widths in bytes, into runs of rows, one per thread. `f` receives
/// the numbers of a run's rows, and the run.
fn rows_in_parallel(
    mut outs: [&mut [u8]; 3],
    (rows, widths): (usize, [usize; 3]),
    threads: usize,
    f: impl Fn(Range<usize>, [&mut [u8]; 3]) + Sync,
) {
    let run = rows.div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for first in (0..rows).step_by(run) {
            let rows = first..rows.min(first + run);
            let part = split_off(&mut outs, widths.map(|width| rows.len() * width));
            let f = &f;
            scope.spawn(move || f(rows, part));
        }
    });
}
