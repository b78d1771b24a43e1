//! Rules of slices, gathers and scatters.

use flambeau_tensor::{DType, Expr};

use super::{
    Dims, Infer, InferError, Result, ShapeCx, axis_of, bad_attribute, need_index, need_rank,
    size::{broadcast, check_broadcasts_to, unify},
};
use crate::{
    field::{Index, Int},
    node::{Gather, IndexCopy, ScatterAdd, Slice, SliceUpdate, Take, TakeAlongAxis},
};

/// Literals are clamped to 32 bits, so this literal means "to the end" on any axis.
const END: i64 = i32::MAX as i64;

/// A bound of a slice after wrapping negative bounds.
fn wrap(cx: &mut dyn ShapeCx, bound: &Expr, size: &Expr) -> Expr {
    if cx.bounds(bound).1 < 0 { cx.add(bound, size) } else { bound.clone() }
}

/// Number of elements of `start:stop:step` on an axis of known size.
fn known_slice_len(n: i64, start: i64, stop: i64, step: i64) -> i64 {
    let wrap = |b: i64| if b < 0 { b.saturating_add(n) } else { b };
    let (start, stop) = (wrap(start), wrap(stop));
    if step > 0 {
        let (s, e) = (start.clamp(0, n), stop.clamp(0, n));
        ((e - s).max(0) + step - 1) / step
    } else {
        let (s, e) = (start.min(n - 1), stop.max(-1));
        if s < 0 { 0 } else { ((s - e).max(0) - step - 1) / -step }
    }
}

/// Number of elements of `start:stop:step` on an axis of `size`.
///
/// Exact if all four are known. A symbolic bound does not clamp at the size, and wraps only if its
/// range is negative. Therefore `buffer[0 : pos + T]` has `pos + T` elements. A literal bound
/// clamps.
///
/// # Errors
/// If `step` is 0.
pub(crate) fn slice_len(cx: &mut dyn ShapeCx, size: &Expr, start: &Expr, stop: &Expr, step: i32) -> Result<Expr> {
    if step == 0 {
        return bad_attribute("step", 0, "any other step");
    }
    if let (Expr::Int(n), Expr::Int(start), Expr::Int(stop)) = (size, start, stop) {
        return Ok(Expr::Int(known_slice_len(*n, *start, *stop, step.into())));
    }
    let span = if step > 0 { forward_span(cx, size, start, stop) } else { backward_span(cx, size, start, stop) };
    let len = cx.ceil_div(&span, i64::from(step.unsigned_abs()));
    Ok(len.as_int().map_or(len, |n| Expr::Int(n.max(0))))
}

fn forward_span(cx: &mut dyn ShapeCx, size: &Expr, start: &Expr, stop: &Expr) -> Expr {
    let (from, to) = (wrap(cx, start, size), wrap(cx, stop, size));
    // A literal wrapped around a known size may still be before the first element.
    let from = if from.as_int().is_some_and(|s| s < 0) { Expr::Int(0) } else { from };
    let to = match to.as_int() {
        Some(e) if e < 0 => Expr::Int(0),
        Some(END) => size.clone(),
        Some(_) => cx.smaller(&to, size),
        None => to,
    };
    cx.sub(&to, &from)
}

fn backward_span(cx: &mut dyn ShapeCx, size: &Expr, start: &Expr, stop: &Expr) -> Expr {
    let from = wrap(cx, start, size);
    let from = if from.as_int() == Some(END) { cx.sub(size, &Expr::Int(1)) } else { from };
    let to = wrap(cx, stop, size);
    // Before the first element for any size.
    let before = cx.bounds(&to).1 < 0 || *stop == Expr::Int(i64::from(i32::MIN));
    cx.sub(&from, &if before { Expr::Int(-1) } else { to })
}

/// An axis given as an integer. `None` if it is known only at run time.
fn int_axis(cx: &dyn ShapeCx, axis: Int, rank: usize) -> Result<Option<usize>> {
    match cx.int(axis)? {
        Expr::Int(axis) => {
            i32::try_from(axis).map_err(|_| InferError::Axis { axis, rank }).and_then(|axis| axis_of(axis, rank)).map(Some)
        }
        Expr::Sum(_) => Ok(None),
    }
}

impl Infer for Slice {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let mut x = cx.read(self.x)?;
        let (start, stop) = (cx.int(self.start)?, cx.int(self.stop)?);
        match int_axis(cx, self.axis, x.rank())? {
            Some(axis) => x.dims[axis] = slice_len(cx, &x.dims[axis], &start, &stop, self.step)?,
            None => x.dims.iter_mut().for_each(|d| *d = cx.unknown()),
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}

impl Infer for SliceUpdate {
    /// An empty region accepts an update of any shape and uses none of it.
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (dst, update) = (cx.read(self.dst)?, cx.read(self.update)?);
        let (start, stop) = (cx.int(self.start)?, cx.int(self.stop)?);
        if self.step < 1 {
            return bad_attribute("step", self.step, "at least 1");
        }
        if let Some(axis) = int_axis(cx, self.axis, dst.rank())? {
            let mut region = dst.dims.clone();
            region[axis] = slice_len(cx, &dst.dims[axis], &start, &stop, self.step)?;
            if region[axis] != Expr::Int(0) {
                check_broadcasts_to(&update.dims, &region)?;
            }
        }
        cx.write(self.out, dst.dtype, dst.dims)
    }
}

