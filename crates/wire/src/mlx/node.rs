//! Codec of every node, generated from the node table. The table determines tags and field
//! positions.

use flambeau_ir::{
    self as ir, ChainId, Float, In, InOut, InVid, Index, Int, Node, Out, OutVid, QuantMode, VidOrTid, for_each_node,
};
use flambeau_tensor::DType;

use super::{field::WireField, schema::instruction};
use crate::{
    error::{Error, Within},
    flat::{Field, FlatWriter, Offset, Row, Table},
};

/// Codec of a node's table.
trait WireNode: Sized {
    fn read(table: &Table<'_>) -> Result<Self, Error>;
    fn write(&self, out: &mut FlatWriter) -> Row;
}

/// Numbers the fields of a row in wire order.
#[derive(Default)]
struct Ids(u16);

impl Ids {
    fn next(&mut self, name: &'static str) -> Field {
        self.0 += 1;
        Field { id: self.0 - 1, name }
    }
}

macro_rules! default_of {
    ($ty:ty) => {
        <$ty as WireField>::implied()
    };
    ($ty:ty, []) => {
        Some(Vec::new())
    };
    ($ty:ty, $default:expr) => {
        Some($default)
    };
}

macro_rules! define_codec {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($field:ident: $ty:ty $(= $default:tt)?),* $(,)? } $facts:tt;)*) => {
        $(impl WireNode for ir::$name {
            fn read(_table: &Table<'_>) -> Result<Self, Error> {
                let mut _ids = Ids::default();
                Ok(ir::$name {
                    $($field: <$ty as WireField>::read(_table, _ids.next(stringify!($field)), default_of!($ty $(, $default)?))?),*
                })
            }

            fn write(&self, _out: &mut FlatWriter) -> Row {
                let mut _ids = Ids::default();
                let mut _row = Row::default();
                $(self.$field.write(_out, &mut _row, _ids.next(stringify!($field)), default_of!($ty $(, $default)?));)*
                _row
            }
        })*

        fn read_tagged(instruction: &Table<'_>, tag: u8) -> Result<Node, Error> {
            match tag {
                $($tag => instruction.need_table(instruction::op, |t| {
                    <ir::$name as WireNode>::read(&t).map(Node::$name).within(|| stringify!($name).into())
                }),)*
                _ => Err(instruction.bad(
                    instruction::op_type,
                    format!("unknown node tag {tag}, the last known is {}; a newer Flambeau may read it", Node::ALL.len()),
                )),
            }
        }

        /// Writes a node's table.
        pub(super) fn write(out: &mut FlatWriter, node: &Node) -> Offset {
            let row = match node { $(Node::$name(n) => n.write(out)),* };
            out.table(row)
        }
    };
}

for_each_node!(define_codec);

/// Reads an instruction. An instruction without an operation is a no-op.
pub(super) fn read(table: Table<'_>) -> Result<Node, Error> {
    match table.get_or(instruction::op_type, 0u8)? {
        0 => Ok(Node::Noop(ir::Noop {})),
        tag => read_tagged(&table, tag),
    }
}
