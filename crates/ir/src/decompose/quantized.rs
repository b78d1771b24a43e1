//! Products with packed weights: unpack, then multiply.

use flambeau_tensor::DType;

use super::{Result, build::Build};
use crate::{
    field::{In, QuantMode},
    infer::promote,
    node::{Addmm, Dequantize, GatherMm, GatherQmm, QuantizedMatmul, Transpose},
};

/// The operands that both products share.
struct Packed {
    x: In,
    w: In,
    scales: In,
    biases: Option<In>,
    group_size: i32,
    bits: i32,
    mode: QuantMode,
    transpose: bool,
}

impl Packed {
    /// Type of the product.
    fn dtype(&self, b: &Build) -> Result<DType> {
        let x = b.spec(self.x)?.dtype;
        match self.biases {
            Some(biases) => Ok(promote(x, promote(b.spec(self.scales)?.dtype, b.spec(biases)?.dtype))),
            None => Ok(x),
        }
    }

    /// The weights in f32, `[.., K, N]`.
    fn unpack(&self, b: &mut Build) -> Result<In> {
        let (mut scales, mut biases) = (self.scales, self.biases);
        if let Some(own) = biases {
            scales = b.f32(scales)?;
            biases = Some(b.f32(own)?);
        }
        let Packed { w, group_size, bits, mode, .. } = *self;
        let dtype = Some(DType::F32);
        let dense = b.emit(|out| Dequantize { w, scales, out, biases, group_size, bits, mode, global_scale: None, dtype })?;
        if !self.transpose {
            return Ok(dense);
        }
        let mut perm: Vec<i32> = (0..b.spec(dense)?.rank() as i32).collect();
        let last = perm.len() - 1;
        perm.swap(last, last - 1);
        b.emit(|out| Transpose { x: dense, out, perm })
    }
}

pub(super) fn matmul(b: &mut Build, n: &QuantizedMatmul) -> Result<In> {
    let QuantizedMatmul { x, w, scales, biases, group_size, bits, mode, transpose, .. } = *n;
    let packed = Packed { x, w, scales, biases, group_size, bits, mode, transpose };
    let dtype = packed.dtype(b)?;
    let (mat1, mat2) = (b.f32(x)?, packed.unpack(b)?);
    let y = b.emit(|out| Addmm { mat1, mat2, out, bias: None, alpha: 1.0, beta: 1.0 })?;
    b.cast(y, dtype)
}

pub(super) fn gather(b: &mut Build, n: &GatherQmm) -> Result<In> {
    let GatherQmm { x, w, scales, biases, group_size, bits, mode, transpose, .. } = *n;
    let packed = Packed { x, w, scales, biases, group_size, bits, mode, transpose };
    let dtype = packed.dtype(b)?;
    let (x, w) = (b.f32(x)?, packed.unpack(b)?);
    let GatherQmm { lhs_indices, rhs_indices, sorted_indices, sorted_indices_flag, .. } = *n;
    let y = b.emit(|out| GatherMm { a: x, b: w, out, lhs_indices, rhs_indices, sorted_indices, sorted_indices_flag })?;
    b.cast(y, dtype)
}
