//! What is known of a slot while a tape is built.

use std::rc::Rc;

use flambeau_ir::Tid;

use super::{Operand, Sizes, Source};
use crate::array::Array;

/// Where a value lies. Numbers are free for other values when the last handle on them is dropped.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Constant,
    Slot(Tid),
    Scratch(Rc<usize>),
    Held(Rc<usize>),
}

/// A value with its place and its view of that place.
#[derive(Clone, Debug)]
pub(super) struct Val {
    pub(super) place: Place,
    pub(super) sizes: Sizes,
    /// Sizes and strides, if `sizes` is fixed; the storage, if it is constant.
    pub(super) array: Array,
}

impl Val {
    /// The operand that reads it.
    pub(super) fn operand(&self) -> Operand {
        let source = match &self.place {
            Place::Constant => Source::Constant,
            Place::Slot(tid) => Source::Slot(*tid),
            Place::Scratch(number) => Source::Scratch(**number),
            Place::Held(number) => Source::Held(**number),
        };
        Operand { source, sizes: self.sizes, array: self.array.clone() }
    }

    /// Another fixed view of the same place.
    pub(super) fn seen(&self, array: Array) -> Val {
        Val { place: self.place.clone(), sizes: Sizes::Fixed, array }
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.sizes == Sizes::Fixed
    }

    /// Whether it lies in the slot of a buffer or input.
    pub(super) fn is_in(&self, tid: Tid) -> bool {
        matches!(self.place, Place::Slot(slot) if slot == tid)
    }

    /// Whether both are the same view of the same place.
    pub(super) fn is_same(&self, other: &Val) -> bool {
        let same_place = match (&self.place, &other.place) {
            (Place::Constant, Place::Constant) => std::sync::Arc::ptr_eq(&self.array.data, &other.array.data),
            (Place::Slot(a), Place::Slot(b)) => a == b,
            (Place::Scratch(a), Place::Scratch(b)) | (Place::Held(a), Place::Held(b)) => a == b,
            _ => false,
        };
        let (a, b) = (&self.array, &other.array);
        let same_view = a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.offset == b.offset;
        same_place && self.is_fixed() && other.is_fixed() && same_view
    }
}
