//! Which nodes treat the rows of several sequences as they treat the one row of each.
//!
//! A node may run once for several sequences if it treats rows independently. Entry `i` of the
//! results' first axis then depends only on entry `i` of the operands' first axis. A kind of node
//! declares this in [`Eval::rows`](crate::eval::Eval::rows), beside its implementation. Other kinds
//! run once per sequence.

use flambeau_ir::{In, Tid, infer::run::Contents};
use smallvec::SmallVec;

/// Evaluation of a node on the rows of several sequences.
#[derive(Debug)]
pub(crate) struct Rows {
    /// The operands that may hold one row per sequence. All others are the same for every sequence.
    pub(crate) operands: SmallVec<[Tid; 3]>,
    pub(crate) how: How,
}

/// The operation to run on the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The node.
    Node,
    /// The node. Operands broadcast from their last axes, so only operands of the result's rank
    /// have rows on its first axis.
    Aligned,
    /// Nothing: the results are the operand's elements, in their order.
    View,
    /// A rotation of each row by its sequence's position, read from a value slot.
    Rotated,
}

impl Rows {
    fn new(operands: impl IntoIterator<Item = In>, how: How) -> Rows {
        Rows { operands: operands.into_iter().map(|slot| slot.0).collect(), how }
    }

    /// The node itself, over operands whose first axis it treats row by row.
    pub(crate) fn of(operands: impl IntoIterator<Item = In>) -> Option<Rows> {
        Some(Rows::new(operands, How::Node))
    }

    /// The node itself, element by element.
    pub(crate) fn aligned(operands: impl IntoIterator<Item = In>) -> Option<Rows> {
        Some(Rows::new(operands, How::Aligned))
    }

    /// The elements in their order.
    pub(crate) fn view(x: In) -> Option<Rows> {
        Some(Rows::new([x], How::View))
    }

    /// A rotation by positions in value slots.
    pub(crate) fn rotated(x: In) -> Option<Rows> {
        Some(Rows::new([x], How::Rotated))
    }
}

/// The slots of one sequence, as rules on rows see them.
#[derive(Clone, Copy)]
pub(crate) struct One<'a>(pub(crate) &'a dyn Contents);

impl One<'_> {
    /// Number of axes of an operand.
    pub(crate) fn rank(self, slot: In) -> Option<usize> {
        self.0.tensor(slot.0).map(|(_, shape)| shape.len())
    }

    /// Whether an axis of an operand is another than the first.
    pub(crate) fn is_inner(self, axis: i64, slot: In) -> bool {
        self.rank(slot).is_some_and(|rank| flambeau_ir::infer::axis_of(axis, rank).is_ok_and(|axis| axis > 0))
    }
}
