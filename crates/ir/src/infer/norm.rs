//! Rules of norms.

use super::{Infer, Result, ShapeCx, Spec, axis_of, need_float, need_rank, need_rank_from, promote, size::unify, to_float};
use crate::{
    field::{In, Out},
    node::{LayerNorm, RMSNorm, Softmax},
};

/// Rule of a norm over the last axis, with affine vectors of its size.
fn last_axis_norm(cx: &mut dyn ShapeCx, x: In, out: Out, affine: [(&'static str, Option<In>); 2]) -> Result<()> {
    let x = cx.read(x)?;
    need_rank_from("x", &x, 1)?;
    need_float("x", x.dtype)?;
    let mut spec: Spec = x;
    for (field, slot) in affine {
        let Some(vector) = cx.read_opt(slot)? else { continue };
        need_rank(field, &vector, 1)?;
        spec.dtype = promote(spec.dtype, vector.dtype);
        if let ([size], Some(last)) = (&vector.dims[..], spec.dims.last_mut()) {
            *last = unify(field, size, last)?;
        }
    }
    cx.write(out, need_float("weight", spec.dtype)?, spec.dims)
}

impl Infer for RMSNorm {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        last_axis_norm(cx, self.x, self.out, [("weight", self.weight), ("weight", None)])
    }
}

impl Infer for LayerNorm {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        last_axis_norm(cx, self.x, self.out, [("weight", self.weight), ("bias", self.bias)])
    }
}

impl Infer for Softmax {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let last = axis_of(self.axis, x.rank())? + 1 == x.rank();
        cx.write(self.out, if last { to_float(x.dtype) } else { x.dtype }, x.dims)
    }
}
