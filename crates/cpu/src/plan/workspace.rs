//! The memory of a running plan besides slots: scratch storage, and arrays that outlive their step.

use std::sync::Arc;

use flambeau_tensor::AlignedBytes;

use super::{Layout, Location, Operand};
use crate::{
    array::{Array, Storage},
    error::{OpError, Result},
    machine::Machine,
};

#[derive(Debug)]
pub(crate) struct Workspace {
    scratch: Vec<Option<Arc<Storage>>>,
    held: Vec<Option<Array>>,
    /// In place of the storage that an operand lacks between steps.
    pub(super) nothing: Arc<Storage>,
}

impl Default for Workspace {
    fn default() -> Workspace {
        let nothing = Arc::new(Storage::Owned(AlignedBytes::zeroed(0)));
        Workspace { scratch: Vec::new(), held: Vec::new(), nothing }
    }
}

impl Workspace {
    /// Allocates scratch storage of these sizes in the arena, and reserves places for the arrays.
    pub(super) fn reserve(&mut self, m: &mut Machine, scratch: &[usize], held: usize) {
        self.scratch.clear();
        for &bytes in scratch {
            self.scratch.push(Some(m.cx.arena.storage(bytes)));
        }
        self.held.clear();
        self.held.resize_with(held, || None);
    }

    /// Returns all storage.
    pub(crate) fn release(&mut self, m: &mut Machine) {
        self.scratch.drain(..).flatten().for_each(|data| m.cx.arena.free_storage(data));
        self.held.drain(..).flatten().for_each(|array| m.cx.arena.free(array));
    }

    /// Binds an operand to its storage, and sets open sizes.
    pub(super) fn bind(
        &self,
        m: &Machine,
        windows: &[Array],
        (location, layout): (Location, Layout),
        array: &mut Array,
    ) -> Result<()> {
        let held = match location {
            Location::Constant => None,
            Location::Slot(tid) => m.tensors.get(tid.0 as usize).and_then(Option::as_ref),
            Location::Held(i) => self.held.get(i).and_then(Option::as_ref),
            Location::Scratch(i) => {
                array.data = self.scratch.get(i).and_then(Option::clone).ok_or_else(unset)?;
                None
            }
        };
        match (held, layout) {
            (Some(held), Layout::Dynamic) => *array = held.clone(),
            (Some(held), _) => array.data = Arc::clone(&held.data),
            (None, _) if matches!(location, Location::Scratch(_) | Location::Constant) => {}
            (None, _) => return Err(unset()),
        }
        if let Layout::Window(number) = layout {
            let window = &windows[number];
            array.shape.copy_from_slice(&window.shape);
            array.strides.copy_from_slice(&window.strides);
            array.offset = window.offset;
        }
        Ok(())
    }

    /// Unbinds an operand from its storage.
    pub(super) fn unbind(&self, location: Location, array: &mut Array) {
        if location != Location::Constant {
            array.data = Arc::clone(&self.nothing);
        }
    }

    /// Whether an operand holds anything in this run.
    pub(super) fn is_set(&self, operand: &Operand) -> bool {
        !matches!(operand.location, Location::Held(i) if self.held.get(i).is_none_or(Option::is_none))
    }

    /// A copy of an operand that has storage.
    pub(super) fn array(&self, m: &Machine, windows: &[Array], operand: &Operand) -> Result<Array> {
        let mut array = operand.array.clone();
        self.bind(m, windows, (operand.location, operand.layout), &mut array)?;
        Ok(array)
    }

    /// Unshared scratch storage.
    pub(super) fn claim(&mut self, m: &mut Machine, number: usize, bytes: usize) -> Arc<Storage> {
        let found = self.scratch.get_mut(number).and_then(Option::take);
        // Storage shared by a buffer or a caller is left to them.
        found.filter(|data| Arc::strong_count(data) == 1).unwrap_or_else(|| m.cx.arena.storage(bytes))
    }

    /// Puts scratch storage back in its place, if a result has it.
    pub(super) fn store(&mut self, number: usize, array: &mut Array) {
        let data = std::mem::replace(&mut array.data, Arc::clone(&self.nothing));
        if !Arc::ptr_eq(&data, &self.nothing) {
            self.scratch[number] = Some(data);
        }
    }

    /// Keeps an array beyond its step.
    pub(super) fn hold(&mut self, m: &mut Machine, number: usize, array: Array) {
        if let Some(old) = self.held[number].replace(array) {
            m.cx.arena.free(old);
        }
    }
}

fn unset() -> OpError {
    OpError::value("an operand is read before anything is written to it")
}
