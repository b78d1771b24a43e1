//! Nodes that read elements at given indices.

use flambeau_ir::{self as ir, infer::run::Contents};
use flambeau_kernels::Pool;
use flambeau_tensor::Shape;
use smallvec::SmallVec;

use super::{
    any_dtype, bits_dtype,
    copy::{bits, cast, contiguous, copy_into, duplicate},
    int_dtype,
    int_math::Int,
    shape::{axis_of, with_region},
    walk::{walk, without},
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// Elements that one task copies.
const GRAIN: usize = 1 << 14;

/// An index into `n` elements; negative ones count from the end.
pub(crate) fn wrap(index: i64, n: usize) -> Result<usize> {
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at).ok().filter(|&i| i < n).ok_or(OpError::Index { index, size: n })
}

/// The elements of an integer array in row-major order.
pub(crate) fn integers(cx: &mut Cx<'_>, x: &Array) -> Result<SmallVec<[i64; 8]>> {
    let x = contiguous(cx, x.clone())?;
    listed(&x)
}

/// The elements of a row-major integer array.
pub(crate) fn listed(x: &Array) -> Result<SmallVec<[i64; 8]>> {
    int_dtype!(x.dtype, T => Ok(x.slice::<T>()?.iter().map(|v| v.to_i64()).collect()))
}

impl Eval for ir::Take {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis.into(), x.rank())?;
        let single = cx.m.env.place(self.index)?;
        let y = match (single, self.index) {
            (Some(index), _) => x.narrow(axis, wrap(index, x.shape[axis])?, 1, 1).drop_axis(axis),
            (None, ir::Index::Tid(tid)) => {
                let indices = cx.get_slot(tid)?;
                let indices = contiguous(cx, indices)?;
                let mut y = cx.alloc_out(self.out)?;
                take_listed(&cx.pool(), &x, axis, &indices, &mut y)?;
                y
            }
            (None, _) => return Err(OpError::value("the index is neither a number nor a tensor")),
        };
        cx.put(self.out, y);
        Ok(())
    }
}

/// The entries of `axis` of `x` that the row-major `indices` list.
pub(crate) fn take_listed(pool: &Pool, x: &Array, axis: usize, indices: &Array, out: &mut Array) -> Result<()> {
    let rows = listed(indices)?.iter().map(|&i| wrap(i, x.shape[axis])).collect::<Result<SmallVec<[usize; 8]>>>()?;
    take_rows(pool, x, axis, &rows, out)
}

/// `out[.., j, ..] = x[.., rows[j], ..]`, `out` row-major, its axes in place of `axis` flattened.
fn take_rows(pool: &Pool, x: &Array, axis: usize, rows: &[usize], out: &mut Array) -> Result<()> {
    let (whole, mut flat) = (out.shape.clone(), x.shape.clone());
    flat[axis] = rows.len();
    out.set_shape(&flat);
    let inner: usize = x.shape[axis + 1..].iter().product();
    if x.is_contiguous() && inner > 0 && !rows.is_empty() {
        take_contiguous(pool, x, axis, rows, inner, out)?;
    } else {
        for (j, &row) in rows.iter().enumerate() {
            with_region(out, &[(axis, j, 1, 1)], |region| copy_into(pool, &x.narrow(axis, row, 1, 1), region))?;
        }
    }
    out.set_shape(&whole);
    Ok(())
}

fn take_contiguous(pool: &Pool, x: &Array, axis: usize, rows: &[usize], inner: usize, out: &mut Array) -> Result<()> {
    let (x, dtype) = (bits(x.clone()), out.dtype);
    let n = x.shape[axis];
    out.dtype = x.dtype;
    let result = bits_dtype!(x.dtype, T => {
        let (from, to) = (x.slice::<T>()?, out.slice_mut::<T>()?);
        let rows_per_task = (GRAIN / inner).max(1);
        pool.run_chunks(to, rows_per_task * inner, |task, chunk| {
            for (i, row) in chunk.chunks_mut(inner).enumerate() {
                let at = task * rows_per_task + i;
                let start = (at / rows.len() * n + rows[at % rows.len()]) * inner;
                row.copy_from_slice(&from[start..start + inner]);
            }
        });
        Ok(())
    });
    out.dtype = dtype;
    result
}

