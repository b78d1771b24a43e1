//! Reads methods.

use std::ops::Range;

use flambeau_tensor::{Bytes, DType};

use super::{
    program::{
        Allocation, BufferDevice, Chain, CompileSpec, ContainerMeta, Delegate, DelegateData, Device, EValue, ExecutionPlan,
        ExtraTensorInfo, Instruction, Operator, TensorValue, UnsupportedMethod,
    },
    schema::{
        allocation, buffer_device, chain, compile_spec, container, delegate, delegate_call, delegate_data, evalue, extra,
        free_call, instruction, instruction_tag as it, jump_false, kernel_call, list, move_call, operator, plan, scalar, tensor,
        value_tag as vt,
    },
};
use crate::{
    error::Error,
    flat::{Field, Table},
};

/// Reads a method, or the reason why it is unsupported. `slice` shares a range of the file.
pub(super) fn read_method(
    t: Table<'_>,
    slice: &dyn Fn(Range<usize>) -> Bytes,
) -> Result<Result<ExecutionPlan, UnsupportedMethod>, Error> {
    let name = t.need_string(plan::name)?.to_owned();
    match read_plan(&t, name.clone(), slice) {
        Err(error @ Error::Unsupported { .. }) => Ok(Err(UnsupportedMethod { name, reason: error.to_string() })),
        plan => plan.map(Ok),
    }
}

fn read_plan(t: &Table<'_>, name: String, slice: &dyn Fn(Range<usize>) -> Bytes) -> Result<ExecutionPlan, Error> {
    Ok(ExecutionPlan {
        name,
        container: t.table(plan::container_meta_type, read_container)?.unwrap_or_default(),
        values: t.need_tables(plan::values, read_value)?,
        inputs: need_indices(t, plan::inputs)?,
        outputs: need_indices(t, plan::outputs)?,
        chains: t.need_tables(plan::chains, read_chain)?,
        operators: t.tables(plan::operators, read_operator)?.unwrap_or_default(),
        delegates: t.need_tables(plan::delegates, |d| read_delegate(d, slice))?,
        non_const_buffer_sizes: read_arenas(t)?,
        devices: t.tables(plan::non_const_buffer_device, read_buffer_device)?.unwrap_or_default(),
    })
}

fn index(t: &Table<'_>, field: Field, value: impl TryInto<u32> + Copy + std::fmt::Display) -> Result<u32, Error> {
    value.try_into().map_err(|_| t.bad(field, format!("index {value} is out of range")))
}

fn read_index(t: &Table<'_>, field: Field) -> Result<u32, Error> {
    index(t, field, t.get_or(field, 0i32)?)
}

fn need_indices(t: &Table<'_>, field: Field) -> Result<Vec<u32>, Error> {
    t.need_scalars::<i32>(field)?.into_iter().map(|i| index(t, field, i)).collect()
}

fn read_container(t: Table<'_>) -> Result<ContainerMeta, Error> {
    let text = |field| Ok::<_, Error>(t.string(field)?.unwrap_or_default().to_owned());
    Ok(ContainerMeta { inputs: text(container::encoded_inp_str)?, outputs: text(container::encoded_out_str)? })
}

fn read_buffer_device(t: Table<'_>) -> Result<BufferDevice, Error> {
    let device = Device { kind: t.get_or(buffer_device::device_type, 0)?, index: t.get_or(buffer_device::device_index, 0)? };
    Ok(BufferDevice { buffer: read_index(&t, buffer_device::buffer_idx)?, device })
}

fn read_arenas(t: &Table<'_>) -> Result<Vec<u64>, Error> {
    let whole = |n: i64| u64::try_from(n).map_err(|_| t.bad(plan::non_const_buffer_sizes, format!("{n} bytes")));
    t.need_scalars::<i64>(plan::non_const_buffer_sizes)?.into_iter().map(whole).collect()
}

fn read_operator(t: Table<'_>) -> Result<Operator, Error> {
    let overload = t.string(operator::overload)?.unwrap_or_default();
    Ok(Operator { name: t.need_string(operator::name)?.to_owned(), overload: overload.to_owned() })
}

fn read_delegate(t: Table<'_>, slice: &dyn Fn(Range<usize>) -> Bytes) -> Result<Delegate, Error> {
    let read_data = |d: Table<'_>| {
        let index = d.get_or(delegate_data::index, 0u32)?;
        match d.get_or(delegate_data::location, 0i8)? {
            0 => Ok(DelegateData::Inline(index)),
            1 => Ok(DelegateData::Segment(index)),
            other => Err(d.bad(delegate_data::location, format!("unknown location {other}"))),
        }
    };
    let read_spec = |s: Table<'_>| {
        let value = s.byte_range(compile_spec::value)?.ok_or_else(|| s.missing(compile_spec::value))?;
        Ok(CompileSpec { key: s.need_string(compile_spec::key)?.to_owned(), value: slice(value) })
    };
    Ok(Delegate {
        id: t.need_string(delegate::id)?.to_owned(),
        data: t.need_table(delegate::processed, read_data)?,
        compile_specs: t.tables(delegate::compile_specs, read_spec)?.unwrap_or_default(),
    })
}

fn read_chain(t: Table<'_>) -> Result<Chain, Error> {
    Ok(Chain {
        inputs: t.scalars(chain::inputs)?.unwrap_or_default(),
        outputs: t.scalars(chain::outputs)?.unwrap_or_default(),
        instructions: t.need_tables(chain::instructions, read_instruction)?,
    })
}

