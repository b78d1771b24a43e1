//! Nodes that read elements at given indices.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_kernels::Pool;
use flambeau_tensor::Shape;
use smallvec::SmallVec;

use super::{
    any_dtype, bits_dtype,
    copy::{as_bits, bits, copy_into, with_region},
    int_dtype,
    int_math::Int,
    walk::{walk, without},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    plan::{Cost, MemRef, Planner},
    prepare::Prepare,
};

/// Elements that one task copies.
const GRAIN: usize = 1 << 14;

/// An index into `n` elements; negative ones count from the end.
pub(crate) fn wrap(index: i64, n: usize) -> Result<usize> {
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at).ok().filter(|&i| i < n).ok_or(OpError::Index { index, size: n })
}

/// The elements of a row-major integer array.
pub(crate) fn listed(x: &Array) -> Result<SmallVec<[i64; 8]>> {
    int_dtype!(x.dtype, T => Ok(x.slice::<T>()?.iter().map(|v| v.to_i64()).collect()))
}

impl Prepare for ir::Take {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let x = p.operand(self.x)?;
        let axis = axis_of(self.axis, x.array.rank())?;
        let index = match self.index {
            ir::Index::Lit(v) => ir::Int::Lit(v),
            ir::Index::Vid(vid) => ir::Int::Vid(vid),
            ir::Index::Tid(tid) => {
                let (indices, spec) = (p.operand(ir::In(tid))?, p.spec(self.out)?);
                let indices = p.contiguous(indices)?;
                let y = p.call_of(Cost::Lookup, &[&x, &indices], (spec.dtype, &spec.shape), move |cx, ins, y| {
                    take_listed(&cx.pool, &ins[0], axis, &ins[1], y)
                })?;
                p.put(self.out, y);
                return Ok(());
            }
        };
        let y = match p.known(index)? {
            Some(at) => x.seen(x.array.narrow(axis, wrap(at, x.array.shape[axis])?, 1, 1).drop_axis(axis)),
            None => {
                let spec = p.spec(self.out)?;
                p.call(&[&x], (spec.dtype, &spec.shape), move |cx, ins, y| {
                    let at = wrap(cx.int(index)?, ins[0].shape[axis])?;
                    copy_into(&cx.pool, &ins[0].narrow(axis, at, 1, 1).drop_axis(axis), y)
                })?
            }
        };
        p.put(self.out, y);
        Ok(())
    }
}

/// The entries of `axis` of `x` that the row-major `indices` list.
fn take_listed(pool: &Pool, x: &Array, axis: usize, indices: &Array, out: &mut Array) -> Result<()> {
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
    let x = bits(x.clone());
    let n = x.shape[axis];
    as_bits(out, |out| {
        bits_dtype!(x.dtype, T => {
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
        })
    })
}

/// The operand broadcast to `shape`, as nodes need whose other axes broadcast.
fn broadcast(x: &MemRef, shape: &[usize]) -> Result<MemRef> {
    let full = x.array.broadcast(shape).ok_or_else(|| OpError::value("the operands' other axes do not broadcast"))?;
    Ok(x.seen(full))
}

/// `out[i..] = x[.., indices[i..], ..]` on `axis`, all but `x` row-major.
fn take_along(x: &Array, axis: usize, indices: &Array, out: &mut Array) -> Result<()> {
    let (x, shape) = (bits(x.clone()), out.shape.clone());
    let (indices, n) = (listed(indices)?, x.shape[axis]);
    let (base, stride) = (without(&x.strides, axis), x.strides[axis]);
    as_bits(out, |out| {
        bits_dtype!(x.dtype, T => {
            let (from, to) = (x.all::<T>()?, out.slice_mut::<T>()?);
            let mut i = 0;
            walk(&shape, [&base[..]], [x.offset], |[at]| {
                let element = at as isize + wrap(indices[i], n)? as isize * stride;
                to[i] = from[element as usize];
                i += 1;
                Ok(())
            })
        })
    })
}

impl Prepare for ir::TakeAlongAxis {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, indices, spec) = (p.operand(self.x)?, p.operand(self.indices)?, p.spec(self.out)?);
        let axis = axis_of(self.axis, x.array.rank())?;
        let mut shape = spec.shape.clone();
        shape[axis] = x.array.shape[axis];
        let x = broadcast(&x, &shape)?;
        let indices = p.contiguous(broadcast(&indices, &spec.shape)?)?;
        let y = p.call(&[&x, &indices], (spec.dtype, &spec.shape), move |_, ins, y| take_along(&ins[0], axis, &ins[1], y))?;
        p.put(self.out, y);
        Ok(())
    }
}

