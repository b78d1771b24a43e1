//! Writes ETDump files (`.etdp`), which ExecuTorch's Inspector reads. Schema:
//! `devtools/etdump/etdump_schema_flatcc.fbs` of ExecuTorch.

use flambeau_tensor::{DType, Tensor, cast};

use crate::flat::{FlatWriter, Offset, Row};

const IDENTIFIER: &str = "ED00";

/// Boundary of tensors in a debug buffer, in bytes.
const ALIGNMENT: usize = 64;

crate::flat::schema! {
    root { version, run_data }
    run { name, bundled_input_index, allocators, events }
    event { profile_event, allocation_event, debug_event }
    profile {
        name, chain_index, instruction_id, delegate_debug_id_int, delegate_debug_id_str, delegate_debug_metadata, start_time, end_time,
    }
    debug { chain_index, instruction_id, debug_entry, delegate_debug_id_int, delegate_debug_id_str, name }
    value { val, tensor, tensor_list, int_value, float_value, double_value, bool_value, output }
    tensor { scalar_type, sizes, strides, offset }
    /// A table of one number, such as `Int` and `Bool`.
    number { value }
}

/// Numbers of the schema's `ValueType`.
mod kind {
    pub(super) const INT: i8 = 1;
    pub(super) const BOOL: i8 = 2;
    pub(super) const DOUBLE: i8 = 4;
    pub(super) const TENSOR: i8 = 5;
}

/// The events of one block, such as a run of a method.
#[derive(Clone, Debug, Default)]
pub struct EventBlock {
    /// `Default` for loading, `Execute` for a run.
    pub name: String,
    pub events: Vec<Event>,
}

/// An entry of a block.
#[derive(Clone, Debug)]
pub enum Event {
    Profile(ProfileEvent),
    Debug(DebugEvent),
}

/// A measured event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileEvent {
    pub name: String,
    /// -1 outside of chains.
    pub chain: i32,
    /// Number of the instruction in its chain.
    pub instruction: i32,
    /// Identifies an event inside of a delegate.
    pub delegate_id: Option<String>,
    /// Nanoseconds.
    pub start: u64,
    pub end: u64,
}

/// A recorded value. The Inspector shows it at the measured event of the same place.
#[derive(Clone, Debug)]
pub struct DebugEvent {
    /// Replaces the name of the measured event unless it is empty.
    pub name: String,
    /// Number of the instruction's chain.
    pub chain: u64,
    /// Number of the instruction in its chain, -1 for an output of the run.
    pub instruction: i32,
    /// Identifies a value inside of a delegate.
    pub delegate_id: Option<String>,
    pub value: DebugValue,
    /// Whether the value is an output of the run.
    pub is_output: bool,
}

/// The contents of a recorded value.
#[derive(Clone, Debug)]
pub enum DebugValue {
    Tensor(Tensor),
    Int(i64),
    Bool(bool),
    Double(f64),
}

/// An ETDump file, and the debug buffer with the tensors that it names.
#[derive(Clone, Debug, Default)]
pub struct EtDump {
    pub file: Vec<u8>,
    pub debug_buffer: Vec<u8>,
}

/// Writes an ETDump. Element types that the Inspector lacks are widened.
pub fn write_etdump(blocks: &[EventBlock]) -> EtDump {
    let (mut w, mut debug_buffer) = (FlatWriter::default(), Vec::new());
    let runs = w.each(blocks, |w, block| {
        let name = w.string(&block.name);
        let events = w.each(&block.events, |w, event| match event {
            Event::Profile(event) => write_profile(w, event),
            Event::Debug(event) => write_debug(w, event, &mut debug_buffer),
        });
        w.table(Row::default().set(run::name, name).set(run::bundled_input_index, -1i32).set(run::events, events))
    });
    let root = w.table(Row::default().set(root::version, 0u32).set(root::run_data, runs));
    EtDump { file: w.finish_size_prefixed(root, IDENTIFIER), debug_buffer }
}

fn write_profile(w: &mut FlatWriter, event: &ProfileEvent) -> Offset {
    let name = w.string(&event.name);
    let id = event.delegate_id.as_ref().map(|id| w.string(id));
    let mut row = Row::default()
        .set(profile::name, name)
        .set(profile::chain_index, event.chain)
        .set(profile::instruction_id, event.instruction)
        .set(profile::start_time, event.start)
        .set(profile::end_time, event.end);
    if let Some(id) = id {
        row.put(profile::delegate_debug_id_str, id);
    }
    let profile = w.table(row);
    w.table(Row::default().set(event::profile_event, profile))
}

fn write_debug(w: &mut FlatWriter, event: &DebugEvent, buffer: &mut Vec<u8>) -> Offset {
    let name = w.string(&event.name);
    let id = event.delegate_id.as_ref().map(|id| w.string(id));
    let entry = write_value(w, &event.value, event.is_output, buffer);
    let mut row = Row::default()
        .set(debug::chain_index, event.chain)
        .set(debug::instruction_id, event.instruction)
        .set(debug::debug_entry, entry)
        .set(debug::name, name);
    if let Some(id) = id {
        row.put(debug::delegate_debug_id_str, id);
    }
    let debug = w.table(row);
    w.table(Row::default().set(event::debug_event, debug))
}

