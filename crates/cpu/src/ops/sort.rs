//! Sorts: stable, ascending, NaN last. A partition is a sort, which its contract allows.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::order;
use flambeau_tensor::DType;

use super::{wide, wide_dtype};
use crate::{obstacle::Prepared, plan::Planner, prepare::Prepare};

macro_rules! sorts {
    ($($node:ident: $kernel:path, $result:expr;)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
            let axis = axis_of(self.axis, x.array.rank())?;
            let through = wide(x.array.dtype);
            let x = p.in_type(x, through)?;
            let y = p.call(&[&x], ($result(through), &spec.shape), move |cx, ins, y| {
                wide_dtype!(ins[0].dtype, T => Ok($kernel(&cx.pool, &ins[0].view::<T>()?, axis, y.slice_mut()?)?))
            })?;
            let y = p.in_type(y, spec.dtype)?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}

sorts! {
    Sort: order::sort, |elements| elements;
    Partition: order::sort, |elements| elements;
    Argsort: order::argsort, |_| DType::U32;
    ArgPartition: order::argsort, |_| DType::U32;
}
