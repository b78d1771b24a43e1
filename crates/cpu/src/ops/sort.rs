//! Sorts: stable, ascending, NaN last. A partition is a sort, which its contract allows.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::order;

use super::any_dtype;
use crate::{
    plan::Planner,
    prepare::{Prepare, Prepared},
};

macro_rules! sorts {
    ($($node:ident: $kernel:path;)*) => { $(impl Prepare for ir::$node {
        fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
            let (x, spec) = (p.operand(self.x)?, p.spec(self.out)?);
            let axis = axis_of(self.axis, x.array.rank())?;
            let y = p.call(&[&x], (spec.dtype, &spec.shape), move |cx, ins, y| {
                any_dtype!(ins[0].dtype, T => Ok($kernel(&cx.pool, &ins[0].view::<T>()?, axis, y.slice_mut()?)?))
            })?;
            p.put(self.out, y);
            Ok(())
        }
    })* };
}

sorts! {
    Sort: order::sort;
    Partition: order::sort;
    Argsort: order::argsort;
    ArgPartition: order::argsort;
}