fn write_value(w: &mut FlatWriter, contents: &DebugValue, is_output: bool, buffer: &mut Vec<u8>) -> Offset {
    let (kind, field, contents) = match contents {
        DebugValue::Tensor(contents) => (kind::TENSOR, value::tensor, write_tensor(w, contents, buffer)),
        DebugValue::Int(v) => (kind::INT, value::int_value, w.table(Row::default().set(number::value, *v))),
        DebugValue::Bool(v) => (kind::BOOL, value::bool_value, w.table(Row::default().set(number::value, *v))),
        DebugValue::Double(v) => (kind::DOUBLE, value::double_value, w.table(Row::default().set(number::value, *v))),
    };
    let output = w.table(Row::default().set(number::value, is_output));
    w.table(Row::default().set(value::val, kind).set(field, contents).set(value::output, output))
}

fn write_tensor(w: &mut FlatWriter, contents: &Tensor, buffer: &mut Vec<u8>) -> Offset {
    let contents = shown(contents);
    buffer.resize(buffer.len().next_multiple_of(ALIGNMENT), 0);
    let offset = buffer.len() as i64;
    buffer.extend_from_slice(contents.bytes());
    let sizes: Vec<i64> = contents.shape().iter().map(|&size| size as i64).collect();
    let mut strides = vec![1i64; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(sizes[axis]);
    }
    let (sizes, strides) = (w.scalars(&sizes), w.scalars(&strides));
    w.table(
        Row::default()
            .set(tensor::scalar_type, contents.dtype().code())
            .set(tensor::sizes, sizes)
            .set(tensor::strides, strides)
            .set(tensor::offset, offset),
    )
}

/// The tensor in an element type that the Inspector reads, where one holds all its elements.
fn shown(contents: &Tensor) -> Tensor {
    let wide = match contents.dtype() {
        DType::F16 | DType::F32 | DType::F64 => None,
        other if other.is_float() => Some(DType::F32),
        DType::U32 => Some(DType::I64),
        _ => None,
    };
    wide.and_then(|wide| cast(contents, wide).ok()).unwrap_or_else(|| contents.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;

    #[test]
    fn events_are_read_back() {
        let event = |name: &str, id: Option<&str>| ProfileEvent {
            name: name.into(),
            chain: 0,
            instruction: 2,
            delegate_id: id.map(str::to_owned),
            start: 1 << 40,
            end: (1 << 40) + 5,
        };
        let events = [event("DELEGATE_CALL", None), event("Add", Some("0:3"))];
        let blocks = [EventBlock { name: "Execute".into(), events: events.clone().map(Event::Profile).into() }];
        let bytes = write_etdump(&blocks).file;
        assert_eq!(
            (bytes.len() as u32 - 4, &bytes[8..12]),
            (u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), &b"ED00"[..])
        );
        let flat = Flat::new("an ETDump", &bytes[4..], 4);
        let read = |t: crate::flat::Table<'_>| {
            Ok(ProfileEvent {
                name: t.need_string(profile::name)?.into(),
                chain: t.get_or(profile::chain_index, 0)?,
                instruction: t.get_or(profile::instruction_id, -1)?,
                delegate_id: t.string(profile::delegate_debug_id_str)?.map(str::to_owned),
                start: t.get_or(profile::start_time, 0)?,
                end: t.get_or(profile::end_time, 0)?,
            })
        };
        let found = flat.root().unwrap().need_tables(root::run_data, |t| {
            let events = t.need_tables(run::events, |e| e.need_table(event::profile_event, read))?;
            Ok((t.need_string(run::name)?.to_owned(), events))
        });
        assert_eq!(found.unwrap(), [("Execute".to_owned(), events.to_vec())]);
    }

    #[test]
    fn tensors_are_in_the_debug_buffer() {
        let first = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3]).unwrap();
        let second = cast(&Tensor::from_slice(&[4.0f32, 5.0], &[2, 1]).unwrap(), DType::BF16).unwrap();
        let event = |contents: &Tensor| {
            let value = DebugValue::Tensor(contents.clone());
            Event::Debug(DebugEvent { name: "Add".into(), chain: 0, instruction: 1, delegate_id: None, value, is_output: false })
        };
        let dump = write_etdump(&[EventBlock { name: "Execute".into(), events: vec![event(&first), event(&second)] }]);
        // ExecuTorch's Inspector reads no bf16.
        assert_eq!(dump.debug_buffer.len(), 64 + 8);
        assert_eq!((&dump.debug_buffer[..4], &dump.debug_buffer[64..68]), (&1.0f32.to_le_bytes()[..], &4.0f32.to_le_bytes()[..]));
        let flat = Flat::new("an ETDump", &dump.file[4..], 4);
        let read = |t: crate::flat::Table<'_>| Ok((t.get_or(tensor::scalar_type, 0i8)?, t.get_or(tensor::offset, -1i64)?));
        let found = flat.root().unwrap().need_tables(root::run_data, |t| {
            t.need_tables(run::events, |e| {
                e.need_table(event::debug_event, |d| d.need_table(debug::debug_entry, |v| v.need_table(value::tensor, read)))
            })
        });
        assert_eq!(found.unwrap(), [[(DType::F32.code(), 0), (DType::F32.code(), 64)]]);
    }
}
