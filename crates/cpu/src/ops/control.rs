//! Nodes that run chains.

use flambeau_ir::{
    self as ir, Node,
    infer::{axis_of, run::Contents},
};
use flambeau_kernels::order;
use flambeau_tensor::DType;

use super::{
    copy::{cast_into, with_region},
    wide, wide_dtype,
};
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

/// The operand of a running product, if a scan computes nothing else. Each step multiplies the
/// carried tensor by a slice of the operand, and collects the product.
fn factor_of_product(scan: &ir::Scan, graph: &ir::Graph) -> Option<ir::In> {
    let (&[x], &[slice], &[output], &[carry]) = (&scan.originals[..], &scan.sliced[..], &scan.outputs[..], &scan.carry[..]) else {
        return None;
    };
    let body = graph.chains.get(scan.body_chain_idx.0 as usize)?;
    let [Node::Multiply(n), Node::IdCopy(first), Node::IdCopy(second)] = &body[..] else { return None };
    let are_factors = [[n.a.0, n.b.0], [n.b.0, n.a.0]].contains(&[carry.0, slice.0]);
    let is_kept = [[first.out.0, second.out.0], [second.out.0, first.out.0]].contains(&[output.0, carry.0]);
    let is_product = [first.x.0, second.x.0] == [n.out.0; 2] && ![output.0, carry.0, slice.0].contains(&n.out.0);
    (are_factors && is_kept && is_product && output.0 != carry.0).then_some(x)
}

/// Computes a scan that is a running product in one call. `false` if it is another scan.
fn running_product(scan: &ir::Scan, p: &mut Planner<'_>) -> Prepared<bool> {
    let Some(x) = factor_of_product(scan, p.graph()) else { return Ok(false) };
    let (carry, output) = (scan.carry[0].0, scan.outputs[0].0);
    let (x, start) = (p.operand(x)?, p.operand(ir::In(carry))?);
    let (dtype, shape) = (x.array.dtype, x.array.shape.clone());
    let axis = axis_of(scan.scan_axis, shape.len())?;
    let mut slice = shape.clone();
    let steps = slice.remove(axis);
    let is_usual = matches!(dtype, DType::F32 | DType::I32 | DType::I64) && start.array.dtype == dtype;
    if !is_usual || steps == 0 || start.array.shape != slice {
        return Ok(false);
    }
    let through = wide(dtype);
    let (x, start) = (p.in_type(x, through)?, p.rows_in_type(start, through)?);
    let y = p.call(&[&x, &start], (through, &shape), move |cx, ins, y| {
        wide_dtype!(y.dtype, T => {
            Ok(order::cumprod::<T>(&cx.pool, &ins[0].view()?, axis, ins[1].slice()?, y.slice_mut()?)?)
        })
    })?;
    let y = p.in_type(y, dtype)?;
    let last = y.seen(y.array.narrow(axis, steps - 1, 1, 1).drop_axis(axis));
    p.put(ir::Out(output), y);
    p.put(ir::Out(carry), last);
    Ok(true)
}

impl Prepare for ir::Scan {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        if running_product(self, p)? {
            return Ok(());
        }
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
