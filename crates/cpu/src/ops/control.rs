//! Nodes that run chains.

use flambeau_ir::{
    self as ir,
    infer::{axis_of, run::Contents},
};

use super::copy::{cast_into, with_region};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Machine,
    obstacle::Prepared,
    plan::Planner,
    prepare::Prepare,
    session::run_chain,
};

impl Prepare for ir::If {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let m = p.machine()?;
        let chain = m.bound().selected_chain(self)?;
        Ok(run_chain(m, chain)?)
    }
}

impl Prepare for ir::Scan {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let m = p.machine()?;
        let originals = self.originals.iter().map(|&original| m.get(original.0)).collect::<Result<Vec<_>>>()?;
        let steps = ir::infer::run::scan_length(self, &m.bound())?;
        let mut stacks: Vec<Option<Array>> = vec![None; self.outputs.len()];
        for t in 0..steps {
            for (original, &slice) in originals.iter().zip(&self.sliced) {
                let axis = axis_of(self.scan_axis, original.rank())?;
                m.set(slice.0, original.narrow(axis, t, 1, 1).drop_axis(axis));
            }
            run_chain(m, self.body_chain_idx)?;
            for (stack, &output) in stacks.iter_mut().zip(&self.outputs) {
                collect(m, stack, (output, self.scan_axis), t, steps)?;
            }
        }
        for (stack, &output) in stacks.into_iter().zip(&self.outputs) {
            if let Some(stack) = stack {
                m.set(output.0, stack);
            }
        }
        Ok(())
    }
}

/// Writes a slot's contents after step `t` into its stack along a new axis.
fn collect(m: &mut Machine, stack: &mut Option<Array>, (output, axis): (ir::InOut, i32), t: usize, steps: usize) -> Result<()> {
    let mut value = m.get(output.0)?;
    let axis = axis_of(axis, value.rank() + 1)?;
    value.shape.insert(axis, 1);
    value.strides.insert(axis, 0);
    let mut whole = match stack.take() {
        Some(whole) => whole,
        None => {
            let mut shape = value.shape.clone();
            shape[axis] = steps;
            m.cx.alloc(value.dtype, &shape)?
        }
    };
    let fits = whole.shape.iter().enumerate().all(|(i, &d)| i == axis || value.shape.get(i) == Some(&d));
    if whole.dtype != value.dtype || whole.rank() != value.rank() || !fits {
        return Err(OpError::value(format!("{} changes its type or shape from step to step", output.0)));
    }
    with_region(&mut whole, &[(axis, t, 1, 1)], |region| cast_into(&m.cx.pool, &value, region))?;
    *stack = Some(whole);
    Ok(())
}
