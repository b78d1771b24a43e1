//! Verifies programs after reading and before writing.

use std::collections::HashSet;

use flambeau_ir::limits::MAX_RANK;

use super::program::{Chain, Constants, DelegateData, EValue, ExecutionPlan, Instruction, Program, Subsegment, TensorValue};
use crate::{
    error::{Error, Within},
    segment::Segment,
};

/// Numbers of referenced resources, and the bytes available from each entry on.
#[derive(Debug, Default)]
pub(super) struct Resources {
    pub(super) constants: Vec<u64>,
    pub(super) initial: Vec<u64>,
    pub(super) segments: usize,
    pub(super) inline_payloads: usize,
}

impl Resources {
    fn of(p: &Program) -> Resources {
        let constants = match &p.constants {
            Constants::None => Vec::new(),
            Constants::Segment(of) => lengths(of, &p.segments),
            Constants::Inline(buffers) => buffers.iter().map(|b| b.len() as u64).collect(),
        };
        let initial = p.mutable_data.first().map(|of| lengths(of, &p.segments)).unwrap_or_default();
        Resources { constants, initial, segments: p.segments.len(), inline_payloads: p.inline_payloads.len() }
    }
}

fn lengths(of: &Subsegment, segments: &[Segment]) -> Vec<u64> {
    let size = segments.get(of.segment as usize).map_or(0, |s| s.data.len() as u64);
    of.offsets.iter().map(|&start| size.saturating_sub(start)).collect()
}

/// Verifies a program that was read.
pub(super) fn program(p: &Program) -> Result<(), Error> {
    plans(&p.plans, &Resources::of(p))
}

/// Verifies methods against the resources that they refer to.
pub(super) fn plans(plans: &[ExecutionPlan], resources: &Resources) -> Result<(), Error> {
    let mut names = HashSet::new();
    for (i, plan) in plans.iter().enumerate() {
        let place = || format!("execution_plan[{i}]");
        if !names.insert(plan.name.as_str()) {
            return Err(Error::invalid(place(), format!("method `{}` occurs twice", plan.name.escape_debug())));
        }
        check_plan(plan, resources).within(place)?;
    }
    Ok(())
}

fn in_range(what: &str, index: u32, len: usize) -> Result<(), Error> {
    if (index as usize) < len { Ok(()) } else { Err(Error::invalid("", format!("{what} {index} of {len}"))) }
}

fn check_plan(plan: &ExecutionPlan, resources: &Resources) -> Result<(), Error> {
    for (i, value) in plan.values.iter().enumerate() {
        check_value(plan, i, value, resources).within(|| format!("values[{i}]"))?;
    }
    for (name, list) in [("inputs", &plan.inputs), ("outputs", &plan.outputs)] {
        list.iter().try_for_each(|&v| in_range("value", v, plan.values.len())).within(|| name.into())?;
    }
    for (i, delegate) in plan.delegates.iter().enumerate() {
        match delegate.data {
            DelegateData::Inline(k) => in_range("inline payload", k, resources.inline_payloads),
            DelegateData::Segment(k) => in_range("segment", k, resources.segments),
        }
        .within(|| format!("delegates[{i}].processed"))?;
    }
    for (i, device) in plan.devices.iter().enumerate() {
        in_range("arena", device.buffer, plan.non_const_buffer_sizes.len()).within(|| format!("non_const_buffer_device[{i}]"))?;
    }
    if plan.chains.is_empty() {
        return Err(Error::invalid("chains", "at least one chain is needed"));
    }
    for (i, chain) in plan.chains.iter().enumerate() {
        for (k, instruction) in chain.instructions.iter().enumerate() {
            check_instruction(plan, chain, instruction).within(|| format!("chains[{i}].instructions[{k}]"))?;
        }
    }
    Ok(())
}

fn check_instruction(plan: &ExecutionPlan, chain: &Chain, instruction: &Instruction) -> Result<(), Error> {
    let value = |v: u32| in_range("value", v, plan.values.len());
    match instruction {
        Instruction::KernelCall { op, args } => {
            in_range("operator", *op, plan.operators.len())?;
            args.iter().try_for_each(|&v| value(v))
        }
        Instruction::DelegateCall { delegate, args } => {
            in_range("delegate", *delegate, plan.delegates.len())?;
            args.iter().try_for_each(|&v| value(v))
        }
        Instruction::MoveCall { from, to } => value(*from).and_then(|()| value(*to)),
        Instruction::JumpFalse { cond, destination } => {
            value(*cond)?;
            // A jump to the chain's length ends the chain.
            in_range("instruction", *destination, chain.instructions.len() + 1)
        }
        Instruction::Free { value: v } => value(*v),
    }
}

