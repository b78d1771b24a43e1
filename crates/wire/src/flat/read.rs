//! Reads untrusted FlatBuffers without panics. Every offset is checked against the buffer, and
//! every field against its table.
//!
//! Offsets may point anywhere, so targets can be shared or overlap. The supported formats have no
//! recursive tables, which bounds the depth. A budget of visited tables and bytes bounds time and
//! memory.

use std::{cell::Cell, ops::Range};

use super::Field;
use crate::{
    error::{Error, Within},
    limits,
};

/// A FlatBuffer and the remaining budget for reading it.
#[derive(Debug)]
pub(crate) struct Flat<'a> {
    format: &'static str,
    bytes: &'a [u8],
    /// Offset of the buffer in the file or payload, for messages.
    base: u64,
    tables: Cell<usize>,
    work: Cell<usize>,
}

/// A table whose vtable and extent are inside the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    flat: &'a Flat<'a>,
    at: usize,
    size: usize,
    vtable: usize,
    vtable_size: usize,
}

/// A little-endian number.
pub(crate) trait Scalar: Copy {
    const SIZE: usize;
    /// Decodes a number from the first bytes of `bytes`, if there are enough.
    fn first(bytes: &[u8]) -> Option<Self>;
}

macro_rules! scalars {
    ($($ty:ty),*) => { $(impl Scalar for $ty {
        const SIZE: usize = size_of::<$ty>();
        fn first(bytes: &[u8]) -> Option<Self> {
            bytes.first_chunk().map(|c| <$ty>::from_le_bytes(*c))
        }
    })* };
}
scalars!(u8, i8, u16, i32, u32, i64, u64, f32, f64);

impl Scalar for bool {
    const SIZE: usize = 1;
    fn first(bytes: &[u8]) -> Option<Self> {
        bytes.first().map(|&b| b != 0)
    }
}

/// Bytes that may be visited or allocated for a buffer of `len` bytes.
fn work_limit(len: usize) -> usize {
    len.saturating_mul(limits::WORK_PER_BYTE).clamp(limits::MIN_WORK, limits::MAX_WORK)
}

impl<'a> Flat<'a> {
    /// Creates a reader of a buffer that starts at byte `base` of a `format`.
    pub(crate) fn new(format: &'static str, bytes: &'a [u8], base: u64) -> Self {
        let (tables, work) = (Cell::new(limits::MAX_TABLES), Cell::new(work_limit(bytes.len())));
        Flat { format, bytes, base, tables, work }
    }

    /// The root table.
    pub(crate) fn root(&'a self) -> Result<Table<'a>, Error> {
        let at = self.follow(0).within(|| "root".into())?;
        self.table(at).within(|| "root".into())
    }

    pub(crate) fn malformed(&self, at: usize, problem: impl Into<String>) -> Error {
        let offset = self.base.saturating_add(at as u64);
        Error::Malformed { format: self.format, offset, path: String::new(), problem: problem.into() }
    }

    fn over(&self, limit: &'static str, max: usize) -> Error {
        Error::Limit { format: self.format, limit, max: max as u64, path: String::new() }
    }

    /// Spends `bytes` of the work budget.
    fn charge(&self, bytes: usize) -> Result<(), Error> {
        let left = self.work.get().checked_sub(bytes).ok_or_else(|| self.over("MAX_WORK", work_limit(self.bytes.len())))?;
        self.work.set(left);
        Ok(())
    }

    fn scalar<T: Scalar>(&self, at: usize) -> Result<T, Error> {
        let found = self.bytes.get(at..).and_then(T::first);
        found.ok_or_else(|| self.malformed(at, format!("{} bytes expected, the buffer ends at {}", T::SIZE, self.bytes.len())))
    }

    /// Target of the unsigned offset at position `at`.
    fn follow(&self, at: usize) -> Result<usize, Error> {
        let offset = self.scalar::<u32>(at)? as usize;
        match at.checked_add(offset) {
            Some(target) if offset != 0 && target < self.bytes.len() => Ok(target),
            _ => Err(self.malformed(at, format!("offset {offset} leaves the buffer of {} bytes", self.bytes.len()))),
        }
    }

    fn table(&'a self, at: usize) -> Result<Table<'a>, Error> {
        let tables = self.tables.get().checked_sub(1).ok_or_else(|| self.over("MAX_TABLES", limits::MAX_TABLES))?;
        self.tables.set(tables);
        self.charge(16)?;
        let back = i64::from(self.scalar::<i32>(at)?);
        let vtable = usize::try_from(at as i64 - back).map_err(|_| self.malformed(at, "vtable before the buffer"))?;
        let vtable_size = usize::from(self.scalar::<u16>(vtable)?);
        let size = usize::from(self.scalar::<u16>(vtable.saturating_add(2))?);
        let fits = |from: usize, len: usize| from.checked_add(len).is_some_and(|end| end <= self.bytes.len());
        if vtable_size < 4 || vtable_size % 2 != 0 || !fits(vtable, vtable_size) {
            return Err(self.malformed(vtable, format!("vtable of {vtable_size} bytes")));
        }
        if size < 4 || !fits(at, size) {
            return Err(self.malformed(at, format!("table of {size} bytes")));
        }
        Ok(Table { flat: self, at, size, vtable, vtable_size })
    }

    /// Byte range of the vector at `at`, with elements of `size` bytes.
    fn vector(&self, at: usize, size: usize) -> Result<Range<usize>, Error> {
        let len = self.scalar::<u32>(at)? as usize;
        let start = at.saturating_add(4);
        let end = len.checked_mul(size).and_then(|n| n.checked_add(start));
        match end {
            Some(end) if end <= self.bytes.len() => Ok(start..end),
            _ => Err(self.malformed(at, format!("vector of {len} entries leaves the buffer of {} bytes", self.bytes.len()))),
        }
    }

    fn string(&self, at: usize) -> Result<&'a str, Error> {
        let range = self.vector(at, 1)?;
        self.charge(range.len())?;
        let bytes = self.bytes.get(range).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|e| self.malformed(at, format!("string is not utf-8: {e}")))
    }
}

