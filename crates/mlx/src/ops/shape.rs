//! Nodes that move elements without computing.

use flambeau_ir::{self as ir, infer::axis_of};
use flambeau_tensor::Tensor;

use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Axes, Unary},
    open::{BUCKET, Origin, Padded},
    rows::{One, Rows},
    values::Slot,
};

impl Eval for ir::Noop {
    const HAS_RULE: bool = false;
    fn eval(&self, _: &mut Cx<'_>) -> Result<()> {
        Ok(())
    }
}

impl Eval for ir::IdCopy {
    const HAS_RULE: bool = false;
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::view(self.x)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if self.x.0 != self.out.0 {
            let x = cx.get(self.x)?;
            cx.m.set(self.out.0, x);
        }
        Ok(())
    }
}

impl Eval for ir::Contiguous {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::of([self.x])
    }

    /// Nodes read any strides, and results are made row-major when they leave.
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        if x.padded.is_some() {
            cx.m.set(self.out.0, x);
            return Ok(());
        }
        cx.put_host(self.out, x.array, x.host, x.origin)
    }
}

macro_rules! reshapes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::view(self.x)
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let shape = cx.out(self.out)?.shape;
            let x = cx.get(self.x)?;
            let host = x.host.as_ref().and_then(|h| h.reshape(&shape).ok());
            let y = x.array.reshape(&shape)?;
            cx.put_host(self.out, y, host, x.origin)
        }
    })* };
}
reshapes!(Reshape ExpandDims Squeeze);

impl Eval for ir::Transpose {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| self.perm.first() == Some(&0))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let perm = self.perm.iter().map(|&p| Ok(axis_of(p, x.rank())? as i64)).collect::<Result<Axes>>()?;
        let y = x.array.transpose(&perm)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::BroadcastTo {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.out(self.out)?.shape;
        let y = cx.get(self.x)?.array.broadcast(&shape)?;
        cx.put(self.out, y)
    }
}

/// Whether MLX would reduce the last axes of a view wrongly. It takes elements beside each other as
/// one block if there are more of them than the reduced axis has between its elements. Blocks of
/// overlapping windows then end in the middle.
fn misleads_reductions(shape: &[usize], strides: &[i64]) -> bool {
    let long = |axes: std::ops::Range<usize>| axes.filter(|&a| shape[a] > 1);
    (1..shape.len()).any(|split| {
        let step = long(split..shape.len()).map(|a| strides[a]).min().unwrap_or(0);
        let mut beside = 1;
        for a in long(0..split).rev() {
            if strides[a] != beside {
                break;
            }
            beside *= shape[a] as i64;
        }
        step > 1 && beside > step && beside % step != 0
    })
}

impl Eval for ir::AsStrided {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let shape = cx.out(self.out)?.shape;
        let x = cx.get(self.x)?;
        let strides = self.strides.iter().map(|&s| cx.int(s)).collect::<Result<Axes>>()?;
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (&d, &s) in shape.iter().zip(&strides) {
            let span = (d as i128 - 1) * i128::from(s);
            if span < 0 { low += span } else { high += span }
        }
        let n: usize = x.shape.iter().product();
        if shape.contains(&0) {
            let y = Array::full(cx.api(), &shape, 0.0, x.dtype)?;
            return cx.put(self.out, y);
        }
        if low < 0 || high >= n as i128 {
            return Err(OpError::value(format!("elements {low} to {high} of a tensor of {n} are asked for")));
        }
        let flat = x.array.unary(Unary::Contiguous)?.reshape(&[n])?;
        let y = if strides.iter().all(|&s| s >= 0) {
            let view = flat.as_strided(&shape, &strides, self.offset)?;
            if misleads_reductions(&shape, &strides) { view.unary(Unary::Contiguous)? } else { view }
        } else {
            // MLX refuses negative strides; the elements' places are then listed.
            let mut places = cx.scalar(self.offset as f64, flambeau_tensor::DType::I64)?;
            for (i, (&d, &s)) in shape.iter().zip(&strides).enumerate() {
                let along = Array::arange(cx.api(), 0.0, d as f64, 1.0, flambeau_tensor::DType::I64)?;
                let along = along.binary(crate::ffi::Binary::Multiply, &cx.scalar(s as f64, flambeau_tensor::DType::I64)?)?;
                let mut view = vec![1; shape.len()];
                view[i] = d;
                places = places.binary(crate::ffi::Binary::Add, &along.reshape(&view)?)?;
            }
            flat.take(&places, 0)?
        };
        cx.put(self.out, y)
    }
}

/// Start, stop and step of every axis, as MLX takes them: the whole axis unless changed.
pub(crate) struct Window {
    pub(super) start: Axes,
    pub(super) stop: Axes,
    pub(super) step: Axes,
}

