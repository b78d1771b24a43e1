//! Factors of square and other matrices by elimination, and their uses: solutions, inverses,
//! determinants.

use flambeau_tensor::{DType, Tensor, cast};

use super::{
    Results,
    batch::{Batch, Matrix, Stack},
    triangular::Triangle,
};
use crate::{Call, Error};

const LOWER: Triangle = Triangle { upper: false, unit: true };
const UPPER: Triangle = Triangle { upper: true, unit: false };

/// P·A = L·U with both triangles in one matrix, as LAPACK has it.
#[derive(Clone, Debug)]
pub(super) struct Lu {
    factors: Matrix,
    /// The row that was exchanged with each row in turn.
    pivots: Vec<usize>,
    /// Number of the first zero pivot, counted from 1; 0 if there is none.
    info: i32,
}

impl Lu {
    /// Eliminates with exchanges of rows, or without.
    pub(super) fn new(mut a: Matrix, exchange: bool) -> Lu {
        let (rows, cols) = a.shape();
        let (mut pivots, mut info) = (Vec::new(), 0);
        for k in 0..rows.min(cols) {
            let larger = |best: usize, i: usize| if a[(i, k)].abs() > a[(best, k)].abs() { i } else { best };
            let pivot = if exchange { (k..rows).fold(k, larger) } else { k };
            pivots.push(pivot);
            if a[(pivot, k)] == 0.0 {
                info = if info == 0 { k as i32 + 1 } else { info };
                continue;
            }
            a.swap_rows(k, pivot);
            for i in k + 1..rows {
                let factor = a[(i, k)] / a[(k, k)];
                a[(i, k)] = factor;
                for j in k + 1..cols {
                    a[(i, j)] -= factor * a[(k, j)];
                }
            }
        }
        Lu { factors: a, pivots, info }
    }

    fn is_singular(&self) -> Result<(), Error> {
        if self.info == 0 { Ok(()) } else { Err(Error::Singular(self.info)) }
    }

    /// X of A·X = B.
    pub(super) fn solve(&self, mut b: Matrix) -> Matrix {
        self.pivots.iter().enumerate().for_each(|(k, &pivot)| b.swap_rows(k, pivot));
        LOWER.solve(&self.factors, &mut b);
        UPPER.solve(&self.factors, &mut b);
        b
    }

    /// X of Aᵀ·X = B.
    fn solve_transposed(&self, mut b: Matrix) -> Matrix {
        let turned = self.factors.transpose();
        UPPER.transposed().solve(&turned, &mut b);
        LOWER.transposed().solve(&turned, &mut b);
        self.pivots.iter().enumerate().rev().for_each(|(k, &pivot)| b.swap_rows(k, pivot));
        b
    }

    /// Sign and logarithm of the magnitude of the determinant.
    fn log_determinant(&self) -> (f64, f64) {
        let diagonal = self.factors.diagonal();
        let sign = |v: f64| if v == 0.0 { 0.0 } else { v.signum() };
        let exchanges = self.exchange_sign();
        (diagonal.iter().map(|&v| sign(v)).product::<f64>() * exchanges, diagonal.iter().map(|v| v.abs().ln()).sum())
    }

    fn exchange_sign(&self) -> f64 {
        self.pivots.iter().enumerate().map(|(k, &p)| if k == p { 1.0 } else { -1.0 }).product()
    }

    fn determinant(&self) -> f64 {
        self.exchange_sign() * self.factors.diagonal().iter().product::<f64>()
    }

    fn rank(&self) -> usize {
        self.factors.nrows().min(self.factors.ncols())
    }

    fn lower(&self) -> Matrix {
        let mut l = self.factors.columns(0, self.rank()).lower_triangle();
        l.fill_diagonal(1.0);
        l
    }

    fn upper(&self) -> Matrix {
        self.factors.rows(0, self.rank()).upper_triangle()
    }

    /// P of A = P·L·U.
    fn permutation(&self) -> Matrix {
        let mut p = Matrix::identity(self.factors.nrows(), self.factors.nrows());
        self.pivots.iter().enumerate().rev().for_each(|(k, &pivot)| p.swap_rows(k, pivot));
        p
    }
}

