//! Convolutions, channels last.

use flambeau_ir as ir;

use super::{linalg::product_type, shape::Window};
use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::{Array, ConvAxis},
};

/// Stride, padding, dilation and output padding of an axis.
#[derive(Clone, Copy)]
struct Axis {
    stride: i64,
    padding: i64,
    dilation: i64,
}

impl Axis {
    /// As MLX's general convolution takes it, for a kernel of `taps`; `input` and `output` are the sizes of the axis. Padding that is
    /// negative stands for results to leave out.
    fn general(self, taps: usize, (input, output): (usize, usize), transposed: bool) -> ConvAxis {
        if !transposed {
            return ConvAxis {
                stride: self.stride,
                pad_low: self.padding,
                pad_high: self.padding,
                kernel_dilation: self.dilation,
                input_dilation: 1,
            };
        }
        // A convolution of the spread-out input with the kernel turned around, padded so far that the output comes out right.
        let reach = self.dilation * (taps as i64 - 1);
        let spread = (input as i64 - 1) * self.stride + 1;
        let pad_low = reach - self.padding;
        ConvAxis {
            stride: 1,
            pad_low,
            pad_high: output as i64 - 1 + reach + 1 - spread - pad_low,
            kernel_dilation: self.dilation,
            input_dilation: self.stride,
        }
    }
}

fn convolve(cx: &mut Cx<'_>, [x, w]: [ir::In; 2], out: ir::Out, axes: &[Axis], groups: i32, transposed: bool) -> Result<()> {
    let spec = cx.out(out)?;
    if spec.shape.contains(&0) {
        let y = Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?;
        return cx.put(out, y);
    }
    let (from, kernel) = (cx.peek(x.0)?.shape.clone(), cx.peek(w.0)?.shape.clone());
    let sizes = |i: usize| (from[i + 1], spec.shape[i + 1]);
    let axes: Vec<ConvAxis> = axes.iter().enumerate().map(|(i, a)| a.general(kernel[i + 1], sizes(i), transposed)).collect();
    let through = product_type(cx, spec.dtype);
    // MLX would take negative padding off the input before it spreads it out.
    let padded: Vec<ConvAxis> =
        axes.iter().map(|a| ConvAxis { pad_low: a.pad_low.max(0), pad_high: a.pad_high.max(0), ..*a }).collect();
    let y = cx.get_as(x, through)?.conv(&cx.get_as(w, through)?, &padded, groups, transposed)?;
    let mut window = Window::whole(&spec.shape);
    for (i, axis) in axes.iter().enumerate() {
        let low = (-axis.pad_low).max(0);
        window = window.narrow(i + 1, low as usize, spec.shape[i + 1], 1);
    }
    let y = if axes.iter().any(|a| a.pad_low < 0 || a.pad_high < 0) { window.of(&y)? } else { y };
    cx.put(out, y)
}

macro_rules! convolutions {
    ($($node:ident $transposed:literal [$(($stride:ident $padding:ident $dilation:ident))*];)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                let axes = [$(Axis {
                    stride: self.$stride.into(),
                    padding: self.$padding.into(),
                    dilation: self.$dilation.into(),
                }),*];
                convolve(cx, [self.x, self.w], self.out, &axes, self.groups, $transposed)
            }
        }
    )* };
}

convolutions! {
    Conv1D false [(stride padding dilation)];
    Conv2D false [(stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    Conv3D false [(stride_d padding_d dilation_d) (stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    ConvTranspose1D true [(stride padding dilation)];
    ConvTranspose2D true [(stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    ConvTranspose3D true [(stride_d padding_d dilation_d) (stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
}
