//! Writes a program's tables.

use super::{
    program::{
        BufferDevice, Chain, CompileSpec, Delegate, DelegateData, EValue, ExecutionPlan, ExtraTensorInfo, Instruction, Operator,
        Subsegment, TensorValue,
    },
    schema::{
        allocation, buffer_device, chain, compile_spec, container, delegate, delegate_call, delegate_data, evalue, extra,
        free_call, inline_data, instruction, instruction_tag as it, jump_false, kernel_call, list, move_call, operator, plan,
        program, scalar, subsegment, tensor, value_tag as vt,
    },
};
use crate::{
    flat::{FlatWriter, Offset, Row},
    segment::named_data,
};

/// The contents of the root table.
#[derive(Debug)]
pub(super) struct Root<'a> {
    pub(super) plans: &'a [ExecutionPlan],
    pub(super) constants: Subsegment,
    pub(super) mutable_data: Option<Subsegment>,
    /// Whether there is an empty payload. It is stored inline, because a segment cannot be empty.
    pub(super) empty_payload: bool,
    pub(super) named_data: Vec<(&'a str, u32)>,
}

/// Writes the root table. `segments` writes the segment table.
pub(super) fn write_root(out: &mut FlatWriter, root: &Root<'_>, segments: impl FnOnce(&mut FlatWriter) -> Offset) -> Offset {
    let plans = out.each(root.plans, write_plan);
    let constant_buffer = out.offsets(&[]);
    let inline_payloads: &[()] = if root.empty_payload { &[()] } else { &[] };
    let backend_data = out.each(inline_payloads, |out, ()| {
        let data = out.scalars::<u8>(&[]);
        out.table(Row::default().set(inline_data::data, data))
    });
    let segments = segments(out);
    let constants = write_subsegment(out, &root.constants);
    let mutable = root.mutable_data.as_ref().map(|of| out.each(std::slice::from_ref(of), write_subsegment));
    let named = out.each(&root.named_data, |out, &(key, segment)| {
        let key = out.string(key);
        out.table(Row::default().set(named_data::key, key).set_unless(named_data::segment_index, segment, 0))
    });
    let mut row = Row::default()
        .set(program::execution_plan, plans)
        .set(program::constant_buffer, constant_buffer)
        .set(program::backend_delegate_data, backend_data)
        .set(program::segments, segments)
        .set(program::constant_segment, constants)
        .set(program::named_data, named);
    if let Some(mutable) = mutable {
        row.put(program::mutable_data_segments, mutable);
    }
    out.table(row)
}

fn write_subsegment(out: &mut FlatWriter, of: &Subsegment) -> Offset {
    let offsets = out.scalars(of.offsets.as_slice());
    out.table(Row::default().set_unless(subsegment::segment_index, of.segment, 0).set(subsegment::offsets, offsets))
}

/// Writes a method.
pub(super) fn write_plan(out: &mut FlatWriter, p: &ExecutionPlan) -> Offset {
    let name = out.string(&p.name);
    let (inputs, outputs) = (out.string(&p.container.inputs), out.string(&p.container.outputs));
    let meta = out.table(Row::default().set(container::encoded_inp_str, inputs).set(container::encoded_out_str, outputs));
    let values = out.each(&p.values, write_value);
    let (inputs, outputs) = (indices(out, &p.inputs), indices(out, &p.outputs));
    let chains = out.each(&p.chains, write_chain);
    let operators = out.each(&p.operators, write_operator);
    let delegates = out.each(&p.delegates, write_delegate);
    let arenas: Vec<i64> = p.non_const_buffer_sizes.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
    let arenas = out.scalars(&arenas);
    let devices = (!p.devices.is_empty()).then(|| out.each(&p.devices, write_buffer_device));
    let mut row = Row::default()
        .set(plan::name, name)
        .set(plan::container_meta_type, meta)
        .set(plan::values, values)
        .set(plan::inputs, inputs)
        .set(plan::outputs, outputs)
        .set(plan::chains, chains)
        .set(plan::operators, operators)
        .set(plan::delegates, delegates)
        .set(plan::non_const_buffer_sizes, arenas);
    if let Some(devices) = devices {
        row.put(plan::non_const_buffer_device, devices);
    }
    out.table(row)
}

/// Indices fit, because they are verified against tables of at most a million entries.
fn signed(index: u32) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn indices(out: &mut FlatWriter, items: &[u32]) -> Offset {
    out.scalars(&items.iter().map(|&i| signed(i)).collect::<Vec<i32>>())
}

fn write_buffer_device(out: &mut FlatWriter, d: &BufferDevice) -> Offset {
    let row = Row::default()
        .set_unless(buffer_device::buffer_idx, signed(d.buffer), 0)
        .set_unless(buffer_device::device_type, d.device.kind, 0)
        .set_unless(buffer_device::device_index, d.device.index, 0);
    out.table(row)
}

fn write_operator(out: &mut FlatWriter, op: &Operator) -> Offset {
    let (name, overload) = (out.string(&op.name), out.string(&op.overload));
    out.table(Row::default().set(operator::name, name).set(operator::overload, overload))
}

fn write_delegate(out: &mut FlatWriter, d: &Delegate) -> Offset {
    let id = out.string(&d.id);
    let (location, index) = match d.data {
        DelegateData::Inline(i) => (0i8, i),
        DelegateData::Segment(i) => (1, i),
    };
    let data =
        out.table(Row::default().set_unless(delegate_data::location, location, 0).set_unless(delegate_data::index, index, 0));
    let specs = out.each(&d.compile_specs, |out, CompileSpec { key, value }| {
        let (key, value) = (out.string(key), out.scalars::<u8>(value));
        out.table(Row::default().set(compile_spec::key, key).set(compile_spec::value, value))
    });
    out.table(Row::default().set(delegate::id, id).set(delegate::processed, data).set(delegate::compile_specs, specs))
}