impl Eval for ir::TakeAlongAxis {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = bits(cx.get(self.x)?);
        let axis = axis_of(self.axis.into(), x.rank())?;
        let indices = cx.get(self.indices)?;
        let mut y = cx.alloc_out(self.out)?;
        let (dtype, n) = (y.dtype, x.shape[axis]);
        y.dtype = x.dtype;
        let (shape, mut x_shape) = (y.shape.clone(), y.shape.clone());
        x_shape[axis] = n;
        let refuse = || OpError::value("the operands' other axes do not broadcast");
        let x = x.broadcast(&x_shape).ok_or_else(refuse)?;
        let indices = indices.broadcast(&y.shape).ok_or_else(refuse)?;
        let indices = integers(cx, &indices)?;
        let (base, stride) = (without(&x.strides, axis), x.strides[axis]);
        bits_dtype!(x.dtype, T => {
            let from = x.all::<T>()?;
            let to = y.slice_mut::<T>()?;
            let mut i = 0;
            walk(&shape, [&base[..]], [x.offset], |[at]| {
                let element = at as isize + wrap(indices[i], n)? as isize * stride;
                to[i] = from[element as usize];
                i += 1;
                Ok(())
            })
        })?;
        y.dtype = dtype;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::Gather {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let mut y = cx.alloc_out(self.out)?;
        let lead = Shape::from_slice(&y.shape[..y.rank() - x.rank()]);
        let sizes = Shape::from_slice(&y.shape[y.rank() - x.rank()..]);
        let count: usize = lead.iter().product();
        let mut starts = vec![x.offset as isize; count];
        for (&indices, &axis) in self.indices.iter().zip(&self.axes) {
            let axis = axis_of(axis.into(), x.rank())?;
            let indices = cx.get(indices)?;
            let indices = indices.broadcast(&lead).ok_or_else(|| OpError::value("the indices do not broadcast"))?;
            let (n, size) = (x.shape[axis] as i64, sizes[axis] as i64);
            for (start, &index) in starts.iter_mut().zip(&integers(cx, &indices)?) {
                let at = if index < 0 { index + n } else { index };
                if at < 0 || at > n - size {
                    return Err(OpError::Index { index, size: x.shape[axis] });
                }
                *start += at as isize * x.strides[axis];
            }
        }
        let (dtype, x) = (y.dtype, bits(x));
        y.dtype = x.dtype;
        bits_dtype!(x.dtype, T => {
            let (from, to) = (x.all::<T>()?, y.slice_mut::<T>()?);
            let mut next = to.iter_mut();
            starts.iter().try_for_each(|&start| {
                walk(&sizes, [&x.strides[..]], [start as usize], |[at]| {
                    if let (Some(slot), Some(&value)) = (next.next(), from.get(at)) {
                        *slot = value;
                    }
                    Ok::<(), OpError>(())
                })
            })
        })?;
        y.dtype = dtype;
        cx.put(self.out, y);
        Ok(())
    }
}

impl Eval for ir::ScatterAdd {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.take(self.x)?;
        let axis = axis_of(self.axis.into(), x.rank())?;
        let (indices, updates) = (cx.get(self.indices)?, cx.get(self.updates)?);
        let updates = cast(cx, &updates, x.dtype)?;
        let mut shape = indices.shape.clone();
        for (i, d) in shape.iter_mut().enumerate() {
            *d = if i == axis { *d } else { x.shape[i] };
        }
        let refuse = || OpError::value("the indices or updates do not broadcast");
        let (indices, updates) = (indices.broadcast(&shape).ok_or_else(refuse)?, updates.broadcast(&shape).ok_or_else(refuse)?);
        let indices = integers(cx, &indices)?;
        let mut y = x;
        if !y.is_unique() || !y.is_contiguous() {
            y = duplicate(cx, &y)?;
        }
        let (n, base, stride) = (y.shape[axis], without(&y.strides, axis), y.strides[axis]);
        any_dtype!(y.dtype, T => {
            let from = updates.all::<T>()?;
            let to = y.slice_mut::<T>()?;
            let mut i = 0;
            walk(&shape, [&base[..], &updates.strides[..]], [0, updates.offset], |[at, u]| {
                let slot = &mut to[at + wrap(indices[i], n)? * stride as usize];
                *slot = slot.plus(from[u]);
                i += 1;
                Ok::<(), OpError>(())
            })
        })?;
        cx.put(self.out, y);
        Ok(())
    }
}

/// Sums of one element type.
trait Plus {
    fn plus(self, b: Self) -> Self;
}

macro_rules! plus {
    ($($t:ty: |$a:ident, $b:ident| $sum:expr;)*) => { $(impl Plus for $t {
        fn plus(self, $b: Self) -> Self {
            let $a = self;
            $sum
        }
    })* };
}

plus! {
    u8: |a, b| Int::add(a, b);
    i8: |a, b| Int::add(a, b);
    i16: |a, b| Int::add(a, b);
    i32: |a, b| Int::add(a, b);
    i64: |a, b| Int::add(a, b);
    u32: |a, b| Int::add(a, b);
    f32: |a, b| a + b;
    half::f16: |a, b| half::f16::from_f32(a.to_f32() + b.to_f32());
    half::bf16: |a, b| half::bf16::from_f32(a.to_f32() + b.to_f32());
    flambeau_tensor::Bool: |a, b| (a.get() | b.get()).into();
}
