//! Rules of nodes with integer results.
//!
//! Values have 32 bits. A known result outside of this range is an error. The run checks symbolic
//! results.

use flambeau_tensor::Expr;

use super::{Infer, InferError, Result, ShapeCx, axis_of};
use crate::node::{AddInt, FloorDivideInt, ItemInt, ModInt, MultiplyInt, SubtractInt, SymSize};

fn need_i32(value: Expr) -> Result<Expr> {
    match value {
        Expr::Int(v) if i32::try_from(v).is_err() => Err(InferError::Shape(format!("{v} does not fit 32 bits"))),
        value => Ok(value),
    }
}

macro_rules! integer_nodes {
    ($($name:ident: $method:ident $(, $divides:ident)?;)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let (a, b) = (cx.int(self.a)?, cx.int(self.b)?);
                $(
                    let $divides = b == Expr::Int(0);
                    if $divides {
                        return Err(InferError::Shape(format!("divides {a} by zero")));
                    }
                )?
                let value = need_i32(cx.$method(&a, &b))?;
                cx.write_value(self.out, value);
                Ok(())
            }
        }
    )* };
}

integer_nodes! {
    AddInt: add;
    SubtractInt: sub;
    MultiplyInt: mul;
    FloorDivideInt: floor_div, by_zero;
    ModInt: modulo, by_zero;
}

impl Infer for SymSize {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let a = cx.read(self.a)?;
        let size = a.dims[axis_of(self.dim, a.rank())?].clone();
        cx.write_value(self.out, need_i32(size)?);
        Ok(())
    }
}

impl Infer for ItemInt {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        if x.dtype.is_float() {
            return Err(InferError::DType { field: "x", found: x.dtype, expected: "an integer type or bool" });
        }
        if let Some(dim) = x.dims.iter().find(|d| d.as_int().is_some_and(|n| n != 1)) {
            return Err(InferError::Size { field: "x", found: dim.clone(), expected: Expr::Int(1) });
        }
        let value = cx.unknown();
        cx.write_value(self.out, value);
        Ok(())
    }
}
