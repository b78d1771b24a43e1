//! Rules of sorts and partitions.

use flambeau_tensor::{DType, Expr};

use super::{Infer, Result, ShapeCx, axis_of, bad_attribute};
use crate::{
    field::{In, Int},
    node::{ArgPartition, Argsort, Partition, Sort},
};

macro_rules! sorts {
    ($($name:ident: $dtype:expr;)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let x = cx.read(self.x)?;
                axis_of(self.axis, x.rank())?;
                let dtype: fn(DType) -> DType = $dtype;
                cx.write(self.out, dtype(x.dtype), x.dims)
            }
        }
    )* };
}

sorts! {
    Sort: |x| x;
    Argsort: |_| DType::U32;
}

/// Refuses a `kth` outside of the axis. Negative values count from the end.
fn check_kth(cx: &dyn ShapeCx, x: In, kth: Int, axis: i32) -> Result<()> {
    let x = cx.read(x)?;
    let size = &x.dims[axis_of(axis, x.rank())?];
    match (cx.int(kth)?, size) {
        (Expr::Int(k), Expr::Int(n)) if !(-n..*n).contains(&k) => bad_attribute("kth", k, format!("an index into {n} elements")),
        _ => Ok(()),
    }
}

macro_rules! partitions {
    ($($name:ident: $dtype:expr;)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                check_kth(cx, self.x, self.kth, self.axis)?;
                let x = cx.read(self.x)?;
                let dtype: fn(DType) -> DType = $dtype;
                cx.write(self.out, dtype(x.dtype), x.dims)
            }
        }
    )* };
}

partitions! {
    Partition: |x| x;
    ArgPartition: |_| DType::U32;
}
