//! Builds FlatBuffers table by table. A [`Row`] collects a table's fields. Children are written
//! before it.

use flatbuffers::{FlatBufferBuilder, Push, UnionWIPOffset, WIPOffset};

use super::Field;

/// Position of a finished table, vector or string.
pub(crate) type Offset = WIPOffset<UnionWIPOffset>;

/// The contents of one field. A struct of one number is represented by that number.
#[derive(Clone, Copy)]
pub(crate) enum FieldValue {
    Bool(bool),
    U8(u8),
    I8(i8),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    Offset(Offset),
}

macro_rules! from_scalars {
    ($($ty:ty => $variant:ident),*) => { $(impl From<$ty> for FieldValue {
        fn from(v: $ty) -> FieldValue {
            FieldValue::$variant(v)
        }
    })* };
}
from_scalars!(bool => Bool, u8 => U8, i8 => I8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64, Offset => Offset);

/// The fields of a table before it is written.
#[derive(Default)]
pub(crate) struct Row(Vec<(u16, FieldValue)>);

impl Row {
    /// Sets a field.
    pub(crate) fn set(mut self, field: Field, value: impl Into<FieldValue>) -> Row {
        self.put(field, value);
        self
    }

    /// Sets a field unless the value is its default.
    pub(crate) fn set_unless<T: Into<FieldValue> + PartialEq>(self, field: Field, value: T, default: T) -> Row {
        if value == default { self } else { self.set(field, value) }
    }

    /// Sets a field in place.
    pub(crate) fn put(&mut self, field: Field, value: impl Into<FieldValue>) {
        self.0.push((field.id, value.into()));
    }
}

/// A FlatBuffer under construction.
#[derive(Default)]
pub(crate) struct FlatWriter(FlatBufferBuilder<'static>);

impl FlatWriter {
    /// Writes a table.
    pub(crate) fn table(&mut self, row: Row) -> Offset {
        let b = &mut self.0;
        let start = b.start_table();
        for (id, value) in row.0 {
            let slot = 4 + 2 * id;
            match value {
                FieldValue::Bool(v) => b.push_slot_always(slot, v),
                FieldValue::U8(v) => b.push_slot_always(slot, v),
                FieldValue::I8(v) => b.push_slot_always(slot, v),
                FieldValue::I32(v) => b.push_slot_always(slot, v),
                FieldValue::U32(v) => b.push_slot_always(slot, v),
                FieldValue::I64(v) => b.push_slot_always(slot, v),
                FieldValue::U64(v) => b.push_slot_always(slot, v),
                FieldValue::F32(v) => b.push_slot_always(slot, v),
                FieldValue::F64(v) => b.push_slot_always(slot, v),
                FieldValue::Offset(v) => b.push_slot_always(slot, v),
            }
        }
        b.end_table(start).as_union_value()
    }

    /// Writes a string, or returns an equal string that is already written.
    pub(crate) fn string(&mut self, text: &str) -> Offset {
        self.0.create_shared_string(text).as_union_value()
    }

    /// Writes a vector of numbers.
    pub(crate) fn scalars<T: Push<Output = T> + Copy + 'static>(&mut self, items: &[T]) -> Offset {
        self.0.create_vector(items).as_union_value()
    }

    /// Writes a vector of offsets.
    pub(crate) fn offsets(&mut self, items: &[Offset]) -> Offset {
        self.0.create_vector(items).as_union_value()
    }

    /// Writes each item with `write`, and a vector of the results.
    pub(crate) fn each<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T) -> Offset) -> Offset {
        let offsets: Vec<Offset> = items.iter().map(|item| write(self, item)).collect();
        self.offsets(&offsets)
    }

    /// As [`finish`](Self::finish), with the buffer's length before it.
    pub(crate) fn finish_size_prefixed(mut self, root: Offset, identifier: &str) -> Vec<u8> {
        self.0.finish_size_prefixed(root, Some(identifier));
        self.0.finished_data().to_vec()
    }

    /// Finishes the buffer with `root` as the root table, and returns its bytes.
    pub(crate) fn finish(mut self, root: Offset, identifier: Option<&str>) -> Vec<u8> {
        self.0.finish(root, identifier);
        self.0.finished_data().to_vec()
    }
}
