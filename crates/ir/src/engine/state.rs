//! Parts of a session's state, for copies.

use crate::Tid;

/// A mutable buffer, or its first entries along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    pub buffer: Tid,
    /// The axis, and the number of its first entries. `None` means the whole buffer.
    pub rows: Option<(usize, usize)>,
}
