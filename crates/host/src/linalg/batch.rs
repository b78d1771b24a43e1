//! Matrices of a tensor, and tensors of matrices.

use flambeau_tensor::{DType, Tensor, cast};
use nalgebra::DMatrix;

use crate::{
    Error,
    arrays::{broadcast, common_shape},
};

/// A matrix in 64-bit floats, in which every kernel here computes.
pub(crate) type Matrix = DMatrix<f64>;

/// Matrices `[batch…, rows, columns]`.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) batch: Vec<usize>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    values: Tensor,
}

impl Batch {
    /// The matrices over the last two axes of a tensor.
    pub(crate) fn of(x: &Tensor) -> Result<Batch, Error> {
        let [batch @ .., rows, cols] = x.shape() else { return Err(Error::Matrix(x.shape().to_vec())) };
        Ok(Batch { batch: batch.to_vec(), rows: *rows, cols: *cols, values: cast(x, DType::F64)? })
    }

    /// The square matrices over the last two axes of a tensor.
    pub(crate) fn square(x: &Tensor) -> Result<Batch, Error> {
        let batch = Batch::of(x)?;
        if batch.rows == batch.cols { Ok(batch) } else { Err(Error::Matrix(x.shape().to_vec())) }
    }

    /// Two batches, brought to one batch shape.
    pub(crate) fn broadcast(a: &Tensor, b: &Tensor) -> Result<(Batch, Batch), Error> {
        let (a, b) = (Batch::of(a)?, Batch::of(b)?);
        let batch = common_shape(&a.batch, &b.batch)?;
        Ok((a.expanded(&batch)?, b.expanded(&batch)?))
    }

    /// The same matrices, repeated along the axes of a larger batch.
    pub(crate) fn expanded(&self, batch: &[usize]) -> Result<Batch, Error> {
        let shape: Vec<usize> = batch.iter().copied().chain([self.rows, self.cols]).collect();
        Ok(Batch { batch: batch.to_vec(), values: broadcast(&self.values, &shape)?, ..*self })
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.iter().product()
    }

    /// The smaller one of the numbers of rows and columns.
    pub(crate) fn rank(&self) -> usize {
        self.rows.min(self.cols)
    }

    /// The matrices, in order.
    pub(crate) fn matrices(&self) -> Result<impl Iterator<Item = Matrix>, Error> {
        let (values, size) = (self.values.as_slice::<f64>()?, self.rows * self.cols);
        Ok((0..self.len()).map(move |i| Matrix::from_row_slice(self.rows, self.cols, &values[i * size..(i + 1) * size])))
    }

    /// A matrix for each of these.
    pub(crate) fn map(&self, rows: usize, cols: usize, f: impl Fn(Matrix) -> Result<Matrix, Error>) -> Result<Tensor, Error> {
        let mut made = Stack::new(&self.batch, &[rows, cols]);
        for matrix in self.matrices()? {
            made.push(&f(matrix)?);
        }
        made.tensor()
    }

    /// A number for each of these.
    pub(crate) fn numbers(&self, f: impl Fn(Matrix) -> Result<f64, Error>) -> Result<Tensor, Error> {
        let mut made = Stack::new(&self.batch, &[]);
        for matrix in self.matrices()? {
            made.values.push(f(matrix)?);
        }
        made.tensor()
    }
}

/// A tensor `[batch…, own…]` under construction.
#[derive(Debug)]
pub(crate) struct Stack {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Stack {
    pub(crate) fn new(batch: &[usize], own: &[usize]) -> Stack {
        Stack { shape: batch.iter().chain(own).copied().collect(), values: Vec::new() }
    }

    /// Appends a matrix, row by row.
    pub(crate) fn push(&mut self, matrix: &Matrix) {
        self.values.extend(matrix.transpose().iter());
    }

    /// Appends numbers.
    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = f64>) {
        self.values.extend(values);
    }

    pub(crate) fn tensor(self) -> Result<Tensor, Error> {
        Ok(Tensor::from_slice(&self.values, &self.shape)?)
    }
}
