//! Kernels that graphs have no place for: results as long as the elements of the operands say, copies and conversions.

use flambeau_tensor::{Bool, DType, Tensor, cast};

use crate::{OperatorError, Value};

/// An operator of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Places of the elements that are not zero, `[count, rank]`.
    Nonzero,
    /// The elements at the true places of a mask.
    MaskedSelect,
    /// Each index as often as its element says.
    RepeatInterleave,
    /// The first operand takes the contents of the second.
    Copy,
    /// The same numbers in the element type of the result, whichever that is.
    Convert,
}

impl Data {
    /// The operator of that full name.
    pub(crate) fn named(name: &str) -> Option<Data> {
        Some(match name {
            "aten::nonzero.out" => Data::Nonzero,
            "aten::masked_select.out" => Data::MaskedSelect,
            "aten::repeat_interleave.Tensor_out" => Data::RepeatInterleave,
            "aten::copy_" => Data::Copy,
            "aten::_to_copy.out" | "dim_order_ops::_to_dim_order_copy.out" => Data::Convert,
            _ => return None,
        })
    }

    /// The result.
    pub(crate) fn eval(self, args: &[&Value]) -> Result<Tensor, OperatorError> {
        match (self, args) {
            (Data::Nonzero, [Value::Tensor(x)]) => nonzero(x),
            (Data::MaskedSelect, [Value::Tensor(x), Value::Tensor(mask)]) => masked_select(x, mask),
            (Data::RepeatInterleave, [Value::Tensor(repeats), ..]) => repeat_interleave(repeats),
            (Data::Convert, [Value::Tensor(x), ..]) => Ok(x.clone()),
            (Data::Copy, [Value::Tensor(to), Value::Tensor(from), ..]) => Ok(cast(&broadcast(from, to.shape())?, to.dtype())?),
            (_, args) => Err(OperatorError::of_arguments(args)),
        }
    }
}

/// Which elements are not zero, in row-major order.
fn truths(x: &Tensor) -> Result<Vec<bool>, OperatorError> {
    let mask = cast(x, DType::Bool)?;
    Ok(mask.as_slice::<Bool>()?.iter().map(|b| b.get()).collect())
}

/// Where the elements that are not zero stand.
fn nonzero(x: &Tensor) -> Result<Tensor, OperatorError> {
    let (places, rank) = (true_places(x)?, x.rank());
    let flat: Vec<i64> = places.concat();
    Ok(Tensor::from_slice(&flat, &[places.len(), rank])?)
}

fn true_places(x: &Tensor) -> Result<Vec<Vec<i64>>, OperatorError> {
    let shape = x.shape();
    let place = |mut i: usize| {
        let mut place = vec![0; shape.len()];
        for (at, &size) in place.iter_mut().zip(shape).rev() {
            *at = (i % size.max(1)) as i64;
            i /= size.max(1);
        }
        place
    };
    Ok(truths(x)?.into_iter().enumerate().filter(|(_, t)| *t).map(|(i, _)| place(i)).collect())
}

/// A mask as one index for each of its axes.
pub(super) fn mask_indices(mask: &Tensor) -> Result<Vec<Tensor>, OperatorError> {
    let places = true_places(mask)?;
    let column = |axis: usize| places.iter().map(|p| p[axis]).collect::<Vec<i64>>();
    (0..mask.rank()).map(|axis| Ok(Tensor::from_slice(&column(axis), &[places.len()])?)).collect()
}

fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor, OperatorError> {
    let shape = common_shape(x.shape(), mask.shape())?;
    let (x, mask) = (broadcast(x, &shape)?, broadcast(mask, &shape)?);
    let size = x.dtype().size();
    let kept = truths(&mask)?;
    let bytes: Vec<u8> = x.bytes().chunks_exact(size).zip(&kept).filter(|(_, k)| **k).flat_map(|(e, _)| e.to_vec()).collect();
    let count = kept.iter().filter(|k| **k).count();
    Ok(Tensor::new(x.dtype(), &[count], bytes.into())?.aligned())
}

