//! Sorts: stable, ascending, NaN last. A partition is a sort, which its contract allows.

use flambeau_ir as ir;
use flambeau_kernels::order;

use super::{any_dtype, shape::axis_of};
use crate::{cx::Cx, error::Result, eval::Eval};

macro_rules! sorts {
    ($($node:ident: $kernel:path;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let x = cx.get(self.x)?;
            let axis = axis_of(self.axis.into(), x.rank())?;
            let mut y = cx.alloc_out(self.out)?;
            any_dtype!(x.dtype, T => Ok($kernel(&cx.pool(), &x.view::<T>()?, axis, y.slice_mut()?)?))?;
            cx.put(self.out, y);
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
