//! Convolutions, channels last.

use flambeau_ir as ir;
use flambeau_kernels::conv::{Conv, conv};

use super::float_dtype;
use crate::{error::OpError, obstacle::Prepared, plan::Planner, prepare::Prepare};

fn convolve(p: &mut Planner<'_>, node: &ir::Convolution) -> Prepared {
    let (x, w, spec) = (p.operand(node.x)?, p.operand(node.w)?, p.spec(node.out)?);
    let (x, w) = (p.rows_in_type(x, spec.dtype)?, p.rows_in_type(w, spec.dtype)?);
    let groups = usize::try_from(node.groups).map_err(|_| OpError::value("the number of groups is negative"))?;
    let (axes, transposed) = (node.axes.clone(), node.transposed);
    let y = p.call(&[&x, &w], (spec.dtype, &spec.shape), move |cx, ins, y| {
        let (problem, shape) = (Conv { axes: &axes, groups, transposed }, y.shape.clone());
        float_dtype!(y.dtype, T => {
            let (x, w) = ((ins[0].slice()?, &ins[0].shape[..]), (ins[1].slice()?, &ins[1].shape[..]));
            Ok(conv::<T>(&cx.pool, x, w, &problem, (y.slice_mut()?, &shape))?)
        })
    })?;
    p.put(node.out, y);
    Ok(())
}

macro_rules! convolutions {
    ($($node:ident)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            convolve(p, &self.convolution())
        }
    })* };
}

convolutions! { Conv1D Conv2D Conv3D ConvTranspose1D ConvTranspose2D ConvTranspose3D }