fn write_chain(out: &mut FlatWriter, c: &Chain) -> Offset {
    let (inputs, outputs) = (out.scalars(c.inputs.as_slice()), out.scalars(c.outputs.as_slice()));
    let instructions = out.each(&c.instructions, |out, i| {
        let (tag, args) = write_instruction(out, i);
        out.table(Row::default().set(instruction::instr_args_type, tag).set(instruction::instr_args, args))
    });
    out.table(Row::default().set(chain::inputs, inputs).set(chain::outputs, outputs).set(chain::instructions, instructions))
}

fn write_instruction(out: &mut FlatWriter, i: &Instruction) -> (u8, Offset) {
    let row = Row::default();
    let (tag, row) = match i {
        Instruction::KernelCall { op, args } => {
            let args = indices(out, args);
            (it::KERNEL_CALL, row.set_unless(kernel_call::op_index, signed(*op), 0).set(kernel_call::args, args))
        }
        Instruction::DelegateCall { delegate, args } => {
            let args = indices(out, args);
            let row = row.set_unless(delegate_call::delegate_index, signed(*delegate), 0);
            (it::DELEGATE_CALL, row.set(delegate_call::args, args))
        }
        Instruction::MoveCall { from, to } => {
            let row = row.set_unless(move_call::move_from, signed(*from), 0);
            (it::MOVE_CALL, row.set_unless(move_call::move_to, signed(*to), 0))
        }
        Instruction::JumpFalse { cond, destination } => {
            let row = row.set_unless(jump_false::cond_value_index, signed(*cond), 0);
            (it::JUMP_FALSE, row.set_unless(jump_false::destination_instruction, signed(*destination), 0))
        }
        Instruction::Free { value } => (it::FREE_CALL, row.set_unless(free_call::value_index, signed(*value), 0)),
    };
    (tag, out.table(row))
}

fn write_value(out: &mut FlatWriter, value: &EValue) -> Offset {
    let row = Row::default();
    let (tag, row) = match value {
        EValue::None => (vt::NULL, row),
        EValue::Int(v) => (vt::INT, row.set_unless(scalar::val, *v, 0)),
        EValue::Bool(v) => (vt::BOOL, row.set_unless(scalar::val, *v, false)),
        EValue::Double(v) if v.to_bits() == 0 => (vt::DOUBLE, row),
        EValue::Double(v) => (vt::DOUBLE, row.set(scalar::val, *v)),
        EValue::Tensor(t) => (vt::TENSOR, tensor_row(out, t)),
        EValue::String(v) => (vt::STRING, row.set(scalar::val, out.string(v))),
        EValue::IntList(items) => {
            let items: Vec<i64> = items.iter().map(|&i| i.into()).collect();
            (vt::INT_LIST, row.set(list::items, out.scalars(&items)))
        }
        EValue::DoubleList(items) => (vt::DOUBLE_LIST, row.set(list::items, out.scalars(items.as_slice()))),
        EValue::BoolList(items) => (vt::BOOL_LIST, row.set(list::items, out.scalars(items.as_slice()))),
        EValue::TensorList(items) => (vt::TENSOR_LIST, row.set(list::items, indices(out, items))),
        EValue::OptionalTensorList(items) => {
            let items: Vec<i32> = items.iter().map(|i| i.map_or(-1, signed)).collect();
            (vt::OPTIONAL_TENSOR_LIST, row.set(list::items, out.scalars(&items)))
        }
    };
    let val = out.table(row);
    out.table(Row::default().set(evalue::val_type, tag).set(evalue::val, val))
}

fn tensor_row(out: &mut FlatWriter, t: &TensorValue) -> Row {
    let sizes = indices(out, &t.sizes);
    let dim_order = out.scalars(t.dim_order.as_slice());
    let allocation = t.allocation.map(|a| {
        let row = Row::default()
            .set_unless(allocation::memory_id, a.memory_id, 0)
            .set_unless(allocation::memory_offset_low, a.offset as u32, 0)
            .set_unless(allocation::memory_offset_high, (a.offset >> 32) as u32, 0);
        out.table(row)
    });
    let extra = t.extra.as_ref().map(|e| write_extra(out, e));
    let mut row = Row::default()
        .set_unless(tensor::scalar_type, t.dtype.code(), 0)
        .set(tensor::sizes, sizes)
        .set(tensor::dim_order, dim_order)
        .set_unless(tensor::requires_grad, t.requires_grad, false)
        .set_unless(tensor::data_buffer_idx, t.data_buffer_idx, 0)
        .set_unless(tensor::layout, t.layout, 0)
        .set_unless(tensor::shape_dynamism, i8::from(t.dynamic), 0);
    if let Some(allocation) = allocation {
        row.put(tensor::allocation_info, allocation);
    }
    if let Some(extra) = extra {
        row.put(tensor::extra_tensor_info, extra);
    }
    row
}

fn write_extra(out: &mut FlatWriter, e: &ExtraTensorInfo) -> Offset {
    let name = e.fully_qualified_name.as_ref().map(|name| out.string(name));
    let mut row = Row::default()
        .set_unless(extra::mutable_data_segments_idx, e.mutable_data_segments_idx, 0)
        .set_unless(extra::location, i8::from(e.external), 0)
        .set_unless(extra::device_type, e.device.kind, 0)
        .set_unless(extra::device_index, e.device.index, 0);
    if let Some(name) = name {
        row.put(extra::fully_qualified_name, name);
    }
    out.table(row)
}
