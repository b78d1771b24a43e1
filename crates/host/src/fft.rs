//! Fourier transforms, computed in 64-bit floats.

use flambeau_tensor::{DType, Tensor, cast, normalize_axis};
use rustfft::{Fft, FftPlanner, num_complex::Complex64};

use crate::{Argument, Call, Error, Kernel, complex};

mod short_time;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::_fft_c2c", |call| planned(call, Kind::Complex, call.flag("forward"))),
    Kernel::new("aten::_fft_c2r", |call| planned(call, Kind::ToReal, false)),
    Kernel::new("aten::_fft_r2c", |call| planned(call, if call.flag("onesided") { Kind::FromReal } else { Kind::Complex }, true)),
    Kernel::new("aten::fft_fft", |call| transform(call, Kind::Complex, true)),
    Kernel::new("aten::fft_fft2", |call| transform(call, Kind::Complex, true)),
    Kernel::new("aten::fft_fftn", |call| transform(call, Kind::Complex, true)),
    Kernel::new("aten::fft_hfft", |call| transform(call, Kind::ToReal, true)),
    Kernel::new("aten::fft_hfft2", |call| transform(call, Kind::ToReal, true)),
    Kernel::new("aten::fft_hfftn", |call| transform(call, Kind::ToReal, true)),
    Kernel::new("aten::fft_ifft", |call| transform(call, Kind::Complex, false)),
    Kernel::new("aten::fft_ifft2", |call| transform(call, Kind::Complex, false)),
    Kernel::new("aten::fft_ifftn", |call| transform(call, Kind::Complex, false)),
    Kernel::new("aten::fft_ihfft", |call| transform(call, Kind::FromReal, false)),
    Kernel::new("aten::fft_ihfft2", |call| transform(call, Kind::FromReal, false)),
    Kernel::new("aten::fft_ihfftn", |call| transform(call, Kind::FromReal, false)),
    Kernel::new("aten::fft_irfft", |call| transform(call, Kind::ToReal, false)),
    Kernel::new("aten::fft_irfft2", |call| transform(call, Kind::ToReal, false)),
    Kernel::new("aten::fft_irfftn", |call| transform(call, Kind::ToReal, false)),
    Kernel::new("aten::fft_rfft", |call| transform(call, Kind::FromReal, true)),
    Kernel::new("aten::fft_rfft2", |call| transform(call, Kind::FromReal, true)),
    Kernel::new("aten::fft_rfftn", |call| transform(call, Kind::FromReal, true)),
    Kernel::new("aten::istft", short_time::inverse),
    Kernel::new("aten::stft", short_time::forward),
];

type Results = Result<Vec<Tensor>, Error>;

/// Which sides of a transform are real. The frequencies of real numbers are stored up to the middle
/// of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Complex,
    FromReal,
    ToReal,
}

/// A transform over some axes: the number of points of each.
#[derive(Clone, Debug)]
struct Plan {
    kind: Kind,
    forward: bool,
    /// Axis and number of points, the halved axis last.
    axes: Vec<(usize, usize)>,
    scale: f64,
}

/// Complex numbers with a shape.
#[derive(Clone, Debug)]
struct Field {
    values: Vec<Complex64>,
    shape: Vec<usize>,
}

impl Field {
    fn of(x: &Tensor) -> Result<Field, Error> {
        Ok(Field { values: complex::numbers(x)?, shape: x.shape().to_vec() })
    }

    fn inner(&self, axis: usize) -> usize {
        self.shape[axis + 1..].iter().product()
    }

    /// Cuts an axis, or continues it with zeros.
    fn resize(&mut self, axis: usize, size: usize) {
        let (old, inner) = (self.shape[axis], self.inner(axis));
        if old == size {
            return;
        }
        let mut values = Vec::with_capacity(self.values.len() / old.max(1) * size);
        let outer: usize = self.shape[..axis].iter().product();
        for block in 0..outer {
            let own = &self.values[block * old * inner..(block + 1) * old * inner];
            values.extend_from_slice(&own[..old.min(size) * inner]);
            values.resize(values.len() + size.saturating_sub(old) * inner, Complex64::default());
        }
        (self.values, self.shape[axis]) = (values, size);
    }

    /// Transforms every line of an axis.
    fn transform(&mut self, axis: usize, fft: &dyn Fft<f64>) {
        let stride = self.inner(axis);
        let mut line = vec![Complex64::default(); fft.len()];
        let mut scratch = vec![Complex64::default(); fft.get_inplace_scratch_len()];
        for block in self.values.chunks_exact_mut((fft.len() * stride).max(1)) {
            if stride == 1 {
                fft.process_with_scratch(block, &mut scratch);
                continue;
            }
            for first in 0..stride {
                let elements = block[first..].iter().step_by(stride);
                line.iter_mut().zip(elements).for_each(|(to, from)| *to = *from);
                fft.process_with_scratch(&mut line, &mut scratch);
                let elements = block[first..].iter_mut().step_by(stride);
                elements.zip(&line).for_each(|(to, from)| *to = *from);
            }
        }
    }

