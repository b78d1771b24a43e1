//! Shapes that go together, and tensors brought to them.

use flambeau_tensor::Tensor;

use crate::Error;

/// The common broadcast shape.
pub(crate) fn common_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Error> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    let one = |i| match (size(a, i), size(b, i)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        (x, y) => Err(Error::Sizes(x, y)),
    };
    (0..rank).map(one).collect()
}

/// The tensor repeated along axes of size 1 and new ones in front.
///
/// # Errors
/// If its shape does not broadcast to `shape`.
pub fn broadcast(x: &Tensor, shape: &[usize]) -> Result<Tensor, Error> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    if common_shape(x.shape(), shape)? != shape {
        return Err(Error::Broadcast { from: x.shape().to_vec(), to: shape.to_vec() });
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

/// The tensor with its axes in another order.
pub(crate) fn permute(x: &Tensor, order: &[usize]) -> Result<Tensor, Error> {
    let (own, size, bytes) = (x.shape(), x.dtype().size(), x.bytes());
    let strides = flambeau_tensor::row_major_strides(own);
    let shape: Vec<usize> = order.iter().map(|&axis| own[axis]).collect();
    let count: usize = shape.iter().product();
    let mut out = Vec::with_capacity(count * size);
    for i in 0..count {
        let (mut rest, mut from) = (i, 0);
        for (&n, &axis) in shape.iter().zip(order).rev() {
            from += rest % n * strides[axis] as usize;
            rest /= n;
        }
        out.extend_from_slice(&bytes[from * size..(from + 1) * size]);
    }
    Ok(Tensor::new(x.dtype(), &shape, out.into())?.aligned())
}
