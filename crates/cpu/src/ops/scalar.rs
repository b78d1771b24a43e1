//! Nodes that compute 32-bit integers.

use flambeau_ir as ir;
use flambeau_tensor::{Bool, DType};

use super::{int_dtype, int_math::Int as _};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::{Dynamic, Obstacle, Prepared},
    plan::Planner,
    prepare::Prepare,
};

macro_rules! integer_nodes {
    ($($node:ident)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            p.infer_value(self.out)
        }
    })* };
}
integer_nodes! { AddInt SubtractInt MultiplyInt FloorDivideInt ModInt }

impl Prepare for ir::SymSize {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let size = p.known_result(self.out)?.ok_or(Obstacle::Dynamic(Dynamic::Operand))?;
        p.set_value(self.out, size);
        Ok(())
    }
}

/// The only element.
fn item(x: &Array) -> Result<i32> {
    if x.numel() != 1 {
        return Err(OpError::value(format!("expected one element, found shape {:?}", x.shape)));
    }
    let value = match x.dtype {
        DType::Bool => i64::from(x.slice::<Bool>()?[0].get()),
        d => int_dtype!(d, T => Ok(x.slice::<T>()?[0].to_i64()))?,
    };
    Ok(value as i32)
}

impl Prepare for ir::ItemInt {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        p.read_value(self.out, &x, item)
    }
}
