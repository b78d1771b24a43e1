//! Constants as expressions: how their bytes are computed, without holding any.
//!
//! A weight is read when its expression is evaluated, while the file is written, and dropped right after.

use std::sync::Arc;

use flambeau_ir::{QuantMode, Spec};
use flambeau_tensor::{Bytes, DType, Shape};

use crate::Formula;

/// A constant tensor.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Name in the program that is written; derived constants extend the name of what they derive from.
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub expr: ConstExpr,
}

/// How to make a constant's bytes.
#[derive(Clone, Debug)]
pub enum ConstExpr {
    /// The stored weight of that number, as the caller counts them.
    Stored(usize),
    /// These bytes.
    Literal(Bytes),
    /// The same values in this constant's element type.
    Cast(Arc<Constant>),
    /// The same elements in this constant's shape.
    Reshape(Arc<Constant>),
    /// The same bytes as this constant's element type and shape.
    Reinterpret(Arc<Constant>),
    /// Axis `i` of the result is axis `perm[i]` of the operand.
    Permute(Arc<Constant>, Vec<usize>),
    /// The operands joined along an axis.
    Concat(Vec<Arc<Constant>>, usize),
    /// One over each element.
    Reciprocal(Arc<Constant>),
    /// Each element repeated along the last axis.
    Repeat(Arc<Constant>, usize),
    /// Signed codes `[.., K]` i8, offset to unsigned ones and packed into u32 words of little-endian bit streams.
    PackSigned { codes: Arc<Constant>, bits: u8 },
    /// `-scale * (zero_point + 2^(bits-1))` in the scale's type; without a zero point it counts as zero.
    AffineBias { scale: Arc<Constant>, zero_point: Option<Arc<Constant>>, bits: u8 },
    /// A formula of the operands.
    Formula(Formula, Vec<Arc<Constant>>),
    /// One part of a weight `[.., N, K]` quantized along its last axis.
    Quantize { weight: Arc<Constant>, scheme: Scheme, part: QuantPart },
}

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub mode: QuantMode,
    pub bits: u8,
    pub group_size: u32,
    pub fit: Fit,
}

/// How the scale and bias of an affine group are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fit {
    /// By the range of its values, as MLX does.
    #[default]
    Range,
    /// By least squared error among a few that are tried, the range's included.
    LeastError,
}

/// Which constant of a quantized weight.
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

    /// A constant derived from this one, with another shape.
    pub(crate) fn reshaped(self: &Arc<Constant>, shape: &[usize]) -> Constant {
        let expr = match &self.expr {
            ConstExpr::Literal(bytes) => ConstExpr::Literal(bytes.clone()),
            ConstExpr::Reshape(inner) => ConstExpr::Reshape(inner.clone()),
            _ => ConstExpr::Reshape(self.clone()),
        };
        Constant { name: self.name.clone(), dtype: self.dtype, shape: Shape::from_slice(shape), expr }
    }

    /// A constant derived from this one, with another element type.
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
