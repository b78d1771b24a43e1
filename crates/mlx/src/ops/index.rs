//! Nodes that read elements at given indices. MLX checks no index. Indices known to the host are
//! checked; all others are clamped.

use flambeau_ir::{
    self as ir,
    infer::{axis_of, run::Contents},
};
use flambeau_tensor::{DType, Tensor};

use super::shape::Window;
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Axes, Binary},
    rows::{One, Rows},
    values::{Slot, integers},
};

/// An index into `n` elements; negative ones count from the end.
pub(super) fn wrap(index: i64, n: usize) -> Result<usize> {
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at).ok().filter(|&i| i < n).ok_or(OpError::Index { index, size: n })
}

/// Integers of another integer type that holds them all.
pub(super) fn host_cast(host: &Tensor, dtype: DType) -> Option<Tensor> {
    let all = integers(host).ok()?;
    match dtype {
        DType::I64 => Tensor::from_slice(&all, host.shape()).ok(),
        DType::I32 => {
            let all = all.iter().map(|&v| i32::try_from(v).ok()).collect::<Option<Vec<_>>>()?;
            Tensor::from_slice(&all, host.shape()).ok()
        }
        _ => None,
    }
}

/// Indices into an axis of `n` elements that are safe to use, as i32.
///
/// # Errors
/// If an index known to the host is out of range.
pub(super) fn safe_indices(cx: &Cx<'_>, indices: &Slot, n: usize) -> Result<Array> {
    safe_starts(cx, indices, n, n.saturating_sub(1))
}

/// Starts of slices into an axis of `n` elements, none above `last`.
fn safe_starts(cx: &Cx<'_>, indices: &Slot, n: usize, last: usize) -> Result<Array> {
    if let Some(host) = &indices.host {
        let all = integers(host)?.iter().map(|&i| wrap(i, n)).collect::<Result<Vec<_>>>()?;
        if let Some(&at) = all.iter().find(|&&at| at > last) {
            return Err(OpError::Index { index: at as i64, size: n });
        }
        let all: Vec<i32> = all.into_iter().map(|i| i as i32).collect();
        let tensor = Tensor::from_slice(&all, host.shape()).map_err(|e| OpError::value(e.to_string()))?;
        return Ok(Array::from_tensor(cx.api(), &tensor)?);
    }
    if n == 0 && !indices.shape.contains(&0) {
        return Err(OpError::Index { index: 0, size: 0 });
    }
    let (zero, last) = (cx.scalar(0.0, DType::I64)?, cx.scalar(last as f64, DType::I64)?);
    let all = indices.array.cast(DType::I64)?;
    let wrapped = all.binary(Binary::Add, &cx.scalar(n as f64, DType::I64)?)?;
    let all = all.binary(Binary::Less, &zero)?.choose(&wrapped, &all)?;
    Ok(all.binary(Binary::Maximum, &zero)?.binary(Binary::Minimum, &last)?.cast(DType::I32)?)
}

impl Eval for ir::Take {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        match self.index {
            // Rows of a table: the axes of the indices replace the axis.
            ir::Index::Tid(tid) if !one.is_inner(self.axis.into(), self.x) => Rows::of([ir::In(tid)]),
            ir::Index::Tid(_) => None,
            _ => Rows::of([self.x]).filter(|_| one.is_inner(self.axis.into(), self.x)),
        }
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let single = cx.m.env.place(self.index)?;
        match (single, self.index) {
            (Some(index), _) => {
                let at = wrap(index, x.shape[axis])?;
                let part = Window::whole(&x.shape).narrow(axis, at, 1, 1).of(&x.array)?;
                let host = x.host.as_ref().filter(|_| axis == 0).and_then(|h| host_row(h, at));
                let origin = x.origin;
                cx.put_host(self.out, part.squeeze(&[axis as i64])?, host, origin)
            }
            (None, ir::Index::Tid(tid)) => {
                let indices = safe_indices(cx, cx.peek(tid)?, x.shape[axis])?;
                let y = take_rows(cx, self.out, &x, &indices, axis)?;
                cx.put(self.out, y)
            }
            (None, _) => Err(OpError::value("the index is neither a number nor a tensor")),
        }
    }
}

fn take_rows(cx: &Cx<'_>, out: ir::Out, x: &Slot, indices: &Array, axis: usize) -> Result<Array> {
    let spec = cx.out(out)?;
    if spec.shape.contains(&0) {
        return Ok(Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?);
    }
    Ok(x.array.take(indices, axis as i32)?)
}

/// One entry of the first axis of the host copy.
fn host_row(host: &Tensor, at: usize) -> Option<Tensor> {
    let (_, rest) = host.shape().split_first()?;
    let size = rest.iter().product::<usize>() * host.dtype().size();
    Tensor::new(host.dtype(), rest, host.bytes().slice(at * size..(at + 1) * size)).ok()
}

impl Eval for ir::TakeAlongAxis {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x, self.indices]).filter(|_| one.is_inner(self.axis.into(), self.x))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let spec = cx.out(self.out)?;
        let y = if spec.shape.contains(&0) {
            Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?
        } else {
            let indices = safe_indices(cx, cx.peek(self.indices.0)?, x.shape[axis])?;
            let mut whole = spec.shape.clone();
            whole[axis] = x.shape[axis];
            x.array.broadcast(&whole)?.take_along_axis(&indices.broadcast(&spec.shape)?, axis as i32)?
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::Gather {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let spec = cx.out(self.out)?;
        if spec.shape.contains(&0) {
            let y = Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?;
            return cx.put(self.out, y);
        }
        let (mut indices, mut axes) = (Vec::new(), Axes::new());
        for (&list, &axis) in self.indices.iter().zip(&self.axes) {
            let axis = axis_of(axis, x.rank())?;
            let n = x.shape[axis];
            let size = usize::try_from(self.slice_sizes[axis]).unwrap_or(0);
            indices.push(safe_starts(cx, cx.peek(list.0)?, n, n.saturating_sub(size))?);
            axes.push(axis as i64);
        }
        let sizes: Axes = self.slice_sizes.iter().map(|&s| s.into()).collect();
        let y = x.array.gather(&indices, &axes, &sizes)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::ScatterAdd {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let indices = cx.get(self.indices)?;
        let mut shape = indices.shape.clone();
        for (i, d) in shape.iter_mut().enumerate() {
            *d = if i == axis { *d } else { x.shape[i] };
        }
        if shape.contains(&0) {
            return cx.put(self.out, x.array);
        }
        let indices = safe_indices(cx, &indices, x.shape[axis])?.broadcast(&shape)?;
        // Sums half precision, and ors bools, through a type whose sum is exact or atomic on every
        // backend.
        let through = match x.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::Bool | DType::U8 | DType::I8 | DType::I16 => DType::I32,
            d => d,
        };
        let updates = cx.get_as(self.updates, x.dtype)?.cast(through)?.broadcast(&shape)?;
        let y = x.array.cast(through)?.scatter_add(&indices, &updates, axis as i32)?;
        cx.put(self.out, y)
    }
}
