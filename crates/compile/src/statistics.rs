//! Statistics of the inputs of linear layers, which tell how much the errors of their weights
//! count.

use std::{collections::HashMap, sync::Arc};

/// Statistics of the inputs that each quantizable weight is multiplied with, by the weight's name.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    weights: HashMap<String, Arc<InputStatistics>>,
}

/// Statistics of the inputs of one weight `[N, K]`, or of a stack of experts `[E, N, K]`, up to a
/// common factor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputStatistics {
    /// Mean square of each column, [K], or [E, K] for each expert.
    pub(crate) squares: Vec<f32>,
    /// Products of pairs of columns of the same block, and their factors, `[K / block, block,
    /// block]`. Empty if unknown.
    pub(crate) factors: Vec<f32>,
    /// The order of the columns of each block in `factors`, [K].
    pub(crate) order: Vec<u32>,
    /// Number of columns of a block; 0 without factors.
    pub(crate) block: usize,
}

impl InputStatistics {
    /// Statistics without products of columns. `squares` are mean squares of columns, `[K]`, or
    /// `[E, K]` for a stack of experts.
    pub fn from_squares(squares: Vec<f32>) -> InputStatistics {
        InputStatistics { squares, ..InputStatistics::default() }
    }

    /// Mean squares of the columns, `[K]` or `[E, K]`.
    pub fn squares(&self) -> &[f32] {
        &self.squares
    }
}

impl Statistics {
    /// Sets the statistics of a weight, in place of earlier ones.
    pub fn insert(&mut self, weight: impl Into<String>, inputs: Arc<InputStatistics>) {
        self.weights.insert(weight.into(), inputs);
    }

    /// Statistics of a weight.
    pub fn get(&self, weight: &str) -> Option<&InputStatistics> {
        self.weights.get(weight).map(|inputs| &**inputs)
    }

    /// Number of weights with statistics.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether no weight has statistics.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
}
