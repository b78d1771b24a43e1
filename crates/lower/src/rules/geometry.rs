//! How windows walk over an axis: what convolutions, pooling and patches share.

use flambeau_tensor::Expr;

use crate::{Call, Refuse, call::unsupported};

/// An argument with one entry per axis, or one for all; `None` if it is absent or empty.
pub(super) fn per_axis(call: &Call, param: &str, n: usize) -> Result<Option<Vec<i64>>, Refuse> {
    let list = call.ints_opt(param)?.filter(|l| !l.is_empty());
    list.map(|l| match l.len() {
        1 => Ok(vec![l[0]; n]),
        len if len == n => Ok(l),
        len => unsupported(format!("`{param}` has {len} entries for {n} axes")),
    })
    .transpose()
}

/// Input elements that `taps` taps span, `dilation` apart.
pub(super) fn span(taps: i64, dilation: i64) -> i64 {
    dilation * (taps - 1) + 1
}

/// The windows along one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Windows {
    pub(super) kernel: i64,
    pub(super) stride: i64,
    /// Elements added at either end.
    pub(super) padding: i64,
    pub(super) dilation: i64,
}

impl Windows {
    /// The windows over `n` axes that a call describes by `kernel_size`, `stride` (by default the kernel's), `padding` and
    /// `dilation`.
    pub(super) fn of_call(call: &Call, n: usize) -> Result<Vec<Windows>, Refuse> {
        let kernel = per_axis(call, "kernel_size", n)?.ok_or_else(|| Refuse::Missing("kernel_size".into()))?;
        let stride = per_axis(call, "stride", n)?.unwrap_or_else(|| kernel.clone());
        let padding = per_axis(call, "padding", n)?.unwrap_or_else(|| vec![0; n]);
        let dilation = per_axis(call, "dilation", n)?.unwrap_or_else(|| vec![1; n]);
        let axis = |i: usize| {
            let (kernel, stride, padding, dilation) = (kernel[i], stride[i], padding[i], dilation[i]);
            if kernel < 1 || stride < 1 || padding < 0 || dilation < 1 {
                return unsupported(format!("windows of {kernel} with stride {stride}, padding {padding}, dilation {dilation}"));
            }
            Ok(Windows { kernel, stride, padding, dilation })
        };
        (0..n).map(axis).collect()
    }

    /// Windows that lie side by side.
    pub(super) fn tiling(kernel: i64) -> Windows {
        Windows { kernel, stride: kernel, padding: 0, dilation: 1 }
    }

    /// Whether windows lie side by side.
    pub(super) fn tile(&self) -> bool {
        *self == Windows::tiling(self.kernel)
    }

    /// Elements from a window's first to its last.
    pub(super) fn span(&self) -> i64 {
        span(self.kernel, self.dilation)
    }

    /// Number of windows that fit an axis of that size.
    pub(super) fn count(&self, size: &Expr) -> Expr {
        (size.clone() + Expr::Int(2 * self.padding - self.span())).floor_div(&Expr::Int(self.stride)) + Expr::Int(1)
    }

    /// Number of windows of which the last may reach beyond the padded axis, but not start there.
    pub(super) fn count_up(&self, size: i64) -> i64 {
        let room = size + 2 * self.padding - self.span();
        let n = (room + self.stride - 1).div_euclid(self.stride) + 1;
        if (n - 1) * self.stride >= size + self.padding { n - 1 } else { n }
    }

    /// Where tap `tap` of window `window` lies in the padded axis.
    pub(super) fn place(&self, window: i64, tap: i64) -> i64 {
        window * self.stride + tap * self.dilation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_pytorch_counts_them() {
        let w = Windows { kernel: 3, stride: 2, padding: 1, dilation: 2 };
        assert_eq!((w.span(), w.place(2, 1)), (5, 6));
        // `torch.nn.functional.max_pool1d` of 8 and 9 elements, rounded down and up.
        assert_eq!([8, 9].map(|n| w.count(&Expr::Int(n)).as_int()), [Some(3), Some(4)]);
        assert_eq!([8, 9].map(|n| w.count_up(n)), [4, 4]);
        // A window that would start in the right padding is dropped.
        let w = Windows { kernel: 1, stride: 3, padding: 0, dilation: 1 };
        assert_eq!(w.count_up(3), 1);
    }
}
