//! A copy of a sequence's contents.

use flambeau_tensor::Tensor;

use super::adapters::Adapters;

/// A copy of a sequence's caches and states after its first tokens. Any sequence of the same model
/// can continue from it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) position: usize,
    /// The adapters that computed it.
    pub(super) adapters: Adapters,
    pub(super) state: Vec<Tensor>,
}

impl Snapshot {
    /// Number of tokens in the snapshot.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Size of the copied tensors in bytes.
    pub fn bytes(&self) -> usize {
        self.state.iter().map(|copy| copy.bytes().len()).fold(0, usize::saturating_add)
    }
}