fn read_instruction(t: Table<'_>) -> Result<Instruction, Error> {
    let tag = t.get_or(instruction::instr_args_type, 0u8)?;
    t.need_table(instruction::instr_args, |a| match tag {
        it::KERNEL_CALL => {
            Ok(Instruction::KernelCall { op: read_index(&a, kernel_call::op_index)?, args: need_indices(&a, kernel_call::args)? })
        }
        it::DELEGATE_CALL => Ok(Instruction::DelegateCall {
            delegate: read_index(&a, delegate_call::delegate_index)?,
            args: need_indices(&a, delegate_call::args)?,
        }),
        it::MOVE_CALL => {
            Ok(Instruction::MoveCall { from: read_index(&a, move_call::move_from)?, to: read_index(&a, move_call::move_to)? })
        }
        it::JUMP_FALSE => Ok(Instruction::JumpFalse {
            cond: read_index(&a, jump_false::cond_value_index)?,
            destination: read_index(&a, jump_false::destination_instruction)?,
        }),
        it::FREE_CALL => Ok(Instruction::Free { value: read_index(&a, free_call::value_index)? }),
        _ => Err(t.unsupported(instruction::instr_args_type, format!("unknown instruction tag {tag}"))),
    })
}

fn read_value(t: Table<'_>) -> Result<EValue, Error> {
    let tag = t.get_or(evalue::val_type, 0u8)?;
    if tag == vt::NULL {
        return Ok(EValue::None);
    }
    t.need_table(evalue::val, |v| match tag {
        vt::INT => Ok(EValue::Int(v.get_or(scalar::val, 0)?)),
        vt::BOOL => Ok(EValue::Bool(v.get_or(scalar::val, false)?)),
        vt::DOUBLE => Ok(EValue::Double(v.get_or(scalar::val, 0.0)?)),
        vt::TENSOR => read_tensor(v).map(Box::new).map(EValue::Tensor),
        vt::STRING => Ok(EValue::String(v.need_string(scalar::val)?.to_owned())),
        vt::INT_LIST => {
            let items = v.need_scalars::<i64>(list::items)?;
            Ok(EValue::IntList(items.into_iter().map(|i| index(&v, list::items, i)).collect::<Result<_, _>>()?))
        }
        vt::DOUBLE_LIST => Ok(EValue::DoubleList(v.need_scalars(list::items)?)),
        vt::BOOL_LIST => Ok(EValue::BoolList(v.need_scalars(list::items)?)),
        vt::TENSOR_LIST => Ok(EValue::TensorList(need_indices(&v, list::items)?)),
        vt::OPTIONAL_TENSOR_LIST => {
            let some = |i: i32| if i == -1 { Ok(None) } else { index(&v, list::items, i).map(Some) };
            let items = v.need_scalars::<i32>(list::items)?;
            Ok(EValue::OptionalTensorList(items.into_iter().map(some).collect::<Result<_, _>>()?))
        }
        _ => Err(t.unsupported(evalue::val_type, format!("unknown value tag {tag}"))),
    })
}

fn read_tensor(t: Table<'_>) -> Result<TensorValue, Error> {
    let code = t.get_or(tensor::scalar_type, 0i8)?;
    let dtype = DType::from_code(code).filter(|_| (0..31).contains(&code));
    let dtype =
        dtype.ok_or_else(|| t.unsupported(tensor::scalar_type, format!("scalar type {code} cannot be stored in a tensor here")))?;
    let offset = t.get_or(tensor::storage_offset, 0i32)?;
    if offset != 0 {
        return Err(t.unsupported(tensor::storage_offset, format!("a storage offset of {offset}, only 0 is possible")));
    }
    let size = |d: i32| u32::try_from(d).map_err(|_| t.bad(tensor::sizes, format!("size {d} is negative")));
    let dynamic = match t.get_or(tensor::shape_dynamism, 0i8)? {
        0 => false,
        1 => true,
        2 => return Err(t.unsupported(tensor::shape_dynamism, "shapes without upper bounds; export with bounds")),
        other => return Err(t.bad(tensor::shape_dynamism, format!("unknown kind {other}"))),
    };
    Ok(TensorValue {
        dtype,
        sizes: t.need_scalars::<i32>(tensor::sizes)?.into_iter().map(size).collect::<Result<_, _>>()?,
        dim_order: t.need_scalars(tensor::dim_order)?,
        requires_grad: t.get_or(tensor::requires_grad, false)?,
        layout: t.get_or(tensor::layout, 0)?,
        dynamic,
        data_buffer_idx: t.get_or(tensor::data_buffer_idx, 0)?,
        allocation: t.table(tensor::allocation_info, read_allocation)?,
        extra: t.table(tensor::extra_tensor_info, read_extra)?,
    })
}

fn read_allocation(t: Table<'_>) -> Result<Allocation, Error> {
    let half = |field| t.get_or(field, 0u32).map(u64::from);
    let offset = half(allocation::memory_offset_high)? << 32 | half(allocation::memory_offset_low)?;
    Ok(Allocation { memory_id: t.get_or(allocation::memory_id, 0)?, offset })
}

fn read_extra(t: Table<'_>) -> Result<ExtraTensorInfo, Error> {
    Ok(ExtraTensorInfo {
        mutable_data_segments_idx: t.get_or(extra::mutable_data_segments_idx, 0)?,
        fully_qualified_name: t.string(extra::fully_qualified_name)?.map(str::to_owned),
        external: match t.get_or(extra::location, 0i8)? {
            0 => false,
            1 => true,
            other => return Err(t.bad(extra::location, format!("unknown location {other}"))),
        },
        device: Device { kind: t.get_or(extra::device_type, 0)?, index: t.get_or(extra::device_index, 0)? },
    })
}
