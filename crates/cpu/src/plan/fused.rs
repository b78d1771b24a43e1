//! Element-by-element float nodes, deferred until another kind of node reads the result. Nodes that
//! only feed each other run as one pass, bit-identical to separate nodes.

use std::sync::Arc;

use flambeau_ir::{In, Out, infer::run::OutSpec};
use flambeau_kernels::{
    Pool,
    elementwise::fused::{FusedStep, MAX_INPUTS, MAX_STEPS, Op, fused},
    math::Unary,
};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    linear,
    memref::MemRef,
    planner::{Cost, Deferred, Planner},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    obstacle::Prepared,
    ops::{float_dtype, linalg::float_view},
};

/// The operation of a float node on each element, in the result's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusible {
    Function(Unary),
    Neg,
    Abs,
    /// The operand itself, which alone is not converted before.
    Cast,
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
}

impl Fusible {
    /// The step, given those that make the operands: the first and the last of them.
    fn op(self, a: usize, b: usize) -> Op {
        match self {
            Fusible::Function(function) => Op::Unary(function, a),
            Fusible::Neg => Op::Neg(a),
            Fusible::Abs => Op::Abs(a),
            Fusible::Cast => Op::Keep(a),
            Fusible::Add => Op::Add(a, b),
            Fusible::Subtract => Op::Subtract(a, b),
            Fusible::Multiply => Op::Multiply(a, b),
            Fusible::Divide => Op::Divide(a, b),
            Fusible::Maximum => Op::Maximum(a, b),
            Fusible::Minimum => Op::Minimum(a, b),
        }
    }
}

/// Nodes that one pass computes.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    steps: Vec<FusedStep>,
    inputs: Vec<MemRef>,
    pub(super) dtype: DType,
    shape: Shape,
    name: String,
}

impl Planner<'_> {
    /// Computes floats element by element, fused with the producers of its operands and the readers
    /// of its result where possible.
    pub(crate) fn fuse(&mut self, op: Fusible, ins: &[In], out: Out) -> Prepared {
        let OutSpec { dtype, shape } = self.spec(out)?;
        if let Some(layer) = linear::followed_by(self, op, ins, out)? {
            return self.defer(out, Deferred::Linear(Box::new(layer)));
        }
        let mut may_wait = true;
        for &slot in ins {
            if !self.is_fused(slot) {
                let x = self.operand(slot)?;
                may_wait &= self.stays(&x);
            }
        }
        if shape.contains(&0) {
            let empty = self.call(&[], (dtype, &shape), |_, _, _| Ok(()))?;
            self.put(out, empty);
            return Ok(());
        }
        let mut fused = Fused { steps: Vec::new(), inputs: Vec::new(), dtype, shape, name: String::new() };
        let mut reads: SmallVec<[usize; 2]> = SmallVec::new();
        for (i, &slot) in ins.iter().enumerate() {
            let step = fused.read(self, slot, ins.len() - i - 1)?;
            let is_ready = fused.steps[step].dtype == dtype || op == Fusible::Cast;
            reads.push(if is_ready { step } else { fused.push(Op::Keep(step), dtype) });
        }
        fused.push(op.op(reads[0], reads[reads.len() - 1]), dtype);
        if let Some(recorder) = self.recorder() {
            fused.name += if fused.name.is_empty() { "" } else { " + " };
            fused.name += recorder.node().name();
            if may_wait {
                return self.defer(out, Deferred::Fused(Box::new(fused)));
            }
        }
        let y = emit(self, fused)?;
        self.put(out, y);
        Ok(())
    }

    fn is_fused(&mut self, slot: In) -> bool {
        self.recorder().is_some_and(|recorder| matches!(recorder.deferred(slot), Some(Deferred::Fused(_))))
    }
}

impl Fused {
    fn push(&mut self, op: Op, dtype: DType) -> usize {
        self.steps.push(FusedStep { op, dtype });
        self.steps.len() - 1
    }

    /// Adds an operand to the pass. Includes the operand's own steps if this node is its only
    /// reader and there is room; `more` operands follow. Returns the index of its last step.
    fn read(&mut self, p: &mut Planner<'_>, slot: In, more: usize) -> Prepared<usize> {
        // Reserve for the later operands, their casts, and the node itself.
        let spare = 2 * more + 2;
        if let Some(recorder) = p.recorder()
            && recorder.is_dying(slot.0)
            && let Some(Deferred::Fused(other)) = recorder.deferred(slot)
            && self.steps.len() + other.steps.len() + spare <= MAX_STEPS
            && self.inputs.len() + other.inputs.len() + more <= MAX_INPUTS
            && other.shape == self.shape
        {
            let other = Fused::clone(other);
            return Ok(self.append(other));
        }
        let x = p.operand(slot)?;
        let x = if x.array.dtype.is_float() { x } else { p.in_type(x, self.dtype)? };
        let dtype = x.array.dtype;
        self.inputs.push(x);
        Ok(self.push(Op::Input(self.inputs.len() - 1), dtype))
    }

    fn append(&mut self, other: Fused) -> usize {
        let (steps, inputs) = (self.steps.len(), self.inputs.len());
        for step in other.steps {
            let op = match step.op {
                Op::Input(i) => Op::Input(i + inputs),
                op => op.renumbered(|i| i + steps),
            };
            self.push(op, step.dtype);
        }
        self.inputs.extend(other.inputs);
        if !self.name.is_empty() {
            self.name += " + ";
        }
        self.name += &other.name;
        self.steps.len() - 1
    }
}

/// Computes fused nodes in one step.
pub(super) fn emit(p: &mut Planner<'_>, fused: Fused) -> Prepared<MemRef> {
    let Fused { steps, inputs, dtype, shape, name } = fused;
    let ins: SmallVec<[&MemRef; MAX_INPUTS]> = inputs.iter().collect();
    let name: Option<Arc<str>> = (!name.is_empty()).then(|| name.into());
    let mut outs = p.call_many((name, Cost::Flops(0)), &ins, &[(dtype, &shape)], move |cx, ins, outs| {
        run(&cx.pool, &steps, ins, &mut outs[0])
    })?;
    outs.pop().ok_or_else(|| OpError::value("fused nodes have no result").into())
}

fn run(pool: &Pool, steps: &[FusedStep], ins: &[Array], y: &mut Array) -> Result<()> {
    let views = ins.iter().map(float_view).collect::<Result<SmallVec<[_; MAX_INPUTS]>>>()?;
    float_dtype!(y.dtype, T => Ok(fused::<T>(pool, steps, &views, &mut y.view_mut()?)?))
}