    /// Adds the second half of an axis to the frequencies of real numbers.
    fn complete(&mut self, axis: usize, points: usize) {
        self.resize(axis, points / 2 + 1);
        let (half, inner) = (points / 2 + 1, self.inner(axis));
        self.resize(axis, points.max(half));
        for block in self.values.chunks_exact_mut((points.max(half) * inner).max(1)) {
            for k in half..points {
                for i in 0..inner {
                    block[k * inner + i] = block[(points - k) * inner + i].conj();
                }
            }
        }
        self.resize(axis, points);
    }
}

impl Plan {
    fn run(&self, x: &Tensor) -> Result<Field, Error> {
        let mut field = Field::of(x)?;
        let Some((&(last, points), others)) = self.axes.split_last() else { return Ok(field) };
        if self.axes.iter().any(|(_, n)| *n == 0) {
            return Err(Error::NoPoints);
        }
        let mut planner = FftPlanner::new();
        let mut plan = |n| if self.forward { planner.plan_fft_forward(n) } else { planner.plan_fft_inverse(n) };
        for &(axis, n) in others {
            field.resize(axis, n);
        }
        if self.kind != Kind::ToReal {
            field.resize(last, points);
            field.transform(last, &*plan(points));
        }
        if self.kind == Kind::FromReal {
            field.resize(last, points / 2 + 1);
        }
        for &(axis, n) in others {
            field.transform(axis, &*plan(n));
        }
        if self.kind == Kind::ToReal {
            field.complete(last, points);
            field.transform(last, &*plan(points));
        }
        if self.scale != 1.0 {
            field.values.iter_mut().for_each(|z| *z *= self.scale);
        }
        Ok(field)
    }

    fn tensor(&self, field: &Field, call: &Call<'_>) -> Results {
        if self.kind == Kind::ToReal {
            let values: Vec<f64> = field.values.iter().map(|z| z.re).collect();
            return Ok(vec![Tensor::from_slice(&values, &field.shape)?]);
        }
        Ok(vec![complex::tensor_of(&field.values, &field.shape, call.complex_result())?])
    }
}

/// The transforms of `torch.fft`, with `n` or `s`, `dim` and `norm`.
fn transform(call: &Call<'_>, kind: Kind, forward: bool) -> Results {
    let x = call.tensor("self")?;
    let axes = axes(call, x, kind)?;
    let points: f64 = axes.iter().map(|(_, n)| *n as f64).product();
    let scale = match (call.text("norm").unwrap_or("backward"), forward) {
        ("ortho", _) => 1.0 / points.sqrt(),
        ("backward", false) | ("forward", true) => 1.0 / points,
        ("backward" | "forward", _) => 1.0,
        _ => return Err(Error::Argument { name: "norm", found: "another string", expected: "`forward`, `backward` or `ortho`" }),
    };
    let plan = Plan { kind, forward, axes, scale };
    plan.tensor(&plan.run(x)?, call)
}

/// The axes of a transform, with the number of points of each.
fn axes(call: &Call<'_>, x: &Tensor, kind: Kind) -> Result<Vec<(usize, usize)>, Error> {
    let rank = x.rank();
    let given: Option<Vec<i64>> = match (call.arg("n"), call.arg("s")) {
        (Some(Argument::Int(n)), _) => Some(vec![*n]),
        (_, Some(Argument::Ints(s))) => Some(s.clone()),
        _ => None,
    };
    let dims = match (call.arg("dim"), &given) {
        (None, Some(s)) => (rank.saturating_sub(s.len())..rank).collect(),
        (None, None) => (0..rank).collect(),
        (Some(_), _) => call.listed_axes(rank)?,
    };
    let count = dims.len();
    let points = |(i, axis): (usize, usize)| {
        let wanted = given.as_ref().and_then(|s| s.get(i)).and_then(|&n| usize::try_from(n).ok());
        let halved = kind == Kind::ToReal && i + 1 == count;
        let usual = || if halved { 2 * x.shape()[axis].saturating_sub(1) } else { x.shape()[axis] };
        (axis, wanted.unwrap_or_else(usual))
    };
    Ok(dims.into_iter().enumerate().map(points).collect())
}

