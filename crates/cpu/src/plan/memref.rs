//! What is known of a slot while a plan is built.

use std::rc::Rc;

use flambeau_ir::Tid;

use super::{Layout, Location, Operand};
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
pub(super) struct MemRef {
    pub(super) place: Place,
    pub(super) layout: Layout,
    /// Sizes and strides, if `layout` is fixed; the storage, if it is constant.
    pub(super) array: Array,
}

impl MemRef {
    /// The operand that reads it.
    pub(super) fn operand(&self) -> Operand {
        let location = match &self.place {
            Place::Constant => Location::Constant,
            Place::Slot(tid) => Location::Slot(*tid),
            Place::Scratch(number) => Location::Scratch(**number),
            Place::Held(number) => Location::Held(**number),
        };
        Operand { location, layout: self.layout, array: self.array.clone() }
    }

    /// Another fixed view of the same place.
    pub(super) fn seen(&self, array: Array) -> MemRef {
        MemRef { place: self.place.clone(), layout: Layout::Fixed, array }
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.layout == Layout::Fixed
    }

    /// Whether it lies in the slot of a buffer or input.
    pub(super) fn is_in(&self, tid: Tid) -> bool {
        matches!(self.place, Place::Slot(slot) if slot == tid)
    }

    /// Whether both are the same view of the same place.
    pub(super) fn is_same(&self, other: &MemRef) -> bool {
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
