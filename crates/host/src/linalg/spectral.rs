//! Singular values and eigenvalues, and derived properties of a matrix.

use flambeau_tensor::{DType, Tensor, cast};
use nalgebra::SymmetricEigen;

use super::{
    Results,
    batch::{Batch, Matrix, Stack},
    lu::inverse_of,
    singular::{Singular, completed, singular},
};
use crate::{Argument, Call, Error, arrays};

/// More rounds than any matrix of finite numbers takes.
const ROUNDS: usize = 100_000;

pub(super) fn svd(call: &Call<'_>, name: &'static str, form: Form) -> Results {
    let a = Batch::of(call.tensor(name)?)?;
    let is_full = match form {
        Form::Svd => !call.flag_or_true("some"),
        Form::Linalg => call.flag_or_true("full_matrices"),
    };
    let k = a.rank();
    let (left, right) = if is_full { (a.rows, a.cols) } else { (k, k) };
    let mut u = Stack::new(&a.batch, &[a.rows, left]);
    let mut s = Stack::new(&a.batch, &[k]);
    let mut v = Stack::new(&a.batch, &if form == Form::Svd { [a.cols, right] } else { [right, a.cols] });
    for a in a.matrices()? {
        let found = singular(a)?;
        u.push(&if is_full { completed(&found.u) } else { found.u });
        s.extend(found.values);
        let own = found.vt.transpose();
        let own = if is_full { completed(&own) } else { own };
        v.push(&if form == Form::Svd { own } else { own.transpose() });
    }
    Ok(vec![u.tensor()?, s.tensor()?, v.tensor()?])
}

/// Which of PyTorch's two operators it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `svd`, which returns V.
    Svd,
    /// `linalg_svd`, which returns Vᴴ.
    Linalg,
}

fn values(a: &Batch) -> Result<Tensor, Error> {
    let mut s = Stack::new(&a.batch, &[a.rank()]);
    for a in a.matrices()? {
        s.extend(singular(a)?.values);
    }
    s.tensor()
}

pub(super) fn singular_values(call: &Call<'_>) -> Results {
    Ok(vec![values(&Batch::of(call.tensor("A")?)?)?])
}

/// Eigenvalues in rising order with their vectors, of the symmetric matrix whose half is given.
fn eigen(a: &Matrix, upper: bool) -> Result<(Vec<f64>, Matrix), Error> {
    let n = a.nrows();
    if n == 0 {
        return Ok((Vec::new(), Matrix::zeros(0, 0)));
    }
    if a.iter().any(|v| !v.is_finite()) {
        return Err(Error::NotFinite);
    }
    let whole = Matrix::from_fn(n, n, |i, j| if (i < j) == upper { a[(i, j)] } else { a[(j, i)] });
    let found = SymmetricEigen::try_new(whole, f64::EPSILON, ROUNDS).ok_or(Error::NotFinite)?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| found.eigenvalues[i].total_cmp(&found.eigenvalues[j]));
    let vectors = Matrix::from_fn(n, n, |i, j| found.eigenvectors[(i, order[j])]);
    Ok((order.iter().map(|&i| found.eigenvalues[i]).collect(), vectors))
}

pub(super) fn eigh(call: &Call<'_>, name: &'static str) -> Results {
    let (a, upper) = (Batch::square(call.tensor(name)?)?, call.text("UPLO") == Some("U"));
    let (mut found, mut vectors) = (Stack::new(&a.batch, &[a.rows]), Stack::new(&a.batch, &[a.rows, a.rows]));
    for a in a.matrices()? {
        let (own, basis) = eigen(&a, upper)?;
        found.extend(own);
        vectors.push(&basis);
    }
    Ok(vec![found.tensor()?, vectors.tensor()?])
}

/// The symmetric square root of a symmetric matrix.
pub(super) fn root(call: &Call<'_>) -> Results {
    let a = Batch::square(call.tensor("self")?)?;
    let one = |a: Matrix| {
        let (values, vectors) = eigen(&a, false)?;
        let scaled = Matrix::from_fn(a.nrows(), a.nrows(), |i, j| vectors[(i, j)] * values[j].sqrt());
        Ok(scaled * vectors.transpose())
    };
    Ok(vec![a.map(a.rows, a.cols, one)?])
}

