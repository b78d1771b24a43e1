//! Storage of each field type of the node table in a FlatBuffer table.

use flambeau_ir::{ChainId, Float, In, InOut, InVid, Index, Int, Out, OutVid, QuantMode, Tid, Vid, VidOrTid};
use flambeau_tensor::DType;

use super::schema::{float_or_vid, int_or_vid, int_or_vid_or_tid, vid_or_tid};
use crate::{
    error::Error,
    flat::{Field, FlatWriter, Offset, Row, Table},
};

/// A field type of the node table.
pub(super) trait WireField: Sized {
    /// Value of an absent field without a default in the node table. `None` if the field is
    /// required.
    fn implied() -> Option<Self> {
        None
    }

    /// Reads the field. An absent field has the value `default`.
    fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error>;

    /// Sets the field unless its value is `default`. Children are first written to `out`.
    fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, default: Option<Self>);
}

/// An element type of vector fields.
pub(super) trait WireElement: Sized + PartialEq {
    fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error>;
    fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset;
}

/// The element type with number `code` in the file. Numbers from 31 on are invalid in files.
pub(super) fn dtype(table: &Table<'_>, field: Field, code: i8) -> Result<DType, Error> {
    let known = DType::from_code(code).filter(|_| (0..31).contains(&code));
    known.ok_or_else(|| table.bad(field, format!("scalar type {code} cannot be stored in a tensor here")))
}

fn or_default<T>(table: &Table<'_>, field: Field, found: Option<T>, default: Option<T>) -> Result<T, Error> {
    found.or(default).ok_or_else(|| table.missing(field))
}

macro_rules! slot_fields {
    ($($name:ident($slot:ident)),*) => { $(
        impl WireField for $name {
            fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
                or_default(table, field, table.get(field)?.map(|idx| $name($slot(idx))), default)
            }
            fn write(&self, _: &mut FlatWriter, row: &mut Row, field: Field, _: Option<Self>) {
                row.put(field, self.0.0);
            }
        }

        impl WireElement for $name {
            fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error> {
                Ok(table.scalars(field)?.map(|ids| ids.into_iter().map(|idx| $name($slot(idx))).collect()))
            }
            fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset {
                out.scalars(&items.iter().map(|s| s.0.0).collect::<Vec<u32>>())
            }
        }
    )* };
}
slot_fields!(In(Tid), Out(Tid), InOut(Tid), InVid(Vid), OutVid(Vid));

/// Scalar fields. `$to` converts a value to the stored number, and `$from` converts back. Values
/// are equal if their stored bits are equal.
macro_rules! scalar_fields {
    ($($ty:ty as $stored:ty, zero $zero:expr, $from:expr, $to:expr;)*) => { $(
        impl WireField for $ty {
            fn implied() -> Option<Self> {
                Some($zero)
            }
            fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
                let from: fn(&Table<'_>, Field, $stored) -> Result<Self, Error> = $from;
                let found = table.get::<$stored>(field)?.map(|v| from(table, field, v)).transpose()?;
                or_default(table, field, found, default)
            }
            fn write(&self, _: &mut FlatWriter, row: &mut Row, field: Field, default: Option<Self>) {
                let to: fn(&Self) -> $stored = $to;
                let bits = |v: &Self| to(v).to_le_bytes();
                if default.as_ref().map(bits) != Some(bits(self)) {
                    row.put(field, to(self));
                }
            }
        }
    )* };
}

scalar_fields! {
    i32 as i32, zero 0, |_, _, v| Ok(v), |v| *v;
    u64 as u64, zero 0, |_, _, v| Ok(v), |v| *v;
    f32 as f32, zero 0.0, |_, _, v| Ok(v), |v| *v;
    DType as i8, zero DType::U8, dtype, |v| v.code();
    ChainId as u32, zero ChainId(0), |_, _, v| Ok(ChainId(v)), |v| v.0;
}

impl WireField for bool {
    fn implied() -> Option<Self> {
        Some(false)
    }
    fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
        or_default(table, field, table.get(field)?, default)
    }
    fn write(&self, _: &mut FlatWriter, row: &mut Row, field: Field, default: Option<Self>) {
        if default != Some(*self) {
            row.put(field, *self);
        }
    }
}

impl WireField for String {
    fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
        or_default(table, field, table.string(field)?.map(str::to_owned), default)
    }
    fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, _: Option<Self>) {
        row.put(field, out.string(self));
    }
}

impl WireField for QuantMode {
    fn read(table: &Table<'_>, field: Field, _: Option<Self>) -> Result<Self, Error> {
        let name = table.need_string(field)?;
        QuantMode::from_name(name).ok_or_else(|| table.bad(field, format!("unknown quantization mode `{}`", name.escape_debug())))
    }
    fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, _: Option<Self>) {
        row.put(field, out.string(self.name()));
    }
}

impl<T: WireField> WireField for Option<T> {
    fn implied() -> Option<Self> {
        Some(None)
    }
    fn read(table: &Table<'_>, field: Field, _: Option<Self>) -> Result<Self, Error> {
        if table.has(field)? { T::read(table, field, None).map(Some) } else { Ok(None) }
    }
    fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, _: Option<Self>) {
        if let Some(value) = self {
            value.write(out, row, field, None);
        }
    }
}

