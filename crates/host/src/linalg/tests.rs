use flambeau_tensor::{DType, Tensor};

use super::{
    batch::{Batch, Matrix},
    qr::Reflections,
};
use crate::{Argument, Error, call::testing};

/// Two well-behaved matrices `[2, 3, 3]`.
fn matrices() -> Tensor {
    let values = [4.0f64, 1.0, -2.0, 0.5, 3.0, 1.0, -1.0, 2.0, 5.0, 0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 3.0, -1.0, 2.0];
    Tensor::from_slice(&values, &[2, 3, 3]).unwrap()
}

fn tensor(x: &Tensor) -> Argument {
    Argument::Tensor(x.clone())
}

fn run(target: &str, args: &[Argument]) -> Vec<Tensor> {
    testing::run(target, args, &[DType::F64; 4]).unwrap_or_else(|e| panic!("{target}: {e}"))
}

fn all(x: &Tensor) -> Vec<Matrix> {
    Batch::of(x).unwrap().matrices().unwrap().collect()
}

fn check(name: &str, found: &[Matrix], expected: &[Matrix]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.shape(), expected.shape(), "{name}");
        assert!((found - expected).norm() < 1e-10 * (1.0 + expected.norm()), "{name}: {found} instead of {expected}");
    }
}

fn products(list: &[&[Matrix]]) -> Vec<Matrix> {
    let one = |i: usize| list[1..].iter().fold(list[0][i].clone(), |product, next| product * &next[i]);
    (0..list[0].len()).map(one).collect()
}

fn identities(n: usize) -> Vec<Matrix> {
    vec![Matrix::identity(n, n); 2]
}

#[test]
fn inverses_and_solutions_undo_products() {
    let a = matrices();
    let inverse = run("aten.linalg_inv.default", &[tensor(&a)]).remove(0);
    check("inv", &products(&[&all(&inverse), &all(&a)]), &identities(3));
    let b = Tensor::from_slice(&[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]).unwrap();
    let x = run("aten.linalg_solve.default", &[tensor(&a), tensor(&b), Argument::Bool(true)]).remove(0);
    check("solve", &products(&[&all(&a), &all(&x)]), &[&all(&b)[..], &all(&b)].concat());
    let row = run("aten.linalg_solve.default", &[tensor(&a), tensor(&b.reshape(&[1, 2, 3]).unwrap()), Argument::Bool(false)]);
    check(
        "solve from the right",
        &products(&[&all(&row[0]), &all(&a)]),
        &all(&crate::broadcast(&b.reshape(&[2, 3]).unwrap(), &[2, 2, 3]).unwrap()),
    );
    let vector = Tensor::from_slice(&[1.0f64, 2.0, 3.0], &[3]).unwrap();
    assert_eq!(run("aten.linalg_solve.default", &[tensor(&a), tensor(&vector), Argument::Bool(true)])[0].shape(), [2, 3]);
    let singular = Tensor::from_slice(&[1.0f64, 2.0, 2.0, 4.0], &[2, 2]).unwrap();
    let failed = testing::run("aten.linalg_inv.default", &[tensor(&singular)], &[DType::F64]);
    assert!(matches!(failed, Err(Error::Singular(2))), "{failed:?}");
}