/// The bound below which a singular value counts as zero: the larger one of `atol` and `rtol` times
/// the largest value.
struct Tolerance {
    atol: Vec<f64>,
    rtol: Vec<f64>,
    /// The batch shape that they broadcast the matrices to.
    batch: Vec<usize>,
}

impl Tolerance {
    /// As PyTorch's overloads state it: `tol` and `rcond` are an `atol` and an `rtol` alone.
    fn of(call: &Call<'_>, a: &Batch, x: DType) -> Result<Tolerance, Error> {
        let given = |name: &'static str| -> Result<Option<Tensor>, Error> {
            match call.arg(name) {
                None => Ok(None),
                Some(Argument::Tensor(t)) => Ok(Some(cast(t, DType::F64)?)),
                Some(_) => Ok(Some(Tensor::from_slice(&[call.number(name)?], &[])?)),
            }
        };
        let (tol, rcond) = (given("tol")?, given("rcond")?);
        let zero = || -> Result<Tensor, Error> { Ok(Tensor::from_slice(&[0.0f64], &[])?) };
        let (atol, rtol) = match (&tol, &rcond) {
            (None, None) => (given("atol")?, given("rtol")?),
            _ => (Some(tol.map_or_else(zero, Ok)?), Some(rcond.map_or_else(zero, Ok)?)),
        };
        let mut batch = a.batch.clone();
        for t in [&atol, &rtol].into_iter().flatten() {
            batch = arrays::common_shape(&batch, t.shape())?;
        }
        let own = |t: Tensor| -> Result<Vec<f64>, Error> { Ok(crate::broadcast(&t, &batch)?.as_slice::<f64>()?.to_vec()) };
        let numbers = |t: Option<Tensor>| t.map(own).transpose();
        let (atol, rtol) = (numbers(atol)?, numbers(rtol)?);
        let usual = a.rows.max(a.cols) as f64 * if x == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let atol_given = atol.is_some();
        let atol = atol.unwrap_or_else(|| vec![0.0; batch.iter().product()]);
        let rtol = rtol.unwrap_or_else(|| atol.iter().map(|&t| if atol_given && t > 0.0 { 0.0 } else { usual }).collect());
        Ok(Tolerance { atol, rtol, batch })
    }

    fn at(&self, i: usize, largest: f64) -> f64 {
        self.atol[i].max(self.rtol[i] * largest)
    }
}

/// The operand, whatever its name is in this overload.
fn operand<'c>(call: &'c Call<'_>) -> Result<&'c Tensor, Error> {
    call.tensor("self").or_else(|_| call.tensor("input"))
}

/// A = U·diag(s)·Vᵀ, whose values fall in magnitude.
fn decomposed(a: Matrix, hermitian: bool) -> Result<Singular, Error> {
    if !hermitian {
        return singular(a);
    }
    let (found, vectors) = eigen(&a, false)?;
    Ok(Singular { u: vectors.clone(), values: found, vt: vectors.transpose() })
}

pub(super) fn rank(call: &Call<'_>) -> Results {
    let x = operand(call)?;
    let a = Batch::of(x)?;
    let tolerance = Tolerance::of(call, &a, x.dtype())?;
    let a = a.expanded(&tolerance.batch)?;
    let mut ranks = Vec::with_capacity(a.len());
    for (i, a) in a.matrices()?.enumerate() {
        let values: Vec<f64> = decomposed(a, call.flag("hermitian"))?.values.iter().map(|v| v.abs()).collect();
        let bound = tolerance.at(i, values.iter().copied().fold(0.0, f64::max));
        ranks.push(values.iter().filter(|v| **v > bound).count() as i64);
    }
    Ok(vec![Tensor::from_slice(&ranks, &a.batch)?])
}