impl Window {
    /// All of a shape.
    pub(crate) fn whole(shape: &[usize]) -> Window {
        Window {
            start: Axes::from_elem(0, shape.len()),
            stop: shape.iter().map(|&d| d as i64).collect(),
            step: Axes::from_elem(1, shape.len()),
        }
    }

    /// `count` entries of an axis from `start`, `step` apart.
    pub(crate) fn narrow(mut self, axis: usize, start: usize, count: usize, step: i64) -> Window {
        let (n, start) = (self.stop[axis], start as i64);
        let end = start + step * count as i64;
        self.start[axis] = start;
        // MLX adds `n` to a negative stop, so a stop before the first element must be `n` lower.
        self.stop[axis] = if step < 0 && end < 0 { end - n } else { end };
        self.step[axis] = step;
        self
    }

    pub(crate) fn of(&self, x: &Array) -> Result<Array> {
        Ok(x.slice(&self.start, &self.stop, &self.step)?)
    }

    pub(super) fn update(&self, x: &Array, update: &Array) -> Result<Array> {
        Ok(x.slice_update(update, &self.start, &self.stop, &self.step)?)
    }
}

/// First index of a slice of `count` entries: ends wrap once and clamp.
fn slice_start(start: i64, n: usize, step: i32) -> usize {
    let n = n as i64;
    let start = if start < 0 { start + n } else { start };
    start.clamp(0, if step > 0 { n } else { (n - 1).max(0) }) as usize
}

/// `count` entries of the last axis of integers known to the host.
fn host_slice(host: &Tensor, start: usize, count: usize) -> Option<Tensor> {
    let size = host.dtype().size();
    (host.rank() == 1)
        .then(|| Tensor::new(host.dtype(), &[count], host.bytes().slice(start * size..(start + count) * size)).ok())?
}

impl Eval for ir::Slice {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        let ir::Int::Lit(axis) = self.axis else { return None };
        Rows::of([self.x]).filter(|_| one.is_inner(axis, self.x))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (axis, start) = (cx.int(self.axis)?, cx.int(self.start)?);
        let x = cx.get(self.x)?;
        let axis = axis_of(axis, x.rank())?;
        if let Some(open) = Open::of(cx, self.axis, [self.start, self.stop], self.step)? {
            return open.slice(cx, self.out, &x, axis);
        }
        let (start, count) = (slice_start(start, x.shape[axis], self.step), spec.shape[axis]);
        let host = x.host.as_ref().filter(|_| self.step == 1 && count > 0).and_then(|h| host_slice(h, start, count));
        let y = if spec.shape.contains(&0) {
            Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?
        } else {
            // The last entry decides the stop, so that a step beyond it does not.
            Window::whole(&x.shape).narrow(axis, start, count, self.step.into()).of(&x.array)?
        };
        cx.put_host(self.out, y, host, None)
    }
}

/// A slice with an end that a trace leaves open.
pub(super) enum Open {
    /// From the beginning to an open end.
    Prefix(Origin),
    /// A slice of known size from an open start.
    At(Origin),
}

impl Open {
    /// The open bound of a slice; `None` if both bounds are known.
    ///
    /// # Errors
    /// If a trace cannot leave it open.
    pub(super) fn of(cx: &Cx<'_>, axis: ir::Int, [start, stop]: [ir::Int; 2], step: i32) -> Result<Option<Open>> {
        if cx.m.open.is_none() || [axis, start, stop].iter().all(|&i| cx.origin_of(i).is_none()) {
            return Ok(None);
        }
        match (cx.origin_of(axis), cx.origin_of(start), cx.origin_of(stop), step) {
            (None, None, Some(stop), 1) if cx.int(start)? == 0 => Ok(Some(Open::Prefix(stop))),
            (None, Some(start), Some(stop), 1) if start.input == stop.input => Ok(Some(Open::At(start))),
            _ => Err(OpError::value("cannot trace a slice with such ends")),
        }
    }

    fn slice(self, cx: &mut Cx<'_>, out: ir::Out, x: &Slot, axis: usize) -> Result<()> {
        let (spec, n) = (cx.out(out)?, x.shape[axis]);
        match self {
            Open::Prefix(length) => {
                let count = spec.shape[axis];
                if cx.open()?.value(length)? != count as i64 || count == 0 {
                    return Err(OpError::value("cannot trace a slice past the end"));
                }
                let below = (count - 1) / BUCKET * BUCKET;
                let bucket = (below + BUCKET).min(n);
                cx.open()?.guard(length, below as i64 + 1, bucket as i64);
                let array = Window::whole(&x.shape).narrow(axis, 0, bucket, 1).of(&x.array)?;
                let padded = Some(Padded { axis, length });
                cx.m.set(out.0, Slot { padded, ..Slot::new(array, spec.dtype, spec.shape) });
                Ok(())
            }
            Open::At(start) => {
                let start = start_array(cx, start, n, spec.shape[axis])?;
                let y = x.array.slice_at(&start, &[axis as i64], &spec.shape)?;
                cx.put(out, y)
            }
        }
    }
}