/// The parts of factored matrices as tensors.
#[derive(Debug)]
struct Factored {
    factors: Stack,
    pivots: Vec<i32>,
    info: Vec<i32>,
    batch: Vec<usize>,
    rank: usize,
}

impl Factored {
    fn new(a: &Batch) -> Factored {
        let factors = Stack::new(&a.batch, &[a.rows, a.cols]);
        Factored { factors, pivots: Vec::new(), info: Vec::new(), batch: a.batch.clone(), rank: a.rank() }
    }

    fn push(&mut self, lu: &Lu) {
        self.factors.push(&lu.factors);
        self.pivots.extend(lu.pivots.iter().map(|&p| p as i32 + 1));
        self.info.push(lu.info);
    }

    /// Factors, numbers of the exchanged rows counted from 1, and the status of each matrix.
    fn tensors(self) -> Result<[Tensor; 3], Error> {
        let shape: Vec<usize> = self.batch.iter().copied().chain([self.rank]).collect();
        let pivots = Tensor::from_slice(&self.pivots, &shape)?;
        Ok([self.factors.tensor()?, pivots, Tensor::from_slice(&self.info, &self.batch)?])
    }
}

pub(super) fn factor(call: &Call<'_>, name: &'static str, results: usize) -> Results {
    let a = Batch::of(call.tensor(name)?)?;
    let exchange = call.flag_or_true("pivot");
    let mut made = Factored::new(&a);
    a.matrices()?.for_each(|a| made.push(&Lu::new(a, exchange)));
    Ok(made.tensors()?.into_iter().take(results).collect())
}

/// Permutation, lower and upper factor.
pub(super) fn lu(call: &Call<'_>) -> Results {
    let a = Batch::of(call.tensor("A")?)?;
    let exchange = call.flag_or_true("pivot");
    let factored = a.matrices()?.map(|a| Lu::new(a, exchange)).collect::<Vec<_>>();
    parts(&a, &factored, exchange, true)
}

fn parts(a: &Batch, factored: &[Lu], permuted: bool, unpacked: bool) -> Results {
    let stack = |is_wanted: bool, rows: usize, cols: usize, part: &dyn Fn(&Lu) -> Matrix| {
        if !is_wanted {
            return Ok(Tensor::zeros(DType::F64, &[0])?);
        }
        let mut made = Stack::new(&a.batch, &[rows, cols]);
        factored.iter().for_each(|lu| made.push(&part(lu)));
        made.tensor()
    };
    Ok(vec![
        stack(permuted, a.rows, a.rows, &Lu::permutation)?,
        stack(unpacked, a.rows, a.rank(), &Lu::lower)?,
        stack(unpacked, a.rank(), a.cols, &Lu::upper)?,
    ])
}

/// Factored matrices from their tensors.
fn given(factors: &Batch, pivots: &Tensor) -> Result<Vec<Lu>, Error> {
    let pivots = cast(pivots, DType::I64)?;
    let (pivots, count) = (pivots.as_slice::<i64>()?, factors.rank());
    let one = |(i, factors): (usize, Matrix)| {
        let own = pivots.get(i * count..(i + 1) * count).unwrap_or_default();
        let row = |&p: &i64| usize::try_from(p - 1).ok().filter(|p| *p < factors.nrows()).ok_or(Error::Pivot(p));
        Ok(Lu { pivots: own.iter().map(row).collect::<Result<_, _>>()?, factors, info: 0 })
    };
    factors.matrices()?.enumerate().map(one).collect()
}

pub(super) fn unpack(call: &Call<'_>) -> Results {
    let factors = Batch::of(call.tensor("LU_data")?)?;
    let (data, permuted) = (call.flag_or_true("unpack_data"), call.flag_or_true("unpack_pivots"));
    parts(&factors, &given(&factors, call.tensor("LU_pivots")?)?, permuted, data)
}

