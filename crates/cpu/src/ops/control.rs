//! Nodes that run chains.

use flambeau_ir::{self as ir, infer::run::Contents};

use super::{
    copy::cast_into,
    shape::{axis_of, with_region},
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    session::run_chain,
};

impl Eval for ir::If {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let chain = cx.m.env.chosen(self)?;
        run_chain(cx.m, chain)
    }
}

impl Eval for ir::Scan {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let originals = self.originals.iter().map(|&o| cx.get(o)).collect::<Result<Vec<_>>>()?;
        let steps = ir::infer::run::scan_length(self, &cx.m.env)?;
        let mut stacks: Vec<Option<Array>> = vec![None; self.outputs.len()];
        for t in 0..steps {
            for (original, &slice) in originals.iter().zip(&self.sliced) {
                let axis = axis_of(self.scan_axis.into(), original.rank())?;
                cx.put(slice, original.narrow(axis, t, 1, 1).drop_axis(axis));
            }
            run_chain(cx.m, self.body_chain_idx)?;
            for (stack, &output) in stacks.iter_mut().zip(&self.outputs) {
                collect(cx, stack, (output, self.scan_axis), t, steps)?;
            }
        }
        for (stack, &output) in stacks.into_iter().zip(&self.outputs) {
            if let Some(stack) = stack {
                cx.put(ir::Out(output.0), stack);
            }
        }
        Ok(())
    }
}

/// Writes what a slot holds after step `t` into its stack along a new axis.
fn collect(cx: &mut Cx<'_>, stack: &mut Option<Array>, (output, axis): (ir::InOut, i32), t: usize, steps: usize) -> Result<()> {
    let mut value = cx.get_slot(output.0)?;
    let axis = axis_of(axis.into(), value.rank() + 1)?;
    value.shape.insert(axis, 1);
    value.strides.insert(axis, 0);
    let mut whole = match stack.take() {
        Some(whole) => whole,
        None => {
            let mut shape = value.shape.clone();
            shape[axis] = steps;
            cx.alloc(value.dtype, &shape)?
        }
    };
    let fits = whole.shape.iter().enumerate().all(|(i, &d)| i == axis || value.shape.get(i) == Some(&d));
    if whole.dtype != value.dtype || whole.rank() != value.rank() || !fits {
        return Err(OpError::value(format!("{} changes its type or shape from step to step", output.0)));
    }
    let pool = cx.pool();
    with_region(&mut whole, &[(axis, t, 1, 1)], |region| cast_into(&pool, &value, region))?;
    *stack = Some(whole);
    Ok(())
}
