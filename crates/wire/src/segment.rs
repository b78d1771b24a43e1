//! Segments and named data, shared by `.pte` and `.ptd` files.

use std::io::Write;

use flambeau_tensor::Bytes;
use indexmap::IndexMap;

use crate::{
    blob::Blob,
    error::{Error, Within},
    flat::{Field, FlatWriter, Offset, Row, Table},
};

/// Alignment in bytes of the segment base in the file, and of segments from the base.
pub(crate) const ALIGNMENT: u64 = 128;

crate::flat::schema! {
    data_segment { offset, size }
    /// Only data files have a layout.
    named_data { key, segment_index, tensor_layout }
}

/// A range of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the segment's first byte in the file.
    pub offset: u64,
    /// The bytes, shared with the file.
    pub data: Bytes,
}

/// The part of a file that segments may occupy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) base: u64,
    pub(crate) end: u64,
}

/// Reads the segment table, and checks that segments are within the area and do not overlap.
pub(crate) fn read_segments(t: &Table<'_>, field: Field, file: &Bytes, area: Area) -> Result<Option<Vec<Segment>>, Error> {
    let segments = t.tables(field, |s| {
        let (offset, size) = (s.get_or(data_segment::offset, 0u64)?, s.get_or(data_segment::size, 0u64)?);
        let start = area.base.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(size));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(s.bad(data_segment::size, format!("offset {offset} plus size {size} overflows")));
        };
        if size == 0 {
            return Ok(Segment { offset: start, data: Bytes::new() });
        }
        if end > area.end || end > file.len() as u64 {
            let problem = format!("bytes {start}..{end} leave the segment area {}..{}", area.base, area.end);
            return Err(s.bad(data_segment::size, problem));
        }
        Ok(Segment { offset: start, data: file.slice(start as usize..end as usize) })
    })?;
    segments.map(|segments| check_disjoint(&segments).map(|()| segments).within(|| field.name.into())).transpose()
}

fn check_disjoint(segments: &[Segment]) -> Result<(), Error> {
    let mut order: Vec<(usize, &Segment)> = segments.iter().enumerate().filter(|(_, s)| !s.data.is_empty()).collect();
    order.sort_by_key(|(_, s)| s.offset);
    for pair in order.windows(2) {
        if let [(i, a), (j, b)] = pair
            && a.offset + a.data.len() as u64 > b.offset
        {
            return Err(Error::invalid(format!("[{j}]"), format!("begins at byte {}, inside segment {i}", b.offset)));
        }
    }
    Ok(())
}

/// Reads named data with distinct keys and segment indices below `segments`. `read` converts each
/// entry.
pub(crate) fn read_named<T>(
    t: &Table<'_>,
    field: Field,
    segments: usize,
    mut read: impl FnMut(Table<'_>, u32) -> Result<T, Error>,
) -> Result<Option<IndexMap<String, T>>, Error> {
    let mut named = IndexMap::new();
    let entries = t.tables(field, |n| {
        let key = n.need_string(named_data::key)?.to_owned();
        let segment = n.get_or(named_data::segment_index, 0u32)?;
        if segment as usize >= segments {
            return Err(n.bad(named_data::segment_index, format!("segment {segment} of {segments}")));
        }
        let value = read(n, segment)?;
        match named.entry(key) {
            indexmap::map::Entry::Vacant(e) => {
                e.insert(value);
                Ok(())
            }
            indexmap::map::Entry::Occupied(e) => {
                Err(n.bad(named_data::key, format!("key `{}` occurs twice", e.key().escape_debug())))
            }
        }
    })?;
    Ok(entries.map(|_| named))
}

/// A segment to write: consecutive blobs, each aligned to a multiple of `align` bytes.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) name: String,
    pub(crate) blobs: Vec<Blob<'a>>,
    pub(crate) align: u64,
}

impl<'a> Draft<'a> {
    /// Creates a segment with one blob.
    pub(crate) fn of(name: impl Into<String>, blob: Blob<'a>) -> Draft<'a> {
        Draft { name: name.into(), blobs: vec![blob], align: 1 }
    }

    fn size(&self) -> u64 {
        self.blobs.iter().fold(0, |end: u64, blob| end.next_multiple_of(self.align) + blob.len())
    }
}

/// The segments of a file under construction, with their offsets from the base.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    drafts: Vec<Draft<'a>>,
    places: Vec<(u64, u64)>,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(drafts: Vec<Draft<'a>>) -> Layout<'a> {
        let mut end = 0u64;
        let places = drafts.iter().map(|draft| {
            let (start, size) = (end.next_multiple_of(ALIGNMENT), draft.size());
            // An empty segment occupies no bytes, so the next one may start at the same offset.
            if size > 0 {
                end = start + size;
            }
            (start, size)
        });
        Layout { places: places.collect(), drafts }
    }

    /// Bytes from the base to the end of the last segment.
    pub(crate) fn size(&self) -> u64 {
        self.places.iter().filter(|p| p.1 > 0).map(|p| p.0 + p.1).max().unwrap_or(0)
    }

    /// Writes the segment table's vector.
    pub(crate) fn table(&self, out: &mut FlatWriter) -> Offset {
        out.each(&self.places, |out, &(offset, size)| {
            out.table(Row::default().set_unless(data_segment::offset, offset, 0).set_unless(data_segment::size, size, 0))
        })
    }

    /// Writes all segments, with padding between them but none after the last.
    pub(crate) fn write(self, out: &mut dyn Write) -> Result<(), Error> {
        let mut at = 0;
        for (draft, (start, size)) in self.drafts.into_iter().zip(self.places) {
            if size == 0 {
                continue;
            }
            pad(out, start - at)?;
            let mut inner = 0u64;
            for blob in draft.blobs {
                let next = inner.next_multiple_of(draft.align);
                pad(out, next - inner)?;
                inner = next + blob.len();
                blob.write(&draft.name, out)?;
            }
            at = start + size;
        }
        Ok(())
    }
}

/// Writes `n` zero bytes.
pub(crate) fn pad(out: &mut dyn Write, mut n: u64) -> Result<(), Error> {
    const ZEROS: [u8; 256] = [0; 256];
    while n > 0 {
        let some = n.min(ZEROS.len() as u64) as usize;
        out.write_all(&ZEROS[..some])?;
        n -= some as u64;
    }
    Ok(())
}

/// Inserts a header into a FlatBuffer after its first eight bytes. `header` must keep the buffer's
/// alignment.
pub(crate) fn splice(mut flat: Vec<u8>, header: &[u8]) -> Vec<u8> {
    if let Some(root) = flat.first_chunk_mut::<4>() {
        *root = (u32::from_le_bytes(*root) + header.len() as u32).to_le_bytes();
    }
    flat.splice(8..8, header.iter().copied());
    flat
}
