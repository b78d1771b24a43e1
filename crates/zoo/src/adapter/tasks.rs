//! Adapters inside a checkpoint, one for each task, as in Jina Embeddings 3.

use super::{Factor, Update, attached::low_rank};
use crate::{
    Checkpoint, CheckpointTensor, Error, Result,
    architecture::Architecture,
    low_rank::{Attached, LowRank},
};

/// Ends of the names of a weight's factors, after the name of its module.
const FACTORS: [&str; 2] = [".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B"];
/// The module that programs leave out.
const UNUSED: &str = "pooler.";
/// Beginning of the names of tables, whose first factor belongs to rows.
const TABLES: &str = "embeddings.";

impl Checkpoint {
    /// Attaches the adapters of the tasks that the config names.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] without factors, [`Error::Tensor`] for factors of other shapes.
    pub(crate) fn attach_tasks(&mut self) -> Result<()> {
        let Architecture::Encoder(config) = self.architecture() else { return Ok(()) };
        let Some(tasks) = config.tasks.clone() else { return Ok(()) };
        let mut updates = Vec::new();
        for (name, a) in self.tensors() {
            let module = name.strip_suffix(FACTORS[0]).filter(|module| !module.starts_with(UNUSED));
            let Some(module) = module else { continue };
            for (task, update) in self.task_updates(module, a, tasks.names.len(), tasks.alpha)?.into_iter().enumerate() {
                updates.push(self.task_update(task, module, &update)?);
            }
        }
        if updates.is_empty() {
            return Err(Error::MissingTensor(format!("adapters of the tasks {}", tasks.names.join(", "))));
        }
        updates.into_iter().for_each(|update| self.add_update(update));
        tasks.names.into_iter().for_each(|name| self.add_adapter(Attached { name, strength: 0.0 }));
        Ok(())
    }

    /// The update of a module's weight by the adapter of this task.
    fn task_update(&self, task: usize, module: &str, update: &Update) -> Result<LowRank> {
        let name = format!("{module}.weight");
        let weight = self.tensors().get(&name).ok_or_else(|| Error::MissingTensor(name.clone()))?;
        low_rank(task, &name, weight, update)
    }

    /// The updates of a module for all tasks. `a` is [tasks, rank, inputs], or [tasks, rows, rank]
    /// of a table.
    fn task_updates(&self, module: &str, a: &CheckpointTensor, tasks: usize, alpha: f64) -> Result<Vec<Update>> {
        let name = format!("{module}{}", FACTORS[1]);
        let b = self.tensors().get(&name).ok_or_else(|| Error::MissingTensor(name.clone()))?;
        let (a, b) = (factors(&format!("{module}{}", FACTORS[0]), a, tasks)?, factors(&name, b, tasks)?);
        let update = |(a, b): (Factor, Factor)| {
            let (up, down) = if module.starts_with(TABLES) { (a, b) } else { (b, a) };
            let scale = (alpha / down.shape[0] as f64) as f32;
            Update::new(module, up, down, scale)
        };
        a.into_iter().zip(b).map(update).collect()
    }
}

/// The matrices of a tensor [tasks, rows, cols].
fn factors(name: &str, tensor: &CheckpointTensor, tasks: usize) -> Result<Vec<Factor>> {
    match tensor.shape()[..] {
        [found, rows, cols] if found == tasks && rows > 0 && cols > 0 => {
            let values = tensor.values(name)?;
            Ok(values.chunks_exact(rows * cols).map(|values| Factor { shape: [rows, cols], values: values.to_vec() }).collect())
        }
        _ => Err(Error::tensor(name, format!("a matrix for each of {tasks} tasks"), format!("shape {:?}", tensor.shape()))),
    }
}
