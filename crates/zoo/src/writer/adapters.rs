//! Adapters at run time: low-rank updates beside the products of weights.
//!
//! A weight `W` that adapters change computes `W x + up · (factors * (down · x))`. The ranks of all
//! its adapters lie side by side in `up` and `down`, and `factors` holds the scale of each rank's
//! adapter. These are plain products, so engines run sequences with different adapters in one step.
//! `up` is stored as [R, rows]. Ranks are few, and adjacent elements of a result fill vectors.

use flambeau_pt2::Weight;
use flambeau_tensor::{DType, Expr, Tensor, cast};

use super::Writer;
use crate::{
    CheckpointTensor, Error, Result,
    builder::Val,
    low_rank::{Stacked, ranks},
};

/// Name of the input with the adapters' scales.
const SCALES: &str = "adapter_scales";

/// Number of axes of a layer's activations.
const AXES: usize = 3;

/// The scales of a program's adapters, and their uses.
#[derive(Debug)]
pub(super) struct Adapters {
    /// f32 [adapters].
    scales: Val,
    /// Scales [1, .., R] with this number of axes for ranks of these adapters.
    factors: Vec<(Vec<usize>, usize, Val)>,
    /// Names of the weights whose updates were written.
    written: Vec<String>,
}

/// A product whose updates are not added yet.
#[derive(Debug)]
pub(crate) struct Begun {
    y: Val,
    update: Option<Lowered>,
}

/// `down · x` of a weight's updates.
#[derive(Debug)]
struct Lowered {
    low: Val,
    stacked: Stacked,
    name: String,
    source: CheckpointTensor,
}