/// Solves with factors that are given: `(factors, pivots, right side)` are the names of the
/// operands.
pub(super) fn solve_factored(call: &Call<'_>, names: [&'static str; 3]) -> Results {
    let [factors, pivots, right] = names.map(|name| call.tensor(name));
    let (factors, pivots) = (factors?, pivots?);
    let (a, b) = Batch::broadcast(factors, right?)?;
    let count: Vec<usize> = a.batch.iter().copied().chain([a.rank()]).collect();
    let factored = given(&a, &crate::broadcast(pivots, &count)?)?;
    let (left, adjoint) = (call.flag_or_true("left"), call.flag("adjoint"));
    let mut made = Stack::new(&b.batch, &[b.rows, b.cols]);
    for (lu, b) in factored.iter().zip(b.matrices()?) {
        made.push(&match (left, adjoint) {
            (true, false) => lu.solve(b),
            (true, true) => lu.solve_transposed(b),
            (false, false) => lu.solve_transposed(b.transpose()).transpose(),
            (false, true) => lu.solve(b.transpose()).transpose(),
        });
    }
    Ok(vec![made.tensor()?])
}

/// The solution of A·X = B or X·A = B, and the factors of A.
fn solved(call: &Call<'_>) -> Result<(Tensor, Factored), Error> {
    let (a, b) = (call.tensor("A")?, call.tensor("B")?);
    let is_vector = b.rank() == 1 || (b.rank() + 1 == a.rank() && b.shape() == &a.shape()[..a.rank() - 1]);
    let columns = if is_vector { b.reshape(&[b.shape(), &[1]].concat())? } else { b.clone() };
    let (a, b) = Batch::broadcast(a, &columns)?;
    let left = call.flag_or_true("left");
    if a.rows != a.cols || a.rows != if left { b.rows } else { b.cols } {
        return Err(Error::Sizes(a.rows, if left { b.rows } else { b.cols }));
    }
    let (mut made, mut factored) = (Stack::new(&b.batch, &[b.rows, b.cols]), Factored::new(&a));
    for (a, b) in a.matrices()?.zip(b.matrices()?) {
        let lu = Lu::new(a, true);
        factored.push(&lu);
        made.push(&if left { lu.solve(b) } else { lu.solve_transposed(b.transpose()).transpose() });
    }
    let made = made.tensor()?;
    let shape = if is_vector { &made.shape()[..made.rank() - 1] } else { made.shape() };
    Ok((made.reshape(shape)?, factored))
}

pub(super) fn solve(call: &Call<'_>) -> Results {
    let (x, factored) = solved(call)?;
    match factored.info.iter().find(|i| **i != 0) {
        Some(pivot) => Err(Error::Singular(*pivot)),
        None => Ok(vec![x]),
    }
}

pub(super) fn solve_ex(call: &Call<'_>) -> Results {
    let (x, factored) = solved(call)?;
    let [_, _, info] = factored.tensors()?;
    Ok(vec![x, info])
}

pub(super) fn solve_with_factors(call: &Call<'_>) -> Results {
    let (x, factored) = solved(call)?;
    Ok([x].into_iter().chain(factored.tensors()?).collect())
}

/// The inverse of a matrix.
pub(super) fn inverse_of(a: Matrix) -> Result<Matrix, Error> {
    let n = a.nrows();
    let lu = Lu::new(a, true);
    lu.is_singular()?;
    Ok(lu.solve(Matrix::identity(n, n)))
}

pub(super) fn inverse(call: &Call<'_>, name: &'static str) -> Results {
    let a = Batch::square(call.tensor(name)?)?;
    Ok(vec![a.map(a.rows, a.cols, inverse_of)?])
}

pub(super) fn inverse_ex(call: &Call<'_>) -> Results {
    let a = Batch::square(call.tensor("A")?)?;
    let (mut made, mut factored) = (Stack::new(&a.batch, &[a.rows, a.cols]), Factored::new(&a));
    for matrix in a.matrices()? {
        let lu = Lu::new(matrix, true);
        factored.push(&lu);
        made.push(&lu.solve(Matrix::identity(a.rows, a.cols)));
    }
    let [_, _, info] = factored.tensors()?;
    Ok(vec![made.tensor()?, info])
}

