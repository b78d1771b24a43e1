//! Which parts of a session's state are copied.

use crate::Tid;

/// A mutable buffer, or its beginning along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    pub buffer: Tid,
    /// The axis, and how many of its entries from the first on; `None` is all of the buffer.
    pub rows: Option<(usize, usize)>,
}
