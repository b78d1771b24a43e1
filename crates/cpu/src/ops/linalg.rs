//! Matrix products.

use flambeau_ir as ir;
use flambeau_kernels::{
    FloatView, Pool,
    gemm::{Addmm, matmul},
};
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    copy::with_region,
    float_dtype,
    index::{listed, wrap},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
    plan::{MemRef, Planner},
    prepare::Prepare,
};

/// The elements of a float array of any of the three types.
pub(crate) fn float_view(x: &Array) -> Result<FloatView<'_>> {
    float_dtype!(x.dtype, T => Ok(FloatView::from(x.view::<T>()?)))
}

/// `y = alpha · a·b + beta · bias`; `a` has the type of `y`, `b` may have any float type.
fn product(pool: &Pool, a: &Array, b: &Array, y: &mut Array, addmm: &Addmm<'_>) -> Result<()> {
    float_dtype!(y.dtype, T => float_dtype!(b.dtype, B => {
        Ok(matmul::<T, B, T>(pool, &a.view()?, &b.view()?, &mut y.view_mut()?, addmm)?)
    }))
}

/// `a @ b` by numpy's rules, vectors included: the operands as matrices and the result's shape with
/// both matrix axes.
fn as_matrices(mut a: MemRef, mut b: MemRef, out: &[usize]) -> (MemRef, MemRef, Shape) {
    let mut shape = Shape::from_slice(out);
    if b.array.rank() == 1 {
        b.array.shape.push(1);
        b.array.strides.push(1);
        shape.push(1);
    }
    if a.array.rank() == 1 {
        a.array.shape.insert(0, 1);
        a.array.strides.insert(0, 1);
        shape.insert(shape.len() - 1, 1);
    }
    (a, b, shape)
}

/// The bias broadcast to the result's shape, seen with both matrix axes.
fn as_bias(bias: &MemRef, out: &[usize], matrices: &[usize]) -> Result<MemRef> {
    let full = bias.array.broadcast(out).ok_or_else(|| OpError::value("the bias does not broadcast"))?;
    // Inserted matrix axes have size 1, so the broadcast view reshapes without a copy.
    Ok(bias.seen(full.reshaped(matrices).unwrap_or(full)))
}

/// `y = alpha · a·b + beta · bias` over matrices; without a bias, `y = a·b`.
fn affine(pool: &Pool, [a, b]: [&Array; 2], bias: Option<&Array>, [alpha, beta]: [f32; 2], y: &mut Array) -> Result<()> {
    let addmm = match bias {
        Some(bias) => Addmm { alpha, beta, bias: Some(float_view(bias)?) },
        None => Addmm::default(),
    };
    product(pool, a, b, y, &addmm)
}

/// The operand, or its f32 copy if its elements are integers.
fn float(p: &mut Planner<'_>, x: MemRef) -> Prepared<MemRef> {
    if x.array.dtype.is_float() { Ok(x) } else { p.in_type(x, DType::F32) }
}

impl Prepare for ir::Addmm {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let spec = p.spec(self.out)?;
        let a = p.operand(self.mat1)?;
        if self.bias.is_none() && p.unpacked_layer(&a, self.mat2, self.out)? {
            return Ok(());
        }
        let (b, bias) = (p.operand(self.mat2)?, p.operand_opt(self.bias)?);
        let is_sum = bias.is_none() || (self.alpha == 1.0 && self.beta == 1.0);
        if is_sum && p.dense_layer(&a, &b, bias.as_ref(), self.out)? {
            return Ok(());
        }
        let (a, b) = (p.in_type(a, spec.dtype)?, float(p, b)?);
        let (a, b, shape) = as_matrices(a, b, &spec.shape);
        let bias = match bias {
            Some(bias) => Some(as_bias(&float(p, bias)?, &spec.shape, &shape)?),
            None => None,
        };
        let ins: SmallVec<[&MemRef; 3]> = [&a, &b].into_iter().chain(&bias).collect();
        let factors = [self.alpha, self.beta];
        let mut y =
            p.call(&ins, (spec.dtype, &shape), move |cx, ins, y| affine(&cx.pool, [&ins[0], &ins[1]], ins.get(2), factors, y))?;
        y.array.set_shape(&spec.shape);
        p.put(self.out, y);
        Ok(())
    }
}