/// The inverse of a tensor that is a matrix from its last axes to its first `ind`.
pub(super) fn tensor_inverse(call: &Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let ind = call.number_or("ind", 2.0)? as usize;
    let (rows, cols) = x.shape().split_at_checked(ind).ok_or_else(|| Error::Matrix(x.shape().to_vec()))?;
    let a = Batch::square(&x.reshape(&[rows.iter().product(), cols.iter().product()])?)?;
    let inverse = a.map(a.rows, a.cols, inverse_of)?;
    Ok(vec![inverse.reshape(&[cols, rows].concat())?])
}

/// X of a system whose matrix and sides have several axes each.
pub(super) fn tensor_solve(call: &Call<'_>) -> Results {
    let (x, b) = (call.tensor("self")?, call.tensor("other")?);
    let moved = call.ints("dims")?;
    let axes =
        moved.iter().map(|&axis| flambeau_tensor::normalize_axis(axis, x.rank()).ok_or(Error::Axis { axis, rank: x.rank() }));
    let moved = axes.collect::<Result<Vec<_>, _>>()?;
    let order: Vec<usize> = (0..x.rank()).filter(|axis| !moved.contains(axis)).chain(moved.iter().copied()).collect();
    let x = crate::arrays::permute(x, &order)?;
    let own = x.shape().get(b.rank()..).ok_or_else(|| Error::Matrix(x.shape().to_vec()))?;
    let n: usize = own.iter().product();
    let a = Batch::square(&x.reshape(&[b.numel(), n])?)?;
    let b = Batch::of(&b.reshape(&[b.numel(), 1])?)?;
    let mut made = Stack::new(&[], own);
    for (a, b) in a.matrices()?.zip(b.matrices()?) {
        let lu = Lu::new(a, true);
        lu.is_singular()?;
        made.push(&lu.solve(b));
    }
    Ok(vec![made.tensor()?])
}

pub(super) fn determinant(call: &Call<'_>, name: &'static str) -> Results {
    Ok(vec![Batch::square(call.tensor(name)?)?.numbers(|a| Ok(Lu::new(a, true).determinant()))?])
}

pub(super) fn determinant_with_factors(call: &Call<'_>) -> Results {
    let [result] = &determinant(call, "A")?[..] else { return Ok(Vec::new()) };
    Ok([result.clone()].into_iter().chain(factor(call, "A", 2)?).collect())
}

pub(super) fn log_of_determinant(call: &Call<'_>) -> Results {
    let logarithm = |a| {
        let (sign, log) = Lu::new(a, true).log_determinant();
        Ok(if sign < 0.0 { f64::NAN } else { log })
    };
    Ok(vec![Batch::square(call.tensor("self")?)?.numbers(logarithm)?])
}

pub(super) fn sign_and_log(call: &Call<'_>, name: &'static str) -> Results {
    let a = Batch::square(call.tensor(name)?)?;
    let sign = a.numbers(|a| Ok(Lu::new(a, true).log_determinant().0))?;
    Ok(vec![sign, a.numbers(|a| Ok(Lu::new(a, true).log_determinant().1))?])
}

pub(super) fn sign_and_log_with_factors(call: &Call<'_>) -> Results {
    Ok(sign_and_log(call, "A")?.into_iter().chain(factor(call, "A", 2)?).collect())
}

/// A power of matrices, by squaring.
pub(super) fn power(call: &Call<'_>) -> Results {
    let (a, n) = (Batch::square(call.tensor("self")?)?, call.number("n")? as i64);
    let power = |a: Matrix| {
        let mut square = if n < 0 { inverse_of(a)? } else { a };
        let (mut rest, mut result) = (n.unsigned_abs(), Matrix::identity(square.nrows(), square.nrows()));
        while rest > 0 {
            if rest & 1 == 1 {
                result = &result * &square;
            }
            rest >>= 1;
            if rest > 0 {
                square = &square * &square;
            }
        }
        Ok(result)
    };
    Ok(vec![a.map(a.rows, a.cols, power)?])
}