/// Slices of `sizes` of `ins[0]`. The other operands list the starts of the slices, one list per
/// axis in `axes`.
fn gather(ins: &[Array], axes: &[usize], sizes: &[usize], out: &mut Array) -> Result<()> {
    let [x, lists @ ..] = ins else { return Err(OpError::value("an operand is missing")) };
    let mut starts = vec![x.offset as isize; out.shape[..out.rank() - x.rank()].iter().product()];
    for (list, &axis) in lists.iter().zip(axes) {
        let (n, size) = (x.shape[axis] as i64, sizes[axis] as i64);
        for (start, &index) in starts.iter_mut().zip(&listed(list)?) {
            let at = if index < 0 { index + n } else { index };
            if at < 0 || at > n - size {
                return Err(OpError::Index { index, size: x.shape[axis] });
            }
            *start += at as isize * x.strides[axis];
        }
    }
    let x = bits(x.clone());
    as_bits(out, |out| {
        bits_dtype!(x.dtype, T => {
            let (from, to) = (x.all::<T>()?, out.slice_mut::<T>()?);
            let mut next = to.iter_mut();
            starts.iter().try_for_each(|&start| {
                walk(sizes, [&x.strides[..]], [start as usize], |[at]| {
                    if let (Some(slot), Some(&value)) = (next.next(), from.get(at)) {
                        *slot = value;
                    }
                    Ok::<(), OpError>(())
                })
            })
        })
    })
}

impl Prepare for ir::Gather {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, lists, spec) = (p.operand(self.x)?, p.operands(&self.indices)?, p.spec(self.out)?);
        let rank = x.array.rank();
        let (lead, sizes) = spec.shape.split_at(spec.shape.len() - rank);
        let (sizes, axes) = (Shape::from_slice(sizes), &self.axes);
        let axes = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Shape, _>>()?;
        let lists = lists.iter().map(|list| p.contiguous(broadcast(list, lead)?)).collect::<Prepared<Vec<MemRef>>>()?;
        let ins: Vec<&MemRef> = std::iter::once(&x).chain(&lists).collect();
        let y = p.call(&ins, (spec.dtype, &spec.shape), move |_, ins, y| gather(ins, &axes, &sizes, y))?;
        p.put(self.out, y);
        Ok(())
    }
}

/// `out[.., indices[p], ..] += updates[p]` along `axis` at every place `p`, all but the updates
/// row-major.
fn scatter_add(indices: &Array, updates: &Array, axis: usize, out: &mut Array) -> Result<()> {
    let (n, base, stride) = (out.shape[axis], without(&out.strides, axis), out.strides[axis]);
    let rows = listed(indices)?;
    any_dtype!(out.dtype, T => {
        let (from, to) = (updates.all::<T>()?, out.slice_mut::<T>()?);
        let mut i = 0;
        walk(&indices.shape, [&base[..], &updates.strides[..]], [0, updates.offset], |[at, u]| {
            let slot = &mut to[at + wrap(rows[i], n)? * stride as usize];
            *slot = slot.plus(from[u]);
            i += 1;
            Ok::<(), OpError>(())
        })
    })
}

impl Prepare for ir::ScatterAdd {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (x, indices, updates) = (p.operand(self.x)?, p.operand(self.indices)?, p.operand(self.updates)?);
        let axis = axis_of(self.axis, x.array.rank())?;
        let (dtype, mut shape) = (x.array.dtype, x.array.shape.clone());
        shape[axis] = indices.array.shape[axis];
        // Without this handle, a dead operand can be updated in place.
        drop(x);
        let updates = p.in_type(updates, dtype)?;
        let updates = broadcast(&updates, &shape)?;
        let indices = p.contiguous(broadcast(&indices, &shape)?)?;
        p.update(self.x, self.out, &[&indices, &updates], move |_, ins, y| scatter_add(&ins[0], &ins[1], axis, y))
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
    u16: |a, b| Int::add(a, b);
    i32: |a, b| Int::add(a, b);
    i64: |a, b| Int::add(a, b);
    u32: |a, b| Int::add(a, b);
    f32: |a, b| a + b;
    half::f16: |a, b| half::f16::from_f32(a.to_f32() + b.to_f32());
    half::bf16: |a, b| half::bf16::from_f32(a.to_f32() + b.to_f32());
    flambeau_tensor::Bool: |a, b| (a.get() | b.get()).into();
}
