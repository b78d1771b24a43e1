//! Exact convolutions of integers: one product per kernel element, summed. Convolution nodes take
//! only floats.

use flambeau_ir::Tid;
use flambeau_tensor::{Expr, WindowAxis};

use super::{
    ops::{self, Emitted},
    shape::slice_axis,
};
use crate::{Lower, Refuse, call::unsupported};

/// Maximum number of kernel elements; each becomes a product.
const MAX_PLACES: usize = 256;

/// Operands and geometry of an integer convolution.
pub(super) struct IntegerConvolution<'w> {
    /// `[N, S.., C]`
    pub(super) x: Tid,
    /// `[O, K.., C / groups]`
    pub(super) weight: Tid,
    pub(super) axes: &'w [WindowAxis],
    pub(super) groups: i64,
    pub(super) transposed: bool,
}

impl IntegerConvolution<'_> {
    /// Emits the convolution; the result is `[N, S.., O]`.
    pub(super) fn emit(&self, cx: &mut Lower) -> Emitted {
        let kernel = ops::known("kernel size", &cx.spec(self.weight).dims[1..=self.axes.len()])?;
        let mut places = vec![Vec::new()];
        for &size in &kernel {
            places = places.iter().flat_map(|place| (0..size).map(|k| [&place[..], &[k]].concat())).collect();
        }
        if places.len() > MAX_PLACES {
            return unsupported(format!("a convolution of integers with {} places; compute it in floats", places.len()));
        }
        let (x, out) = self.spread(cx, &kernel)?;
        let mut total: Option<Tid> = None;
        for place in &places {
            let product = self.product(cx, x, place, &kernel, &out)?;
            total = Some(total.map_or(Ok(product), |sum| ops::add(cx, sum, product))?);
        }
        total.ok_or_else(|| Refuse::Unsupported("a convolution with an empty kernel".to_owned()))
    }

    /// Returns the padded input and the sizes of the result. A transposed convolution also gets
    /// zeros between the elements of its input.
    fn spread(&self, cx: &mut Lower, kernel: &[i64]) -> Result<(Tid, Vec<i64>), Refuse> {
        let mut x = self.x;
        let sizes = ops::known("sizes of a convolution of integers", &cx.spec(x).dims[1..=self.axes.len()])?;
        let mut out = Vec::new();
        for (i, ((walk, &size), &k)) in self.axes.iter().zip(&sizes).zip(kernel).enumerate() {
            let axis = i + 1;
            let reach = walk.dilation * (k - 1);
            if !self.transposed {
                x = padded(cx, x, axis, walk.padding, walk.padding)?;
                out.push((size + 2 * walk.padding - reach - 1) / walk.stride + 1);
                continue;
            }
            let length = (size - 1) * walk.stride + reach + 1 - 2 * walk.padding + walk.output_padding;
            x = self.with_gaps(cx, x, axis, size, walk.stride)?;
            // The windows of a transposed convolution begin `reach - padding` before the first
            // element.
            let (before, behind) = (reach - walk.padding, length + walk.padding - 1 - (size - 1) * walk.stride);
            x = padded(cx, x, axis, before.max(0), behind.max(0))?;
            if before < 0 {
                let end = Expr::Int(i64::MAX);
                x = slice_axis(cx, x, axis, &Expr::Int(-before), &end, 1)?;
            }
            out.push(length);
        }
        Ok((x, out))
    }

    /// Inserts `stride - 1` zeros between the elements of an axis.
    fn with_gaps(&self, cx: &mut Lower, x: Tid, axis: usize, size: i64, stride: i64) -> Emitted {
        if stride == 1 {
            return Ok(x);
        }
        let apart = cx.unsqueeze(x, axis + 1)?;
        let apart = padded(cx, apart, axis + 1, 0, stride - 1)?;
        let mut dims = cx.spec(x).dims.to_vec();
        dims[axis] = Expr::Int(size * stride);
        let joined = cx.reshape(apart, &dims)?;
        slice_axis(cx, joined, axis, &Expr::Int(0), &Expr::Int((size - 1) * stride + 1), 1)
    }

    /// The product for one kernel element, summed over the channels of each group.
    fn product(&self, cx: &mut Lower, x: Tid, place: &[i64], kernel: &[i64], out: &[i64]) -> Emitted {
        let (mut part, mut weight) = (x, self.weight);
        for (i, walk) in self.axes.iter().enumerate() {
            let stride = if self.transposed { 1 } else { walk.stride };
            let start = place[i] * walk.dilation;
            let end = start + (out[i] - 1) * stride + 1;
            part = slice_axis(cx, part, i + 1, &Expr::Int(start), &Expr::Int(end), stride as i32)?;
            // A transposed convolution reads its kernel in reverse.
            let at = if self.transposed { kernel[i] - 1 - place[i] } else { place[i] };
            weight = ops::take_one(cx, weight, at, 1)?;
        }
        let groups = Expr::Int(self.groups);
        let [channels, outputs] = [cx.spec(weight).dims[1].clone(), cx.spec(weight).dims[0].clone()];
        let Some(own) = outputs.exact_div(&groups) else { return unsupported("output channels do not divide into groups") };
        let lead = cx.spec(part).dims[..=self.axes.len()].to_vec();
        let part = cx.reshape(part, &[&lead[..], &[groups.clone(), Expr::Int(1), channels.clone()]].concat())?;
        let weight = cx.reshape(weight, &[groups, own, channels])?;
        let products = ops::mul(cx, part, weight)?;
        let sums = ops::sum(cx, products, &[lead.len() + 2], false)?;
        let sums = cx.cast(sums, cx.spec(self.x).dtype)?;
        cx.reshape(sums, &[&lead[..], &[outputs]].concat())
    }
}

/// Pads an axis with zeros at both ends.
fn padded(cx: &mut Lower, x: Tid, axis: usize, before: i64, behind: i64) -> Emitted {
    let mut widths = vec![(Expr::Int(0), Expr::Int(0)); cx.spec(x).rank()];
    widths[axis] = (Expr::Int(before), Expr::Int(behind));
    ops::pad(cx, x, &widths, "constant", 0.0)
}