impl<T: WireElement> WireField for Vec<T> {
    fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
        or_default(table, field, T::read_all(table, field)?, default)
    }
    fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, default: Option<Self>) {
        if default.as_ref() != Some(self) {
            row.put(field, T::write_all(self, out));
        }
    }
}

/// A field type stored as a small separate table.
trait Compound: Sized {
    fn read(table: Table<'_>) -> Result<Self, Error>;
    fn row(&self) -> Row;
}

macro_rules! compound_fields {
    ($($ty:ident),*) => { $(
        impl WireField for $ty {
            fn read(table: &Table<'_>, field: Field, default: Option<Self>) -> Result<Self, Error> {
                or_default(table, field, table.table(field, <$ty as Compound>::read)?, default)
            }
            fn write(&self, out: &mut FlatWriter, row: &mut Row, field: Field, _: Option<Self>) {
                row.put(field, out.table(self.row()));
            }
        }
    )* };
}
compound_fields!(Int, Float, VidOrTid, Index);

fn vid(table: &Table<'_>, field: Field) -> Result<Vid, Error> {
    table.get(field)?.map(Vid).ok_or_else(|| table.missing(field))
}

fn tid(table: &Table<'_>, field: Field) -> Result<Tid, Error> {
    table.get(field)?.map(Tid).ok_or_else(|| table.missing(field))
}

impl Compound for Int {
    fn read(t: Table<'_>) -> Result<Self, Error> {
        Ok(if t.get_or(int_or_vid::is_vid, false)? {
            Int::Vid(vid(&t, int_or_vid::vid)?)
        } else {
            Int::Lit(t.get_or(int_or_vid::literal, 0)?)
        })
    }
    fn row(&self) -> Row {
        match *self {
            Int::Lit(v) => Row::default().set_unless(int_or_vid::literal, v, 0i64),
            Int::Vid(v) => Row::default().set(int_or_vid::vid, v.0).set(int_or_vid::is_vid, true),
        }
    }
}

impl Compound for Float {
    fn read(t: Table<'_>) -> Result<Self, Error> {
        Ok(if t.get_or(float_or_vid::is_vid, false)? {
            Float::Vid(vid(&t, float_or_vid::vid)?)
        } else {
            Float::Lit(t.get_or(float_or_vid::literal, 0.0)?)
        })
    }
    fn row(&self) -> Row {
        match *self {
            Float::Lit(v) if v.to_bits() == 0 => Row::default(),
            Float::Lit(v) => Row::default().set(float_or_vid::literal, v),
            Float::Vid(v) => Row::default().set(float_or_vid::vid, v.0).set(float_or_vid::is_vid, true),
        }
    }
}

impl Compound for VidOrTid {
    fn read(t: Table<'_>) -> Result<Self, Error> {
        Ok(if t.get_or(vid_or_tid::is_vid, false)? {
            VidOrTid::Vid(vid(&t, vid_or_tid::vid)?)
        } else {
            VidOrTid::Tid(tid(&t, vid_or_tid::tid)?)
        })
    }
    fn row(&self) -> Row {
        match *self {
            VidOrTid::Vid(v) => Row::default().set(vid_or_tid::vid, v.0).set(vid_or_tid::is_vid, true),
            VidOrTid::Tid(t) => Row::default().set(vid_or_tid::tid, t.0),
        }
    }
}

impl Compound for Index {
    fn read(t: Table<'_>) -> Result<Self, Error> {
        use int_or_vid_or_tid as f;
        match t.get_or(f::kind, 0u8)? {
            0 => Ok(Index::Lit(t.get_or(f::literal, 0)?)),
            1 => Ok(Index::Vid(vid(&t, f::vid)?)),
            2 => Ok(Index::Tid(tid(&t, f::tid)?)),
            kind => Err(t.bad(f::kind, format!("unknown kind {kind} of index, expected 0, 1 or 2"))),
        }
    }
    fn row(&self) -> Row {
        use int_or_vid_or_tid as f;
        match *self {
            Index::Lit(v) => Row::default().set_unless(f::literal, v, 0i64),
            Index::Vid(v) => Row::default().set(f::vid, v.0).set(f::kind, 1u8),
            Index::Tid(t) => Row::default().set(f::tid, t.0).set(f::kind, 2u8),
        }
    }
}

impl WireElement for Int {
    fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error> {
        table.tables(field, <Int as Compound>::read)
    }
    fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset {
        out.each(items, |out, item| out.table(item.row()))
    }
}

macro_rules! scalar_elements {
    ($($ty:ty),*) => { $(impl WireElement for $ty {
        fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error> {
            table.scalars(field)
        }
        fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset {
            out.scalars(items)
        }
    })* };
}
scalar_elements!(i32, i8);

impl WireElement for DType {
    fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error> {
        let read = |codes: Vec<i8>| codes.into_iter().map(|code| dtype(table, field, code)).collect();
        table.scalars(field)?.map(read).transpose()
    }
    fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset {
        out.scalars(&items.iter().map(|d| d.code()).collect::<Vec<i8>>())
    }
}

impl WireElement for String {
    fn read_all(table: &Table<'_>, field: Field) -> Result<Option<Vec<Self>>, Error> {
        table.strings(field)
    }
    fn write_all(items: &[Self], out: &mut FlatWriter) -> Offset {
        out.each(items, |out, item| out.string(item))
    }
}
