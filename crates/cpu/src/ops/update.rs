//! Nodes that replace part of a tensor: in place where nobody else sees it, on a copy elsewhere.

use flambeau_ir as ir;
use flambeau_kernels::Pool;

use super::{
    copy::{cast_into, duplicate},
    index::wrap,
    shape::{axis_of, with_region},
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// What the destination slot holds, fit to be written.
fn writable(cx: &mut Cx<'_>, dst: ir::In) -> Result<Array> {
    let mut dst = cx.take(dst)?;
    // A broadcast view names one element many times: it cannot be written as it is.
    if dst.is_unique() && dst.is_contiguous() { Ok(dst) } else { duplicate(cx, &dst) }
}

/// The entries of an axis of `n` that a slice with these bounds names: the first, how many. Negative bounds count from the end.
pub(crate) fn slice_of(start: i64, stop: i64, step: usize, n: usize) -> (usize, usize) {
    let n = n as i64;
    let clamp = |v: i64| (if v < 0 { v + n } else { v }).clamp(0, n) as usize;
    let (start, stop) = (clamp(start), clamp(stop));
    (start, stop.saturating_sub(start).div_ceil(step))
}

/// Writes `update` over the listed rows of `axis` of `dst`; ascending runs are written at once.
pub(crate) fn copy_rows(pool: &Pool, dst: &mut Array, axis: usize, rows: &[usize], update: &Array) -> Result<()> {
    let mut i = 0;
    while i < rows.len() {
        let count = 1 + rows[i..].windows(2).take_while(|w| w[1] == w[0] + 1).count();
        let part = update.narrow(axis, i, count, 1);
        with_region(dst, &[(axis, rows[i], count, 1)], |region| cast_into(pool, &part, region))?;
        i += count;
    }
    Ok(())
}

impl Eval for ir::SliceUpdate {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (axis, start, stop) = (cx.int(self.axis)?, cx.int(self.start)?, cx.int(self.stop)?);
        let update = cx.get(self.update)?;
        let step = usize::try_from(self.step).ok().filter(|&s| s > 0).ok_or_else(|| OpError::value("the step is not positive"))?;
        let rank = cx.out(self.out)?.shape.len();
        let axis = axis_of(axis, rank)?;
        let (start, count) = slice_of(start, stop, step, cx.out(self.out)?.shape[axis]);
        if count == 0 {
            let dst = cx.take(self.dst)?;
            cx.put(self.out, dst);
            return Ok(());
        }
        let mut dst = writable(cx, self.dst)?;
        let pool = cx.pool();
        let result = with_region(&mut dst, &[(axis, start, count, step)], |region| cast_into(&pool, &update, region));
        // A buffer stays bound when the update does not fit it.
        cx.put(if result.is_ok() { self.out } else { ir::Out(self.dst.0) }, dst);
        result
    }
}

impl Eval for ir::IndexCopy {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (update, indices) = (cx.get(self.update)?, cx.get(self.indices)?);
        let indices = super::index::integers(cx, &indices)?;
        let shape = cx.out(self.out)?.shape;
        let axis = axis_of(self.axis.into(), shape.len())?;
        let rows = indices.iter().map(|&i| wrap(i, shape[axis])).collect::<Result<smallvec::SmallVec<[usize; 8]>>>()?;
        if rows.is_empty() {
            let dst = cx.take(self.dst)?;
            cx.put(self.out, dst);
            return Ok(());
        }
        let mut dst = writable(cx, self.dst)?;
        let result = copy_rows(&cx.pool(), &mut dst, axis, &rows, &update);
        // A buffer stays bound when the update does not fit it.
        cx.put(if result.is_ok() { self.out } else { ir::Out(self.dst.0) }, dst);
        result
    }
}
