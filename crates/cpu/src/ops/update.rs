//! Nodes that replace part of a tensor: in place if its storage is unshared, else on a copy.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::Pool;
use smallvec::SmallVec;

use super::{
    copy::{cast_into, with_region},
    index::{listed, wrap},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    plan::Planner,
    prepare::Prepare,
};

/// The entries of an axis of `n` that a slice with these bounds names: the first, how many.
/// Negative bounds count from the end.
pub(crate) fn slice_of(start: i64, stop: i64, step: usize, n: usize) -> (usize, usize) {
    let n = n as i64;
    let clamp = |v: i64| (if v < 0 { v + n } else { v }).clamp(0, n) as usize;
    let (start, stop) = (clamp(start), clamp(stop));
    (start, stop.saturating_sub(start).div_ceil(step))
}

/// Writes `update` over the listed rows of `axis` of `dst`; ascending runs are written at once.
fn copy_rows(pool: &Pool, dst: &mut Array, axis: usize, rows: &[usize], update: &Array) -> Result<()> {
    let mut i = 0;
    while i < rows.len() {
        let count = 1 + rows[i..].windows(2).take_while(|w| w[1] == w[0] + 1).count();
        let part = update.narrow(axis, i, count, 1);
        with_region(dst, &[(axis, rows[i], count, 1)], |region| cast_into(pool, &part, region))?;
        i += count;
    }
    Ok(())
}

impl Prepare for ir::SliceUpdate {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (update, axis, rank) = (p.get(self.update)?, p.int(self.axis)?, p.operand(self.dst)?.array.rank());
        let axis = axis_of(axis, rank)?;
        let step = usize::try_from(self.step).ok().filter(|&s| s > 0).ok_or_else(|| OpError::value("the step is not positive"))?;
        let (start, stop) = (self.start, self.stop);
        p.update(self.dst, self.out, &[&update], move |cx, ins, y| {
            let (start, count) = slice_of(cx.int(start)?, cx.int(stop)?, step, y.shape[axis]);
            if count == 0 {
                return Ok(());
            }
            with_region(y, &[(axis, start, count, step)], |region| cast_into(&cx.pool, &ins[0], region))
        })
    }
}

impl Prepare for ir::IndexCopy {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (update, indices, rank) = (p.operand(self.update)?, p.operand(self.indices)?, p.operand(self.dst)?.array.rank());
        let axis = axis_of(self.axis, rank)?;
        let indices = p.contiguous(indices)?;
        p.update(self.dst, self.out, &[&update, &indices], move |cx, ins, y| {
            let n = y.shape[axis];
            let rows = listed(&ins[1])?.iter().map(|&i| wrap(i, n)).collect::<Result<SmallVec<[usize; 8]>>>()?;
            copy_rows(&cx.pool, y, axis, &rows, &ins[0])
        })
    }
}