/// Refuses a known index outside of a known size. Negative indices count from the end.
fn check_index(index: &Expr, size: &Expr) -> Result<()> {
    match (index, size) {
        (Expr::Int(i), Expr::Int(n)) if !(-n..*n).contains(i) => bad_attribute("index", i, format!("an index into {n} elements")),
        _ => Ok(()),
    }
}

/// Refuses lookups on an axis without elements.
fn check_lookup(size: &Expr, indices: &[Expr]) -> Result<()> {
    let none = |d: &Expr| *d == Expr::Int(0);
    if none(size) && !indices.iter().any(none) && indices.iter().all(|d| d.as_int().is_some()) {
        return Err(InferError::Shape("looks elements up on an axis of size 0".to_owned()));
    }
    Ok(())
}

impl Infer for Take {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let mut x = cx.read(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let single = match self.index {
            Index::Lit(i) => Some(cx.int(Int::Lit(i))?),
            Index::Vid(v) => Some(cx.value(v)?),
            Index::Tid(t) => {
                let indices = cx.spec(t)?;
                need_index("index", indices.dtype)?;
                check_lookup(&x.dims[axis], &indices.dims)?;
                x.dims.remove(axis);
                x.dims.insert_many(axis, indices.dims);
                None
            }
        };
        if let Some(index) = single {
            check_index(&index, &x.dims[axis])?;
            x.dims.remove(axis);
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}

impl Infer for TakeAlongAxis {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (mut x, indices) = (cx.read(self.x)?, cx.read(self.indices)?);
        need_index("indices", indices.dtype)?;
        need_rank("indices", &indices, x.rank())?;
        let axis = axis_of(self.axis, x.rank())?;
        check_lookup(&x.dims[axis], &indices.dims)?;
        x.dims[axis] = indices.dims[axis].clone();
        let dims = broadcast(&x.dims, &indices.dims)?;
        cx.write(self.out, x.dtype, dims)
    }
}

impl Infer for Gather {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        if self.indices.len() != self.axes.len() {
            return bad_attribute("axes", format!("{} entries", self.axes.len()), self.indices.len());
        }
        let mut seen = 0u64;
        for &axis in &self.axes {
            if axis < 0 || axis as usize >= x.rank() {
                return Err(InferError::Axis { axis: axis.into(), rank: x.rank() });
            }
            if seen & (1 << axis) != 0 {
                return bad_attribute("axes", format!("axis {axis} twice"), "distinct axes");
            }
            seen |= 1 << axis;
        }
        if self.slice_sizes.len() != x.rank() {
            return bad_attribute("slice_sizes", format!("{} entries", self.slice_sizes.len()), x.rank());
        }
        for (&slice, size) in self.slice_sizes.iter().zip(&x.dims) {
            if slice < 0 || size.as_int().is_some_and(|n| i64::from(slice) > n) {
                return bad_attribute("slice_sizes", slice, format!("0 to {size}"));
            }
        }
        let mut dims = Dims::new();
        for &slot in &self.indices {
            let indices = cx.read(slot)?;
            need_index("indices", indices.dtype)?;
            dims = broadcast(&dims, &indices.dims)?;
        }
        dims.extend(self.slice_sizes.iter().map(|&s| Expr::Int(s.into())));
        cx.write_created(self.out, x.dtype, dims)
    }
}

impl Infer for IndexCopy {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (dst, update, indices) = (cx.read(self.dst)?, cx.read(self.update)?, cx.read(self.indices)?);
        if indices.dtype != DType::I64 {
            return Err(InferError::DType { field: "indices", found: indices.dtype, expected: "i64" });
        }
        need_rank("indices", &indices, 1)?;
        need_rank("update", &update, dst.rank())?;
        let axis = axis_of(self.axis, dst.rank())?;
        check_lookup(&dst.dims[axis], &indices.dims)?;
        for (i, (from, to)) in update.dims.iter().zip(&dst.dims).enumerate() {
            unify("update", from, if i == axis { &indices.dims[0] } else { to })?;
        }
        cx.write(self.out, dst.dtype, dst.dims)
    }
}

impl Infer for ScatterAdd {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (x, indices, updates) = (cx.read(self.x)?, cx.read(self.indices)?, cx.read(self.updates)?);
        need_index("indices", indices.dtype)?;
        need_rank("indices", &indices, x.rank())?;
        need_rank("updates", &updates, x.rank())?;
        let axis = axis_of(self.axis, x.rank())?;
        check_lookup(&x.dims[axis], &indices.dims)?;
        let positions = broadcast(&indices.dims, &updates.dims)?;
        let mut region = x.dims.clone();
        region[axis] = positions[axis].clone();
        check_broadcasts_to(&positions, &region)?;
        cx.write(self.out, x.dtype, x.dims)
    }
}