impl<'a> Table<'a> {
    /// Creates an error about a field of this table.
    pub(crate) fn bad(&self, field: Field, problem: impl Into<String>) -> Error {
        let at = self.place(field, 0).ok().flatten().unwrap_or(self.at);
        Err::<(), _>(self.flat.malformed(at, problem)).within(|| field.name.into()).unwrap_err()
    }

    /// Creates an error about an unsupported value of a field of this table.
    pub(crate) fn unsupported(&self, field: Field, problem: impl Into<String>) -> Error {
        match self.bad(field, problem) {
            Error::Malformed { format, offset, path, problem } => Error::Unsupported { format, offset, path, problem },
            other => other,
        }
    }

    /// Creates an error about an absent required field.
    pub(crate) fn missing(&self, field: Field) -> Error {
        self.bad(field, "required field is absent")
    }

    /// Position of a field of `size` bytes, if present.
    fn place(&self, field: Field, size: usize) -> Result<Option<usize>, Error> {
        let entry = 4 + 2 * usize::from(field.id);
        if entry + 2 > self.vtable_size {
            return Ok(None);
        }
        let offset = usize::from(self.flat.scalar::<u16>(self.vtable + entry)?);
        match offset {
            0 => Ok(None),
            4.. if offset + size <= self.size => Ok(Some(self.at + offset)),
            _ => {
                Err(self.flat.malformed(self.vtable + entry, format!("field at {offset} leaves its table of {} bytes", self.size)))
            }
        }
    }

    /// Whether a field is present.
    pub(crate) fn has(&self, field: Field) -> Result<bool, Error> {
        self.place(field, 0).map(|p| p.is_some()).within(|| field.name.into())
    }

    /// Reads a number, if present.
    pub(crate) fn get<T: Scalar>(&self, field: Field) -> Result<Option<T>, Error> {
        let read = || self.place(field, T::SIZE)?.map(|at| self.flat.scalar(at)).transpose();
        read().within(|| field.name.into())
    }

    /// Reads a number, or returns its default.
    pub(crate) fn get_or<T: Scalar>(&self, field: Field, default: T) -> Result<T, Error> {
        Ok(self.get(field)?.unwrap_or(default))
    }

    fn target(&self, field: Field) -> Result<Option<usize>, Error> {
        self.place(field, 4)?.map(|at| self.flat.follow(at)).transpose()
    }

