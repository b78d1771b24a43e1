//! A copy of a sequence's contents.

use flambeau_tensor::Tensor;

/// A copy of a sequence's caches and states after its first tokens. Every sequence of the same model can go on from there.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) position: usize,
    pub(super) state: Vec<Tensor>,
}

impl Snapshot {
    /// Number of tokens behind it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes of the copies.
    pub fn bytes(&self) -> usize {
        self.state.iter().map(|copy| copy.bytes().len()).fold(0, usize::saturating_add)
    }
}
