//! Rules of convolutions. Images are channels-last; weights are `[Co, K.., Ci / groups]`, also for transposed convolutions.

use flambeau_tensor::Expr;

use super::{Dims, Infer, InferError, Result, ShapeCx, bad_attribute, need_float, need_rank, promote, size::unify};
use crate::{
    conv::{ConvAxis, Convolution},
    node::{Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D},
};

impl ConvAxis {
    fn check(&self) -> Result<()> {
        let at_least = [("stride", self.stride, 1), ("dilation", self.dilation, 1)];
        let more = [("padding", self.padding, 0), ("output_padding", self.output_padding, 0)];
        match at_least.into_iter().chain(more).find(|(_, value, least)| value < least) {
            Some((field, value, least)) => bad_attribute(field, value, format!("at least {least}")),
            None => Ok(()),
        }
    }

    /// `dilation * (k - 1) + 1`: the input elements that a kernel of `k` spans.
    fn span(&self, cx: &mut dyn ShapeCx, k: &Expr) -> Expr {
        let taps = cx.sub(k, &Expr::Int(1));
        let reach = cx.mul(&taps, &Expr::Int(self.dilation.into()));
        cx.add(&reach, &Expr::Int(1))
    }

    /// `(l + 2 * padding - span) / stride + 1`.
    fn forward(&self, cx: &mut dyn ShapeCx, l: &Expr, k: &Expr) -> Result<Expr> {
        let span = self.span(cx, k);
        let padded = cx.add(l, &Expr::Int(2 * i64::from(self.padding)));
        let room = cx.sub(&padded, &span);
        if room.as_int().is_some_and(|r| r < 0) {
            return Err(InferError::Shape(format!("a kernel that spans {span} does not fit {padded} padded elements")));
        }
        let steps = cx.floor_div(&room, &Expr::Int(self.stride.into()));
        Ok(cx.add(&steps, &Expr::Int(1)))
    }

    /// `(l - 1) * stride - 2 * padding + span + output_padding`.
    fn transposed(&self, cx: &mut dyn ShapeCx, l: &Expr, k: &Expr) -> Result<Expr> {
        let span = self.span(cx, k);
        let gaps = cx.sub(l, &Expr::Int(1));
        let reach = cx.mul(&gaps, &Expr::Int(self.stride.into()));
        let grown = cx.add(&reach, &span);
        Ok(cx.add(&grown, &Expr::Int(i64::from(self.output_padding) - 2 * i64::from(self.padding))))
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
        axis.check()?;
        if *k == Expr::Int(0) {
            return Err(InferError::Shape("the kernel is empty".to_owned()));
        }
        dims.push(if node.transposed { axis.transposed(cx, l, k)? } else { axis.forward(cx, l, k)? });
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
