//! Convolutions, channels last.

use flambeau_ir as ir;
use flambeau_kernels::conv::{Axis, Conv, conv};

use super::{
    copy::{cast, contiguous},
    float_dtype,
};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// Stride, padding, dilation and output padding, which the rule has accepted.
fn axis(values: [i32; 4]) -> Result<Axis> {
    let [stride, padding, dilation, output_padding] =
        values.map(|v| usize::try_from(v).map_err(|_| OpError::value("a convolution attribute is negative")));
    Ok(Axis { stride: stride?, padding: padding?, dilation: dilation?, output_padding: output_padding? })
}

fn convolve(cx: &mut Cx<'_>, [x, w]: [ir::In; 2], out: ir::Out, axes: &[Axis], groups: i32, transposed: bool) -> Result<()> {
    let spec = cx.out(out)?;
    let (x, w) = (cx.get(x)?, cx.get(w)?);
    let (x, w) = (cast(cx, &x, spec.dtype)?, cast(cx, &w, spec.dtype)?);
    let (x, w) = (contiguous(cx, x)?, contiguous(cx, w)?);
    let groups = usize::try_from(groups).map_err(|_| OpError::value("the number of groups is negative"))?;
    let mut y = cx.alloc(spec.dtype, &spec.shape)?;
    float_dtype!(spec.dtype, T => {
        let problem = Conv { axes, groups, transposed };
        let (x, w) = ((x.slice()?, &x.shape[..]), (w.slice()?, &w.shape[..]));
        Ok(conv::<T>(&cx.pool(), x, w, &problem, (y.slice_mut()?, &spec.shape))?)
    })?;
    cx.put(out, y);
    Ok(())
}

macro_rules! convolutions {
    ($($node:ident $transposed:literal [$(($stride:ident $padding:ident $dilation:ident $($output_padding:ident)?))*];)*) => { $(
        impl Eval for ir::$node {
            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                let axes = [$(axis([self.$stride, self.$padding, self.$dilation, 0 $(+ self.$output_padding)?])?),*];
                convolve(cx, [self.x, self.w], self.out, &axes, self.groups, $transposed)
            }
        }
    )* };
}

convolutions! {
    Conv1D false [(stride padding dilation)];
    Conv2D false [(stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    Conv3D false [(stride_d padding_d dilation_d) (stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    ConvTranspose1D true [(stride padding dilation output_padding)];
    ConvTranspose2D true [(stride_h padding_h dilation_h output_padding_h) (stride_w padding_w dilation_w output_padding_w)];
    ConvTranspose3D true [
        (stride_d padding_d dilation_d output_padding_d)
        (stride_h padding_h dilation_h output_padding_h)
        (stride_w padding_w dilation_w output_padding_w)
    ];
}
