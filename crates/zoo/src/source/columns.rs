//! Matrices stored as [inputs, outputs].

use crate::rows::{FloatRows, numbers::Numbers};

/// The columns of a stored matrix of floats [rows, cols], as rows.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) numbers: Numbers,
    pub(super) cols: usize,
}

impl FloatRows for Columns {
    fn kind(&self) -> String {
        format!("{} columns", self.numbers.dtype)
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        out.iter_mut().enumerate().for_each(|(at, out)| *out = self.numbers.get(at * self.cols + row));
    }
}
