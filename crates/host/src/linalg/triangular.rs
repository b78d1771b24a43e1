//! Triangular systems, and factors of positive matrices.

use flambeau_tensor::{DType, Tensor, cast};

use super::{
    Results,
    batch::{Batch, Matrix, Stack},
};
use crate::{Call, Error};

/// The form of a triangular matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triangle {
    pub(crate) upper: bool,
    /// Its diagonal counts as ones.
    pub(crate) unit: bool,
}

impl Triangle {
    /// Solves A·X = B for X by substitution, in the place of B. The other half of A is not read.
    pub(crate) fn solve(self, a: &Matrix, b: &mut Matrix) {
        let n = a.nrows();
        for mut column in b.column_iter_mut() {
            for step in 0..n {
                let i = if self.upper { n - 1 - step } else { step };
                let known = if self.upper { i + 1..n } else { 0..i };
                let sum: f64 = known.map(|j| a[(i, j)] * column[j]).sum();
                column[i] = (column[i] - sum) / if self.unit { 1.0 } else { a[(i, i)] };
            }
        }
    }

    /// The triangle of the transposed matrix.
    pub(crate) fn transposed(self) -> Triangle {
        Triangle { upper: !self.upper, ..self }
    }
}

pub(super) fn solve_triangular(call: &Call<'_>) -> Results {
    let (a, b) = Batch::broadcast(call.tensor("self")?, call.tensor("B")?)?;
    let triangle = Triangle { upper: call.flag("upper"), unit: call.flag("unitriangular") };
    let left = call.flag_or_true("left");
    let solved = |a: Matrix, mut b: Matrix| {
        if left {
            triangle.solve(&a, &mut b);
            return b;
        }
        let mut x = b.transpose();
        triangle.transposed().solve(&a.transpose(), &mut x);
        x.transpose()
    };
    Ok(vec![each_pair(&a, &b, (b.rows, b.cols), solved)?])
}

/// The older form, which also returns its first operand.
pub(super) fn triangular_solve(call: &Call<'_>) -> Results {
    let (a, b) = Batch::broadcast(call.tensor("A")?, call.tensor("self")?)?;
    let triangle = Triangle { upper: call.flag_or_true("upper"), unit: call.flag("unitriangular") };
    let transpose = call.flag("transpose");
    let solved = |a: Matrix, mut b: Matrix| {
        match transpose {
            true => triangle.transposed().solve(&a.transpose(), &mut b),
            false => triangle.solve(&a, &mut b),
        }
        b
    };
    Ok(vec![each_pair(&a, &b, (b.rows, b.cols), solved)?, a.map(a.rows, a.cols, Ok)?])
}

/// One matrix of each pair.
pub(super) fn each_pair(
    a: &Batch,
    b: &Batch,
    (rows, cols): (usize, usize),
    f: impl Fn(Matrix, Matrix) -> Matrix,
) -> Result<Tensor, Error> {
    let mut made = Stack::new(&b.batch, &[rows, cols]);
    for (a, b) in a.matrices()?.zip(b.matrices()?) {
        made.push(&f(a, b));
    }
    made.tensor()
}

/// The lower factor of a symmetric matrix, read from its lower half. The number is the order of the
/// first leading minor that is not positive, or 0.
fn factor(a: &Matrix) -> (Matrix, i32) {
    let n = a.nrows();
    let mut l = a.lower_triangle();
    for j in 0..n {
        let rest: f64 = (0..j).map(|k| l[(j, k)] * l[(j, k)]).sum();
        let pivot = l[(j, j)] - rest;
        if pivot.is_nan() || pivot <= 0.0 {
            return (l, j as i32 + 1);
        }
        l[(j, j)] = pivot.sqrt();
        for i in j + 1..n {
            let sum: f64 = (0..j).map(|k| l[(i, k)] * l[(j, k)]).sum();
            l[(i, j)] = (l[(i, j)] - sum) / l[(j, j)];
        }
    }
    (l, 0)
}

/// The factors, and the status of each matrix.
fn factors(call: &Call<'_>) -> Result<(Tensor, Vec<i32>, Vec<usize>), Error> {
    let (a, upper) = (Batch::square(call.tensor("self")?)?, call.flag("upper"));
    let mut made = Stack::new(&a.batch, &[a.rows, a.cols]);
    let mut info = Vec::with_capacity(a.len());
    for a in a.matrices()? {
        let (l, wrong) = factor(&if upper { a.transpose() } else { a });
        made.push(&if upper { l.transpose() } else { l });
        info.push(wrong);
    }
    Ok((made.tensor()?, info, a.batch))
}

pub(super) fn cholesky(call: &Call<'_>) -> Results {
    let (made, info, _) = factors(call)?;
    match info.iter().find(|i| **i != 0) {
        Some(order) => Err(Error::NotPositive(*order)),
        None => Ok(vec![made]),
    }
}

pub(super) fn cholesky_ex(call: &Call<'_>) -> Results {
    let (made, info, batch) = factors(call)?;
    Ok(vec![made, Tensor::from_slice(&info, &batch)?])
}

/// Solves L·Lᵀ·X = B, or Uᵀ·U·X = B.
fn solve_factored(factor: &Matrix, upper: bool, b: &mut Matrix) {
    let lower = if upper { factor.transpose() } else { factor.clone() };
    let triangle = Triangle { upper: false, unit: false };
    triangle.solve(&lower, b);
    triangle.transposed().solve(&lower.transpose(), b);
}

pub(super) fn cholesky_solve(call: &Call<'_>) -> Results {
    let (a, b) = Batch::broadcast(call.tensor("input2")?, call.tensor("self")?)?;
    let upper = call.flag("upper");
    let solved = |a: Matrix, mut b: Matrix| {
        solve_factored(&a, upper, &mut b);
        b
    };
    Ok(vec![each_pair(&a, &b, (b.rows, b.cols), solved)?])
}

pub(super) fn cholesky_inverse(call: &Call<'_>) -> Results {
    let (a, upper) = (Batch::square(call.tensor("self")?)?, call.flag("upper"));
    let inverse = |a: Matrix| {
        let mut b = Matrix::identity(a.nrows(), a.nrows());
        solve_factored(&a, upper, &mut b);
        Ok(b)
    };
    Ok(vec![a.map(a.rows, a.cols, inverse)?])
}

/// The powers of each element from 0 on, along a new last axis.
pub(super) fn powers(call: &Call<'_>) -> Results {
    let x = call.tensor("x")?;
    let last = x.shape().last().copied().unwrap_or(1);
    let count = call.number_or("N", last as f64)? as usize;
    let batch = if x.rank() == 0 { &[1][..] } else { x.shape() };
    let mut made = Stack::new(batch, &[count]);
    for value in cast(x, DType::F64)?.as_slice::<f64>()? {
        made.extend(std::iter::successors(Some(1.0), |power| Some(power * value)).take(count));
    }
    Ok(vec![made.tensor()?])
}
