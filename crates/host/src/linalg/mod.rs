//! Linear algebra in 64-bit floats, on matrices over the last two axes of tensors.
//!
//! Factors that programs take apart again (of elimination, of reflections) have LAPACK's form.
//! Singular values and eigenvalues, whose vectors are unique up to a sign, come from `nalgebra`.

mod batch;
mod lu;
mod qr;
mod singular;
mod spectral;
#[cfg(test)]
mod tests;
mod triangular;

use flambeau_tensor::Tensor;

use crate::{Error, Kernel};

type Results = Result<Vec<Tensor>, Error>;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::_linalg_det", lu::determinant_with_factors),
    Kernel::new("aten::_linalg_eigh", |call| spectral::eigh(call, "A")),
    Kernel::new("aten::_linalg_slogdet", lu::sign_and_log_with_factors),
    Kernel::new("aten::_linalg_solve_ex", lu::solve_with_factors),
    Kernel::new("aten::_linalg_svd", |call| spectral::svd(call, "A", spectral::Form::Linalg)),
    Kernel::new("aten::_lu_with_info", |call| lu::factor(call, "self", 3)),
    Kernel::new("aten::cholesky_inverse", triangular::cholesky_inverse),
    Kernel::new("aten::cholesky_solve", triangular::cholesky_solve),
    Kernel::new("aten::det", |call| lu::determinant(call, "self")),
    Kernel::new("aten::geqrf", qr::packed),
    Kernel::new("aten::inverse", |call| lu::inverse(call, "self")),
    Kernel::new("aten::linalg_cholesky", triangular::cholesky),
    Kernel::new("aten::linalg_cholesky_ex", triangular::cholesky_ex),
    Kernel::new("aten::linalg_cond", spectral::condition),
    Kernel::new("aten::linalg_det", |call| lu::determinant(call, "A")),
    Kernel::new("aten::linalg_eigh", |call| spectral::eigh(call, "self")),
    Kernel::new("aten::linalg_eigvalsh", |call| Ok(spectral::eigh(call, "self")?.into_iter().take(1).collect())),
    Kernel::new("aten::linalg_householder_product", |call| qr::product(call, ["input", "tau"])),
    Kernel::new("aten::linalg_inv", |call| lu::inverse(call, "A")),
    Kernel::new("aten::linalg_inv_ex", lu::inverse_ex),
    Kernel::new("aten::linalg_lstsq", spectral::least_squares),
    Kernel::new("aten::linalg_lu", lu::lu),
    Kernel::new("aten::linalg_lu_factor", |call| lu::factor(call, "A", 2)),
    Kernel::new("aten::linalg_lu_factor_ex", |call| lu::factor(call, "A", 3)),
    Kernel::new("aten::linalg_lu_solve", |call| lu::solve_factored(call, ["LU", "pivots", "B"])),
    Kernel::new("aten::linalg_matrix_exp", spectral::exponential),
    Kernel::new("aten::linalg_matrix_norm", |call| spectral::norm(call, Some("ord"))),
    Kernel::new("aten::linalg_matrix_power", lu::power),
    Kernel::new("aten::linalg_matrix_rank", spectral::rank),
    Kernel::new("aten::linalg_matrix_sqrth", spectral::root),
    Kernel::new("aten::linalg_norm", |call| spectral::norm(call, Some("ord"))),
    Kernel::new("aten::linalg_pinv", spectral::pseudo_inverse),
    Kernel::new("aten::linalg_polar", spectral::polar),
    Kernel::new("aten::linalg_qr", qr::qr),
    Kernel::new("aten::linalg_slogdet", |call| lu::sign_and_log(call, "A")),
    Kernel::new("aten::linalg_solve", lu::solve),
    Kernel::new("aten::linalg_solve_ex", lu::solve_ex),
    Kernel::new("aten::linalg_solve_triangular", triangular::solve_triangular),
    Kernel::new("aten::linalg_svd", |call| spectral::svd(call, "A", spectral::Form::Linalg)),
    Kernel::new("aten::linalg_svdvals", spectral::singular_values),
    Kernel::new("aten::linalg_tensorinv", lu::tensor_inverse),
    Kernel::new("aten::linalg_tensorsolve", lu::tensor_solve),
    Kernel::new("aten::linalg_vander", triangular::powers),
    Kernel::new("aten::logdet", lu::log_of_determinant),
    Kernel::new("aten::lu_solve", |call| lu::solve_factored(call, ["LU_data", "LU_pivots", "self"])),
    Kernel::new("aten::lu_unpack", lu::unpack),
    Kernel::new("aten::matrix_exp", spectral::exponential),
    Kernel::new("aten::matrix_power", lu::power),
    Kernel::new("aten::nuclear_norm", |call| spectral::norm(call, None)),
    Kernel::new("aten::orgqr", |call| qr::product(call, ["self", "input2"])),
    Kernel::new("aten::ormqr", qr::apply),
    Kernel::new("aten::pinverse", spectral::pseudo_inverse),
    Kernel::new("aten::slogdet", |call| lu::sign_and_log(call, "self")),
    Kernel::new("aten::svd", |call| spectral::svd(call, "self", spectral::Form::Svd)),
    Kernel::new("aten::triangular_solve", triangular::triangular_solve),
];
