//! Matrix products.

use flambeau_ir as ir;
use flambeau_kernels::{
    FloatView, Pool,
    gemm::{Addmm, matmul},
};
use flambeau_tensor::{DType, Shape};

use super::{
    copy::cast,
    float_dtype,
    index::{integers, wrap},
    shape::with_region,
};
use crate::{
    array::Array,
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// The elements of a float array of any of the three types.
pub(crate) fn float_view(x: &Array) -> Result<FloatView<'_>> {
    float_dtype!(x.dtype, T => Ok(FloatView::from(x.view::<T>()?)))
}

/// `y = alpha · a·b + beta · bias`; `a` has the type of `y`, `b` may have any float type.
pub(crate) fn product(pool: &Pool, a: &Array, b: &Array, y: &mut Array, addmm: &Addmm<'_>) -> Result<()> {
    float_dtype!(y.dtype, T => float_dtype!(b.dtype, B => {
        Ok(matmul::<T, B, T>(pool, &a.view()?, &b.view()?, &mut y.view_mut()?, addmm)?)
    }))
}

/// `a @ b` by numpy's rules, vectors included: the operands as matrices and the result's shape with both matrix axes.
pub(crate) fn as_matrices(mut a: Array, mut b: Array, out: &[usize]) -> (Array, Array, Shape) {
    let mut shape = Shape::from_slice(out);
    if b.rank() == 1 {
        b.shape.push(1);
        b.strides.push(1);
        shape.push(1);
    }
    if a.rank() == 1 {
        a.shape.insert(0, 1);
        a.strides.insert(0, 1);
        shape.insert(shape.len() - 1, 1);
    }
    (a, b, shape)
}

/// The bias broadcast to the result's shape, seen with both matrix axes.
pub(crate) fn as_bias(bias: &Array, out: &[usize], matrices: &[usize]) -> Result<Array> {
    let full = bias.broadcast(out).ok_or_else(|| OpError::value("the bias does not broadcast"))?;
    // Inserted matrix axes have size 1, so the broadcast view reshapes without a copy.
    Ok(full.reshaped(matrices).unwrap_or(full))
}

/// `y = alpha · a·b + beta · bias` over matrices; without a bias, `y = a·b`.
pub(crate) fn affine(pool: &Pool, [a, b]: [&Array; 2], bias: Option<&Array>, [alpha, beta]: [f32; 2], y: &mut Array) -> Result<()> {
    let addmm = match bias {
        Some(bias) => Addmm { alpha, beta, bias: Some(float_view(bias)?) },
        None => Addmm::default(),
    };
    product(pool, a, b, y, &addmm)
}

impl Eval for ir::Addmm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (a, b) = (cx.get(self.mat1)?, cx.get(self.mat2)?);
        let (a, b, shape) = as_matrices(cast(cx, &a, spec.dtype)?, float(cx, b)?, &spec.shape);
        let bias = match cx.get_opt(self.bias)? {
            Some(bias) => Some(as_bias(&float(cx, bias)?, &spec.shape, &shape)?),
            None => None,
        };
        let mut y = cx.alloc(spec.dtype, &shape)?;
        affine(&cx.pool(), [&a, &b], bias.as_ref(), [self.alpha, self.beta], &mut y)?;
        y.set_shape(&spec.shape);
        cx.put(self.out, y);
        Ok(())
    }
}

/// `x`, or its f32 copy if its elements are integers.
fn float(cx: &mut Cx<'_>, x: Array) -> Result<Array> {
    if x.dtype.is_float() { Ok(x) } else { cast(cx, &x, DType::F32) }
}

/// Which matrix of each operand every product of a gather uses: flat indices, `lhs` and `rhs` broadcast together. A missing
/// list counts its operand's batch.
pub(crate) fn gather_indices(
    cx: &mut Cx<'_>,
    (lhs, lhs_batch): (Option<ir::In>, &[usize]),
    (rhs, rhs_batch): (Option<ir::In>, &[usize]),
    lead: &[usize],
) -> Result<[Vec<u32>; 2]> {
    let mut list = |slot: Option<ir::In>, batch: &[usize]| -> Result<Vec<u32>> {
        let count: usize = batch.iter().product();
        let indices = match cx.get_opt(slot)? {
            Some(indices) => indices,
            None => {
                let counted: Vec<u32> = (0..count as u32).collect();
                let tensor = flambeau_tensor::Tensor::from_slice(&counted, batch);
                Array::from_tensor(&tensor.map_err(|e| OpError::value(e.to_string()))?)
            }
        };
        let full = indices.broadcast(lead).ok_or_else(|| OpError::value("the index lists do not broadcast"))?;
        integers(cx, &full)?.iter().map(|&i| Ok(wrap(i, count)? as u32)).collect()
    };
    Ok([list(lhs, lhs_batch)?, list(rhs, rhs_batch)?])
}

impl Eval for ir::GatherMm {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let (a, b) = (cx.get(self.a)?, cx.get(self.b)?);
        let (a, b) = (cast(cx, &a, spec.dtype)?, float(cx, b)?);
        if self.lhs_indices.is_none() && self.rhs_indices.is_none() {
            let (a, b, shape) = as_matrices(a, b, &spec.shape);
            let mut y = cx.alloc(spec.dtype, &shape)?;
            product(&cx.pool(), &a, &b, &mut y, &Addmm::default())?;
            y.set_shape(&spec.shape);
            cx.put(self.out, y);
            return Ok(());
        }
        let batch = |x: &Array| Shape::from_slice(&x.shape[..x.rank() - 2]);
        let (batch_a, batch_b, lead) = (batch(&a), batch(&b), &spec.shape[..spec.shape.len() - 2]);
        let [lhs, rhs] = gather_indices(cx, (self.lhs_indices, &batch_a), (self.rhs_indices, &batch_b), lead)?;
        let flat = |cx: &mut Cx<'_>, x: &Array| {
            let shape = [x.shape[..x.rank() - 2].iter().product(), x.shape[x.rank() - 2], x.shape[x.rank() - 1]];
            super::shape::reshape(cx, x, &shape)
        };
        let (a, b) = (flat(cx, &a)?, flat(cx, &b)?);
        let mut y = cx.alloc(spec.dtype, &[lhs.len(), a.shape[1], b.shape[2]])?;
        let pool = cx.pool();
        for (i, (&l, &r)) in lhs.iter().zip(&rhs).enumerate() {
            let (a, b) = (a.narrow(0, l as usize, 1, 1), b.narrow(0, r as usize, 1, 1));
            with_region(&mut y, &[(0, i, 1, 1)], |y| product(&pool, &a, &b, y, &Addmm::default()))?;
        }
        y.set_shape(&spec.shape);
        cx.put(self.out, y);
        Ok(())
    }
}
