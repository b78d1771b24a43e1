//! Low-rank adapters (LoRA): `W + scale · up · down` for each module that they change.

mod attached;
mod gguf;
mod merged;
mod mlx;
mod peft;
mod tasks;

use flambeau_tensor::Bytes;
use indexmap::IndexMap;
use serde_json::{Map, Value};

use self::merged::Merged;
use crate::{Checkpoint, CheckpointTensor, Error, Result, folder, low_rank::Factor};

const CONFIG: &str = "adapter_config.json";

/// A low-rank adapter, independent of the checkpoint that it changes.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// By the names of modules in the adapter.
    changes: IndexMap<String, Change>,
}

/// The change of a module.
#[derive(Clone, Debug, Default)]
struct Change {
    /// A new weight instead of the checkpoint's.
    replacement: Option<CheckpointTensor>,
    update: Option<Update>,
}

impl From<Update> for Change {
    fn from(update: Update) -> Change {
        Change { replacement: None, update: Some(update) }
    }
}

/// `scale · up · down`, added to a weight [rows, cols].
#[derive(Clone, Debug)]
struct Update {
    /// [rows, rank].
    up: Factor,
    /// [rank, cols].
    down: Factor,
    scale: f32,
    /// Whether the rows of `up` have the order of the checkpoint's file, not of the program.
    file_order: bool,
}

/// Reads a row-major matrix.
///
/// # Errors
/// [`Error::Tensor`] for anything but a matrix of plain floats.
fn factor(name: &str, tensor: &CheckpointTensor) -> Result<Factor> {
    match tensor.shape()[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok(Factor { shape: [rows, cols], values: tensor.values(name)? }),
        _ => Err(Error::tensor(name, "a matrix", format!("shape {:?}", tensor.shape()))),
    }
}

impl Update {
    /// # Errors
    /// [`Error::Tensor`] if the ranks differ.
    fn new(module: &str, up: Factor, down: Factor, scale: f32) -> Result<Update> {
        if up.shape[1] != down.shape[0] {
            return Err(Error::tensor(module, "two factors of one rank", format!("shapes {:?} and {:?}", up.shape, down.shape)));
        }
        Ok(Update { up, down, scale, file_order: false })
    }

    /// # Errors
    /// [`Error::Tensor`] if the weight has another shape.
    fn check_shape(&self, name: &str, weight: &CheckpointTensor) -> Result<()> {
        let shape = [self.up.shape[0], self.down.shape[1]];
        if weight.shape() != shape {
            return Err(Error::tensor(name, format!("shape {shape:?} for the adapter"), format!("{:?}", weight.shape())));
        }
        Ok(())
    }
}

impl Adapter {
    /// Reads an adapter of PEFT (`adapter_config.json`, `adapter_model.safetensors`) or of mlx-lm
    /// (`adapter_config.json`, `adapters.safetensors`), given as its files.
    ///
    /// # Errors
    /// [`Error::MissingFile`] and [`Error::File`] for missing or damaged files, [`Error::Key`] and
    /// [`Error::Tensor`] for settings and tensors that change a model in other ways.
    pub fn from_folder(files: Vec<(String, Bytes)>) -> Result<Adapter> {
        let files: IndexMap<String, Bytes> = files.into_iter().collect();
        let config = files.get(CONFIG).ok_or_else(|| Error::MissingFile(CONFIG.into()))?;
        let config: Map<String, Value> = match folder::parse_json(config) {
            Ok(Value::Object(map)) => map,
            Ok(_) => return Err(Error::file(CONFIG, "expected an object")),
            Err(error) => return Err(Error::file(CONFIG, error)),
        };
        let tensors = |name: &str| files.get(name).map(|bytes| folder::plain_tensors(name, bytes)).transpose();
        let changes = match (tensors(peft::WEIGHTS)?, tensors(mlx::WEIGHTS)?) {
            (Some(tensors), _) => peft::changes(&config, tensors)?,
            (None, Some(tensors)) => mlx::changes(&config, tensors)?,
            (None, None) => return Err(Error::MissingFile(format!("{} or {}", peft::WEIGHTS, mlx::WEIGHTS))),
        };
        Adapter::of(changes)
    }

    /// Reads an adapter in a GGUF file, as llama.cpp's converter writes it.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a damaged file, [`Error::Key`] for a file of another kind and
    /// [`Error::Tensor`] for unsupported tensors.
    pub fn from_gguf(bytes: Bytes) -> Result<Adapter> {
        Adapter::of(gguf::changes(&crate::gguf::Gguf::parse(bytes)?)?)
    }

    /// Whether it replaces whole weights, which [`Checkpoint::attach`] refuses.
    pub fn replaces_weights(&self) -> bool {
        self.changes.values().any(|change| change.replacement.is_some())
    }

    fn of(changes: IndexMap<String, Change>) -> Result<Adapter> {
        if changes.is_empty() {
            return Err(Error::tensor("lora", "at least one changed module", "none"));
        }
        Ok(Adapter { changes })
    }
}

impl Checkpoint {
    /// Merges an adapter into the weights. `strength` multiplies the adapter's own scale. Changed
    /// weights are computed in f32 and are floats afterwards.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] for a module that the checkpoint lacks, [`Error::Tensor`] for other
    /// shapes, for weights whose quantization has no floats, and for an embedding that is also the
    /// head.
    pub fn merge(&mut self, adapter: &Adapter, strength: f32) -> Result<()> {
        for (module, change) in &adapter.changes {
            let name = self.tensor_of(module)?;
            let stored = self.tensors().get(&name).ok_or_else(|| Error::MissingTensor(name.clone()))?;
            let base = change.replacement.as_ref().unwrap_or(stored);
            if base.shape() != stored.shape() {
                return Err(Error::tensor(name, format!("shape {:?}", stored.shape()), format!("{:?}", base.shape())));
            }
            let changed = match &change.update {
                Some(update) => Merged::tensor(&name, base, update, strength)?,
                None => base.clone(),
            };
            self.replace(name, changed);
        }
        Ok(())
    }

    /// The name of the weight of an adapter's module.
    fn tensor_of(&self, module: &str) -> Result<String> {
        let weight = format!("{module}.weight");
        let published = folder::published_name(self.architecture(), &weight);
        let stored = self.name_by_stored(&weight).or_else(|| self.name_by_stored(module));
        let mut names = [Some(weight.clone()), published, stored].into_iter().flatten();
        let name = names.find(|name| self.tensors().contains_key(name)).ok_or(Error::MissingTensor(weight))?;
        if self.is_tied(&name) {
            return Err(Error::tensor(name, "an embedding apart from the head", "one tensor for both"));
        }
        Ok(name)
    }
}
