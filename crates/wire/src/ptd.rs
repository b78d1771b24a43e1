//! External data files (`.ptd`): tensors and blobs by key.

use std::io::Write;

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;

use crate::{
    blob::{Blob, Store},
    error::Error,
    flat::{Flat, FlatWriter, Row, Table},
    segment::{ALIGNMENT, Area, Draft, Layout, Segment, named_data, pad, read_named, read_segments, splice},
};

const FORMAT: &str = "an ExecuTorch data file";
const IDENTIFIER: &str = "FT01";
const MAGIC: &[u8; 4] = b"FH01";
/// Offset of the header, after the FlatBuffer's first bytes.
const START: usize = 8;
/// Length of the header without its padding, in bytes.
const SIZE: u32 = 40;
/// Length of the header with its padding, in bytes. The padding keeps later data aligned.
const PADDED: usize = 48;

crate::flat::schema! {
    root { version, segments, named_data }
    tensor_layout { scalar_type, sizes, dim_order }
}

/// A `.ptd` file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataFile {
    /// Entries by key. Several entries may share a segment.
    pub entries: IndexMap<String, DataEntry>,
    /// Segments, shared with the file.
    pub segments: Vec<Segment>,
}

/// The data of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// Index of the segment.
    pub segment: u32,
    /// Layout of the bytes, or `None` for an opaque blob.
    pub layout: Option<TensorLayout>,
}

/// Type, shape and order of axes of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    pub dtype: DType,
    pub sizes: Vec<u32>,
    /// Axes from outermost to innermost.
    pub dim_order: Vec<u8>,
}

impl DataFile {
    /// The data of a key, shared with the file.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.segments.get(self.entries.get(key)?.segment as usize).map(|s| s.data.clone())
    }
}

/// Reads and verifies a data file.
///
/// # Errors
/// If the bytes are not a data file, are truncated, violate the encoding, or exceed a limit. A
/// stated layout must be valid and must fit its data.
pub fn read_data_file(file: &Bytes) -> Result<DataFile, Error> {
    let (end, area) = read_header(file)?;
    let flat = Flat::new(FORMAT, file.get(..end).unwrap_or_default(), 0);
    let t = flat.root()?;
    let version = t.get_or(root::version, 0u32)?;
    if version > 0 {
        return Err(Error::Version { format: FORMAT, found: version.to_string(), known: "0".into() });
    }
    let segments = read_segments(&t, root::segments, file, area)?.ok_or_else(|| t.missing(root::segments))?;
    let entries = read_named(&t, root::named_data, segments.len(), |n, segment| {
        let size = segments.get(segment as usize).map_or(0, |s| s.data.len() as u64);
        let layout = n.table(named_data::tensor_layout, |l| read_layout(&l, size))?;
        Ok(DataEntry { segment, layout })
    })?;
    let entries = entries.ok_or_else(|| t.missing(root::named_data))?;
    Ok(DataFile { entries, segments })
}

/// Reads the end of the FlatBuffer, and the area of segments.
fn read_header(file: &[u8]) -> Result<(usize, Area), Error> {
    let present = file.len() as u64;
    let truncated = |what, expected| Error::Truncated { format: FORMAT, what, expected, present };
    let head = file.first_chunk::<{ START + SIZE as usize }>();
    let head = head.ok_or_else(|| truncated("the header", START as u64 + u64::from(SIZE)))?;
    if head[4..8] != *IDENTIFIER.as_bytes() || head[8..12] != *MAGIC {
        let found = format!("`{}`", head[4..12].escape_ascii());
        return Err(Error::Unrecognized { format: FORMAT, found, expected: IDENTIFIER });
    }
    let words: Vec<u64> = head[16..].chunks_exact(8).filter_map(|c| c.first_chunk().map(|b| u64::from_le_bytes(*b))).collect();
    let [offset, size, base, data_size] = words[..] else { return Err(truncated("the header", 48)) };
    let bad = |at, field: &str, problem| Error::Malformed { format: FORMAT, offset: at, path: format!("header.{field}"), problem };
    let length = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    if length < SIZE {
        return Err(bad(12, "length", format!("{length} bytes, at least {SIZE} are needed")));
    }
    // The FlatBuffer starts at byte 0, but its stated size excludes the header.
    let end = offset.checked_add(size).ok_or_else(|| bad(24, "flatbuffer_size", format!("{offset} + {size} overflows")))?;
    let area_end = base.checked_add(data_size);
    let area_end = area_end.ok_or_else(|| bad(40, "segment_data_size", format!("{base} + {data_size} overflows")))?;
    if end > present {
        return Err(truncated("the table of contents", end));
    }
    if area_end > present {
        return Err(truncated("the segment area", area_end));
    }
    if data_size > 0 && base < end {
        return Err(bad(
            32,
            "segment_base_offset",
            format!("segments at {base} overlap the table of contents, which ends at {end}"),
        ));
    }
    Ok((end as usize, Area { base, end: area_end }))
}

