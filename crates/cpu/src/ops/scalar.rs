//! Nodes that compute 32-bit integers.

use flambeau_ir as ir;
use flambeau_tensor::{Bool, DType};

use super::{int_dtype, int_math::Int as _, shape::axis_of};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

fn narrow(value: i64) -> Result<i32> {
    i32::try_from(value).map_err(|_| OpError::value(format!("{value} does not fit 32 bits")))
}

macro_rules! integer_nodes {
    ($($node:ident: $f:expr;)*) => { $(impl Eval for ir::$node {
        const HAS_RULE: bool = false;
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let f: fn(i64, i64) -> Option<i64> = $f;
            let (a, b) = (cx.int(self.a)?, cx.int(self.b)?);
            let value = f(a, b).ok_or_else(|| OpError::value(format!("divides {a} by zero")))?;
            cx.put_value(self.out, narrow(value)?);
            Ok(())
        }
    })* };
}

integer_nodes! {
    AddInt: |a, b| Some(a + b);
    SubtractInt: |a, b| Some(a - b);
    MultiplyInt: |a, b| Some(a * b);
    FloorDivideInt: |a, b| (b != 0).then(|| a.floor_div(b));
    ModInt: |a, b| (b != 0).then(|| a.floor_rem(b));
}

impl Eval for ir::SymSize {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.shape(self.a)?;
        let size = shape[axis_of(self.dim.into(), shape.len())?];
        cx.put_value(self.out, narrow(size as i64)?);
        Ok(())
    }
}

impl Eval for ir::ItemInt {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        if x.numel() != 1 {
            return Err(OpError::value(format!("expected one element, found shape {:?}", x.shape)));
        }
        let value = match x.dtype {
            DType::Bool => i64::from(x.slice::<Bool>()?[0].get()),
            d => int_dtype!(d, T => Ok(x.slice::<T>()?[0].to_i64()))?,
        };
        cx.put_value(self.out, value as i32);
        Ok(())
    }
}
