//! Convolutions, channels last.

use flambeau_ir as ir;
use flambeau_tensor::WindowAxis;

use super::{linalg::product_type, shape::Window};
use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::{Array, ConvAxis},
};

/// Parameters of MLX's general convolution for one axis. `taps` is the size of the kernel, `input`
/// and `output` are sizes of the axis. Negative padding drops leading or trailing results.
fn general(axis: WindowAxis, taps: usize, (input, output): (usize, usize), transposed: bool) -> ConvAxis {
    let WindowAxis { stride, padding, dilation, .. } = axis;
    if !transposed {
        return ConvAxis { stride, pad_low: padding, pad_high: padding, kernel_dilation: dilation, input_dilation: 1 };
    }
    // A convolution of the dilated input with the reversed kernel, padded to give the output's
    // size.
    let span = axis.span(taps as i64);
    let spread = (input as i64 - 1) * stride + 1;
    let pad_low = span - 1 - padding;
    let pad_high = output as i64 - 1 + span - spread - pad_low;
    ConvAxis { stride: 1, pad_low, pad_high, kernel_dilation: dilation, input_dilation: stride }
}

fn convolve(cx: &mut Cx<'_>, node: &ir::Convolution) -> Result<()> {
    let spec = cx.out(node.out)?;
    if spec.shape.contains(&0) {
        let y = Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?;
        return cx.put(node.out, y);
    }
    let (from, kernel) = (cx.peek(node.x.0)?.shape.clone(), cx.peek(node.w.0)?.shape.clone());
    let sizes = |i: usize| (from[i + 1], spec.shape[i + 1]);
    let axes = node.axes.iter().enumerate();
    let axes: Vec<ConvAxis> = axes.map(|(i, &axis)| general(axis, kernel[i + 1], sizes(i), node.transposed)).collect();
    let through = product_type(cx, spec.dtype);
    // MLX applies negative padding before it dilates the input.
    let padded: Vec<ConvAxis> =
        axes.iter().map(|a| ConvAxis { pad_low: a.pad_low.max(0), pad_high: a.pad_high.max(0), ..*a }).collect();
    let mut y = cx.get_as(node.x, through)?.conv(&cx.get_as(node.w, through)?, &padded, node.groups, node.transposed)?;
    if axes.iter().any(|a| a.pad_low < 0 || a.pad_high < 0) {
        let wanted = axes.iter().enumerate().fold(Window::whole(&spec.shape), |window, (i, a)| {
            let low = (-a.pad_low).max(0) as usize;
            window.narrow(i + 1, low, spec.shape[i + 1], 1)
        });
        y = wanted.of(&y)?;
    }
    cx.put(node.out, y)
}

macro_rules! convolutions {
    ($($node:ident)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                convolve(cx, &self.convolution())
            }
        }
    )* };
}

convolutions! { Conv1D Conv2D Conv3D ConvTranspose1D ConvTranspose2D ConvTranspose3D }
