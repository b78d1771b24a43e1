//! Rules of matrix products, plain, gathered and quantized.

use flambeau_tensor::{DType, Expr};

use super::{
    Dims, Infer, InferError, Result, ShapeCx, Spec, bad_attribute, need_float, need_index, need_node_dtype, need_rank,
    need_rank_from, promote,
    size::{broadcast, check_broadcasts_to, unify},
};
use crate::{
    field::{In, QuantMode},
    node::{Addmm, Dequantize, GatherMm, GatherQmm, QuantizedMatmul},
};

/// Shape of `a @ b`, as in numpy: vectors count as one row or one column, which is removed from the
/// result.
fn matmul(a: &[Expr], b: &[Expr]) -> Result<Dims> {
    let (batch_a, rows, inner_a) = match a {
        [k] => (&[][..], None, k),
        [batch @ .., m, k] => (batch, Some(m), k),
        [] => return Err(InferError::Rank { field: "a", found: 0, expected: "at least 1".to_owned() }),
    };
    let (batch_b, inner_b, columns) = match b {
        [k] => (&[][..], k, None),
        [batch @ .., k, n] => (batch, k, Some(n)),
        [] => return Err(InferError::Rank { field: "b", found: 0, expected: "at least 1".to_owned() }),
    };
    unify("b", inner_b, inner_a)?;
    let mut dims = broadcast(batch_a, batch_b)?;
    dims.extend(rows.into_iter().chain(columns).cloned());
    Ok(dims)
}

impl Infer for Addmm {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (a, b) = (cx.read(self.mat1)?, cx.read(self.mat2)?);
        let mut dtype = promote(a.dtype, b.dtype);
        let dims = matmul(&a.dims, &b.dims)?;
        if let Some(bias) = cx.read_opt(self.bias)? {
            dtype = promote(dtype, bias.dtype);
            check_broadcasts_to(&bias.dims, &dims)?;
        }
        cx.write(self.out, need_float("mat1", dtype)?, dims)
    }
}

/// Packed weights with their format.
struct Packed {
    w: In,
    scales: In,
    biases: Option<In>,
    group_size: i32,
    bits: i32,
    mode: QuantMode,
}

/// Metadata of unpacked weights.
struct Unpacked {
    /// Shape of the unpacked matrix.
    dims: Dims,
    /// Common type of scales and biases. `None` for formats with encoded scales.
    dtype: Option<DType>,
}

impl Packed {
    /// Refuses group sizes and widths outside of the format's table.
    fn check_format(&self) -> Result<()> {
        let (groups, bits): (&[i32], &[i32]) = match self.mode {
            QuantMode::Affine => (&[16, 32, 64, 128], &[2, 3, 4, 5, 6, 8]),
            QuantMode::Nvfp4 => (&[16], &[4]),
            QuantMode::Mxfp4 => (&[32], &[4]),
            QuantMode::Mxfp8 => (&[32], &[8]),
        };
        if !groups.contains(&self.group_size) {
            return bad_attribute("group_size", self.group_size, format!("one of {groups:?} for {}", self.mode.name()));
        }
        if !bits.contains(&self.bits) {
            return bad_attribute("bits", self.bits, format!("one of {bits:?} for {}", self.mode.name()));
        }
        if self.biases.is_some() != (self.mode == QuantMode::Affine) {
            let found = if self.biases.is_some() { "present" } else { "absent" };
            return bad_attribute("biases", found, "present if and only if the mode is affine");
        }
        Ok(())
    }

    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<Unpacked> {
        self.check_format()?;
        let (mut w, scales, biases) = (cx.read(self.w)?, cx.read(self.scales)?, cx.read_opt(self.biases)?);
        if w.dtype != DType::U32 {
            return Err(InferError::DType { field: "w", found: w.dtype, expected: "u32" });
        }
        need_rank_from("w", &w, 2)?;
        need_rank("scales", &scales, w.rank())?;
        let last = w.rank() - 1;
        for (own, lead) in scales.dims.iter().zip(&mut w.dims).take(last) {
            *lead = unify("scales", own, lead)?;
        }
        let columns = cx.mul(&scales.dims[last], &Expr::Int(self.group_size.into()));
        // The comparison is in bits, so a row with a fractional number of codes is refused.
        let stream = cx.mul(&w.dims[last], &Expr::Int(32));
        let wanted = cx.mul(&columns, &Expr::Int(self.bits.into()));
        unify("w", &stream, &wanted)?;
        w.dims[last] = columns;
        Ok(Unpacked { dims: w.dims, dtype: self.scale_type(&scales, biases)? })
    }