fn check_value(plan: &ExecutionPlan, at: usize, value: &EValue, resources: &Resources) -> Result<(), Error> {
    let item = |v: u32, kind: &str, fits: fn(&EValue) -> bool| {
        in_range("value", v, plan.values.len())?;
        let ok = plan.values.get(v as usize).is_some_and(fits);
        if ok { Ok(()) } else { Err(Error::invalid("", format!("item {v} is not {kind}"))) }
    };
    match value {
        EValue::Tensor(tensor) => check_tensor(plan, tensor, resources),
        EValue::IntList(items) => items.iter().try_for_each(|&v| item(v, "an integer", |v| matches!(v, EValue::Int(_)))),
        EValue::TensorList(items) => items.iter().try_for_each(|&v| {
            item(v, "a tensor", |v| matches!(v, EValue::Tensor(_)))?;
            // Values are built in table order, so a list's items must precede it.
            if (v as usize) < at { Ok(()) } else { Err(Error::invalid("", format!("item {v} comes after its list"))) }
        }),
        EValue::OptionalTensorList(items) => {
            let fits = |v: &EValue| matches!(v, EValue::Tensor(_) | EValue::None);
            items.iter().flatten().try_for_each(|&v| item(v, "a tensor or none", fits))
        }
        _ => Ok(()),
    }
}

fn check_tensor(plan: &ExecutionPlan, t: &TensorValue, resources: &Resources) -> Result<(), Error> {
    let rank = t.sizes.len();
    if rank > MAX_RANK {
        return Err(Error::invalid("sizes", format!("{rank} axes, at most {} are possible", MAX_RANK)));
    }
    let mut order = t.dim_order.clone();
    order.sort_unstable();
    if !order.iter().map(|&d| usize::from(d)).eq(0..rank) {
        return Err(Error::invalid("dim_order", format!("{:?} is not a permutation of {rank} axes", t.dim_order)));
    }
    if let Some(d) = t.sizes.iter().find(|&&d| d > i32::MAX as u32) {
        return Err(Error::invalid("sizes", format!("size {d} exceeds 31 bits")));
    }
    let Some(nbytes) = t.nbytes() else {
        return Err(Error::invalid("sizes", format!("{:?} elements of {} overflow 64 bits", t.sizes, t.dtype)));
    };
    if let Some(place) = t.allocation {
        let arena = plan.non_const_buffer_sizes.get(place.memory_id as usize).filter(|_| place.memory_id != 0);
        let Some(&arena) = arena else {
            return Err(Error::invalid("allocation_info.memory_id", format!("there is no arena {}", place.memory_id)));
        };
        if place.offset.checked_add(nbytes).is_none_or(|end| end > arena) {
            let problem = format!("{nbytes} bytes at {} leave the arena of {arena} bytes", place.offset);
            return Err(Error::invalid("allocation_info", problem));
        }
    }
    check_data(t, nbytes, resources)
}

fn check_data(t: &TensorValue, nbytes: u64, resources: &Resources) -> Result<(), Error> {
    if t.is_external() {
        let named = t.extra.as_ref().is_some_and(|e| e.fully_qualified_name.is_some());
        return if named { Ok(()) } else { Err(Error::invalid("extra_tensor_info", "external data without a name")) };
    }
    if t.data_buffer_idx == 0 {
        return Ok(());
    }
    let (what, lengths) = match t.allocation {
        Some(_) => ("initial contents", &resources.initial),
        None => ("constant", &resources.constants),
    };
    in_range(what, t.data_buffer_idx, lengths.len()).within(|| "data_buffer_idx".into())?;
    match lengths.get(t.data_buffer_idx as usize) {
        Some(&available) if available < nbytes => {
            let problem = format!("{nbytes} bytes needed, {available} available in {what} {}", t.data_buffer_idx);
            Err(Error::invalid("data_buffer_idx", problem))
        }
        _ => Ok(()),
    }
}
