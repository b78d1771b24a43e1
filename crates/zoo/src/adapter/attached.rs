//! Adapters that stay apart from the weights, for a choice at run time.

use std::sync::Arc;

use super::{Adapter, Factor, Update};
use crate::{Checkpoint, CheckpointTensor, Error, Result, checkpoint::Architecture};

/// An adapter that programs apply at run time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attached {
    pub(crate) name: String,
    /// Default strength, a factor on the adapter's own scale.
    pub(crate) strength: f32,
}

/// A low-rank update of a weight [rows, cols] by an attached adapter.
#[derive(Clone, Debug)]
pub(crate) struct LowRank {
    /// Index of the adapter.
    pub(crate) adapter: usize,
    /// Name of the whole weight.
    pub(crate) tensor: Arc<str>,
    /// [rows, rank] in the program's order, times the adapter's own scale.
    up: Factor,
    /// [rank, cols].
    down: Arc<Factor>,
}

impl LowRank {
    /// # Errors
    /// [`Error::Tensor`] if the weight has another shape.
    fn new(adapter: usize, name: &str, base: &CheckpointTensor, update: &Update) -> Result<LowRank> {
        update.check_shape(name, base)?;
        let order = (0..update.up.shape[0]).map(|row| if update.file_order { base.file_row(row) } else { row });
        let mut up = update.up.rows(order);
        up.values.iter_mut().for_each(|value| *value *= update.scale);
        Ok(LowRank { adapter, tensor: name.into(), up, down: Arc::new(update.down.clone()) })
    }

    /// The update of these rows of the weight.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> LowRank {
        LowRank { up: self.up.rows(rows), ..self.clone() }
    }

    pub(crate) fn rank(&self) -> usize {
        self.down.shape[0]
    }
}

/// The updates of one weight side by side: `up · down` is their sum.
#[derive(Debug)]
pub(crate) struct Stacked {
    /// The adapter of each rank [R].
    pub(crate) adapters: Vec<usize>,
    /// Row-major [rows, R].
    pub(crate) up: Vec<f32>,
    /// Row-major [R, cols].
    pub(crate) down: Vec<f32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Stacked {
    /// `None` without updates.
    pub(crate) fn of(updates: &[LowRank]) -> Option<Stacked> {
        let first = updates.first()?;
        let (rows, cols) = (first.up.shape[0], first.down.shape[1]);
        let adapters = updates.iter().flat_map(|update| vec![update.adapter; update.rank()]).collect();
        let up = (0..rows).flat_map(|row| updates.iter().flat_map(move |update| update.up.row(row))).copied().collect();
        let down = updates.iter().flat_map(|update| &update.down.values).copied().collect();
        Some(Stacked { adapters, up, down, rows, cols })
    }

    /// `up` transposed, row-major [R, rows].
    pub(crate) fn up_columns(&self) -> Vec<f32> {
        Factor { shape: [self.rows, self.adapters.len()], values: self.up.clone() }.transposed().values
    }
}

impl Checkpoint {
    /// Attaches an adapter, which programs then apply at run time, over weights of any type. They
    /// have an additional input `adapter_scales` f32 [adapters], in the order of attachment: 0
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
            updates.push(LowRank::new(index, &tensor, base, update)?);
        }
        updates.into_iter().for_each(|update| self.add_update(update));
        self.add_adapter(Attached { name: name.to_owned(), strength });
        Ok(())
    }
}
