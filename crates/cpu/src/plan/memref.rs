//! An operand as a node sees it while it is prepared.

use std::rc::Rc;

use flambeau_ir::Tid;

use super::{Layout, Location, Operand};
use crate::array::Array;

/// The location of an array. A number becomes free for other arrays when its last handle is
/// dropped.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// In the reference itself, for this run.
    Bound,
    /// In the reference itself, for every run.
    Constant,
    Slot(Tid),
    Scratch(Rc<usize>),
    Held(Rc<usize>),
}

/// A view of an array, and the array's place.
#[derive(Clone, Debug)]
pub(crate) struct MemRef {
    pub(super) place: Place,
    pub(super) layout: Layout,
    /// Sizes and strides, if `layout` is fixed; the storage, if the place is the reference itself.
    pub(crate) array: Array,
}

impl MemRef {
    /// An array that has its storage.
    pub(super) fn bound(array: Array) -> MemRef {
        MemRef { place: Place::Bound, layout: Layout::Fixed, array }
    }

    /// The operand that reads it.
    pub(super) fn operand(&self) -> Operand {
        let location = match &self.place {
            Place::Bound | Place::Constant => Location::Constant,
            Place::Slot(tid) => Location::Slot(*tid),
            Place::Scratch(number) => Location::Scratch(**number),
            Place::Held(number) => Location::Held(**number),
        };
        Operand { location, layout: self.layout, array: self.array.clone() }
    }

    /// Another fixed view of the same array.
    pub(crate) fn seen(&self, array: Array) -> MemRef {
        MemRef { place: self.place.clone(), layout: Layout::Fixed, array }
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.layout == Layout::Fixed
    }

    pub(super) fn is_constant(&self) -> bool {
        matches!(self.place, Place::Constant)
    }

    /// Whether it is in the slot of a buffer or input.
    pub(super) fn is_in(&self, tid: Tid) -> bool {
        matches!(self.place, Place::Slot(slot) if slot == tid)
    }

    /// Whether both are the same view of the same array.
    pub(super) fn is_same(&self, other: &MemRef) -> bool {
        let same_place = match (&self.place, &other.place) {
            (Place::Constant, Place::Constant) | (Place::Bound, Place::Bound) => {
                std::sync::Arc::ptr_eq(&self.array.data, &other.array.data)
            }
            (Place::Slot(a), Place::Slot(b)) => a == b,
            (Place::Scratch(a), Place::Scratch(b)) | (Place::Held(a), Place::Held(b)) => a == b,
            _ => false,
        };
        let (a, b) = (&self.array, &other.array);
        let same_view = a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.offset == b.offset;
        same_place && self.is_fixed() && other.is_fixed() && same_view
    }
}