    fn scale_type(&self, scales: &Spec, biases: Option<Spec>) -> Result<Option<DType>> {
        let Some(biases) = biases else {
            return match scales.dtype {
                DType::U8 => Ok(None),
                found => Err(InferError::DType { field: "scales", found, expected: "u8" }),
            };
        };
        need_rank("biases", &biases, scales.rank())?;
        for (own, other) in biases.dims.iter().zip(&scales.dims) {
            unify("biases", own, other)?;
        }
        Ok(Some(promote(need_float("scales", scales.dtype)?, need_float("biases", biases.dtype)?)))
    }
}

/// `[.., K, N]` from `[.., N, K]` if the weights are stored transposed.
fn oriented(mut dims: Dims, transpose: bool) -> Dims {
    let rank = dims.len();
    if transpose && rank >= 2 {
        dims.swap(rank - 1, rank - 2);
    }
    dims
}

impl Infer for QuantizedMatmul {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let QuantizedMatmul { w, scales, biases, group_size, bits, mode, .. } = *self;
        let unpacked = Packed { w, scales, biases, group_size, bits, mode }.infer(cx)?;
        let dtype = unpacked.dtype.map_or(x.dtype, |d| promote(x.dtype, d));
        let dims = matmul(&x.dims, &oriented(unpacked.dims, self.transpose))?;
        cx.write(self.out, need_float("x", dtype)?, dims)
    }
}

impl Infer for Dequantize {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let Dequantize { w, scales, biases, group_size, bits, mode, .. } = *self;
        let unpacked = Packed { w, scales, biases, group_size, bits, mode }.infer(cx)?;
        if let Some(global) = cx.read_opt(self.global_scale)? {
            if mode != QuantMode::Nvfp4 {
                return bad_attribute("global_scale", "present", "absent unless the mode is nvfp4");
            }
            if global.dtype != DType::F32 {
                return Err(InferError::DType { field: "global_scale", found: global.dtype, expected: "f32" });
            }
            for dim in &global.dims {
                unify("global_scale", dim, &Expr::Int(1))?;
            }
        }
        let dtype = self.dtype.unwrap_or(unpacked.dtype.unwrap_or(DType::BF16));
        cx.write(self.out, need_float("dtype", need_node_dtype("dtype", dtype)?)?, unpacked.dims)
    }
}

/// Shape of a gathered product: the common shape of both index lists, then rows and columns.
fn gathered(cx: &dyn ShapeCx, a: &[Expr], b: &[Expr], lhs: Option<In>, rhs: Option<In>) -> Result<Dims> {
    if lhs.is_none() && rhs.is_none() {
        return matmul(a, b);
    }
    let ([batch_a @ .., m, inner_a], [batch_b @ .., inner_b, n]) = (a, b) else {
        return Err(InferError::Rank { field: "a", found: a.len().min(b.len()), expected: "at least 2".to_owned() });
    };
    unify("b", inner_b, inner_a)?;
    let indices = |field, slot: Option<In>, batch: &[Expr]| match cx.read_opt(slot)? {
        Some(indices) => need_index(field, indices.dtype).map(|()| indices.dims),
        None => Ok(batch.into()),
    };
    let mut dims = broadcast(&indices("lhs_indices", lhs, batch_a)?, &indices("rhs_indices", rhs, batch_b)?)?;
    dims.extend([m.clone(), n.clone()]);
    Ok(dims)
}

impl Infer for GatherMm {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (a, b) = (cx.read(self.a)?, cx.read(self.b)?);
        if let Some(flag) = self.sorted_indices_flag {
            cx.int(flag)?;
        }
        let dtype = need_float("a", promote(a.dtype, b.dtype))?;
        let dims = gathered(cx, &a.dims, &b.dims, self.lhs_indices, self.rhs_indices)?;
        cx.write(self.out, dtype, dims)
    }
}

impl Infer for GatherQmm {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        if let Some(flag) = self.sorted_indices_flag {
            cx.int(flag)?;
        }
        let GatherQmm { w, scales, biases, group_size, bits, mode, .. } = *self;
        let unpacked = Packed { w, scales, biases, group_size, bits, mode }.infer(cx)?;
        let dtype = need_float("x", unpacked.dtype.map_or(x.dtype, |d| promote(x.dtype, d)))?;
        let w = oriented(unpacked.dims, self.transpose);
        let dims = gathered(cx, &x.dims, &w, self.lhs_indices, self.rhs_indices)?;
        cx.write(self.out, dtype, dims)
    }
}
