//! Adapters that stay apart from the weights, for a choice at run time.

use std::sync::Arc;

use super::{Adapter, Update};
use crate::{
    Checkpoint, CheckpointTensor, Error, Result,
    architecture::Architecture,
    low_rank::{Attached, LowRank},
};

/// The update of weight `name` by the adapter with this index.
///
/// # Errors
/// [`Error::Tensor`] if the weight has another shape.
pub(super) fn low_rank(adapter: usize, name: &str, base: &CheckpointTensor, update: &Update) -> Result<LowRank> {
    update.check_shape(name, base)?;
    let order = (0..update.up.shape[0]).map(|row| if update.file_order { base.file_row(row) } else { row });
    let mut up = update.up.rows(order);
    up.values.iter_mut().for_each(|value| *value *= update.scale);
    Ok(LowRank { adapter, tensor: name.into(), up, down: Arc::new(update.down.clone()) })
}

impl Checkpoint {
    /// Attaches an adapter, which programs then apply at run time, over weights of any type. They
    /// have an additional input `adapter_scales` f32 `[adapters]`, in the order of attachment: 0
    /// leaves an adapter out, and 1 applies it as trained. `strength` is its default.
    ///
    /// # Errors
    /// [`Error::Option`] for anything but a language model, and for a name that is empty, has a
    /// line break or is taken. [`Error::MissingTensor`] for a module that the checkpoint lacks.
    /// [`Error::Tensor`] for other shapes, for an embedding that is also the head, and for whole
    /// weights. [`build`](crate::build) refuses updates of weights that are not linear layers.
    pub fn attach(&mut self, name: &str, adapter: &Adapter, strength: f32) -> Result<()> {
        let refused =
            |expected: &str, found: &str| Error::Option { option: "lora", expected: expected.into(), found: found.into() };
        if !matches!(self.architecture(), Architecture::Decoder(_)) {
            return Err(refused("a language model, for adapters at run time", "another model"));
        }
        let index = self.adapters().len();
        if name.is_empty() || name.contains('\n') || self.adapters().iter().any(|known| known.name == name) {
            return Err(refused("a new name for each adapter", &format!("{name:?}")));
        }
        let mut updates = Vec::with_capacity(adapter.changes.len());
        for (module, change) in &adapter.changes {
            let tensor = self.tensor_of(module)?;
            let (None, Some(update)) = (&change.replacement, &change.update) else {
                return Err(Error::tensor(tensor, "a low-rank update, for adapters at run time", "a whole weight"));
            };
            let base = self.tensors().get(&tensor).ok_or_else(|| Error::MissingTensor(tensor.clone()))?;
            updates.push(low_rank(index, &tensor, base, update)?);
        }
        updates.into_iter().for_each(|update| self.add_update(update));
        self.add_adapter(Attached { name: name.to_owned(), strength });
        Ok(())
    }
}
