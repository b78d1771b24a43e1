//! Shape, type and value rules: the results of each node by its operands.
//!
//! Each rule has three callers. The compiler runs it on symbolic sizes, the checker on sizes with
//! bounds from the file, and an engine on the sizes of a call. An unknown size is a fresh symbol,
//! so a rule tests whether a size is known only if its result depends on it.
//!
//! A rule proves more if more is known. Two known sizes that must be equal but differ are an error.
//! If one is symbolic, the rule takes the more definite size and leaves the proof to the run.
//! There, the same rule sees integers. A rule that accepts known sizes has proved all shape facts
//! needed by an engine.
//!
//! Two assumptions about symbolic sizes are confirmed only by a run. A symbolic dim does not
//! broadcast, so it is not 1. A symbolic bound of a slice neither wraps nor clamps, so `buffer[0 :
//! pos + T]` has `pos + T` rows.

mod attention;
pub mod control;
mod conv;
mod create;
mod elementwise;
mod env;
mod index;
mod linalg;
mod norm;
mod reduce;
pub mod run;
mod scalar;
mod shape;
mod size;
mod sort;
#[cfg(test)]
mod tests;

use std::fmt;

use flambeau_tensor::{DType, Expr, normalize_axis};
use smallvec::SmallVec;

pub use self::{env::Env, size::broadcast};
use crate::{
    Node,
    field::{Float, In, Int, Out, OutVid, Tid, Vid},
    for_each_node,
    limits::{MAX_CREATED_BYTES, MAX_DIM, MAX_RANK, MAX_TENSOR_BYTES},
};

/// Sizes, outermost first, each possibly symbolic.
pub type Dims = SmallVec<[Expr; 4]>;

/// Element type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub dtype: DType,
    pub dims: Dims,
}

impl Spec {
    /// A specification of known sizes.
    pub fn fixed(dtype: DType, shape: &[usize]) -> Spec {
        Spec { dtype, dims: shape.iter().map(|&d| Expr::Int(d as i64)).collect() }
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The shape, if every size is known.
    pub fn shape(&self) -> Option<flambeau_tensor::Shape> {
        self.dims.iter().map(|d| d.as_int().and_then(|v| usize::try_from(v).ok())).collect()
    }

    /// Number of elements, possibly symbolic.
    pub fn numel(&self) -> Expr {
        self.dims.iter().cloned().fold(Expr::Int(1), |n, d| n * d)
    }
}

impl fmt::Display for Spec {
    /// Formats as `bf16[1,s+2]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(Expr::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}

/// Known facts of slots during inference. Callers implement this trait.
pub trait ShapeCx {
    /// Contents of a tensor slot.
    ///
    /// # Errors
    /// If nothing has been written to it.
    fn spec(&self, tid: Tid) -> Result<Spec, InferError>;

    /// Contents of a value slot.
    ///
    /// # Errors
    /// If nothing has been written to it.
    fn value(&self, vid: Vid) -> Result<Expr, InferError>;

    /// Sets the contents of a tensor slot.
    fn set(&mut self, tid: Tid, spec: Spec);

    /// Sets the contents of a value slot.
    fn set_value(&mut self, vid: Vid, value: Expr);

    /// An integer known only at run time: a fresh symbol, or the actual value if the caller has it.
    fn unknown(&mut self) -> Expr;

