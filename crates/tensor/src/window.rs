//! Windows on an axis, for convolutions, pooling and patches.

use std::ops::{Add, Mul, Sub};

use crate::Expr;

/// Steps of a window along one axis, for convolution, pooling and patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Steps between outputs (of a transposed convolution: between inputs).
    pub stride: i64,
    /// Elements added at either end (of a transposed convolution: outputs cut off there).
    pub padding: i64,
    /// Steps between taps.
    pub dilation: i64,
    /// Outputs that a transposed convolution adds at the end; 0 otherwise.
    pub output_padding: i64,
}

impl Default for WindowAxis {
    fn default() -> WindowAxis {
        WindowAxis { stride: 1, padding: 0, dilation: 1, output_padding: 0 }
    }
}

impl WindowAxis {
    /// Elements from the first to the last of `taps` taps.
    pub fn span<N>(&self, taps: N) -> N
    where
        N: From<i64> + Add<Output = N> + Sub<Output = N> + Mul<Output = N>,
    {
        N::from(self.dilation) * (taps - N::from(1)) + N::from(1)
    }

    /// Number of windows of `taps` taps on an axis of size `size`; below 1 if none fits.
    pub fn windows(&self, size: &Expr, taps: &Expr) -> Expr {
        let room = size.clone() + Expr::Int(self.padding.saturating_mul(2)) - self.span(taps.clone());
        room.floor_div(&Expr::Int(self.stride)) + Expr::Int(1)
    }

    /// Number of outputs of a transposed convolution with a kernel of `taps`.
    pub fn transposed(&self, size: &Expr, taps: &Expr) -> Expr {
        let gaps = (size.clone() - Expr::Int(1)) * Expr::Int(self.stride);
        let cut = self.padding.saturating_mul(2).saturating_sub(self.output_padding);
        gaps + self.span(taps.clone()) - Expr::Int(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn windows_are_counted_as_pytorch_counts_them() {
        let axis = WindowAxis { stride: 2, padding: 1, dilation: 2, output_padding: 1 };
        assert_eq!(axis.span(3_i64), 5);
        // `torch.nn.functional.max_pool1d` of 8 and 9 elements.
        assert_eq!([8, 9, 2].map(|n| axis.windows(&Expr::Int(n), &Expr::Int(3))), [3, 4, 0].map(Expr::Int));
        // `torch.nn.functional.conv_transpose1d` of 4 elements.
        assert_eq!(axis.transposed(&Expr::Int(4), &Expr::Int(3)), Expr::Int(10));
        let n = Expr::symbol(Symbol::new("n"));
        assert_eq!(WindowAxis { dilation: 1, ..axis }.transposed(&n, &Expr::Int(3)), Expr::Int(2) * n);
    }
}
