//! Reads and writes the graph's tables.

use flambeau_ir::{Chain, Graph, MetaDim, Slot, SlotCounts, TensorMeta, Tid, Vid, limits as ir_limits};

use super::{
    FORMAT, field, node,
    schema::{chain, graph, instruction, named_slot, shape_dim, slot_variant, tensor_meta},
};
use crate::{
    error::Error,
    flat::{Field, FlatWriter, Offset, Row, Table},
    limits,
};

/// Values of `slot_type`, the kind of an indexed slot.
const TENSOR_SLOT: i8 = 0;
const INT_SLOT: i8 = 1;

pub(super) fn read(t: Table<'_>) -> Result<Graph, Error> {
    check_version(&t)?;
    let count = |field| t.get_or(field, 0u32);
    let slots = SlotCounts {
        constants: count(graph::num_constant_tensors)?,
        inputs: count(graph::num_input_tensors)?,
        outputs: count(graph::num_output_tensors)?,
        buffers: count(graph::num_mutable_buffer_tensors)?,
        temps: count(graph::num_temp_tensors)?,
    };
    if slots.total() > ir_limits::MAX_TENSOR_SLOTS {
        return Err(over("MAX_TENSOR_SLOTS", ir_limits::MAX_TENSOR_SLOTS));
    }
    let values = count(graph::num_values)?;
    if values > ir_limits::MAX_VALUE_SLOTS {
        return Err(over("MAX_VALUE_SLOTS", ir_limits::MAX_VALUE_SLOTS.into()));
    }
    Ok(Graph {
        slots,
        values,
        chains: t.need_tables(graph::instruction_chains, read_chain)?,
        main: count(graph::main_chain_idx)?,
        init: read_init(&t)?,
        inputs: t.tables(graph::input_map, read_slot)?.unwrap_or_default(),
        outputs: t.tables(graph::output_map, read_slot)?.unwrap_or_default(),
        buffers: t.tables(graph::mutable_buffer_map, read_buffer)?.unwrap_or_default(),
        names: t.tables(graph::named_slots, read_name)?.unwrap_or_default(),
        meta: t.tables(graph::tensor_meta, read_meta)?.unwrap_or_default(),
    })
}

fn over(limit: &'static str, max: u64) -> Error {
    Error::Limit { format: FORMAT, limit, max, path: "graph".into() }
}

fn check_version(t: &Table<'_>) -> Result<(), Error> {
    match t.string(graph::version)?.unwrap_or_default() {
        "" => Ok(()),
        text if text.parse::<u32>().is_ok_and(|v| v <= limits::MAX_MLX_VERSION) => Ok(()),
        text => {
            let found = text.chars().take(32).flat_map(char::escape_debug).collect();
            Err(Error::Version { format: FORMAT, found, known: limits::MAX_MLX_VERSION.to_string() })
        }
    }
}

fn read_init(t: &Table<'_>) -> Result<Option<u32>, Error> {
    match t.get_or(graph::init_chain_idx, -1i32)? {
        -1 => Ok(None),
        i => u32::try_from(i).map(Some).map_err(|_| t.bad(graph::init_chain_idx, format!("chain index {i} is negative"))),
    }
}

fn read_chain(t: Table<'_>) -> Result<Chain, Error> {
    t.need_tables(chain::instructions, node::read)
}

fn read_slot(t: Table<'_>) -> Result<Slot, Error> {
    let idx = t.get_or(slot_variant::idx, 0u32)?;
    match t.get_or(slot_variant::slot_type, TENSOR_SLOT)? {
        TENSOR_SLOT => Ok(Slot::Tensor(Tid(idx))),
        INT_SLOT => Ok(Slot::Value(Vid(idx))),
        other => {
            Err(t.bad(slot_variant::slot_type, format!("slot type {other} is not supported, only tensors (0) and integers (1)")))
        }
    }
}

fn read_buffer(t: Table<'_>) -> Result<Tid, Error> {
    match read_slot(t)? {
        Slot::Tensor(tid) => Ok(tid),
        Slot::Value(_) => Err(t.bad(slot_variant::slot_type, "a mutable buffer must be a tensor slot")),
    }
}

fn read_name(t: Table<'_>) -> Result<(String, Slot), Error> {
    let name = t.need_string(named_slot::name)?.to_owned();
    Ok((name, t.need_table(named_slot::slot, read_slot)?))
}

fn read_meta(t: Table<'_>) -> Result<TensorMeta, Error> {
    let shape = t.need_tables(tensor_meta::shape, read_dim)?;
    if shape.len() > ir_limits::MAX_RANK {
        return Err(t.bad(tensor_meta::shape, format!("{} axes, at most {} are possible", shape.len(), ir_limits::MAX_RANK)));
    }
    let dtype = field::dtype(&t, tensor_meta::scalar_type, t.get_or(tensor_meta::scalar_type, 0)?)?;
    Ok(TensorMeta { shape, dtype, dim_order: t.scalars(tensor_meta::dim_order)? })
}