/// The lists of a gather, row-major: those that the node names.
pub(crate) fn gather_lists(p: &mut Planner<'_>, lists: [Option<ir::In>; 2]) -> Prepared<[Option<MemRef>; 2]> {
    let [lhs, rhs] = lists;
    Ok([p.operand_opt(lhs)?, p.operand_opt(rhs)?])
}

/// A gather's lists broadcast together: for each product the number of a matrix of either operand.
/// A missing list counts its operand's batch.
pub(crate) fn broadcast_lists(
    p: &mut Planner<'_>,
    lists: [Option<MemRef>; 2],
    batches: [&[usize]; 2],
    lead: &[usize],
) -> Prepared<[MemRef; 2]> {
    let [lhs, rhs] = lists;
    let mut list = |list: Option<MemRef>, batch: &[usize]| {
        let list = match list {
            Some(list) => list,
            None => p.call(&[], (DType::U32, batch), |_, _, y| {
                y.slice_mut::<u32>()?.iter_mut().zip(0..).for_each(|(y, i)| *y = i);
                Ok(())
            })?,
        };
        let full = list.array.broadcast(lead).ok_or_else(|| OpError::value("the index lists do not broadcast"))?;
        p.contiguous(list.seen(full))
    };
    Ok([list(lhs, batches[0])?, list(rhs, batches[1])?])
}

/// The numbers of a list, all below `count`.
pub(crate) fn numbers(list: &Array, count: usize) -> Result<Vec<u32>> {
    listed(list)?.iter().map(|&i| Ok(wrap(i, count)? as u32)).collect()
}

/// Sizes of the batch axes.
pub(crate) fn batch_of(shape: &[usize]) -> Shape {
    Shape::from_slice(&shape[..shape.len().saturating_sub(2)])
}

fn gather_products(cx: &mut Context, ins: &[Array], y: &mut Array) -> Result<()> {
    let [a, b, lhs, rhs] = ins else { return Err(OpError::value("an operand is missing")) };
    let (lhs, rhs) = (numbers(lhs, a.shape[0])?, numbers(rhs, b.shape[0])?);
    for (i, (&l, &r)) in lhs.iter().zip(&rhs).enumerate() {
        let (a, b) = (a.narrow(0, l as usize, 1, 1), b.narrow(0, r as usize, 1, 1));
        with_region(y, &[(0, i, 1, 1)], |y| product(&cx.pool, &a, &b, y, &Addmm::default()))?;
    }
    Ok(())
}

impl Prepare for ir::GatherMm {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (spec, a, b) = (p.spec(self.out)?, p.operand(self.a)?, p.operand(self.b)?);
        let lists = gather_lists(p, [self.lhs_indices, self.rhs_indices])?;
        let (a, b) = (p.in_type(a, spec.dtype)?, float(p, b)?);
        let mut y = if lists.iter().all(Option::is_none) {
            let (a, b, shape) = as_matrices(a, b, &spec.shape);
            p.call(&[&a, &b], (spec.dtype, &shape), |cx, ins, y| product(&cx.pool, &ins[0], &ins[1], y, &Addmm::default()))?
        } else {
            let (batch_a, batch_b) = (batch_of(&a.array.shape), batch_of(&b.array.shape));
            let [lhs, rhs] = broadcast_lists(p, lists, [&batch_a, &batch_b], &batch_of(&spec.shape))?;
            let flat = |x: &MemRef, batch: &Shape| {
                let [.., rows, columns] = x.array.shape[..] else { return [batch.iter().product(), 1, 1] };
                [batch.iter().product(), rows, columns]
            };
            let (flat_a, flat_b) = (flat(&a, &batch_a), flat(&b, &batch_b));
            let (a, b) = (p.reshaped(a, &flat_a)?, p.reshaped(b, &flat_b)?);
            let shape = [lhs.array.numel(), flat_a[1], flat_b[2]];
            p.call(&[&a, &b, &lhs, &rhs], (spec.dtype, &shape), gather_products)?
        };
        y.array.set_shape(&spec.shape);
        p.put(self.out, y);
        Ok(())
    }
}
