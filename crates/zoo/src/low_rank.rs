//! Low-rank updates of weights, which programs add at run time.

use std::sync::Arc;

/// A row-major matrix.
#[derive(Clone, Debug)]
pub(crate) struct Factor {
    pub(crate) shape: [usize; 2],
    pub(crate) values: Vec<f32>,
}

impl Factor {
    pub(crate) fn transposed(&self) -> Factor {
        let [rows, cols] = self.shape;
        let values = (0..rows * cols).map(|i| self.values[i % rows * cols + i / rows]).collect();
        Factor { shape: [cols, rows], values }
    }

    /// The matrix of these rows.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> Factor {
        let cols = self.shape[1];
        let values: Vec<f32> = rows.flat_map(|row| self.row(row)).copied().collect();
        Factor { shape: [values.len() / cols, cols], values }
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let cols = self.shape[1];
        &self.values[row * cols..(row + 1) * cols]
    }
}

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
    pub(crate) up: Factor,
    /// [rank, cols].
    pub(crate) down: Arc<Factor>,
}

impl LowRank {
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

/// The adapter of each rank of a weight's updates.
pub(crate) fn ranks(updates: &[LowRank]) -> Vec<usize> {
    updates.iter().flat_map(|update| vec![update.adapter; update.rank()]).collect()
}

impl Stacked {
    /// `None` without updates.
    pub(crate) fn of(updates: &[LowRank]) -> Option<Stacked> {
        let first = updates.first()?;
        let (rows, cols) = (first.up.shape[0], first.down.shape[1]);
        let up = (0..rows).flat_map(|row| updates.iter().flat_map(move |update| update.up.row(row))).copied().collect();
        let down = updates.iter().flat_map(|update| &update.down.values).copied().collect();
        Some(Stacked { adapters: ranks(updates), up, down, rows, cols })
    }

    /// `up` transposed, row-major [R, rows].
    pub(crate) fn up_columns(&self) -> Vec<f32> {
        Factor { shape: [self.rows, self.adapters.len()], values: self.up.clone() }.transposed().values
    }
}
