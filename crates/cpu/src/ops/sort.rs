//! Sorts: stable, ascending, NaN last. A partition is a sort, which its contract allows.

use std::cmp::Ordering;

use flambeau_ir as ir;
use flambeau_tensor::DType;

use super::{
    copy::cast,
    reduce::{axis_last, each_row, rows},
    shape::axis_of,
};
use crate::{cx::Cx, error::Result, eval::Eval};

fn float_order(a: &f32, b: &f32) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The type in which elements are compared: exact for every type of its class.
fn key_type(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { DType::I64 }
}

fn sort(cx: &mut Cx<'_>, x: ir::In, axis: i32, out: ir::Out) -> Result<()> {
    let x = cx.get(x)?;
    let axis = axis_of(axis.into(), x.rank())?;
    let n = x.shape[axis];
    let (mut keys, back) = axis_last(cx, &x, axis, key_type(x.dtype))?;
    if x.dtype.is_float() {
        each_row::<f32>(cx, &mut keys, n, |_, row| row.sort_by(float_order))?;
    } else {
        each_row::<i64>(cx, &mut keys, n, |_, row| row.sort_unstable())?;
    }
    let y = cast(cx, &keys, x.dtype)?.permute(&back);
    cx.put(out, y);
    Ok(())
}

fn argsort(cx: &mut Cx<'_>, x: ir::In, axis: i32, out: ir::Out) -> Result<()> {
    let x = cx.get(x)?;
    let axis = axis_of(axis.into(), x.rank())?;
    let (n, is_float) = (x.shape[axis], x.dtype.is_float());
    let (mut order, back) = axis_last(cx, &x, axis, DType::U32)?;
    let (keys, _) = rows(cx, &x, &[axis], key_type(x.dtype))?;
    let count = |row: &mut [u32]| row.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
    if is_float {
        let keys = keys.slice::<f32>()?;
        each_row::<u32>(cx, &mut order, n, |i, row| {
            let keys = &keys[i * n..(i + 1) * n];
            count(row);
            row.sort_by(|&a, &b| float_order(&keys[a as usize], &keys[b as usize]));
        })?;
    } else {
        let keys = keys.slice::<i64>()?;
        each_row::<u32>(cx, &mut order, n, |i, row| {
            count(row);
            row.sort_by_key(|&a| keys[i * n + a as usize]);
        })?;
    }
    cx.put(out, order.permute(&back));
    Ok(())
}

macro_rules! sorts {
    ($($node:ident: $f:ident;)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            $f(cx, self.x, self.axis, self.out)
        }
    })* };
}

sorts! {
    Sort: sort;
    Partition: sort;
    Argsort: argsort;
    ArgPartition: argsort;
}