pub(super) fn pseudo_inverse(call: &Call<'_>) -> Results {
    let x = operand(call)?;
    let a = Batch::of(x)?;
    let tolerance = Tolerance::of(call, &a, x.dtype())?;
    let a = a.expanded(&tolerance.batch)?;
    let mut made = Stack::new(&a.batch, &[a.cols, a.rows]);
    for (i, a) in a.matrices()?.enumerate() {
        let found = decomposed(a, call.flag("hermitian"))?;
        let bound = tolerance.at(i, found.values.iter().fold(0.0, |most, v| v.abs().max(most)));
        made.push(&inverted(&found, bound));
    }
    Ok(vec![made.tensor()?])
}

/// V·diag(1/s)·Uᵀ of the values above a bound.
fn inverted(found: &Singular, bound: f64) -> Matrix {
    let mut scaled = found.vt.transpose();
    for (mut column, value) in scaled.column_iter_mut().zip(&found.values) {
        column *= if value.abs() > bound { 1.0 / value } else { 0.0 };
    }
    scaled * found.u.transpose()
}

/// Least squares, by the pseudo-inverse.
pub(super) fn least_squares(call: &Call<'_>) -> Results {
    let (x, right) = (call.tensor("self")?, call.tensor("b")?);
    let is_vector = right.rank() + 1 == x.rank();
    let columns = if is_vector { right.reshape(&[right.shape(), &[1]].concat())? } else { right.clone() };
    let (a, b) = Batch::broadcast(x, &columns)?;
    let usual = a.rows.max(a.cols) as f64 * if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let rtol = call.number_or("rcond", usual)?;
    let is_gels = call.text("driver") == Some("gels");
    let with_values = matches!(call.text("driver"), Some("gelsd" | "gelss"));
    let (mut made, mut residuals) = (Stack::new(&b.batch, &[a.cols, b.cols]), Stack::new(&b.batch, &[b.cols]));
    let (mut ranks, mut all_values) = (Vec::new(), Stack::new(&b.batch, &[a.rank()]));
    for (own, b) in a.matrices()?.zip(b.matrices()?) {
        let found = singular(own.clone())?;
        let bound = rtol * found.values.first().copied().unwrap_or(0.0);
        ranks.push(found.values.iter().filter(|v| **v > bound).count() as i64);
        let solution = inverted(&found, bound) * &b;
        residuals.extend((own * &solution - b).column_iter().map(|c| c.norm_squared()).collect::<Vec<_>>());
        made.push(&solution);
        all_values.extend(found.values);
    }
    let none = || Tensor::zeros(DType::F64, &[0]);
    let is_full = a.rows > a.cols && ranks.iter().all(|r| *r == a.cols as i64);
    let solution = made.tensor()?;
    let shape = if is_vector { &solution.shape()[..solution.rank() - 1] } else { solution.shape() };
    Ok(vec![
        solution.reshape(shape)?,
        if is_full { residuals.tensor()? } else { none()? },
        if is_gels { Tensor::zeros(DType::I64, &[0])? } else { Tensor::from_slice(&ranks, &b.batch)? },
        if with_values { all_values.tensor()? } else { none()? },
    ])
}

/// A = U·H with orthonormal U and positive H.
pub(super) fn polar(call: &Call<'_>) -> Results {
    let a = Batch::of(call.tensor("A")?)?;
    let (mut u, mut h) = (Stack::new(&a.batch, &[a.rows, a.cols]), Stack::new(&a.batch, &[a.cols, a.cols]));
    for a in a.matrices()? {
        let found = singular(a)?;
        u.push(&(&found.u * &found.vt));
        let scaled = Matrix::from_fn(found.vt.nrows(), found.vt.ncols(), |i, j| found.values[i] * found.vt[(i, j)]);
        h.push(&(found.vt.transpose() * scaled));
    }
    Ok(vec![u.tensor()?, h.tensor()?])
}

/// The order of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Frobenius,
    Nuclear,
    Number(f64),
}

impl Order {
    fn of(call: &Call<'_>, name: &'static str) -> Result<Order, Error> {
        match call.arg(name) {
            None => Ok(Order::Frobenius),
            Some(Argument::Str(s)) if s == "fro" => Ok(Order::Frobenius),
            Some(Argument::Str(s)) if s == "nuc" => Ok(Order::Nuclear),
            Some(Argument::Str(_)) => Err(Error::Argument { name, found: "a string", expected: "`fro`, `nuc` or a number" }),
            Some(_) => call.number(name).map(Order::Number),
        }
    }

