//! Rules of nodes that work element by element.

use flambeau_tensor::DType;

use super::{Infer, InferError, Result, ShapeCx, need_node_dtype, promote, size::broadcast, to_float};
use crate::{
    for_each_float_function,
    node::{self, AsType, Clip, Where},
};

/// Result types by operand types.
mod types {
    use super::*;

    pub(super) fn float(x: DType) -> Result<DType> {
        Ok(to_float(x))
    }

    pub(super) fn same(x: DType) -> Result<DType> {
        Ok(x)
    }

    pub(super) fn signed(x: DType) -> Result<DType> {
        if x == DType::Bool { Err(InferError::DType { field: "x", found: x, expected: "a number type" }) } else { Ok(x) }
    }

    pub(super) fn bits(x: DType) -> Result<DType> {
        if x.is_float() { Err(InferError::DType { field: "x", found: x, expected: "an integer type or bool" }) } else { Ok(x) }
    }

    pub(super) fn truth(_: DType) -> Result<DType> {
        Ok(DType::Bool)
    }
}

macro_rules! unary {
    ($($rule:ident: $($name:ident)*;)*) => { $($(
        impl Infer for node::$name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let x = cx.read(self.x)?;
                cx.write(self.out, types::$rule(x.dtype)?, x.dims)
            }
        }
    )*)* };
}

unary! {
    float: Silu Gelu;
    same: Floor Ceil Square Round Abs Sign Trunc;
    signed: Neg;
    bits: BitwiseInvert;
    truth: LogicalNot;
}

macro_rules! float_function {
    ($name:ident) => {
        unary! { float: $name; }
    };
}
for_each_float_function!(float_function);

macro_rules! binary {
    ($($rule:ident: $($name:ident)*;)*) => { $($(
        impl Infer for node::$name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let (a, b) = (cx.read(self.a)?, cx.read(self.b)?);
                let dtype = types::$rule(promote(a.dtype, b.dtype))?;
                cx.write(self.out, dtype, broadcast(&a.dims, &b.dims)?)
            }
        }
    )*)* };
}

binary! {
    same: Add Multiply Subtract Maximum Minimum Power Remainder FloorDivide;
    float: Divide Atan2 LogAddExp;
    truth: Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr;
    bits: BitwiseAnd BitwiseOr BitwiseXor;
}

impl Infer for AsType {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        cx.write(self.out, need_node_dtype("scalar_type", self.scalar_type)?, x.dims)
    }
}

impl Infer for Where {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (condition, x, y) = (cx.read(self.condition)?, cx.read(self.x)?, cx.read(self.y)?);
        let dims = broadcast(&condition.dims, &broadcast(&x.dims, &y.dims)?)?;
        cx.write(self.out, promote(x.dtype, y.dtype), dims)
    }
}

impl Infer for Clip {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        if self.a_min.is_none() && self.a_max.is_none() {
            return super::bad_attribute("a_min", "absent", "at least one of a_min and a_max");
        }
        let x = cx.read(self.x)?;
        let (mut dtype, mut dims) = (x.dtype, x.dims);
        for bound in [self.a_min, self.a_max].into_iter().flatten() {
            let bound = cx.read(bound)?;
            dtype = promote(dtype, bound.dtype);
            dims = broadcast(&dims, &bound.dims)?;
        }
        cx.write(self.out, dtype, dims)
    }
}
