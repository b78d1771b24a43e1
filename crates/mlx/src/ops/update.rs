//! Nodes that replace part of a tensor. MLX writes in place where a buffer's storage has no other
//! reader.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_tensor::DType;

use super::{
    index::{safe_indices, wrap},
    shape::{Open, Window, start_array},
};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    values::integers,
};

impl Eval for ir::SliceUpdate {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (axis, start, stop) = (cx.int(self.axis)?, cx.int(self.start)?, cx.int(self.stop)?);
        let step = usize::try_from(self.step).ok().filter(|&s| s > 0).ok_or_else(|| OpError::value("the step is not positive"))?;
        let spec = cx.out(self.out)?;
        let dst = cx.get(self.dst)?;
        let axis = axis_of(axis, spec.shape.len())?;
        let n = spec.shape[axis] as i64;
        let clamp = |v: i64| (if v < 0 { v + n } else { v }).clamp(0, n) as usize;
        let (start, stop) = (clamp(start), clamp(stop));
        let count = stop.saturating_sub(start).div_ceil(step);
        if count == 0 || spec.shape.contains(&0) {
            return cx.put_host(self.out, dst.array, dst.host, dst.origin);
        }
        let mut region = spec.shape.clone();
        region[axis] = count;
        let update = cx.get_as(self.update, spec.dtype)?.broadcast(&region)?;
        match Open::of(cx, self.axis, [self.start, self.stop], self.step)? {
            Some(Open::At(origin)) => {
                let at = start_array(cx, origin, spec.shape[axis], count)?;
                let y = dst.array.slice_update_at(&update, &at, &[axis as i64])?;
                return cx.put(self.out, y);
            }
            Some(Open::Prefix(_)) => return Err(OpError::value("cannot trace an update of open length")),
            None => {}
        }
        let mut window = Window::whole(&spec.shape).narrow(axis, start, count, step as i64);
        // The stop may not pass the end where the last step does.
        window.stop[axis] = window.stop[axis].min(n);
        let y = window.update(&dst.array, &update)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::IndexCopy {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let axis = axis_of(self.axis, spec.shape.len())?;
        let (dst, indices) = (cx.get(self.dst)?, cx.get(self.indices)?);
        let count = indices.shape.iter().product::<usize>();
        if count == 0 || spec.shape.contains(&0) {
            return cx.put_host(self.out, dst.array, dst.host, dst.origin);
        }
        let update = cx.get_as(self.update, spec.dtype)?;
        if let Some(host) = &indices.host {
            // Ascending runs are written at once, in order, so that the last of equal indices wins.
            let rows = integers(host)?.iter().map(|&i| wrap(i, spec.shape[axis])).collect::<Result<Vec<_>>>()?;
            let from = cx.peek(self.update.0)?.shape.clone();
            let (mut i, mut y) = (0, dst.array);
            while i < rows.len() {
                let count = 1 + rows[i..].windows(2).take_while(|w| w[1] == w[0] + 1).count();
                let part = Window::whole(&from).narrow(axis, i, count, 1).of(&update)?;
                y = Window::whole(&spec.shape).narrow(axis, rows[i], count, 1).update(&y, &part)?;
                i += count;
            }
            return cx.put(self.out, y);
        }
        // Row j of the update, as a slice of size 1 on the axis, behind the index axis.
        let indices = safe_indices(cx, &indices, spec.shape[axis])?.cast(DType::I32)?;
        let rank = spec.shape.len() as i64;
        let perm: crate::ffi::Axes = std::iter::once(axis as i64).chain((0..rank).filter(|&i| i != axis as i64)).collect();
        let rows = update.transpose(&perm)?.expand_dims(&[axis as i64 + 1])?;
        let y = dst.array.scatter(&[indices], &rows, &[axis as i64])?;
        cx.put(self.out, y)
    }
}
