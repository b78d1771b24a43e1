//! Rules of convolutions. Images are channels-last. Weights are `[Co, K.., Ci / groups]`, also for
//! transposed convolutions.

use flambeau_tensor::{Expr, WindowAxis};

use super::{Dims, Infer, InferError, Result, ShapeCx, bad_attribute, need_float, need_rank, promote, size::unify};
use crate::{
    conv::Convolution,
    node::{Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D},
};

fn check(axis: &WindowAxis) -> Result<()> {
    let at_least = [("stride", axis.stride, 1), ("dilation", axis.dilation, 1)];
    let more = [("padding", axis.padding, 0), ("output_padding", axis.output_padding, 0)];
    match at_least.into_iter().chain(more).find(|(_, value, least)| value < least) {
        Some((field, value, least)) => bad_attribute(field, value, format!("at least {least}")),
        None => Ok(()),
    }
}

fn conv(cx: &mut dyn ShapeCx, node: &Convolution) -> Result<()> {
    let (axes, groups) = (&node.axes, node.groups);
    let (x, w) = (cx.read(node.x)?, cx.read(node.w)?);
    need_rank("x", &x, axes.len() + 2)?;
    need_rank("w", &w, axes.len() + 2)?;
    let dtype = need_float("x", promote(x.dtype, w.dtype))?;
    if groups < 1 || (axes.len() == 3 && groups != 1) {
        return bad_attribute("groups", groups, if axes.len() == 3 { "1" } else { "at least 1" });
    }
    let last = axes.len() + 1;
    let channels = cx.mul(&w.dims[last], &Expr::Int(groups.into()));
    unify("x", &x.dims[last], &channels)?;
    if w.dims[0].as_int().is_some_and(|n| n % i64::from(groups) != 0) {
        return bad_attribute("groups", groups, format!("a divisor of {} channels", w.dims[0]));
    }
    let mut dims = Dims::with_capacity(last + 1);
    dims.push(x.dims[0].clone());
    for (axis, (l, k)) in axes.iter().zip(x.dims[1..].iter().zip(&w.dims[1..])) {
        check(axis)?;
        if *k == Expr::Int(0) {
            return Err(InferError::Shape("the kernel is empty".to_owned()));
        }
        let size = if node.transposed { axis.transposed(l, k) } else { axis.windows(l, k) };
        if !node.transposed && size.as_int().is_some_and(|n| n < 1) {
            let span = axis.span(k.clone());
            return Err(InferError::Shape(format!(
                "a kernel that spans {span} does not fit {l} elements padded by {}",
                axis.padding
            )));
        }
        dims.push(cx.bound(size));
    }
    dims.push(w.dims[0].clone());
    cx.write(node.out, dtype, dims)
}

macro_rules! convolutions {
    ($($node:ident)*) => { $(
        impl Infer for $node {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                conv(cx, &self.convolution())
            }
        }
    )* };
}

convolutions! { Conv1D Conv2D Conv3D ConvTranspose1D ConvTranspose2D ConvTranspose3D }
