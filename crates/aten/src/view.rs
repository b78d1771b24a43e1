//! Inverses of views: how a write to a view reaches its base. Schemas state that an operator is a
//! view, but not its inverse.

use crate::Schema;

/// The operation that writes a view's elements back to the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inverse {
    /// The view has the elements and shape of its base.
    Identity,
    /// The view has all elements in order, in another shape.
    Reshape,
    /// The view's operator is its own inverse.
    Involution,
    /// The inverse permutation.
    Permutation,
    /// The same call with `source` and `destination` swapped.
    Move,
    /// `slice_scatter` with the bounds of the call.
    Slice,
    /// `slice_scatter` with a start and a length.
    Narrow,
    /// `select_scatter`.
    Select,
    /// `diagonal_scatter`.
    Diagonal,
    /// `slice_scatter` for each part.
    Split,
    /// `select_scatter` for each part.
    Unbind,
    /// None of these: strides determine the view's elements, and some may repeat.
    Places,
}

/// The inverse of each view operator by name, for all overloads; sorted for binary search.
const INVERSES: &[(&str, Inverse)] = &[
    ("_conj", Inverse::Involution),
    ("_reshape_alias", Inverse::Reshape),
    ("adjoint", Inverse::Involution),
    ("alias", Inverse::Identity),
    ("as_strided", Inverse::Places),
    ("broadcast_to", Inverse::Places),
    ("chunk", Inverse::Split),
    ("conj", Inverse::Involution),
    ("contiguous", Inverse::Identity),
    ("detach", Inverse::Identity),
    ("diagonal", Inverse::Diagonal),
    ("dsplit", Inverse::Split),
    ("expand", Inverse::Places),
    ("expand_as", Inverse::Places),
    ("flatten", Inverse::Reshape),
    ("hsplit", Inverse::Split),
    ("lift_fresh", Inverse::Identity),
    ("linalg_diagonal", Inverse::Places),
    ("mH", Inverse::Involution),
    ("mT", Inverse::Involution),
    ("matrix_H", Inverse::Involution),
    ("moveaxis", Inverse::Move),
    ("movedim", Inverse::Move),
    ("narrow", Inverse::Narrow),
    ("numpy_T", Inverse::Involution),
    ("permute", Inverse::Permutation),
    ("positive", Inverse::Identity),
    ("ravel", Inverse::Reshape),
    ("real", Inverse::Identity),
    ("reshape", Inverse::Reshape),
    ("reshape_as", Inverse::Reshape),
    ("resolve_conj", Inverse::Identity),
    ("resolve_neg", Inverse::Identity),
    ("select", Inverse::Select),
    ("slice", Inverse::Slice),
    ("split", Inverse::Split),
    ("split_with_sizes", Inverse::Split),
    ("squeeze", Inverse::Reshape),
    ("swapaxes", Inverse::Involution),
    ("swapdims", Inverse::Involution),
    ("t", Inverse::Involution),
    ("tensor_split", Inverse::Split),
    ("to", Inverse::Identity),
    ("transpose", Inverse::Involution),
    ("unbind", Inverse::Unbind),
    ("unflatten", Inverse::Reshape),
    ("unfold", Inverse::Places),
    ("unsqueeze", Inverse::Reshape),
    ("view", Inverse::Reshape),
    ("view_as", Inverse::Reshape),
    ("view_as_complex", Inverse::Places),
    ("view_as_real", Inverse::Places),
    ("vsplit", Inverse::Split),
];

impl Schema {
    /// The operation that carries a write to this operator's result to its operand; `None` if the
    /// operator makes no view.
    pub fn inverse(&self) -> Option<Inverse> {
        let row = INVERSES.binary_search_by_key(&self.name, |(name, _)| name).ok().filter(|_| self.is_view())?;
        Some(INVERSES[row].1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Operator, all};

    #[test]
    fn every_view_has_one_inverse() {
        let views: BTreeSet<&str> = all().map(Operator::schema).filter(|s| s.is_view()).map(|s| s.name).collect();
        let rows: Vec<&str> = INVERSES.iter().map(|(name, _)| *name).collect();
        assert_eq!(rows, views.into_iter().collect::<Vec<_>>());
    }
}