#[test]
fn factors_multiply_to_their_matrix() {
    let a = matrices();
    let wide = a.reshape(&[2, 1, 9]).unwrap().reshape(&[1, 2, 9]).unwrap();
    for a in [&a, &wide] {
        let lu = run("aten.linalg_lu.default", &[tensor(a), Argument::Bool(true)]);
        check("lu", &products(&[&all(&lu[0]), &all(&lu[1]), &all(&lu[2])]), &all(a));
        let packed = run("aten.linalg_lu_factor.default", &[tensor(a), Argument::Bool(true)]);
        let parts =
            run("aten.lu_unpack.default", &[tensor(&packed[0]), tensor(&packed[1]), Argument::Bool(true), Argument::Bool(true)]);
        check("lu_unpack", &products(&[&all(&parts[0]), &all(&parts[1]), &all(&parts[2])]), &all(a));
        for mode in ["reduced", "complete"] {
            let qr = run("aten.linalg_qr.default", &[tensor(a), Argument::Str(mode.to_owned())]);
            check(mode, &products(&[&all(&qr[0]), &all(&qr[1])]), &all(a));
        }
        let packed = run("aten.geqrf.default", &[tensor(a)]);
        let turned = run(
            "aten.ormqr.default",
            &[tensor(&packed[0]), tensor(&packed[1]), tensor(a), Argument::Bool(true), Argument::Bool(true)],
        );
        check("ormqr", &all(&turned[0]).iter().map(Matrix::upper_triangle).collect::<Vec<_>>(), &all(&turned[0]));
        for full in [false, true] {
            let svd = run("aten.linalg_svd.default", &[tensor(a), Argument::Bool(full)]);
            let values = Batch::of(&svd[1].reshape(&[svd[1].shape(), &[1]].concat()).unwrap()).unwrap();
            let diagonal: Vec<Matrix> = values
                .matrices()
                .unwrap()
                .zip(all(&svd[0]))
                .zip(all(&svd[2]))
                .map(|((s, u), v)| Matrix::from_fn(u.ncols(), v.nrows(), |i, j| if i == j { s[i] } else { 0.0 }))
                .collect();
            check("svd", &products(&[&all(&svd[0]), &diagonal, &all(&svd[2])]), &all(a));
        }
    }
}

#[test]
fn positive_matrices_have_triangular_factors_and_eigenvectors() {
    let a = matrices();
    let squares: Vec<f64> = all(&a).iter().flat_map(|a| (a * a.transpose()).iter().copied().collect::<Vec<_>>()).collect();
    let square = Tensor::from_slice(&squares, &[2, 3, 3]).unwrap();
    let l = run("aten.linalg_cholesky.default", &[tensor(&square), Argument::Bool(false)]).remove(0);
    let lt: Vec<Matrix> = all(&l).iter().map(Matrix::transpose).collect();
    check("cholesky", &products(&[&all(&l), &lt]), &all(&square));
    let x = run("aten.cholesky_solve.default", &[tensor(&a), tensor(&l), Argument::Bool(false)]).remove(0);
    check("cholesky_solve", &products(&[&all(&square), &all(&x)]), &all(&a));
    let found = run("aten.linalg_eigh.default", &[tensor(&square), Argument::Str("L".to_owned())]);
    let diagonal: Vec<Matrix> = found[0]
        .as_slice::<f64>()
        .unwrap()
        .chunks(3)
        .map(|v| Matrix::from_diagonal(&nalgebra::DVector::from_row_slice(v)))
        .collect();
    let vectors = all(&found[1]);
    let turned: Vec<Matrix> = vectors.iter().map(Matrix::transpose).collect();
    check("eigh", &products(&[&vectors, &diagonal, &turned]), &all(&square));
    let negative = Tensor::from_slice(&[1.0f64, 2.0, 2.0, 1.0], &[2, 2]).unwrap();
    let failed = run("aten.linalg_cholesky_ex.default", &[tensor(&negative), Argument::Bool(false), Argument::Bool(false)]);
    assert_eq!(failed[1].as_slice::<i32>().unwrap(), [2]);
}