/// The transforms that decompositions end in, with their numbered normalization.
fn planned(call: &Call<'_>, kind: Kind, forward: bool) -> Results {
    let x = call.tensor("self")?;
    let dims = call.ints("dim")?;
    let rank = x.rank();
    let mut axes = Vec::with_capacity(dims.len());
    for &axis in &dims {
        let axis = normalize_axis(axis, rank).ok_or(Error::Axis { axis, rank })?;
        axes.push((axis, x.shape()[axis]));
    }
    if let (Kind::ToReal, Some((_, last))) = (kind, axes.last_mut()) {
        *last = call.number("last_dim_size")? as usize;
    }
    let points: f64 = axes.iter().map(|(_, n)| *n as f64).product();
    if points == 0.0 {
        return Err(Error::NoPoints);
    }
    let scale = match call.number("normalization")? {
        0.0 => 1.0,
        1.0 => 1.0 / points.sqrt(),
        2.0 => 1.0 / points,
        other => return Err(Error::Normalization(other)),
    };
    let plan = Plan { kind, forward, axes, scale };
    plan.tensor(&plan.run(x)?, call)
}

/// Real numbers in 64 bits.
fn reals(x: &Tensor) -> Result<Vec<f64>, Error> {
    Ok(cast(x, DType::F64)?.as_slice::<f64>()?.to_vec())
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;
    use crate::call::testing::run;

    /// Each element by the definition of the transform over one axis of a matrix.
    fn defined(x: &Field, axis: usize, forward: bool) -> Vec<Complex64> {
        let (n, cols) = (x.shape[axis], x.shape[1]);
        let turn = if forward { -TAU } else { TAU } / n as f64;
        let one = |i: usize| {
            let (row, col) = (i / cols, i % cols);
            let place = |k: usize| if axis == 0 { k * cols + col } else { row * cols + k };
            let own = if axis == 0 { row } else { col };
            (0..n).map(|k| x.values[place(k)] * Complex64::from_polar(1.0, turn * (k * own) as f64)).sum()
        };
        (0..x.values.len()).map(one).collect()
    }

    fn close(found: &[Complex64], expected: &[Complex64]) {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).for_each(|(a, b)| assert!((a - b).norm() < 1e-5, "{found:?} instead of {expected:?}"));
    }

    fn matrix() -> Tensor {
        Tensor::from_slice(&[1.0f32, -2.0, 0.5, 4.0, 3.0, 0.0, -1.0, 2.5, -0.75, 1.5], &[2, 5]).unwrap()
    }

    #[test]
    fn transforms_are_those_of_the_definition() {
        let x = matrix();
        let all = |dim: i64, target: &str| {
            let args = [Argument::Tensor(x.clone()), Argument::None, Argument::Int(dim), Argument::None];
            complex::numbers(&run(target, &args, &[DType::C64]).unwrap()[0]).unwrap()
        };
        let field = Field::of(&x).unwrap();
        close(&all(1, "aten.fft_fft.default"), &defined(&field, 1, true));
        close(&all(-2, "aten.fft_fft.default"), &defined(&field, 0, true));
        let inverse: Vec<Complex64> = defined(&field, 1, false).into_iter().map(|z| z / 5.0).collect();
        close(&all(1, "aten.fft_ifft.default"), &inverse);
        let half: Vec<Complex64> = defined(&field, 1, true).chunks(5).flat_map(|row| row[..3].to_vec()).collect();
        close(&all(1, "aten.fft_rfft.default"), &half);
    }

    #[test]
    fn transforms_back_give_the_real_numbers_again() {
        let x = matrix();
        for (there, back) in
            [("aten.fft_rfftn.default", "aten.fft_irfftn.default"), ("aten.fft_ihfftn.default", "aten.fft_hfftn.default")]
        {
            let args = [Argument::Tensor(x.clone()), Argument::None, Argument::None, Argument::Str("ortho".to_owned())];
            let half = run(there, &args, &[DType::C64]).unwrap().remove(0);
            assert_eq!(half.shape(), [2, 3]);
            let args = [Argument::Tensor(half), Argument::Ints(vec![2, 5]), Argument::None, Argument::Str("ortho".to_owned())];
            let found = run(back, &args, &[DType::F32]).unwrap().remove(0);
            let numbers = complex::numbers(&found).unwrap();
            close(&numbers, &complex::numbers(&x).unwrap());
        }
    }

    #[test]
    fn sizes_cut_and_continue_axes_and_no_points_are_an_error() {
        let x = matrix();
        let sized =
            |n: i64| run("aten.fft_fft.default", &[Argument::Tensor(x.clone()), Argument::Int(n), Argument::Int(0)], &[DType::C64]);
        assert_eq!(sized(3).unwrap()[0].shape(), [3, 5]);
        close(&complex::numbers(&sized(1).unwrap()[0]).unwrap(), &complex::numbers(&x).unwrap()[..5]);
        assert!(matches!(sized(0), Err(Error::NoPoints)));
    }
}
