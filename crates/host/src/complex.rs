//! Kernels on complex numbers, which graphs do not have.

use flambeau_tensor::{DType, Tensor, cast};
use rustfft::{Fft, FftPlanner, num_complex::Complex32};

use crate::{Call, Error, For, Kernel};

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::_fft_r2c", |call| Ok(vec![call.real_fft(call.tensor("self")?)?])),
    Kernel::new("aten::abs", |call| Ok(vec![magnitudes(call.tensor("self")?)?])).on(For::Complex),
    Kernel::new("aten::view_as_real", |call| Ok(vec![parts(call.tensor("self")?)?])),
    Kernel::new("aten::view_as_real_copy", |call| Ok(vec![parts(call.tensor("self")?)?])),
];

impl Call<'_> {
    /// The Fourier transform of real numbers over `dim`. With `onesided`, the last of these axes keeps the half of its frequencies from
    /// which the others follow.
    fn real_fft(&self, x: &Tensor) -> Result<Tensor, Error> {
        let axes = self.listed_axes(x.rank())?;
        let points: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
        let Some(&last) = axes.last().filter(|_| points > 0) else { return Err(Error::NoPoints) };
        let scale = match self.number("normalization")? {
            0.0 => 1.0,
            1.0 => 1.0 / (points as f32).sqrt(),
            2.0 => 1.0 / points as f32,
            other => return Err(Error::Normalization(other)),
        };
        let mut values: Vec<Complex32> = cast(x, DType::F32)?.as_slice()?.iter().map(|&re| Complex32::new(re, 0.0)).collect();
        let mut planner = FftPlanner::new();
        for &axis in &axes {
            let fft = planner.plan_fft_forward(x.shape()[axis]);
            transform(&mut values, x.shape()[axis + 1..].iter().product(), &*fft);
        }
        let mut shape = x.shape().to_vec();
        if self.flag("onesided") {
            let (all, inner) = (shape[last], shape[last + 1..].iter().product::<usize>());
            shape[last] = all / 2 + 1;
            let kept = shape[last] * inner;
            values = values.chunks_exact((all * inner).max(1)).flat_map(|block| &block[..kept]).copied().collect();
        }
        let parts: Vec<f32> = values.iter().flat_map(|z| [z.re * scale, z.im * scale]).collect();
        let parts = Tensor::from_slice(&parts, &[values.len(), 2])?;
        Ok(Tensor::new(DType::C64, &shape, parts.bytes().clone())?)
    }
}

/// Transforms every line of an axis, whose elements are `stride` apart.
fn transform(values: &mut [Complex32], stride: usize, fft: &dyn Fft<f32>) {
    let mut line = vec![Complex32::default(); fft.len()];
    let mut scratch = vec![Complex32::default(); fft.get_inplace_scratch_len()];
    for block in values.chunks_exact_mut((fft.len() * stride).max(1)) {
        for first in 0..stride {
            let elements = block[first..].iter().step_by(stride);
            line.iter_mut().zip(elements).for_each(|(to, from)| *to = *from);
            fft.process_with_scratch(&mut line, &mut scratch);
            let elements = block[first..].iter_mut().step_by(stride);
            elements.zip(&line).for_each(|(to, from)| *to = *from);
        }
    }
}

/// Real and imaginary parts along a new last axis of two.
fn parts(x: &Tensor) -> Result<Tensor, Error> {
    if x.dtype() != DType::C64 {
        return Err(Error::NotComplex(x.dtype()));
    }
    let shape: Vec<usize> = x.shape().iter().copied().chain([2]).collect();
    Ok(Tensor::new(DType::F32, &shape, x.bytes().clone())?.aligned())
}

fn magnitudes(x: &Tensor) -> Result<Tensor, Error> {
    let parts = parts(x)?;
    let magnitudes: Vec<f32> = parts.as_slice::<f32>()?.chunks_exact(2).map(|z| z[0].hypot(z[1])).collect();
    Ok(Tensor::from_slice(&magnitudes, x.shape())?)
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;
    use crate::call::{Argument, testing::run};

    /// Real and imaginary parts of a transform over `axis` of a matrix.
    fn transformed(x: &Tensor, axis: i64, normalization: i64, onesided: bool) -> Tensor {
        let (axes, normalization) = (Argument::Ints(vec![axis]), Argument::Int(normalization));
        let args = [Argument::Tensor(x.clone()), axes, normalization, Argument::Bool(onesided)];
        parts(&run("aten._fft_r2c.default", &args, &[DType::C64]).unwrap()[0]).unwrap()
    }

    #[test]
    fn transforms_are_those_of_the_definition() {
        let x = Tensor::from_slice(&[1.0f32, -2.0, 0.5, 4.0, 3.0, 0.0, -1.0, 2.5, -0.75, 1.5], &[2, 5]).unwrap();
        let at = |row: usize, column: usize| f64::from(x.as_slice::<f32>().unwrap()[5 * row + column]);
        let check = |found: Tensor, shape: [usize; 3], scale: f64, defined: &dyn Fn(usize, usize) -> [f64; 2]| {
            assert_eq!(found.shape(), shape);
            for (i, z) in found.as_slice::<f32>().unwrap().chunks_exact(2).enumerate() {
                let expected = defined(i / shape[1], i % shape[1]);
                let off = (0..2).map(|k| (f64::from(z[k]) - scale * expected[k]).abs()).fold(0.0, f64::max);
                assert!(off < 1e-5, "{i}: {z:?} instead of {expected:?}");
            }
        };
        let wave = |turns: f64| [(TAU * turns).cos(), -(TAU * turns).sin()];
        let sum = |terms: Vec<(f64, [f64; 2])>| terms.iter().fold([0.0; 2], |s, (x, w)| [s[0] + x * w[0], s[1] + x * w[1]]);
        let rows = |row, k: usize| sum((0..5).map(|n| (at(row, n), wave((n * k) as f64 / 5.0))).collect());
        let columns = |k: usize, column| sum((0..2).map(|n| (at(n, column), wave((n * k) as f64 / 2.0))).collect());
        check(transformed(&x, -1, 0, false), [2, 5, 2], 1.0, &rows);
        check(transformed(&x, 1, 2, true), [2, 3, 2], 0.2, &rows);
        check(transformed(&x, 0, 1, true), [2, 5, 2], 0.5f64.sqrt(), &columns);
    }

    #[test]
    fn magnitudes_are_lengths_and_empty_transforms_errors() {
        let z = Tensor::from_slice(&[3.0f32, -4.0, 0.0, 2.0], &[2, 2]).unwrap();
        let z = Tensor::new(DType::C64, &[2], z.bytes().clone()).unwrap();
        let of = |target, x: &Tensor| run(target, &[Argument::Tensor(x.clone())], &[DType::F32]).map(|mut made| made.remove(0));
        assert_eq!(of("aten.abs.default", &z).unwrap().as_slice::<f32>().unwrap(), [5.0, 2.0]);
        assert_eq!(of("aten.view_as_real.default", &z).unwrap().shape(), [2, 2]);
        let nothing = [Argument::Tensor(Tensor::zeros(DType::F32, &[2, 0]).unwrap()), Argument::Ints(vec![1]), Argument::Int(0)];
        assert!(matches!(run("aten._fft_r2c.default", &nothing, &[DType::C64]), Err(Error::NoPoints)));
    }
}