#[test]
fn functions_of_matrices_are_those_of_their_eigenvalues() {
    let a = matrices();
    let numbers = |target: &str, more: &[Argument]| {
        let args = [&[tensor(&a)], more].concat();
        run(target, &args)[0].as_slice::<f64>().unwrap().to_vec()
    };
    let close = |found: Vec<f64>, expected: &[f64]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} instead of {expected:?}");
    };
    let own: Vec<f64> = all(&a).iter().map(|a| a.determinant()).collect();
    close(numbers("aten.linalg_det.default", &[]), &own);
    let logs: Vec<f64> = own.iter().map(|d| d.abs().ln()).collect();
    close(run("aten.linalg_slogdet.default", &[tensor(&a)])[1].as_slice::<f64>().unwrap().to_vec(), &logs);
    let pinv =
        run("aten.linalg_pinv.atol_rtol_tensor", &[tensor(&a), Argument::None, Argument::None, Argument::Bool(false)]).remove(0);
    check("pinv", &products(&[&all(&a), &all(&pinv)]), &identities(3));
    let inverse = run("aten.linalg_matrix_power.default", &[tensor(&a), Argument::Int(-2)]).remove(0);
    check("matrix_power", &products(&[&all(&a), &all(&inverse), &all(&a)]), &identities(3));
    let nilpotent = Tensor::from_slice(&[0.0f64, 2.0, 0.0, 0.0], &[2, 2]).unwrap();
    let exponential = run("aten.linalg_matrix_exp.default", &[tensor(&nilpotent)]).remove(0);
    close(exponential.as_slice::<f64>().unwrap().to_vec(), &[1.0, 2.0, 0.0, 1.0]);
    let thin = Tensor::from_slice(&[3.0f64, 0.0, 0.0, 4.0, 0.0, 0.0], &[3, 2]).unwrap();
    let norm = |order: Argument| run("aten.linalg_matrix_norm.str_ord", &[tensor(&thin), order])[0].as_slice::<f64>().unwrap()[0];
    assert!((norm(Argument::Str("nuc".to_owned())) - 7.0).abs() < 1e-12);
    let rank = run("aten.linalg_matrix_rank.default", &[tensor(&thin), Argument::Float(3.5), Argument::Bool(false)]);
    assert_eq!(rank[0].as_slice::<i64>().unwrap(), [1]);
}

/// Matrices of rank 2 with two equal singular values and further ones of rounding alone.
#[test]
fn equal_singular_values_are_found() {
    let mut state = 7u64;
    let mut drawn = |_: usize, _: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    for (rows, cols) in [(3, 50), (50, 3), (3, 3), (2, 7), (20, 30)] {
        let mut basis = |n| Reflections::of(Matrix::from_fn(n, 2, &mut drawn)).q(2);
        let (left, right) = (basis(rows), basis(cols));
        let a = (left * right.transpose()).map(|v| f64::from(v as f32));
        let flat = Tensor::from_slice(a.transpose().as_slice(), &[rows, cols]).unwrap();
        let found = run("aten.linalg_svd.default", &[tensor(&flat), Argument::Bool(false)]);
        let [u, vt] = [0, 2].map(|i| all(&found[i]).remove(0));
        let s = found[1].as_slice::<f64>().unwrap();
        check("u", &[u.transpose() * &u], &[Matrix::identity(s.len(), s.len())]);
        check("v", &[&vt * vt.transpose()], &[Matrix::identity(s.len(), s.len())]);
        let scaled = Matrix::from_fn(s.len(), cols, |i, j| s[i] * vt[(i, j)]);
        check("svd", &[u * scaled], std::slice::from_ref(&a));
        let square = &a * a.transpose();
        let flat_square = Tensor::from_slice(square.as_slice(), &[rows, rows]).unwrap();
        let found = run("aten.linalg_eigh.default", &[tensor(&flat_square), Argument::Str("L".to_owned())]);
        let (values, vectors) = (found[0].as_slice::<f64>().unwrap(), all(&found[1]).remove(0));
        let scaled = Matrix::from_fn(rows, rows, |i, j| vectors[(i, j)] * values[j]);
        check("eigh", &[scaled * vectors.transpose()], &[square]);
        let tolerance = [Argument::None, Argument::Tensor(Tensor::from_slice(&[1e-5f64], &[]).unwrap()), Argument::Bool(false)];
        let args = [&[tensor(&flat)], &tolerance[..]].concat();
        let inverse = all(&run("aten.linalg_pinv.atol_rtol_tensor", &args)[0]).remove(0);
        assert!((&a * inverse * &a - &a).norm() < 1e-5, "{rows} × {cols}");
    }
}
