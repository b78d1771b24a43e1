//! Orthogonal factors by reflections, as LAPACK makes and keeps them.

use flambeau_tensor::{DType, Tensor};
use nalgebra::{Dyn, MatrixViewMut};

use super::{
    Results,
    batch::{Batch, Matrix, Stack},
};
use crate::{Call, Error};

/// Reflections I − τ·v·vᵀ that turn a matrix into an upper triangle. The vectors are below the
/// triangle, without their leading ones.
#[derive(Clone, Debug)]
pub(super) struct Reflections {
    packed: Matrix,
    taus: Vec<f64>,
}

impl Reflections {
    pub(super) fn of(mut a: Matrix) -> Reflections {
        let (rows, cols) = a.shape();
        let mut taus = Vec::with_capacity(rows.min(cols));
        for k in 0..rows.min(cols) {
            let (alpha, tail) = (a[(k, k)], a.view((k + 1, k), (rows - k - 1, 1)).norm());
            if tail == 0.0 {
                taus.push(0.0);
                continue;
            }
            let beta = -alpha.hypot(tail).copysign(alpha);
            let tau = (beta - alpha) / beta;
            for i in k + 1..rows {
                a[(i, k)] /= alpha - beta;
            }
            a[(k, k)] = beta;
            let (left, mut right) = a.columns_range_pair_mut(k, k + 1..);
            reflect(&left.as_slice()[k + 1..], tau, k, &mut right);
            taus.push(tau);
        }
        Reflections { packed: a, taus }
    }

    /// Q·X, or Qᵀ·X.
    fn apply(&self, x: &mut Matrix, transposed: bool) {
        let count = self.taus.len();
        for step in 0..count {
            let k = if transposed { step } else { count - 1 - step };
            reflect(&self.packed.column(k).as_slice()[k + 1..], self.taus[k], k, &mut x.columns_mut(0, x.ncols()));
        }
    }

    /// The first columns of Q.
    pub(super) fn q(&self, columns: usize) -> Matrix {
        let mut q = Matrix::identity(self.packed.nrows(), columns);
        self.apply(&mut q, false);
        q
    }

    /// The first rows of R.
    pub(super) fn r(&self, rows: usize) -> Matrix {
        self.packed.rows(0, rows).upper_triangle()
    }
}

/// Applies I − τ·v·vᵀ, where `tail` is v behind its one in row `k`, to the columns of a matrix.
fn reflect(tail: &[f64], tau: f64, k: usize, x: &mut MatrixViewMut<'_, f64, Dyn, Dyn>) {
    for mut column in x.column_iter_mut() {
        let below: f64 = tail.iter().zip(column.iter().skip(k + 1)).map(|(v, x)| v * x).sum();
        let weight = tau * (column[k] + below);
        column[k] -= weight;
        column.iter_mut().skip(k + 1).zip(tail).for_each(|(x, v)| *x -= weight * v);
    }
}

pub(super) fn qr(call: &Call<'_>) -> Results {
    let a = Batch::of(call.tensor("A")?)?;
    let mode = call.text("mode").unwrap_or("reduced");
    let inner = if mode == "complete" { a.rows } else { a.rank() };
    let (mut q, mut r) = (Stack::new(&a.batch, &[a.rows, inner]), Stack::new(&a.batch, &[inner, a.cols]));
    for a in a.matrices()? {
        let reflections = Reflections::of(a);
        if mode != "r" {
            q.push(&reflections.q(inner));
        }
        r.push(&reflections.r(inner));
    }
    let q = if mode == "r" { Tensor::zeros(DType::F64, &[0])? } else { q.tensor()? };
    Ok(vec![q, r.tensor()?])
}

/// The packed form itself.
pub(super) fn packed(call: &Call<'_>) -> Results {
    let a = Batch::of(call.tensor("self")?)?;
    let (mut packed, mut tau) = (Stack::new(&a.batch, &[a.rows, a.cols]), Stack::new(&a.batch, &[a.rank()]));
    for a in a.matrices()? {
        let reflections = Reflections::of(a);
        packed.push(&reflections.packed);
        tau.extend(reflections.taus);
    }
    Ok(vec![packed.tensor()?, tau.tensor()?])
}

/// Reflections from their tensors.
fn given(packed: &Batch, tau: &Tensor) -> Result<Vec<Reflections>, Error> {
    let columns = Batch::of(&tau.reshape(&[tau.shape(), &[1]].concat())?)?;
    let one = |(packed, tau): (Matrix, Matrix)| {
        if tau.len() > packed.ncols() || tau.len() > packed.nrows() {
            return Err(Error::Sizes(packed.ncols(), tau.len()));
        }
        Ok(Reflections { packed, taus: tau.iter().copied().collect() })
    };
    packed.matrices()?.zip(columns.matrices()?).map(one).collect()
}

/// The first columns of the product of reflections.
pub(super) fn product(call: &Call<'_>, names: [&'static str; 2]) -> Results {
    let a = Batch::of(call.tensor(names[0])?)?;
    let mut made = Stack::new(&a.batch, &[a.rows, a.cols]);
    given(&a, call.tensor(names[1])?)?.iter().for_each(|reflections| made.push(&reflections.q(a.cols)));
    Ok(vec![made.tensor()?])
}

/// The product of reflections and another matrix.
pub(super) fn apply(call: &Call<'_>) -> Results {
    let (a, x) = Batch::broadcast(call.tensor("self")?, call.tensor("input3")?)?;
    let (left, transpose) = (call.flag_or_true("left"), call.flag("transpose"));
    let mut made = Stack::new(&x.batch, &[x.rows, x.cols]);
    for (reflections, mut x) in given(&a, call.tensor("input2")?)?.iter().zip(x.matrices()?) {
        if left {
            reflections.apply(&mut x, transpose);
            made.push(&x);
        } else {
            // X·Q is (Qᵀ·Xᵀ)ᵀ.
            let mut turned = x.transpose();
            reflections.apply(&mut turned, !transpose);
            made.push(&turned.transpose());
        }
    }
    Ok(vec![made.tensor()?])
}
