//! Writes ETDump files (`.etdp`), which ExecuTorch's Inspector reads. Schema:
//! `devtools/etdump/etdump_schema_flatcc.fbs` of ExecuTorch.

use crate::flat::{FlatWriter, Offset, Row};

const IDENTIFIER: &str = "ED00";

crate::flat::schema! {
    root { version, run_data }
    run { name, bundled_input_index, allocators, events }
    event { profile_event, allocation_event, debug_event }
    profile {
        name, chain_index, instruction_id, delegate_debug_id_int, delegate_debug_id_str, delegate_debug_metadata, start_time, end_time,
    }
}

/// The events of one block, such as a run of a method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBlock {
    /// `Default` for loading, `Execute` for a run.
    pub name: String,
    pub events: Vec<ProfileEvent>,
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

/// The bytes of an ETDump file.
pub fn write_etdump(blocks: &[EventBlock]) -> Vec<u8> {
    let mut w = FlatWriter::default();
    let runs = w.each(blocks, |w, block| {
        let name = w.string(&block.name);
        let events = w.each(&block.events, write_event);
        w.table(Row::default().set(run::name, name).set(run::bundled_input_index, -1i32).set(run::events, events))
    });
    let root = w.table(Row::default().set(root::version, 0u32).set(root::run_data, runs));
    w.finish_size_prefixed(root, IDENTIFIER)
}

fn write_event(w: &mut FlatWriter, event: &ProfileEvent) -> Offset {
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
        let blocks = [EventBlock { name: "Execute".into(), events: vec![event("DELEGATE_CALL", None), event("Add", Some("0:3"))] }];
        let bytes = write_etdump(&blocks);
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
            Ok(EventBlock { name: t.need_string(run::name)?.into(), events })
        });
        assert_eq!(found.unwrap(), blocks);
    }
}
