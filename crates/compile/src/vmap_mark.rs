//! Calls that mark regions of `vmap` in a captured program.

use crate::functionalize::bare;

const PREFIX: &str = "torch._functorch.predispatch.";

/// A mark in a region of `vmap`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VmapMark {
    /// Prepares PyTorch and has no effect on the program.
    Nothing,
    Begin,
    End,
    /// A tensor loses its batch axis until the end.
    Add,
    /// A tensor gets the batch axis back.
    Remove,
}

impl VmapMark {
    /// The mark that a target represents.
    pub(crate) fn of(target: &str) -> Option<VmapMark> {
        Some(match bare(target).strip_prefix(PREFIX)? {
            "lazy_load_decompositions" => VmapMark::Nothing,
            "_vmap_increment_nesting" => VmapMark::Begin,
            "_vmap_decrement_nesting" => VmapMark::End,
            "_add_batch_dim" => VmapMark::Add,
            "_remove_batch_dim" => VmapMark::Remove,
            _ => return None,
        })
    }
}