fn read_layout(t: &Table<'_>, available: u64) -> Result<TensorLayout, Error> {
    let code = t.get_or(tensor_layout::scalar_type, 0i8)?;
    let dtype = DType::from_code(code).ok_or_else(|| t.bad(tensor_layout::scalar_type, format!("unknown scalar type {code}")))?;
    let size = |d: i32| u32::try_from(d).map_err(|_| t.bad(tensor_layout::sizes, format!("size {d} is negative")));
    let sizes = t.scalars::<i32>(tensor_layout::sizes)?.unwrap_or_default().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let dim_order = t.scalars::<u8>(tensor_layout::dim_order)?.unwrap_or_default();
    let mut sorted = dim_order.clone();
    sorted.sort_unstable();
    if !sorted.iter().map(|&d| usize::from(d)).eq(0..sizes.len()) {
        return Err(t.bad(tensor_layout::dim_order, format!("not a permutation of {} axes", sizes.len())));
    }
    let nbytes = sizes.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d.into()));
    match nbytes {
        Some(n) if n <= available => Ok(TensorLayout { dtype, sizes, dim_order }),
        _ => Err(
            t.bad(tensor_layout::sizes, format!("{sizes:?} elements of {dtype} do not fit the {available} bytes of the segment"))
        ),
    }
}

/// A data file under construction. Like [`ProgramWriter`](crate::ProgramWriter), it stores equal
/// blobs once and streams.
#[derive(Debug, Default)]
pub struct DataFileWriter<'a> {
    store: Store<'a>,
    entries: IndexMap<String, (usize, Option<TensorLayout>)>,
}

impl<'a> DataFileWriter<'a> {
    /// Creates a writer without entries.
    pub fn new() -> DataFileWriter<'a> {
        DataFileWriter::default()
    }

    /// Adds data under a key.
    ///
    /// # Errors
    /// If the key already has different contents or another layout.
    pub fn add(&mut self, key: impl Into<String>, data: Blob<'a>, layout: Option<TensorLayout>) -> Result<(), Error> {
        let key = key.into();
        match self.entries.get(&key) {
            Some((taken, old)) if self.store.holds(*taken, &data) && *old == layout => Ok(()),
            Some(_) => Err(Error::KeyConflict { key }),
            None => {
                self.entries.insert(key, (self.store.add(data), layout));
                Ok(())
            }
        }
    }

    /// Writes the file and returns its length.
    ///
    /// # Errors
    /// As [`ProgramWriter::write`](crate::ProgramWriter::write).
    pub fn write(self, out: &mut dyn Write) -> Result<u64, Error> {
        let mut names = vec![""; self.store.count() as usize];
        self.entries.iter().rev().for_each(|(key, entry)| names[entry.0] = key);
        let drafts = self.store.into_blobs().into_iter().zip(&names).map(|(blob, name)| Draft::of(*name, blob));
        let layout = Layout::new(drafts.collect());

        let mut flat = FlatWriter::default();
        let segments = layout.table(&mut flat);
        let entries: Vec<_> = self.entries.iter().collect();
        let named = flat.each(&entries, |flat, (key, (segment, layout))| {
            let key = flat.string(key);
            let mut row = Row::default().set(named_data::key, key).set_unless(named_data::segment_index, *segment as u32, 0);
            if let Some(layout) = layout {
                row.put(named_data::tensor_layout, write_layout(flat, layout));
            }
            flat.table(row)
        });
        let table = flat.table(Row::default().set(root::segments, segments).set(root::named_data, named));
        let flat = flat.finish(table, Some(IDENTIFIER));

        let end = (PADDED + flat.len()) as u64;
        let base = end.next_multiple_of(ALIGNMENT);
        let mut header = Vec::with_capacity(PADDED);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&SIZE.to_le_bytes());
        for field in [PADDED as u64, flat.len() as u64, base, layout.size()] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        header.resize(PADDED, 0);
        out.write_all(&splice(flat, &header))?;
        pad(out, base - end)?;
        let len = base + layout.size();
        layout.write(out)?;
        out.flush()?;
        Ok(len)
    }
}