    /// Reads a table with `read`, if present.
    pub(crate) fn table<T>(&self, field: Field, read: impl FnOnce(Table<'a>) -> Result<T, Error>) -> Result<Option<T>, Error> {
        let go = || self.target(field)?.map(|at| read(self.flat.table(at)?)).transpose();
        go().within(|| field.name.into())
    }

    /// Reads a required table with `read`.
    pub(crate) fn need_table<T>(&self, field: Field, read: impl FnOnce(Table<'a>) -> Result<T, Error>) -> Result<T, Error> {
        self.table(field, read)?.ok_or_else(|| self.missing(field))
    }

    /// Reads a string, if present.
    pub(crate) fn string(&self, field: Field) -> Result<Option<&'a str>, Error> {
        let read = || self.target(field)?.map(|at| self.flat.string(at)).transpose();
        read().within(|| field.name.into())
    }

    /// Reads a required string.
    pub(crate) fn need_string(&self, field: Field) -> Result<&'a str, Error> {
        self.string(field)?.ok_or_else(|| self.missing(field))
    }

    /// Range in the buffer of a vector of bytes, if present.
    pub(crate) fn byte_range(&self, field: Field) -> Result<Option<Range<usize>>, Error> {
        let read = || self.target(field)?.map(|at| self.flat.vector(at, 1)).transpose();
        read().within(|| field.name.into())
    }

    /// Reads the elements of a vector one by one from their positions, if present.
    fn each<T>(
        &self,
        field: Field,
        size: usize,
        read: impl FnMut((usize, usize)) -> Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        let go = || {
            let Some(at) = self.target(field)? else { return Ok(None) };
            let range = self.flat.vector(at, size)?;
            if range.len() / size > limits::MAX_VECTOR_ENTRIES {
                return Err(self.flat.over("MAX_VECTOR_ENTRIES", limits::MAX_VECTOR_ENTRIES));
            }
            self.flat.charge(range.len())?;
            range.step_by(size).enumerate().map(read).collect::<Result<Vec<T>, Error>>().map(Some)
        };
        go().within(|| field.name.into())
    }

    /// Reads a vector of numbers, if present.
    pub(crate) fn scalars<T: Scalar>(&self, field: Field) -> Result<Option<Vec<T>>, Error> {
        self.each(field, T::SIZE, |(_, at)| self.flat.scalar(at))
    }

    /// Reads a required vector of numbers.
    pub(crate) fn need_scalars<T: Scalar>(&self, field: Field) -> Result<Vec<T>, Error> {
        self.scalars(field)?.ok_or_else(|| self.missing(field))
    }

    /// Reads a vector of strings, if present.
    pub(crate) fn strings(&self, field: Field) -> Result<Option<Vec<String>>, Error> {
        self.each(field, 4, |(i, at)| {
            self.flat.charge(size_of::<String>())?;
            self.flat.follow(at).and_then(|at| self.flat.string(at)).map(str::to_owned).within(|| format!("[{i}]"))
        })
    }

    /// Reads the tables of a vector with `read`, if present.
    pub(crate) fn tables<T>(
        &self,
        field: Field,
        mut read: impl FnMut(Table<'a>) -> Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        self.each(field, 4, |(i, at)| {
            self.flat.charge(size_of::<T>())?;
            self.flat.follow(at).and_then(|at| read(self.flat.table(at)?)).within(|| format!("[{i}]"))
        })
    }

    /// Reads the tables of a required vector with `read`.
    pub(crate) fn need_tables<T>(&self, field: Field, read: impl FnMut(Table<'a>) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        self.tables(field, read)?.ok_or_else(|| self.missing(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a table of `size` bytes with one field: a string of three bytes that states `len`
    /// bytes.
    fn string(size: u8, len: u8) -> Result<String, String> {
        let bytes = [
            &[12, 0, 0, 0][..],           // offset of the table
            &[6, 0, size, 0, 4, 0, 0, 0], // the vtable: its size, table size, field offset
            &[8, 0, 0, 0, 4, 0, 0, 0],    // the table: vtable 8 bytes before, string 4 bytes after it
            &[len, 0, 0, 0, b'a', b'b', b'c'],
        ]
        .concat();
        let flat = Flat::new("test", &bytes, 0);
        let text = flat.root().and_then(|table| table.need_string(Field { id: 0, name: "text" }).map(str::to_owned));
        text.map_err(|e| e.to_string())
    }

    #[test]
    fn fields_lie_in_their_table_and_vectors_in_the_buffer() {
        assert_eq!(string(8, 3).as_deref(), Ok("abc"));
        for (size, len, message) in [
            (7, 3, "byte 8, `text`: field at 4 leaves its table of 7 bytes"),
            (8, 4, "byte 20, `text`: vector of 4 entries leaves the buffer of 27 bytes"),
            (16, 3, "byte 12, `root`: table of 16 bytes"),
        ] {
            let refusal = string(size, len).unwrap_err();
            assert!(refusal.contains(message), "{refusal}, expected {message}");
        }
    }
}