    /// The norm of a matrix.
    fn norm(self, a: &Matrix) -> Result<f64, Error> {
        let sums = |by_column: bool| -> Vec<f64> {
            let sum = |values: Vec<f64>| values.iter().map(|v| v.abs()).sum();
            match by_column {
                true => a.column_iter().map(|c| sum(c.iter().copied().collect())).collect(),
                false => a.row_iter().map(|r| sum(r.iter().copied().collect())).collect(),
            }
        };
        let most = |values: Vec<f64>| values.into_iter().reduce(larger).unwrap_or(0.0);
        let least = |values: Vec<f64>| values.into_iter().reduce(|a, b| -larger(-a, -b)).unwrap_or(0.0);
        let is_finite = a.iter().all(|v| v.is_finite());
        let values = || if is_finite { singular(a.clone()).map(|s| s.values) } else { Ok(vec![f64::NAN]) };
        Ok(match self {
            Order::Frobenius => a.norm(),
            Order::Nuclear => values()?.iter().sum(),
            Order::Number(2.0) => most(values()?),
            Order::Number(-2.0) => least(values()?),
            Order::Number(1.0) => most(sums(true)),
            Order::Number(-1.0) => least(sums(true)),
            Order::Number(f64::INFINITY) => most(sums(false)),
            Order::Number(f64::NEG_INFINITY) => least(sums(false)),
            Order::Number(order) => return Err(Error::Order(order)),
        })
    }
}

/// The larger one; NaN before numbers.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Norms of the matrices over two axes, by default the last two. A `linalg_norm` without axes has
/// only these two.
pub(super) fn norm(call: &Call<'_>, order: Option<&'static str>) -> Results {
    let x = call.tensor("self")?;
    let order = order.map_or(Ok(Order::Nuclear), |name| Order::of(call, name))?;
    let listed = call.listed_axes(x.rank())?;
    let axes = match listed[..] {
        [] if x.rank() >= 2 => [x.rank() - 2, x.rank() - 1],
        [row, column] => [row, column],
        _ => return Err(Error::Matrix(x.shape().to_vec())),
    };
    let others: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).collect();
    let turned = arrays::permute(x, &[&others[..], &axes].concat())?;
    let norms = Batch::of(&turned)?.numbers(|a| order.norm(&a))?;
    if !call.flag("keepdim") {
        return Ok(vec![norms]);
    }
    let shape: Vec<usize> = (0..x.rank()).map(|a| if axes.contains(&a) { 1 } else { x.shape()[a] }).collect();
    Ok(vec![norms.reshape(&shape)?])
}

/// Factor by which a matrix enlarges errors.
pub(super) fn condition(call: &Call<'_>) -> Results {
    let a = Batch::of(call.tensor("self")?)?;
    let order = if call.arg("p").is_some() { Order::of(call, "p")? } else { Order::Number(2.0) };
    let ends = |a: Matrix| {
        let values = singular(a)?.values;
        Ok(match (values.first(), values.last()) {
            (Some(most), Some(least)) => (*most, *least),
            _ => (0.0, 0.0),
        })
    };
    let one = |a: Matrix| match order {
        Order::Number(2.0) => ends(a).map(|(most, least)| most / least),
        Order::Number(-2.0) => ends(a).map(|(most, least)| least / most),
        _ if a.is_empty() => Ok(0.0),
        order => match inverse_of(a.clone()) {
            Ok(inverse) => Ok(order.norm(&a)? * order.norm(&inverse)?),
            Err(_) => Ok(f64::INFINITY),
        },
    };
    Ok(vec![a.numbers(one)?])
}

/// e to the power of a matrix.
pub(super) fn exponential(call: &Call<'_>) -> Results {
    let a = Batch::square(call.tensor("self")?)?;
    let one = |a: Matrix| match a.iter().all(|v| v.is_finite()) {
        true if a.is_empty() => Ok(a),
        true => Ok(a.exp()),
        false => Ok(Matrix::from_element(a.nrows(), a.nrows(), f64::NAN)),
    };
    Ok(vec![a.map(a.rows, a.cols, one)?])
}
