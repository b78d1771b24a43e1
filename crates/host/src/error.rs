//! Reason why a kernel cannot run.

/// Errors in a call's operands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("argument `{name}` is {found}, expected {expected}")]
    Argument { name: &'static str, found: &'static str, expected: &'static str },
    #[error("axis {axis} of rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("sizes {0} and {1} do not go together")]
    Sizes(usize, usize),
    #[error("shape {from:?} does not broadcast to {to:?}")]
    Broadcast { from: Vec<usize>, to: Vec<usize> },
    #[error("a count is negative, or they are over {0} together")]
    Counts(i64),
    #[error("shape {0:?} is none that it takes")]
    Matrix(Vec<usize>),
    #[error("the matrix is singular: pivot {0} is zero")]
    Singular(i32),
    #[error("the leading minor of order {0} is not positive")]
    NotPositive(i32),
    #[error("the matrix has elements that are not finite")]
    NotFinite,
    #[error("{0} is no row that pivots can name")]
    Pivot(i64),
    #[error("rank {rank} among {len} elements")]
    Rank { rank: i64, len: usize },
    #[error("there is no norm of matrices of order {0}")]
    Order(f64),
    #[error("a Fourier transform of no points")]
    NoPoints,
    #[error("the normalization {0}, expected 0, 1 or 2")]
    Normalization(f64),
    #[error("it takes complex numbers, found {0}")]
    NotComplex(flambeau_tensor::DType),
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
}
