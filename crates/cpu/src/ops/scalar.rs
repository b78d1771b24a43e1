//! Nodes that compute 32-bit integers.

use flambeau_ir as ir;
use flambeau_tensor::{Bool, DType};

use super::{int_dtype, int_math::Int as _};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

macro_rules! inferred_nodes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            cx.put_inferred(self.out)
        }
    })* };
}
inferred_nodes! { AddInt SubtractInt MultiplyInt FloorDivideInt ModInt SymSize }

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
