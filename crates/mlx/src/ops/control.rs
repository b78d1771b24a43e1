//! Nodes that run chains.

use flambeau_ir::{
    self as ir,
    infer::{axis_of, run::Contents},
};

use super::shape::Window;
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::{Eval, run_chain},
    ffi::Array,
    values::Slot,
};

impl Eval for ir::If {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let chain = cx.m.env.selected_chain(self)?;
        run_chain(cx.m, chain)
    }
}

impl Eval for ir::Scan {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let originals = self.originals.iter().map(|&o| cx.get(o)).collect::<Result<Vec<_>>>()?;
        let steps = ir::infer::run::scan_length(self, &cx.m.env)?;
        let mut stacks: Vec<Vec<Slot>> = self.outputs.iter().map(|_| Vec::with_capacity(steps)).collect();
        for t in 0..steps {
            for (original, &slice) in originals.iter().zip(&self.sliced) {
                let axis = axis_of(self.scan_axis, original.rank())?;
                let part = Window::whole(&original.shape).narrow(axis, t, 1, 1).of(&original.array)?;
                let mut shape = original.shape.clone();
                shape.remove(axis);
                let part = part.squeeze(&[axis as i64])?;
                cx.m.set(slice.0, Slot::new(part, original.dtype, shape));
            }
            run_chain(cx.m, self.body_chain_idx)?;
            for (stack, &output) in stacks.iter_mut().zip(&self.outputs) {
                stack.push(cx.get_slot(output.0)?);
            }
        }
        for (stack, &output) in stacks.into_iter().zip(&self.outputs) {
            let whole = stacked(cx, stack, output, self.scan_axis)?;
            cx.m.set(output.0, whole);
        }
        Ok(())
    }
}

/// A slot's contents after each step, stacked along a new axis.
fn stacked(cx: &Cx<'_>, parts: Vec<Slot>, output: ir::InOut, axis: i32) -> Result<Slot> {
    let first = parts.first().ok_or_else(|| OpError::value("there is nothing to stack"))?;
    let (dtype, mut shape, steps) = (first.dtype, first.shape.clone(), parts.len());
    if parts.iter().any(|p| p.dtype != dtype || p.shape != shape) {
        return Err(OpError::value(format!("{} changes its type or shape from step to step", output.0)));
    }
    let axis = axis_of(axis, shape.len() + 1)?;
    shape.insert(axis, steps);
    let arrays: Vec<Array> = parts.into_iter().map(|p| p.array).collect();
    Ok(Slot::new(Array::stack(cx.api(), &arrays, axis as i32)?, dtype, shape))
}
