//! Normalisations, softmax and rotary embedding.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_tensor::DType;

use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::Array,
    rows::{One, Rows},
    values::{Slot, cast},
};

impl Eval for ir::RMSNorm {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.rank(self.x) > Some(1))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = cx.out(self.out)?.dtype;
        let y = cx.get_as(self.x, dtype)?.rms_norm(cx.get_opt_as(self.weight, dtype)?.as_ref(), self.eps)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::LayerNorm {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.rank(self.x) > Some(1))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        // MLX's CPU backend rounds halves before it applies weight and bias.
        let dtype = if cx.is_cpu() { DType::F32 } else { cx.out(self.out)?.dtype };
        let (weight, bias) = (cx.get_opt_as(self.weight, dtype)?, cx.get_opt_as(self.bias, dtype)?);
        let y = cx.get_as(self.x, dtype)?.layer_norm(weight.as_ref(), bias.as_ref(), self.eps)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Softmax {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.is_inner(self.axis.into(), self.x))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let is_last = axis + 1 == x.rank();
        // Only the kernel for the last axis keeps its sums in f32.
        let through = if spec.dtype.is_float() && is_last && !cx.is_cpu() { spec.dtype } else { DType::F32 };
        let y = cast(&x, through)?.softmax(axis as i32, true)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Rope {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        match self.offset {
            ir::VidOrTid::Vid(_) => Rows::rotated(self.x),
            ir::VidOrTid::Tid(tid) => Rows::of([self.x, ir::In(tid)]),
        }
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let offset = match self.offset {
            ir::VidOrTid::Vid(vid) => match cx.origin(vid) {
                Some(origin) => cx.open_array(origin)?,
                None => cx.scalar(cx.value(vid)?.into(), DType::I32)?,
            },
            ir::VidOrTid::Tid(tid) => {
                let slot = cx.peek(tid)?;
                let offset = slot.array.cast(DType::I32)?;
                if slot.shape.iter().product::<usize>() == 1 { offset.reshape(&[])? } else { offset }
            }
        };
        let y = rotated(cx, self, cx.peek(self.x.0)?, &offset)?;
        cx.put(self.out, y)
    }
}

/// Rotates `x` `[B, .., T, D]` by positions from `offset` on, i32: one, or one per entry of the
/// first axis.
///
/// # Errors
/// If MLX refuses the operands.
pub(crate) fn rotated(cx: &Cx<'_>, node: &ir::Rope, x: &Slot, offset: &Array) -> Result<Array> {
    // MLX's CPU rounds sines and cosines to the operand's type.
    let x = cast(x, if cx.is_cpu() { DType::F32 } else { x.dtype })?;
    let freqs = cx.get_opt_as(node.freqs, DType::F32)?;
    Ok(x.rope(node.dims, node.traditional, node.base, node.scale, offset, freqs.as_ref())?)
}
