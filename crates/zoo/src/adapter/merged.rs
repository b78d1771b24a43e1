//! Weights with an adapter's update.

use super::{Factor, Update};
use crate::{CheckpointTensor, Error, Result, rows::FloatRows};

/// A weight [rows, cols] with the rows of a low-rank update added.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    base: CheckpointTensor,
    /// [rows, rank], in the order of the base's file or of the program.
    up: Factor,
    /// [rank, cols].
    down: Factor,
    scale: f32,
    file_order: bool,
}

impl Merged {
    /// The merged weight, whose rows have the program's order.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the shapes differ or the base's rows cannot be read as floats.
    pub(super) fn tensor(name: &str, base: &CheckpointTensor, update: &Update, strength: f32) -> Result<CheckpointTensor> {
        update.check_shape(name, base)?;
        if !base.has_float_rows() {
            return Err(Error::tensor(name, "floats or affine codes for the adapter", base.kind()));
        }
        let (up, down) = (update.up.clone(), update.down.clone());
        let scale = update.scale * strength;
        let merged = Merged { base: base.clone(), up, down, scale, file_order: update.file_order };
        Ok(CheckpointTensor::floats(base.shape().to_vec(), merged))
    }
}

impl FloatRows for Merged {
    fn kind(&self) -> String {
        format!("{} with an adapter", self.base.kind())
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        self.base.read_float_row(row, out);
        let up = self.up.row(if self.file_order { self.base.file_row(row) } else { row });
        for (k, up) in up.iter().enumerate() {
            let factor = self.scale * up;
            out.iter_mut().zip(self.down.row(k)).for_each(|(value, down)| *value += factor * down);
        }
    }
}
