//! Geometry of sliding windows on an axis, shared by convolutions, pooling and patches.

use flambeau_tensor::{Expr, WindowAxis};

use crate::{Call, Refuse, call::unsupported};

/// An argument with one entry per axis or one entry for all axes; `None` if absent or empty.
pub(super) fn per_axis(call: &Call, param: &str, n: usize) -> Result<Option<Vec<i64>>, Refuse> {
    let list = call.ints_opt(param)?.filter(|l| !l.is_empty());
    list.map(|l| match l.len() {
        1 => Ok(vec![l[0]; n]),
        len if len == n => Ok(l),
        len => unsupported(format!("`{param}` has {len} entries for {n} axes")),
    })
    .transpose()
}

/// An argument with one entry per axis; all entries are `default` if it is absent or empty.
pub(super) fn per_axis_or(call: &Call, param: &str, default: i64, n: usize) -> Result<Vec<i64>, Refuse> {
    Ok(per_axis(call, param, n)?.unwrap_or_else(|| vec![default; n]))
}

/// The windows along one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Windows {
    pub(super) kernel: i64,
    pub(super) walk: WindowAxis,
}

impl Windows {
    /// The windows over `n` axes, from a call's `kernel_size`, `stride` (default: the kernel size),
    /// `padding` and `dilation`.
    pub(super) fn of_call(call: &Call, n: usize) -> Result<Vec<Windows>, Refuse> {
        let kernel = per_axis(call, "kernel_size", n)?.ok_or_else(|| Refuse::Missing("kernel_size".into()))?;
        let stride = per_axis(call, "stride", n)?.unwrap_or_else(|| kernel.clone());
        let (padding, dilation) = (per_axis_or(call, "padding", 0, n)?, per_axis_or(call, "dilation", 1, n)?);
        let axis = |i: usize| {
            let walk = WindowAxis { stride: stride[i], padding: padding[i], dilation: dilation[i], output_padding: 0 };
            if kernel[i] < 1 || walk.stride < 1 || walk.padding < 0 || walk.dilation < 1 {
                let WindowAxis { stride, padding, dilation, .. } = walk;
                return unsupported(format!(
                    "windows of {} with stride {stride}, padding {padding}, dilation {dilation}",
                    kernel[i]
                ));
            }
            Ok(Windows { kernel: kernel[i], walk })
        };
        (0..n).map(axis).collect()
    }

    /// Adjacent windows: the stride equals the kernel size.
    pub(super) fn tiling(kernel: i64) -> Windows {
        Windows { kernel, walk: WindowAxis { stride: kernel, ..WindowAxis::default() } }
    }

    /// Whether the windows are adjacent.
    pub(super) fn tile(&self) -> bool {
        *self == Windows::tiling(self.kernel)
    }

    /// Number of elements from a window's first to its last.
    pub(super) fn span(&self) -> i64 {
        self.walk.span(self.kernel)
    }

    /// Number of windows that fit an axis of this size.
    pub(super) fn count(&self, size: &Expr) -> Expr {
        self.walk.windows(size, &Expr::Int(self.kernel))
    }

    /// Number of windows, rounded up: the last one may end beyond the padded axis, but starts
    /// before the right padding.
    pub(super) fn count_up(&self, size: i64) -> i64 {
        let WindowAxis { stride, padding, .. } = self.walk;
        let room = size + 2 * padding - self.span();
        let n = (room + stride - 1).div_euclid(stride) + 1;
        if (n - 1) * stride >= size + padding { n - 1 } else { n }
    }

    /// Index of tap `tap` of window `window` in the padded axis.
    pub(super) fn place(&self, window: i64, tap: i64) -> i64 {
        window * self.walk.stride + tap * self.walk.dilation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_pytorch_counts_them() {
        let w = Windows { kernel: 3, walk: WindowAxis { stride: 2, padding: 1, dilation: 2, output_padding: 0 } };
        assert_eq!((w.span(), w.place(2, 1)), (5, 6));
        // `torch.nn.functional.max_pool1d` of 8 and 9 elements, rounded down and up.
        assert_eq!([8, 9].map(|n| w.count(&Expr::Int(n)).as_int()), [Some(3), Some(4)]);
        assert_eq!([8, 9].map(|n| w.count_up(n)), [4, 4]);
        // A window that would start in the right padding is dropped.
        let w = Windows { kernel: 1, walk: WindowAxis { stride: 3, ..WindowAxis::default() } };
        assert_eq!(w.count_up(3), 1);
    }
}
