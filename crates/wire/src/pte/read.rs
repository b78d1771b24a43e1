//! Reads the program's root table.

use std::ops::Range;

use flambeau_tensor::Bytes;

use super::{
    check,
    header::{FORMAT, Header},
    plan::read_method,
    program::{Constants, Program, Subsegment},
    schema::{buffer, inline_data, program, subsegment},
};
use crate::{
    error::Error,
    flat::{Field, Flat, Table},
    segment::{Segment, read_named, read_segments},
};

/// Reads and verifies a program. Segments and payloads share the file's bytes. Payloads are not
/// decoded.
///
/// All indices, ranges, shapes, names and jump targets of the result are valid. Unsupported methods
/// are listed separately, and the others are read.
///
/// # Errors
/// If the bytes are not a program, are truncated, violate the encoding, exceed a limit, or describe
/// an invalid program.
pub fn read_program(file: &Bytes) -> Result<Program, Error> {
    let header = Header::read(file)?;
    let flat = Flat::new(FORMAT, file.get(..header.program_size).unwrap_or_default(), 0);
    let root = flat.root()?;
    let segments = read_segments(&root, program::segments, file, header.area)?;
    let named = read_named(&root, program::named_data, segments.as_ref().map_or(0, Vec::len), |_, segment| Ok(segment))?;
    if named.is_some() && segments.is_none() {
        return Err(root.missing(program::segments));
    }
    let segments = segments.unwrap_or_default();
    let read_buffer = |t: Table<'_>, field| Ok(file.slice(t.byte_range(field)?.unwrap_or_default()));
    let (mut plans, mut unsupported) = (Vec::new(), Vec::new());
    for method in root.need_tables(program::execution_plan, |t| read_method(t, &|range: Range<usize>| file.slice(range)))? {
        match method {
            Ok(plan) => plans.push(plan),
            Err(method) => unsupported.push(method),
        }
    }
    let result = Program {
        constants: read_constants(&root, &segments, |t| read_buffer(t, buffer::storage))?,
        mutable_data: root.tables(program::mutable_data_segments, |t| read_subsegment(t, &segments))?.unwrap_or_default(),
        inline_payloads: root.tables(program::backend_delegate_data, |t| read_buffer(t, inline_data::data))?.unwrap_or_default(),
        plans,
        unsupported,
        named_data: named.unwrap_or_default(),
        segments,
    };
    check::program(&result)?;
    Ok(result)
}

fn read_subsegment(t: Table<'_>, segments: &[Segment]) -> Result<Subsegment, Error> {
    let (segment, offsets) = (t.get_or(subsegment::segment_index, 0u32)?, t.scalars(subsegment::offsets)?.unwrap_or_default());
    let Some(data) = segments.get(segment as usize).map(|s| &s.data) else {
        return Err(t.bad(subsegment::segment_index, format!("segment {segment} of {}", segments.len())));
    };
    match offsets.iter().find(|&&offset| offset > data.len() as u64) {
        Some(offset) => Err(t.bad(subsegment::offsets, format!("offset {offset} leaves the segment of {} bytes", data.len()))),
        None => Ok(Subsegment { segment, offsets }),
    }
}

/// Reads constants from a segment, or from the tables of old files. A single offset is only the
/// placeholder, so there are no constants.
fn read_constants(
    root: &Table<'_>,
    segments: &[Segment],
    read_buffer: impl Fn(Table<'_>) -> Result<Bytes, Error>,
) -> Result<Constants, Error> {
    let inline = root.tables(program::constant_buffer, read_buffer)?.unwrap_or_default();
    let field: Field = program::constant_segment;
    let offsets = root.table(field, |t| Ok(t.scalars::<u64>(subsegment::offsets)?.map_or(0, |o| o.len())))?;
    match offsets.unwrap_or(0) {
        0 if inline.is_empty() => Ok(Constants::None),
        0 => Ok(Constants::Inline(inline)),
        1 => Ok(Constants::None),
        _ if !inline.is_empty() => Err(root.bad(program::constant_buffer, "constants both in a segment and inline")),
        _ => root.need_table(field, |t| read_subsegment(t, segments)).map(Constants::Segment),
    }
}