fn read_dim(t: Table<'_>) -> Result<MetaDim, Error> {
    let whole = |field: Field, v: i32| u32::try_from(v).map_err(|_| t.bad(field, format!("{v} is negative")));
    let value = t.get_or(shape_dim::value, -1)?;
    if value != -1 {
        return whole(shape_dim::value, value).map(MetaDim::Static);
    }
    let min = whole(shape_dim::min_value, t.get_or(shape_dim::min_value, 0)?)?;
    let max = match t.get_or(shape_dim::max_value, -1)? {
        -1 => None,
        max => Some(whole(shape_dim::max_value, max)?),
    };
    match max {
        Some(max) if max < min => Err(t.bad(shape_dim::max_value, format!("upper bound {max} is below the lower bound {min}"))),
        _ => Ok(MetaDim::Dynamic { min, max }),
    }
}

pub(super) fn write(out: &mut FlatWriter, g: &Graph) -> Offset {
    let chains = out.each(&g.chains, write_chain);
    let inputs = out.each(&g.inputs, |out, slot| write_slot(out, *slot));
    let outputs = out.each(&g.outputs, |out, slot| write_slot(out, *slot));
    let buffers = out.each(&g.buffers, |out, tid| write_slot(out, Slot::Tensor(*tid)));
    let names = out.each(&g.names, |out, (name, slot)| {
        let name = out.string(name);
        let slot = write_slot(out, *slot);
        out.table(Row::default().set(named_slot::name, name).set(named_slot::slot, slot))
    });
    let meta = out.each(&g.meta, write_meta);
    let version = out.string(&limits::MAX_MLX_VERSION.to_string());
    let row = Row::default()
        .set(graph::version, version)
        .set_unless(graph::num_constant_tensors, g.slots.constants, 0)
        .set_unless(graph::num_input_tensors, g.slots.inputs, 0)
        .set_unless(graph::num_output_tensors, g.slots.outputs, 0)
        .set_unless(graph::num_mutable_buffer_tensors, g.slots.buffers, 0)
        .set_unless(graph::num_temp_tensors, g.slots.temps, 0)
        .set_unless(graph::num_values, g.values, 0)
        .set(graph::instruction_chains, chains)
        .set_unless(graph::main_chain_idx, g.main, 0)
        .set_unless(graph::init_chain_idx, g.init.map_or(-1, |i| i.min(i32::MAX as u32) as i32), -1)
        .set(graph::input_map, inputs)
        .set(graph::output_map, outputs)
        .set(graph::mutable_buffer_map, buffers)
        .set(graph::named_slots, names)
        .set(graph::tensor_meta, meta);
    out.table(row)
}

fn write_chain(out: &mut FlatWriter, nodes: &Chain) -> Offset {
    let instructions = out.each(nodes, |out, node| {
        let op = node::write(out, node);
        out.table(Row::default().set(instruction::op_type, node.tag()).set(instruction::op, op))
    });
    out.table(Row::default().set(chain::instructions, instructions))
}

fn write_slot(out: &mut FlatWriter, slot: Slot) -> Offset {
    let (idx, slot_type) = match slot {
        Slot::Tensor(t) => (t.0, TENSOR_SLOT),
        Slot::Value(v) => (v.0, INT_SLOT),
    };
    out.table(Row::default().set_unless(slot_variant::idx, idx, 0).set_unless(slot_variant::slot_type, slot_type, TENSOR_SLOT))
}

fn write_meta(out: &mut FlatWriter, meta: &TensorMeta) -> Offset {
    let shape = out.each(&meta.shape, |out, dim| out.table(dim_row(dim)));
    let dim_order = meta.dim_order.as_ref().map(|order| out.scalars(order.as_slice()));
    let mut row = Row::default().set(tensor_meta::shape, shape).set_unless(tensor_meta::scalar_type, meta.dtype.code(), 0);
    if let Some(order) = dim_order {
        row.put(tensor_meta::dim_order, order);
    }
    out.table(row)
}

/// Bounds too large for the file are written as "unbounded", as in ExecuTorch.
fn dim_row(dim: &MetaDim) -> Row {
    match *dim {
        MetaDim::Static(n) => Row::default().set(shape_dim::value, i32::try_from(n).unwrap_or(i32::MAX)),
        MetaDim::Dynamic { min, max } => Row::default()
            .set_unless(shape_dim::min_value, i32::try_from(min).unwrap_or(i32::MAX), 0)
            .set_unless(shape_dim::max_value, max.and_then(|m| i32::try_from(m).ok()).unwrap_or(-1), -1),
    }
}