fn write_layout(flat: &mut FlatWriter, layout: &TensorLayout) -> crate::flat::Offset {
    let sizes: Vec<i32> = layout.sizes.iter().map(|&d| i32::try_from(d).unwrap_or(i32::MAX)).collect();
    let (sizes, dim_order) = (flat.scalars(&sizes), flat.scalars(layout.dim_order.as_slice()));
    let row = Row::default().set_unless(tensor_layout::scalar_type, layout.dtype.code(), 0);
    flat.table(row.set(tensor_layout::sizes, sizes).set(tensor_layout::dim_order, dim_order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ones() -> TensorLayout {
        TensorLayout { dtype: DType::F32, sizes: vec![2, 2], dim_order: vec![0, 1] }
    }

    /// ExecuTorch's worked example: three bytes without a layout, and one tensor under two keys.
    fn example() -> Vec<u8> {
        let ones_bytes = || Blob::from_bytes([1f32; 4].map(f32::to_le_bytes).concat());
        let mut writer = DataFileWriter::new();
        writer.add("blob", Blob::from_bytes(&b"abc"[..]), None).unwrap();
        writer.add("w", ones_bytes(), Some(ones())).unwrap();
        writer.add("w2", ones_bytes(), Some(ones())).unwrap();
        assert!(matches!(writer.add("w", ones_bytes(), None), Err(Error::KeyConflict { .. })));
        let mut out = Vec::new();
        let len = writer.write(&mut out).unwrap();
        assert_eq!(len, out.len() as u64);
        out
    }

    #[test]
    fn files_have_the_layout_of_executorchs() {
        let file = example();
        assert_eq!(file.len(), 528);
        assert_eq!(&file[4..16], b"FT01FH01\x28\0\0\0");
        assert_eq!(file[16], 48);
        let flat_size = u64::from_le_bytes(file[24..32].try_into().unwrap());
        assert!(flat_size + 48 <= 384);
        assert_eq!(&file[32..48], [&384u64.to_le_bytes()[..], &144u64.to_le_bytes()].concat());
        assert_eq!(&file[384..387], b"abc");
        assert_eq!(&file[512..516], 1f32.to_le_bytes());

        let data = read_data_file(&Bytes::from(file)).unwrap();
        assert_eq!(data.segments.iter().map(|s| (s.offset, s.data.len())).collect::<Vec<_>>(), [(384, 3), (512, 16)]);
        assert_eq!(data.entries["w2"], DataEntry { segment: 1, layout: Some(ones()) });
        assert_eq!(data.get("blob").unwrap(), "abc");
        assert_eq!(data.get("b"), None);
    }

    #[test]
    fn headers_must_fit_the_file() {
        let refusal = |at: usize, bytes: &[u8]| {
            let mut file = example();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            read_data_file(&file.into()).map_or_else(|e| e.to_string(), |_| String::new())
        };
        assert_eq!(refusal(40, &144u64.to_le_bytes()), "");
        assert!(refusal(12, &39u32.to_le_bytes()).contains("byte 12, `header.length`: 39 bytes, at least 40"));
        for (at, word, message) in [
            (16, u64::MAX, "byte 24, `header.flatbuffer_size`: 18446744073709551615 + "),
            (24, 529 - 48, "the table of contents ends at byte 529, but only 528"),
            (32, 48, "byte 32, `header.segment_base_offset`: segments at 48 overlap"),
            (40, u64::MAX, "byte 40, `header.segment_data_size`: 384 + "),
            (40, 145, "the segment area ends at byte 529, but only 528"),
        ] {
            let found = refusal(at, &word.to_le_bytes());
            assert!(found.contains(message), "{found}, expected {message}");
        }
    }

    #[test]
    fn every_truncation_is_refused_and_no_changed_byte_panics() {
        let file = example();
        for len in 0..file.len() {
            assert!(read_data_file(&Bytes::copy_from_slice(&file[..len])).is_err(), "{len}");
        }
        let mut read = 0;
        for at in 0..file.len() {
            for flip in [0xff, 1, 0x80] {
                let mut changed = file.clone();
                changed[at] ^= flip;
                read += usize::from(read_data_file(&changed.into()).is_ok());
            }
        }
        // Changes of padding and of data are valid.
        assert!((200..3 * file.len()).contains(&read), "{read}");
    }
}
