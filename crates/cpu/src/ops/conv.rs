//! Convolutions, channels last.

use flambeau_ir as ir;
use flambeau_kernels::conv::{Axis, Conv, conv};
use smallvec::SmallVec;

use super::{
    copy::{cast, contiguous},
    float_dtype,
};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// The axis as kernels take it; the rule has accepted it.
fn axis(of: &ir::ConvAxis) -> Result<Axis> {
    let size = |v: i32| usize::try_from(v).map_err(|_| OpError::value("a convolution attribute is negative"));
    let (stride, padding) = (size(of.stride)?, size(of.padding)?);
    Ok(Axis { stride, padding, dilation: size(of.dilation)?, output_padding: size(of.output_padding)? })
}

fn convolve(cx: &mut Cx<'_>, node: &ir::Convolution) -> Result<()> {
    let axes = node.axes.iter().map(axis).collect::<Result<SmallVec<[Axis; 3]>>>()?;
    let spec = cx.out(node.out)?;
    let (x, w) = (cx.get(node.x)?, cx.get(node.w)?);
    let (x, w) = (cast(cx, &x, spec.dtype)?, cast(cx, &w, spec.dtype)?);
    let (x, w) = (contiguous(cx, x)?, contiguous(cx, w)?);
    let groups = usize::try_from(node.groups).map_err(|_| OpError::value("the number of groups is negative"))?;
    let mut y = cx.alloc(spec.dtype, &spec.shape)?;
    float_dtype!(spec.dtype, T => {
        let problem = Conv { axes: &axes, groups, transposed: node.transposed };
        let (x, w) = ((x.slice()?, &x.shape[..]), (w.slice()?, &w.shape[..]));
        Ok(conv::<T>(&cx.pool(), x, w, &problem, (y.slice_mut()?, &spec.shape))?)
    })?;
    cx.put(node.out, y);
    Ok(())
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