    /// An interval that contains the integer. By default, every symbol is any 32-bit integer.
    fn bounds(&self, size: &Expr) -> (i64, i64) {
        size.bounds(&|_| (i64::from(i32::MIN), i64::from(i32::MAX)))
    }
}

/// Reason why a node cannot process its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    #[error("{0} is read before anything is written to it")]
    Unset(Tid),
    #[error("{0} is read before anything is written to it")]
    UnsetValue(Vid),
    #[error("`{field}` is {found}, expected {expected}")]
    DType { field: &'static str, found: DType, expected: &'static str },
    #[error("`{field}` has rank {found}, expected {expected}")]
    Rank { field: &'static str, found: usize, expected: String },
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("shapes {:?} and {:?} do not broadcast", .0[0], .0[1])]
    Broadcast(Box<[Dims; 2]>),
    #[error("size of `{field}` is {found}, expected {expected}")]
    Size { field: &'static str, found: Expr, expected: Expr },
    #[error("result has shape {dims:?}; {limit}")]
    Limit { dims: Dims, limit: &'static str },
    #[error("`{field}` is {found}, expected {expected}")]
    Attribute { field: &'static str, found: String, expected: String },
    #[error("{0}")]
    Shape(String),
}

/// Result of a rule.
pub type Result<T, E = InferError> = std::result::Result<T, E>;

/// A node's rule: reads the contents of its operands and records the contents of its results.
pub trait Infer {
    /// # Errors
    /// If the node does not support these types, shapes and attributes.
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()>;
}

macro_rules! dispatch_infer {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        impl Infer for Node {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                match self { $(Node::$name(node) => node.infer(cx)),* }
            }
        }
    };
}
for_each_node!(dispatch_infer);

impl dyn ShapeCx + '_ {
    /// Contents of an operand.
    ///
    /// # Errors
    /// If nothing has been written to it.
    pub fn read(&self, slot: In) -> Result<Spec> {
        self.spec(slot.0)
    }

    /// Contents of an optional operand.
    ///
    /// # Errors
    /// If nothing has been written to it.
    pub fn read_opt(&self, slot: Option<In>) -> Result<Option<Spec>> {
        slot.map(|s| self.spec(s.0)).transpose()
    }

    /// Contents of several operands.
    ///
    /// # Errors
    /// If nothing has been written to one of them.
    pub fn read_all(&self, slots: &[In]) -> Result<Vec<Spec>> {
        slots.iter().map(|s| self.spec(s.0)).collect()
    }

    /// Records a result.
    ///
    /// # Errors
    /// [`InferError::Limit`] if the shape exceeds the limits of a tensor.
    pub fn write(&mut self, slot: Out, dtype: DType, dims: Dims) -> Result<()> {
        check_limits(dtype, &dims, MAX_TENSOR_BYTES)?;
        self.set(slot.0, Spec { dtype, dims });
        Ok(())
    }

    /// Records a result with a size from attributes instead of operands. It has a lower limit,
    /// because a few bytes of program could request any amount of memory.
    ///
    /// # Errors
    /// [`InferError::Limit`] if the shape exceeds the limits of such a tensor.
    pub fn write_created(&mut self, slot: Out, dtype: DType, dims: Dims) -> Result<()> {
        check_limits(dtype, &dims, MAX_CREATED_BYTES)?;
        self.set(slot.0, Spec { dtype, dims });
        Ok(())
    }

    /// Records an integer result.
    pub fn write_value(&mut self, slot: OutVid, value: Expr) {
        self.set_value(slot.0, value);
    }

    /// A literal clamped to 32 bits like every size, or a value slot's content.
    ///
    /// # Errors
    /// If the value slot is unset.
    pub fn int(&self, int: Int) -> Result<Expr> {
        match int {
            Int::Lit(v) => Ok(Expr::Int(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX)))),
            Int::Vid(vid) => self.value(vid),
        }
    }

    /// Several integers.
    ///
    /// # Errors
    /// If a value slot is unset.
    pub fn ints(&self, ints: &[Int]) -> Result<Dims> {
        ints.iter().map(|&i| self.int(i)).collect()
    }

    /// Proves that a float operand can be read.
    ///
    /// # Errors
    /// If the value slot is unset.
    pub fn check_float(&self, float: Float) -> Result<()> {
        match float {
            Float::Lit(_) => Ok(()),
            Float::Vid(vid) => self.value(vid).map(drop),
        }
    }
}

