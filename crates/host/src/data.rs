//! Calls whose result sizes depend on the elements of their operands.

use flambeau_tensor::{Bool, DType, Tensor, cast};

use crate::{
    Error, Kernel,
    arrays::{broadcast, common_shape},
};

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::masked_select", |call| Ok(vec![masked_select(call.tensor("self")?, call.tensor("mask")?)?])),
    Kernel::new("aten::nonzero", |call| Ok(vec![nonzero(call.tensor("self")?)?])),
    Kernel::new("aten::repeat_interleave", |call| Ok(vec![repeat_interleave(call.tensor("repeats")?)?])),
];

/// Which elements are not zero, in row-major order.
fn truths(x: &Tensor) -> Result<Vec<bool>, Error> {
    let mask = cast(x, DType::Bool)?;
    Ok(mask.as_slice::<Bool>()?.iter().map(|b| b.get()).collect())
}

/// Positions of the nonzero elements.
fn nonzero(x: &Tensor) -> Result<Tensor, Error> {
    let (places, rank) = (true_places(x)?, x.rank());
    let flat: Vec<i64> = places.concat();
    Ok(Tensor::from_slice(&flat, &[places.len(), rank])?)
}

fn true_places(x: &Tensor) -> Result<Vec<Vec<i64>>, Error> {
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
///
/// # Errors
/// If its elements are no truth values.
pub fn mask_indices(mask: &Tensor) -> Result<Vec<Tensor>, Error> {
    let places = true_places(mask)?;
    let column = |axis: usize| places.iter().map(|p| p[axis]).collect::<Vec<i64>>();
    (0..mask.rank()).map(|axis| Ok(Tensor::from_slice(&column(axis), &[places.len()])?)).collect()
}

fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor, Error> {
    let shape = common_shape(x.shape(), mask.shape())?;
    let (x, mask) = (broadcast(x, &shape)?, broadcast(mask, &shape)?);
    let size = x.dtype().size();
    let kept = truths(&mask)?;
    let bytes: Vec<u8> = x.bytes().chunks_exact(size).zip(&kept).filter(|(_, k)| **k).flat_map(|(e, _)| e.to_vec()).collect();
    let count = kept.iter().filter(|k| **k).count();
    Ok(Tensor::new(x.dtype(), &[count], bytes.into())?.aligned())
}

fn repeat_interleave(repeats: &Tensor) -> Result<Tensor, Error> {
    /// More results than this are not a model's.
    const MAX: i64 = 1 << 28;
    let wide = cast(repeats, DType::I64)?;
    let counts = wide.as_slice::<i64>()?;
    let total = counts.iter().try_fold(0i64, |n, &c| n.checked_add(c).filter(|&n| c >= 0 && n <= MAX));
    total.ok_or(Error::Counts(MAX))?;
    let indices: Vec<i64> = counts.iter().enumerate().flat_map(|(i, &c)| std::iter::repeat_n(i as i64, c as usize)).collect();
    Ok(Tensor::from_slice(&indices, &[indices.len()])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Argument, testing::run};

    fn check(target: &str, args: &[Tensor], shape: &[usize], elements: &[f64]) {
        let args: Vec<Argument> = args.iter().cloned().map(Argument::Tensor).collect();
        let found = run(target, &args, &[]).unwrap().remove(0);
        let wide = cast(&found, DType::F64).unwrap();
        assert_eq!((found.shape(), wide.as_slice::<f64>().unwrap()), (shape, elements), "{target}");
    }

    #[test]
    fn the_data_decides_how_much_comes_out() {
        let x = Tensor::from_slice(&[0.0f32, 3.0, -1.0, 0.0], &[2, 2]).unwrap();
        check("aten.nonzero.default", std::slice::from_ref(&x), &[2, 2], &[0.0, 1.0, 1.0, 0.0]);
        check("aten.nonzero.default", &[Tensor::scalar(5i64)], &[1, 0], &[]);
        let mask = Tensor::from_slice(&[1u8, 0], &[2]).unwrap();
        check("aten.masked_select.default", &[x, mask], &[2], &[0.0, -1.0]);
        let repeats = Tensor::from_slice(&[2i32, 0, 1], &[3]).unwrap();
        check("aten.repeat_interleave.Tensor", &[repeats], &[3], &[0.0, 0.0, 2.0]);
        let bad = Argument::Tensor(Tensor::from_slice(&[-1i64], &[1]).unwrap());
        assert!(run("aten.repeat_interleave.Tensor", &[bad], &[]).is_err());
    }
}
