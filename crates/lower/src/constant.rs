//! Constants as expressions: formulas that compute their bytes on demand.
//!
//! A weight is read when its expression is evaluated, while the file is written, and dropped right
//! after.

use std::sync::Arc;

use flambeau_ir::{QuantMode, Spec};
use flambeau_tensor::{Bytes, DType, Shape};

use crate::Formula;

/// A constant tensor.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Name in the written program; derived constants extend the name of their source.
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub expr: ConstExpr,
}

/// The formula of a constant's bytes.
#[derive(Clone, Debug)]
pub enum ConstExpr {
    /// The stored weight with this index, in the caller's numbering.
    Stored(usize),
    /// Literal bytes.
    Literal(Bytes),
    /// The operand's values cast to this constant's element type.
    Cast(Arc<Constant>),
    /// The operand's elements in this constant's shape.
    Reshape(Arc<Constant>),
    /// The operand's bytes read as this constant's element type and shape.
    Reinterpret(Arc<Constant>),
    /// Axis `i` of the result is axis `perm[i]` of the operand.
    Permute(Arc<Constant>, Vec<usize>),
    /// The operands joined along an axis.
    Concat(Vec<Arc<Constant>>, usize),
    /// The reciprocal of each element.
    Reciprocal(Arc<Constant>),
    /// Each element repeated along the last axis.
    Repeat(Arc<Constant>, usize),
    /// Packs signed codes `[.., K]` i8 as unsigned codes in u32 words of little-endian bit streams.
    PackSigned { codes: Arc<Constant>, bits: u8 },
    /// `-scale * (zero_point + 2^(bits-1))` in the scale's type; an absent zero point is 0.
    AffineBias { scale: Arc<Constant>, zero_point: Option<Arc<Constant>>, bits: u8 },
    /// A formula over the operands.
    Formula(Formula, Vec<Arc<Constant>>),
    /// One part of a weight `[.., N, K]` quantized along its last axis.
    Quantize { weight: Arc<Constant>, scheme: Scheme, part: QuantPart },
}

/// Quantization parameters of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub mode: QuantMode,
    pub bits: u8,
    pub group_size: u32,
    pub fit: Fit,
}

/// Method that chooses the scale and bias of an affine group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fit {
    /// From the range of the group's values, as MLX does.
    #[default]
    Range,
    /// The candidate with the least squared error; the range's fit is one of the candidates.
    LeastError,
}

/// The constants of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantPart {
    /// Packed codes, u32 `[.., N, K * bits / 32]`.
    Codes,
    /// `[.., N, K / group_size]`: the weight's float type for affine, u8 for the float modes.
    Scales,
    /// `[.., N, K / group_size]`, affine only.
    Biases,
}

impl Constant {
    /// Element type and shape.
    pub fn spec(&self) -> Spec {
        Spec::fixed(self.dtype, &self.shape)
    }

    /// The value of a literal with one element.
    pub fn scalar(&self) -> Option<f64> {
        let ConstExpr::Literal(bytes) = &self.expr else { return None };
        let tensor = flambeau_tensor::Tensor::new(self.dtype, &self.shape, bytes.clone()).ok()?;
        let wide = flambeau_tensor::cast(&tensor, DType::F64).ok()?;
        match wide.as_slice::<f64>().ok()? {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// Derives a constant with another shape.
    pub(crate) fn reshaped(self: &Arc<Constant>, shape: &[usize]) -> Constant {
        let expr = match &self.expr {
            ConstExpr::Literal(bytes) => ConstExpr::Literal(bytes.clone()),
            ConstExpr::Reshape(inner) => ConstExpr::Reshape(inner.clone()),
            _ => ConstExpr::Reshape(self.clone()),
        };
        Constant { name: self.name.clone(), dtype: self.dtype, shape: Shape::from_slice(shape), expr }
    }

    /// Derives a constant with another element type.
    pub(crate) fn cast(self: &Arc<Constant>, dtype: DType) -> Constant {
        let derived = || ConstExpr::Cast(self.clone());
        let expr = match &self.expr {
            ConstExpr::Literal(bytes) => flambeau_tensor::Tensor::new(self.dtype, &self.shape, bytes.clone())
                .and_then(|t| flambeau_tensor::cast(&t, dtype))
                .map_or_else(|_| derived(), |t| ConstExpr::Literal(t.bytes().clone())),
            _ => derived(),
        };
        Constant { name: format!("{}_{dtype}", self.name), dtype, shape: self.shape.clone(), expr }
    }
}
