//! Normalisations, softmax and rotary embedding.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_tensor::DType;

use crate::{
    cx::{Cx, cast},
    error::Result,
    eval::Eval,
};

impl Eval for ir::RMSNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = cx.out(self.out)?.dtype;
        let y = cx.get_as(self.x, dtype)?.rms_norm(cx.get_opt_as(self.weight, dtype)?.as_ref(), self.eps)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::LayerNorm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = cx.out(self.out)?.dtype;
        let (weight, bias) = (cx.get_opt_as(self.weight, dtype)?, cx.get_opt_as(self.bias, dtype)?);
        let y = cx.get_as(self.x, dtype)?.layer_norm(weight.as_ref(), bias.as_ref(), self.eps)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Softmax {
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
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        // MLX's CPU rounds sines and cosines to the operand's type.
        let x = cx.get_as(self.x, if cx.is_cpu() { DType::F32 } else { spec.dtype })?;
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
        let freqs = cx.get_opt_as(self.freqs, DType::F32)?;
        let y = x.rope(self.dims, self.traditional, self.base, self.scale, &offset, freqs.as_ref())?;
        cx.put(self.out, y)
    }
}
