//! Element-by-element nodes, deferred until somebody else reads the result: those that only feed one another run as one pass, with
//! the bits of the nodes one by one.

use std::sync::Arc;

use flambeau_ir::{In, Node, Out, SlotClass};
use flambeau_kernels::{
    Pool,
    elementwise::fused::{MAX_INPUTS, MAX_STEPS, Op, Step, fused},
    math::Unary,
};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    Flops, Work,
    linear::stays,
    memref::MemRef,
    planner::{Deferred, Planner},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    ops::{elementwise::pointwise, float_dtype, linalg::float_view},
};

/// Nodes that no step computes yet.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    steps: Vec<Step>,
    inputs: Vec<MemRef>,
    dtype: DType,
    shape: Shape,
    name: String,
}

/// What an element-by-element node does with its operands.
struct Each {
    /// The step, given those that make the operands.
    op: fn(&[usize]) -> Op,
    /// In place of `op`, a function of one operand.
    function: Option<Unary>,
    ins: SmallVec<[In; 2]>,
    out: Out,
}

impl Each {
    fn of(node: &Node) -> Option<Each> {
        let binary = |a: In, b: In, out, op| Some(Each { op, function: None, ins: SmallVec::from_slice(&[a, b]), out });
        let unary = |x: In, out, op| Some(Each { op, function: None, ins: SmallVec::from_slice(&[x]), out });
        match node {
            Node::Add(n) => binary(n.a, n.b, n.out, |s| Op::Add(s[0], s[1])),
            Node::Subtract(n) => binary(n.a, n.b, n.out, |s| Op::Subtract(s[0], s[1])),
            Node::Multiply(n) => binary(n.a, n.b, n.out, |s| Op::Multiply(s[0], s[1])),
            Node::Divide(n) => binary(n.a, n.b, n.out, |s| Op::Divide(s[0], s[1])),
            Node::Maximum(n) => binary(n.a, n.b, n.out, |s| Op::Maximum(s[0], s[1])),
            Node::Minimum(n) => binary(n.a, n.b, n.out, |s| Op::Minimum(s[0], s[1])),
            Node::Neg(n) => unary(n.x, n.out, |s| Op::Neg(s[0])),
            Node::Abs(n) => unary(n.x, n.out, |s| Op::Abs(s[0])),
            Node::AsType(n) => unary(n.x, n.out, |s| Op::Keep(s[0])),
            node => {
                let parts = pointwise(node)?;
                let ins = parts.ins.iter().copied().collect();
                Some(Each { op: |s| Op::Keep(s[0]), function: Some(parts.function?), ins, out: parts.out })
            }
        }
    }
}

/// Follows a node that computes floats element by element. `false` if it does not, or its operands' sizes are open.
pub(super) fn lower(b: &mut Planner<'_>, node: &Node) -> Result<bool> {
    let Some(Each { op, function, ins, out }) = Each::of(node) else { return Ok(false) };
    let Some((dtype, shape)) = b.spec(out).filter(|(dtype, shape)| dtype.is_float() && !shape.contains(&0)) else {
        return Ok(false);
    };
    if b.m.graph.slots.class(out.0) == Some(SlotClass::Buffer) || !ins.iter().all(|x| is_usable(b, *x)) {
        return Ok(false);
    }
    let mut new = Fused { steps: Vec::new(), inputs: Vec::new(), dtype, shape, name: String::new() };
    let mut read: SmallVec<[usize; 2]> = SmallVec::new();
    for (i, &x) in ins.iter().enumerate() {
        // Room for what the operands after this one need at least, their casts, and the node itself.
        let spare = 2 * (ins.len() - i - 1) + 2;
        let Some(step) = new.take(b, x, spare, ins.len() - i - 1)? else { return Ok(false) };
        let is_cast = matches!(node, Node::AsType(_));
        read.push(if new.steps[step].dtype == dtype || is_cast { step } else { new.push(Op::Keep(step), dtype) });
    }
    new.push(function.map_or_else(|| op(&read), |function| Op::Unary(function, read[0])), dtype);
    new.name += if new.name.is_empty() { "" } else { " + " };
    new.name += node.name();
    b.defer(out, Deferred::Fused(new))?;
    Ok(true)
}

/// Whether an operand is floats of known sizes that will still be there.
fn is_usable(b: &mut Planner<'_>, x: In) -> bool {
    if let Some(Deferred::Fused(_)) = b.deferred_in(x) {
        return true;
    }
    matches!(b.fixed(x), Ok(Some(val)) if val.array.dtype.is_float() && stays(b, &val))
}

impl Fused {
    fn push(&mut self, op: Op, dtype: DType) -> usize {
        self.steps.push(Step { op, dtype });
        self.steps.len() - 1
    }

    /// Makes an operand part of the pass, with its own steps if only this node reads it; the number of its last step. `None` if
    /// it has not the room, with `spare` steps and `more` operands to come.
    fn take(&mut self, b: &mut Planner<'_>, x: In, spare: usize, more: usize) -> Result<Option<usize>> {
        if let Some(Deferred::Fused(other)) = b.deferred_in(x).filter(|_| b.is_dying(x.0)) {
            let fits = self.steps.len() + other.steps.len() + spare <= MAX_STEPS
                && self.inputs.len() + other.inputs.len() + more <= MAX_INPUTS
                && other.shape == self.shape;
            if fits {
                let other = other.clone();
                return Ok(Some(self.append(other)));
            }
        }
        let Some(val) = b.fixed(x)? else { return Ok(None) };
        if self.steps.len() + 1 + spare > MAX_STEPS || self.inputs.len() + 1 + more > MAX_INPUTS {
            return Ok(None);
        }
        let dtype = val.array.dtype;
        self.inputs.push(val);
        Ok(Some(self.push(Op::Input(self.inputs.len() - 1), dtype)))
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
pub(super) fn compute(b: &mut Planner<'_>, fused: &Fused) -> Result<MemRef> {
    let steps = fused.steps.clone();
    let work: Work = Box::new(move |pool, ins, outs| run(pool, &steps, ins, &mut outs[0]));
    let ins: Vec<&MemRef> = fused.inputs.iter().collect();
    let name: Arc<str> = fused.name.as_str().into();
    let mut outs = b.call_many(&ins, &[(fused.dtype, &fused.shape)], work, (name, Flops::Known(0)))?;
    outs.pop().ok_or_else(|| OpError::value("fused nodes have no result"))
}

fn run(pool: &Pool, steps: &[Step], ins: &[Array], y: &mut Array) -> Result<()> {
    let views = ins.iter().map(float_view).collect::<Result<SmallVec<[_; MAX_INPUTS]>>>()?;
    float_dtype!(y.dtype, T => Ok(fused::<T>(pool, steps, &views, &mut y.view_mut()?)?))
}