fn repeat_interleave(repeats: &Tensor) -> Result<Tensor, OperatorError> {
    /// More results than this are not a model's.
    const MAX: i64 = 1 << 28;
    let wide = cast(repeats, DType::I64)?;
    let counts = wide.as_slice::<i64>()?;
    let total = counts.iter().try_fold(0i64, |n, &c| n.checked_add(c).filter(|&n| c >= 0 && n <= MAX));
    total.ok_or(OperatorError::Counts(MAX))?;
    let indices: Vec<i64> = counts.iter().enumerate().flat_map(|(i, &c)| std::iter::repeat_n(i as i64, c as usize)).collect();
    Ok(Tensor::from_slice(&indices, &[indices.len()])?)
}

pub(super) fn common_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, OperatorError> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    let one = |i| match (size(a, i), size(b, i)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        (x, y) => Err(OperatorError::Sizes(x, y)),
    };
    (0..rank).map(one).collect()
}

/// The tensor repeated along axes of size 1 and new ones in front.
pub(super) fn broadcast(x: &Tensor, shape: &[usize]) -> Result<Tensor, OperatorError> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    if common_shape(x.shape(), shape)? != shape {
        return Err(OperatorError::Broadcast { from: x.shape().to_vec(), to: shape.to_vec() });
    }
    let (own, lead) = (x.shape(), shape.len() - x.rank());
    let mut strides = vec![0; shape.len()];
    let mut unit = 1;
    for (i, &size) in own.iter().enumerate().rev() {
        strides[lead + i] = if size == 1 { 0 } else { unit };
        unit *= size;
    }
    let (size, bytes) = (x.dtype().size(), x.bytes());
    let count: usize = shape.iter().product();
    let mut out = Vec::with_capacity(count * size);
    for i in 0..count {
        let (mut rest, mut from) = (i, 0);
        for (&n, &stride) in shape.iter().zip(&strides).rev() {
            from += rest % n * stride;
            rest /= n;
        }
        out.extend_from_slice(&bytes[from * size..(from + 1) * size]);
    }
    Ok(Tensor::new(x.dtype(), shape, out.into())?.aligned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(op: Data, args: &[Tensor], shape: &[usize], elements: &[f64]) {
        let args: Vec<Value> = args.iter().cloned().map(Value::Tensor).collect();
        let found = op.eval(&args.iter().collect::<Vec<_>>()).unwrap();
        let wide = cast(&found, DType::F64).unwrap();
        assert_eq!((found.shape(), wide.as_slice::<f64>().unwrap()), (shape, elements), "{op:?}");
    }

    #[test]
    fn the_data_decides_how_much_comes_out() {
        let x = Tensor::from_slice(&[0.0f32, 3.0, -1.0, 0.0], &[2, 2]).unwrap();
        check(Data::Nonzero, std::slice::from_ref(&x), &[2, 2], &[0.0, 1.0, 1.0, 0.0]);
        check(Data::Nonzero, &[Tensor::scalar(5i64)], &[1, 0], &[]);
        let mask = Tensor::from_slice(&[1u8, 0], &[2]).unwrap();
        check(Data::MaskedSelect, &[x.clone(), mask], &[2], &[0.0, -1.0]);
        check(Data::RepeatInterleave, &[Tensor::from_slice(&[2i32, 0, 1], &[3]).unwrap()], &[3], &[0.0, 0.0, 2.0]);
        check(Data::Copy, &[Tensor::zeros(DType::I64, &[2, 2]).unwrap(), x], &[2, 2], &[0.0, 3.0, -1.0, 0.0]);
        let bad = Tensor::from_slice(&[-1i64], &[1]).unwrap();
        assert!(Data::RepeatInterleave.eval(&[&Value::Tensor(bad)]).is_err());
    }
}
