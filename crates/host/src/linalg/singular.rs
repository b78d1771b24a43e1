//! Singular values, by Jacobi's rotations of pairs of columns.

use super::{batch::Matrix, qr::Reflections};
use crate::Error;

/// More rounds over all pairs than any matrix takes.
const ROUNDS: usize = 60;
/// Cosine of the angle between columns that count as orthogonal.
const ORTHOGONAL: f64 = 1e-15;

/// U, singular values in falling order, and Vᵀ, without the columns and rows that no singular value
/// belongs to.
#[derive(Clone, Debug)]
pub(super) struct Singular {
    pub(super) u: Matrix,
    pub(super) values: Vec<f64>,
    pub(super) vt: Matrix,
}

/// Orthonormal columns with as many more as make them a basis.
pub(super) fn completed(columns: &Matrix) -> Matrix {
    let (rows, known) = columns.shape();
    let mut all = Reflections::of(columns.clone()).q(rows);
    all.columns_mut(0, known).copy_from(columns);
    all
}

/// A = U·diag(s)·Vᵀ.
///
/// # Errors
/// [`Error::NotFinite`] if an element is not finite.
pub(super) fn singular(a: Matrix) -> Result<Singular, Error> {
    let (rows, cols) = a.shape();
    if rows.min(cols) == 0 {
        return Ok(Singular { u: Matrix::zeros(rows, 0), values: Vec::new(), vt: Matrix::zeros(0, cols) });
    }
    if a.iter().any(|v| !v.is_finite()) {
        return Err(Error::NotFinite);
    }
    if rows < cols {
        let Singular { u, values, vt } = singular(a.transpose())?;
        return Ok(Singular { u: vt.transpose(), values, vt: u.transpose() });
    }
    let scale = a.amax();
    if scale == 0.0 {
        return Ok(Singular { u: Matrix::identity(rows, cols), values: vec![0.0; cols], vt: Matrix::identity(cols, cols) });
    }
    // A = Q·R, and Rᵀ·U' = V·diag(s) with rotations U'.
    let reflections = Reflections::of(a / scale);
    let mut turned = reflections.r(cols).transpose();
    let mut rotations = Matrix::identity(cols, cols);
    for _ in 0..ROUNDS {
        if !rotate_all(&mut turned, &mut rotations) {
            break;
        }
    }
    let norms: Vec<f64> = turned.column_iter().map(|column| column.norm()).collect();
    let mut order: Vec<usize> = (0..cols).collect();
    order.sort_by(|&i, &j| norms[j].total_cmp(&norms[i]));
    // Columns of rounding errors have no direction; any basis of the rest does.
    let known = order.iter().filter(|&&i| norms[i] > norms[order[0]] * f64::EPSILON).count();
    let v = completed(&Matrix::from_fn(cols, known, |i, j| turned[(i, order[j])] / norms[order[j]]));
    let own = Matrix::from_fn(cols, cols, |i, j| rotations[(i, order[j])]);
    let values = order.iter().map(|&i| norms[i] * scale).collect();
    Ok(Singular { u: reflections.q(cols) * own, values, vt: v.transpose() })
}

/// Makes each pair of columns orthogonal in turn. Returns whether any was not.
fn rotate_all(a: &mut Matrix, rotations: &mut Matrix) -> bool {
    let mut changed = false;
    for p in 0..a.ncols() {
        for q in p + 1..a.ncols() {
            let (own, other) = (a.column(p).norm_squared(), a.column(q).norm_squared());
            let product = a.column(p).dot(&a.column(q));
            if product.abs() <= ORTHOGONAL * (own * other).sqrt() {
                continue;
            }
            changed = true;
            let cotangent = (other - own) / (2.0 * product);
            let tangent = 1f64.copysign(cotangent) / (cotangent.abs() + cotangent.hypot(1.0));
            let cosine = 1.0 / tangent.hypot(1.0);
            rotate(a, p, q, cosine, cosine * tangent);
            rotate(rotations, p, q, cosine, cosine * tangent);
        }
    }
    changed
}

/// Rotates two columns in their plane.
fn rotate(a: &mut Matrix, p: usize, q: usize, cosine: f64, sine: f64) {
    for i in 0..a.nrows() {
        let (x, y) = (a[(i, p)], a[(i, q)]);
        a[(i, p)] = cosine * x - sine * y;
        a[(i, q)] = sine * x + cosine * y;
    }
}