/// Refuses shapes beyond the limits of rank, dim and size, as far as sizes are known.
pub(crate) fn check_limits(dtype: DType, dims: &Dims, max_bytes: i64) -> Result<()> {
    let refuse = |limit| Err(InferError::Limit { dims: dims.iter().take(MAX_RANK + 1).cloned().collect(), limit });
    if dims.len() > MAX_RANK {
        return refuse("more dims than a tensor can have");
    }
    let mut bytes = Some(dtype.size() as i64);
    for dim in dims {
        match dim.as_int() {
            Some(n) if n < 0 => return refuse("a size is negative"),
            Some(n) if n > MAX_DIM => return refuse("a size does not fit 32 bits"),
            Some(n) => bytes = bytes.map(|b| b.saturating_mul(n)),
            None => bytes = None,
        }
    }
    if bytes.is_some_and(|b| b > max_bytes) { refuse("more bytes than the limit") } else { Ok(()) }
}

/// An axis that may count from the end as an index from the front.
///
/// # Errors
/// If a tensor of this rank has no such axis.
pub fn axis_of(axis: impl Into<i64>, rank: usize) -> Result<usize> {
    let axis = axis.into();
    normalize_axis(axis, rank).ok_or(InferError::Axis { axis, rank })
}

/// The error for an invalid attribute value.
pub(crate) fn bad_attribute<T>(field: &'static str, found: impl ToString, expected: impl ToString) -> Result<T> {
    Err(InferError::Attribute { field, found: found.to_string(), expected: expected.to_string() })
}

/// Refuses types that are not floating.
pub(crate) fn need_float(field: &'static str, found: DType) -> Result<DType> {
    if found.is_float() { Ok(found) } else { Err(InferError::DType { field, found, expected: "a floating type" }) }
}

/// Refuses types that cannot index.
pub(crate) fn need_index(field: &'static str, found: DType) -> Result<()> {
    let ok = !found.is_float() && found != DType::Bool;
    if ok { Ok(()) } else { Err(InferError::DType { field, found, expected: "an integer type" }) }
}

/// Refuses any other rank.
pub(crate) fn need_rank(field: &'static str, spec: &Spec, rank: usize) -> Result<()> {
    if spec.rank() == rank { Ok(()) } else { bad_rank(field, spec, rank) }
}

/// Refuses lower ranks.
pub(crate) fn need_rank_from(field: &'static str, spec: &Spec, least: usize) -> Result<()> {
    if spec.rank() >= least { Ok(()) } else { bad_rank(field, spec, format!("at least {least}")) }
}

fn bad_rank<T>(field: &'static str, spec: &Spec, expected: impl ToString) -> Result<T> {
    Err(InferError::Rank { field, found: spec.rank(), expected: expected.to_string() })
}

/// Refuses element types that graphs do not support.
pub(crate) fn need_node_dtype(field: &'static str, found: DType) -> Result<DType> {
    let expected = "u8, i8, i16, i32, i64, u32, f16, bf16, f32 or bool";
    if found.is_node_dtype() { Ok(found) } else { Err(InferError::DType { field, found, expected }) }
}

/// MLX's type promotion: bool < integers < floats. f16 with bf16 gives f32. Rank-0 tensors promote
/// like all others.
pub fn promote(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    let order = |d: DType| [Bool, U8, I8, I16, U16, I32, U32, I64, F16, BF16, F32].iter().position(|&x| x == d);
    let (lo, hi) = if order(a) <= order(b) { (a, b) } else { (b, a) };
    match (lo, hi) {
        (F16, BF16) => F32,
        (U8, I8) => I16,
        (I8 | I16, U16) => I32,
        (I8 | I16 | I32, U32) => I64,
        _ => hi,
    }
}

/// `d` if it is floating, else f32.
pub fn to_float(d: DType) -> DType {
    if d.is_float() { d } else { DType::F32 }
}
