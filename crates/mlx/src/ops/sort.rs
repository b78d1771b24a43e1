//! Nodes that order elements.

use flambeau_ir::{self as ir, infer::axis_of};

use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::Order,
    rows::{One, Rows},
};

/// A partition is a whole sort: the order inside of its halves is then the same on every device.
macro_rules! orders {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, one: One<'_>) -> Option<Rows> {
            Rows::of([self.x]).filter(|_| one.is_inner(self.axis.into(), self.x))
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let x = cx.get(self.x)?;
            let axis = axis_of(self.axis, x.rank())? as i32;
            let y = x.array.order(Order::$op, axis)?;
            cx.put(self.out, y)
        }
    })* };
}

orders! {
    Sort: Sort;
    Argsort: Argsort;
    Partition: Sort;
    ArgPartition: Argsort;
}