/// The open start of a region of `count` of `n` entries, as an array `[1]`.
pub(super) fn start_array(cx: &mut Cx<'_>, start: Origin, n: usize, count: usize) -> Result<Array> {
    let (at, last) = (cx.open()?.value(start)?, n as i64 - count as i64);
    if !(0..=last).contains(&at) {
        return Err(OpError::value("cannot trace a region past the end"));
    }
    cx.open()?.guard(start, 0, last);
    Ok(cx.open_array(start)?.reshape(&[1])?)
}

impl Eval for ir::Flip {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| self.axes.iter().all(|&axis| one.is_inner(axis.into(), self.x)))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let mut window = Window::whole(&x.shape);
        for &axis in &self.axes {
            let axis = axis_of(axis, x.rank())?;
            if x.shape[axis] > 0 {
                window = window.narrow(axis, x.shape[axis] - 1, x.shape[axis], -1);
            }
        }
        let y = window.of(&x.array)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Split {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.is_inner(self.axis.into(), self.x))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let mut start = 0;
        for &out in &self.outs {
            let count = cx.out(out)?.shape[axis];
            let part = Window::whole(&x.shape).narrow(axis, start, count, 1).of(&x.array)?;
            cx.put(out, part)?;
            start += count;
        }
        Ok(())
    }
}

fn operands(cx: &Cx<'_>, slots: &[ir::In], out: ir::Out) -> Result<Vec<Array>> {
    let dtype = cx.out(out)?.dtype;
    slots.iter().map(|&t| cx.get_as(t, dtype)).collect()
}

impl Eval for ir::Concatenate {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        let is_inner = |&slot: &ir::In| one.is_inner(self.axis.into(), slot);
        Rows::aligned(self.tensors.iter().copied()).filter(|_| self.tensors.iter().all(is_inner))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let parts = operands(cx, &self.tensors, self.out)?;
        let y = match &parts[..] {
            [only] => only.share()?,
            _ => Array::concatenate(cx.api(), &parts, self.axis)?,
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::Stack {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::of(self.tensors.iter().copied()).filter(|_| self.axis > 0)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let parts = operands(cx, &self.tensors, self.out)?;
        let y = Array::stack(cx.api(), &parts, self.axis)?;
        cx.put(self.out, y)
    }
}

/// A result without elements, which no operation of MLX need make.
fn empty(cx: &mut Cx<'_>, out: ir::Out) -> Result<bool> {
    let spec = cx.out(out)?;
    if !spec.shape.contains(&0) {
        return Ok(false);
    }
    let y = Array::full(cx.api(), &spec.shape, 0.0, spec.dtype)?;
    cx.put(out, y)?;
    Ok(true)
}

impl Eval for ir::Tile {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if empty(cx, self.out)? {
            return Ok(());
        }
        let reps = self.reps.iter().map(|&r| cx.int(r)).collect::<Result<Axes>>()?;
        let y = cx.get(self.x)?.array.tile(&reps)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Repeat {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.is_inner(self.axis.into(), self.x))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if empty(cx, self.out)? {
            return Ok(());
        }
        let repeats = cx.int(self.repeats)? as i32;
        let x = cx.get(self.x)?;
        let y = x.array.repeat(repeats, axis_of(self.axis, x.rank())? as i32)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Roll {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let Slot { mut array, shape, .. } = cx.get(self.x)?;
        for (&axis, &shift) in self.axes.iter().zip(&self.shift) {
            let (axis, shift) = (axis_of(axis, shape.len())?, cx.int(shift)?);
            if shape[axis] > 0 {
                array = array.roll(shift.rem_euclid(shape[axis] as i64) as i32, axis as i32)?;
            }
        }
        cx.put(self.out, array)
    }
}

impl Eval for ir::Pad {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let widths = self.pad_width.iter().map(|&w| cx.int(w).map(|v| v.max(0))).collect::<Result<Axes>>()?;
        let x = cx.get(self.x)?;
        let (low, high): (Axes, Axes) = widths.chunks(2).map(|w| (w[0], w.get(1).copied().unwrap_or(0))).unzip();
        let is_edge = self.mode == "edge";
        if is_edge && x.shape.iter().zip(low.iter().zip(&high)).any(|(&d, (l, h))| d == 0 && l + h > 0) {
            return Err(OpError::value("an empty axis has no edge to repeat"));
        }
        let value = cx.scalar(self.constant_value.into(), flambeau_tensor::DType::F32)?.cast(x.dtype)?;
        let y = x.array.pad(&low, &high, &value, if is_edge { "edge" } else { "constant" })?;
        cx.put(self.out, y)
    }
}

/// A row-major copy of `x`.
pub(super) fn dense(x: &Array) -> Result<Array> {
    Ok(x.unary(Unary::Contiguous)?)
}
