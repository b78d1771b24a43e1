//! The weights that linear layers of a program read.

use std::collections::BTreeMap;

use flambeau_pt2::Exported;
use flambeau_tensor::Shape;

use crate::{
    Error, Options,
    loaded::traced,
    quantize::{Product, quantized_products},
};

/// A weight whose scheme is [`Options::linear`], unless a rule names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearWeight {
    /// Qualified name.
    pub name: String,
    /// `[N, K]`, or `[E, N, K]` for a stack of experts.
    pub shape: Shape,
}

/// The weights of a program's linear layers, by name. Weights with a rule are left out, and so are
/// embedding tables and heads.
///
/// # Errors
/// As [`Loaded::new`](crate::Loaded::new).
pub fn linear_weights(exported: &Exported, options: &Options) -> Result<Vec<LinearWeight>, Error> {
    let (ssa, _) = traced(exported, options)?;
    let products = quantized_products(&ssa, options).into_iter().filter(|product| product.is_plain);
    let weights = products.map(|Product { weight, .. }| (weight.name.clone(), weight.shape.clone()));
    let weights: BTreeMap<String, Shape> = weights.collect();
    Ok(weights.into_iter().map(|(name, shape)| LinearWeight { name, shape }).collect())
}
