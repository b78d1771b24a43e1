//! Matrix products.

use flambeau_ir as ir;
use flambeau_tensor::{DType, Shape};

use super::index::safe_indices;
use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::{Array, Binary, Unary},
    rows::{One, Rows},
    values::{Slot, integers},
};

/// The type to compute products in, given the result's type. On a CPU, MLX sums half precision in
/// half precision.
pub(super) fn product_type(cx: &Cx<'_>, dtype: DType) -> DType {
    if cx.is_cpu() { DType::F32 } else { dtype }
}

impl Eval for ir::Addmm {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        let is_matrix = one.rank(self.mat2) == Some(2) && self.bias.is_none_or(|bias| one.rank(bias) == Some(1));
        Rows::of([self.mat1]).filter(|_| is_matrix && one.rank(self.mat1) > Some(1))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let through = product_type(cx, spec.dtype);
        let (a, b) = (cx.get_as(self.mat1, through)?, cx.get_as(self.mat2, through)?);
        let y = match cx.get_opt_as(self.bias, through)? {
            None => a.binary(Binary::Matmul, &b)?,
            Some(bias) => {
                let is_matrix = cx.peek(self.mat1.0)?.rank() >= 2 && cx.peek(self.mat2.0)?.rank() >= 2;
                if is_matrix {
                    bias.addmm(&a, &b, self.alpha, self.beta)?
                } else {
                    let product = a.binary(Binary::Matmul, &b)?;
                    let scaled = product.binary(Binary::Multiply, &cx.scalar(self.alpha.into(), through)?)?;
                    scaled.binary(Binary::Add, &bias.binary(Binary::Multiply, &cx.scalar(self.beta.into(), through)?)?)?
                }
            }
        };
        cx.put(self.out, y)
    }
}

/// An index list into the matrices of an operand; clamped, for MLX checks none.
pub(super) fn matrix_indices(cx: &Cx<'_>, slot: Option<ir::In>, batch: &[usize]) -> Result<Option<Array>> {
    let Some(slot) = slot else { return Ok(None) };
    let indices = safe_indices(cx, cx.peek(slot.0)?, batch.iter().product())?;
    Ok(Some(indices.cast(DType::U32)?))
}

/// Sizes of all axes but the last two.
pub(super) fn batch_of(x: &Slot) -> Shape {
    Shape::from_slice(&x.shape[..x.rank().saturating_sub(2)])
}

/// Whether MLX may rely on sorted indices. MLX gives wrong results for a wrong hint, so a flag of
/// the program counts only if the host can prove it.
pub(super) fn is_sorted(cx: &Cx<'_>, stated: bool, flag: Option<ir::Int>, indices: Option<ir::In>) -> Result<bool> {
    let stated = flag.map_or(Ok(stated), |f| Ok::<_, crate::error::OpError>(cx.int(f)? != 0))?;
    let known = indices.map(|i| cx.peek(i.0)).transpose()?.and_then(|slot| slot.host.as_ref());
    Ok(stated && known.is_some_and(|host| integers(host).is_ok_and(|all| all.is_sorted())))
}

/// Rows of products in which a list names each row's matrix. Without a list of rows, rows are taken
/// in order.
pub(super) fn gathered([x, w]: [ir::In; 2], lhs: Option<ir::In>, rhs: Option<ir::In>, one: One<'_>) -> Option<Rows> {
    let rhs = rhs.filter(|_| lhs.is_none())?;
    let fits = one.rank(w) == Some(3) && one.rank(x)? == one.rank(rhs)? + 2 && one.rank(rhs) > Some(0);
    Rows::of([x, rhs]).filter(|_| fits)
}

impl Eval for ir::GatherMm {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        gathered([self.a, self.b], self.lhs_indices, self.rhs_indices, one)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let through = product_type(cx, spec.dtype);
        let (a, b) = (cx.get_as(self.a, through)?, cx.get_as(self.b, through)?);
        if self.lhs_indices.is_none() && self.rhs_indices.is_none() {
            let y = a.binary(Binary::Matmul, &b)?;
            return cx.put(self.out, y);
        }
        let lhs = matrix_indices(cx, self.lhs_indices, &batch_of(cx.peek(self.a.0)?))?;
        let rhs = matrix_indices(cx, self.rhs_indices, &batch_of(cx.peek(self.b.0)?))?;
        let sorted = is_sorted(cx, self.sorted_indices, self.sorted_indices_flag, self.rhs_indices)?;
        // MLX's CUDA kernel ignores a broadcast row's stride of zero and reads several rows from
        // memory.
        let y = a.unary(Unary::Contiguous)?.gather_mm(&b, lhs.as_ref(), rhs.as_ref(), sorted)?;
        cx.put(self.out, y)
    }
}