impl Writer<'_> {
    /// Adds the input with the adapters' scales, if the checkpoint has adapters, and computes the
    /// scale of each rank before the layers. Engines can then fuse a layer's nodes.
    ///
    /// # Errors
    /// Fails if a constant cannot be created.
    pub(crate) fn take_adapters(&mut self) -> Result<()> {
        let count = self.checkpoint.adapters().len();
        if count == 0 {
            return Ok(());
        }
        let scales = self.b.input(SCALES, DType::F32, vec![Expr::Int(count as i64)]);
        let mut adapters = Adapters { scales, factors: Vec::new(), written: Vec::new() };
        let mut kinds: Vec<Vec<usize>> = self.tensors().values().map(|tensor| ranks(tensor.updates())).collect();
        kinds.retain(|ranks| !ranks.is_empty());
        kinds.sort();
        kinds.dedup();
        for ranks in kinds {
            let factors = self.factors(&adapters, &ranks, AXES)?;
            adapters.factors.push((ranks, AXES, factors));
        }
        self.adapters = Some(adapters);
        Ok(())
    }

    /// Checks that the program contains all updates of the checkpoint.
    ///
    /// # Errors
    /// [`Error::Tensor`] for an update of a weight that is not used as a linear layer.
    pub(crate) fn check_adapters(&self) -> Result<()> {
        let written = self.adapters.as_ref().map_or(&[][..], |adapters| &adapters.written);
        let is_left = |tensor: &CheckpointTensor| tensor.updates().iter().any(|u| !written.iter().any(|name| **name == *u.tensor));
        match self.tensors().iter().find(|(_, tensor)| is_left(tensor)) {
            Some((name, _)) => Err(Error::tensor(name, "a linear layer, for adapters at run time", "a weight of another use")),
            None => Ok(()),
        }
    }

    /// `y`, the product of `x` [.., cols] and the weight `source` [rows, cols], with the updates of
    /// its adapters.
    pub(crate) fn updated(&mut self, y: Val, x: &Val, name: &str, source: &CheckpointTensor) -> Result<Val> {
        let begun = self.begin_update(y, x, name, source)?;
        self.end(begun)
    }

    /// The first product of [`updated`](Self::updated).
    pub(super) fn begin_update(&mut self, y: Val, x: &Val, name: &str, source: &CheckpointTensor) -> Result<Begun> {
        let Some(stacked) = Stacked::of(source.updates()) else { return Ok(Begun { y, update: None }) };
        let down = self.factor(&format!("{name}.lora_a"), &stacked.down, [stacked.adapters.len(), stacked.cols])?;
        let low = self.b.linear(x, &down, None);
        Ok(Begun { y, update: Some(Lowered { low, stacked, name: name.to_owned(), source: source.clone() }) })
    }

    /// Adds the updates of a product that was begun.
    pub(crate) fn end(&mut self, begun: Begun) -> Result<Val> {
        let Begun { y, update: Some(Lowered { low, stacked, name, source }) } = begun else { return Ok(begun.y) };
        let up = self.factor(&format!("{name}.lora_b"), &stacked.up_columns(), [stacked.adapters.len(), stacked.rows])?;
        let low = self.scaled(&low, &stacked.adapters, &source)?;
        let update = self.b.matmul(&low, &up);
        Ok(self.b.add(&y, &update))
    }

    /// `rows` [b, s, cols] of the embedding `source` [vocab, cols] for `ids` [b, s], with the
    /// updates of its adapters.
    pub(crate) fn updated_rows(&mut self, rows: Val, ids: &Val, name: &str, source: &CheckpointTensor) -> Result<Val> {
        let Some(stacked) = Stacked::of(source.updates()) else { return Ok(rows) };
        let ranks = stacked.adapters.len();
        let up = self.factor(&format!("{name}.lora_embedding_a"), &stacked.up, [stacked.rows, ranks])?;
        let down = self.factor(&format!("{name}.lora_embedding_b"), &stacked.down, [ranks, stacked.cols])?;
        let low = self.b.embedding(&up, ids);
        let low = self.scaled(&low, &stacked.adapters, source)?;
        let update = self.b.matmul(&low, &down);
        Ok(self.b.add(&rows, &update))
    }

    /// A factor in the type of the activations, which stays in floats.
    fn factor(&mut self, name: &str, values: &[f32], shape: [usize; 2]) -> Result<Val> {
        let tensor = Tensor::from_slice(values, &shape).and_then(|tensor| cast(&tensor, self.dtype));
        let tensor = tensor.map_err(|error| Error::tensor(name, format!("{} elements", self.dtype), error.to_string()))?;
        self.b.keep_floats(name);
        Ok(self.b.parameter(name, Weight::from_tensor(name, &tensor)))
    }

    /// `x` [.., R] times the scale of each rank's adapter.
    fn scaled(&mut self, x: &Val, ranks: &[usize], source: &CheckpointTensor) -> Result<Val> {
        let Some(mut adapters) = self.adapters.take() else {
            return Err(Error::Option {
                option: "lora",
                expected: "a program from tokens to logits".into(),
                found: "another".into(),
            });
        };
        adapters.written.extend(source.updates().iter().map(|update| update.tensor.to_string()));
        let axes = x.dims.len();
        let known =
            adapters.factors.iter().find(|(of, rank, _)| of == ranks && *rank == axes).map(|(_, _, factors)| factors.clone());
        let factors = match known {
            Some(factors) => factors,
            None => {
                let factors = self.factors(&adapters, ranks, axes)?;
                adapters.factors.push((ranks.to_vec(), axes, factors.clone()));
                factors
            }
        };
        self.adapters = Some(adapters);
        Ok(self.b.mul(x, &factors))
    }

    /// The scales of these adapters, [1, .., R] with `axes` axes.
    fn factors(&mut self, adapters: &Adapters, ranks: &[usize], axes: usize) -> Result<Val> {
        let name = format!("adapter_of_rank_{}", adapters.factors.len());
        let ids: Vec<i64> = ranks.iter().map(|&adapter| adapter as i64).collect();
        let ids = Tensor::from_slice(&ids, &[ids.len()]).map_err(|error| Error::tensor(&name, "integers", error.to_string()))?;
        let ids = self.b.constant(&name, &ids);
        let factors = self.b.pick(&adapters.scales, &ids);
        let factors = self.b.cast(&factors, self.dtype);
        let mut sizes = vec![1.into(); axes];
        if let Some(last) = sizes.last_mut() {
            *last = ranks.len().into();
        }
        Ok(self.b.reshape(&factors, &sizes))
    }
}
