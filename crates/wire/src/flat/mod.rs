//! FlatBuffers: a bounds-checked reader, and a thin layer over the builder of the `flatbuffers`
//! crate.

mod read;
mod write;

pub(crate) use read::{Flat, Table};
pub(crate) use write::{FlatWriter, Offset, Row};

/// A field of a table: its index in the vtable, and its name for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) id: u16,
    pub(crate) name: &'static str,
}

/// Declares tables as modules of [`Field`] constants with ids from zero. A union has two fields,
/// tag and value.
macro_rules! schema {
    ($($(#[doc = $doc:literal])* $table:ident { $($field:ident),* $(,)? })*) => { $(
        $(#[doc = $doc])*
        #[allow(non_upper_case_globals, non_camel_case_types, dead_code, reason = "the schema's own names, all of them")]
        pub(crate) mod $table {
            use crate::flat::Field;
            enum Id { $($field),* }
            $(pub(crate) const $field: Field = Field { id: Id::$field as u16, name: stringify!($field) };)*
        }
    )* };
}
pub(crate) use schema;
