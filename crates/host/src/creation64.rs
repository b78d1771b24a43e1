//! 64-bit floats made from numbers or narrower tensors, and operations on them: ranges, fills,
//! products, choices, order.

use flambeau_tensor::Tensor;

use crate::{
    Call, Error, For, Kernel,
    arrays::{broadcast, common_shape},
    call::Argument,
    float64::{floats, larger, tensor_of},
};

type Results = Result<Vec<Tensor>, Error>;

pub(crate) const KERNELS: &[Kernel] = &[
    float64("aten::addmm", addmm),
    float64("aten::all", |call| call.fold(|line| truth(line.iter().all(|&v| v != 0.0)))),
    float64("aten::any", |call| call.fold(|line| truth(line.iter().any(|&v| v != 0.0)))),
    float64("aten::arange", arange),
    float64("aten::argmax", |call| extreme_index(call, larger)),
    float64("aten::argmin", |call| extreme_index(call, smaller)),
    float64("aten::bmm", |call| product(call, "self", "mat2")),
    float64("aten::clamp", clamp),
    float64("aten::clamp_max", clamp),
    float64("aten::clamp_min", clamp),
    float64("aten::cumprod", |call| call.along(cumprod)),
    float64("aten::deg2rad", |call| call.each(f64::to_radians)),
    float64("aten::exp2", |call| call.each(f64::exp2)),
    float64("aten::float_power", |call| call.pairs(f64::powf)),
    float64("aten::frac", |call| call.each(f64::fract)),
    float64("aten::full", |call| filled(call, "fill_value")),
    float64("aten::full_like", |call| filled(call, "fill_value")),
    float64("aten::isfinite", |call| call.each(|x| truth(x.is_finite()))),
    float64("aten::linspace", |call| line(call, |x| x)),
    float64("aten::logical_and", |call| call.pairs(|a, b| truth(a != 0.0 && b != 0.0))),
    float64("aten::logical_or", |call| call.pairs(|a, b| truth(a != 0.0 || b != 0.0))),
    float64("aten::logical_xor", |call| call.pairs(|a, b| truth((a != 0.0) != (b != 0.0)))),
    float64("aten::logspace", |call| {
        let base = call.number_or("base", 10.0)?;
        line(call, |x| base.powf(x))
    }),
    float64("aten::logsumexp", |call| call.fold(logsumexp)),
    float64("aten::masked_fill", masked_fill),
    float64("aten::matmul", |call| product(call, "self", "other")),
    float64("aten::mm", |call| product(call, "self", "mat2")),
    float64("aten::new_full", |call| filled(call, "fill_value")),
    float64("aten::new_ones", ones),
    float64("aten::new_zeros", zeros),
    float64("aten::ones", ones),
    float64("aten::ones_like", ones),
    float64("aten::rad2deg", |call| call.each(f64::to_degrees)),
    float64("aten::scalar_tensor", |call| tensor_of(&[call.number("s")?], &[])),
    float64("aten::silu", |call| call.each(|x| x / (1.0 + (-x).exp()))),
    float64("aten::std", |call| spread(call, f64::sqrt)),
    float64("aten::var", |call| spread(call, |x| x)),
    float64("aten::zeros", zeros),
    float64("aten::zeros_like", zeros),
];

const fn float64(name: &'static str, run: fn(&Call<'_>) -> Results) -> Kernel {
    Kernel::new(name, run).on(For::Float64)
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn smaller(a: f64, b: f64) -> f64 {
    -larger(-a, -b)
}

/// The sizes of a new tensor: the call's sizes, else its operand's sizes.
fn sizes(call: &Call<'_>) -> Result<Vec<usize>, Error> {
    match call.arg("size") {
        Some(Argument::Ints(list)) => Ok(list.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect()),
        _ => Ok(call.tensor("self")?.shape().to_vec()),
    }
}

fn fill(call: &Call<'_>, value: f64) -> Results {
    let shape = sizes(call)?;
    tensor_of(&vec![value; shape.iter().product()], &shape)
}

fn filled(call: &Call<'_>, param: &'static str) -> Results {
    fill(call, call.number(param)?)
}

fn zeros(call: &Call<'_>) -> Results {
    fill(call, 0.0)
}

fn ones(call: &Call<'_>) -> Results {
    fill(call, 1.0)
}

fn arange(call: &Call<'_>) -> Results {
    let (start, end, step) = (call.number_or("start", 0.0)?, call.number("end")?, call.number_or("step", 1.0)?);
    let count = ((end - start) / step).ceil().max(0.0) as usize;
    let values: Vec<f64> = (0..count).map(|i| start + i as f64 * step).collect();
    tensor_of(&values, &[count])
}

/// Points of a line, counted from the nearer end.
fn line(call: &Call<'_>, f: impl Fn(f64) -> f64) -> Results {
    let end_of = |name: &'static str| -> Result<f64, Error> {
        match call.arg(name) {
            Some(Argument::Tensor(_)) => Ok(floats(&call.operand(name)?)?.first().copied().unwrap_or(0.0)),
            _ => call.number(name),
        }
    };
    let (start, end, steps) = (end_of("start")?, end_of("end")?, call.number("steps")?.max(0.0) as usize);
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let point = |i: usize| if i < steps / 2 || steps == 1 { start + step * i as f64 } else { end - step * (steps - 1 - i) as f64 };
    tensor_of(&(0..steps).map(|i| f(point(i))).collect::<Vec<_>>(), &[steps])
}

fn clamp(call: &Call<'_>) -> Results {
    let mut x = call.operand("self")?;
    for (name, choose) in [("min", larger as fn(f64, f64) -> f64), ("max", smaller)] {
        if call.arg(name).is_some() {
            x = joined(&x, &call.operand(name)?, choose)?;
        }
    }
    Ok(vec![x])
}

/// A function of two tensors that broadcast.
fn joined(a: &Tensor, b: &Tensor, f: impl Fn(f64, f64) -> f64) -> Result<Tensor, Error> {
    let shape = common_shape(a.shape(), b.shape())?;
    let (a, b) = (broadcast(a, &shape)?, broadcast(b, &shape)?);
    let values: Vec<f64> = floats(&a)?.iter().zip(floats(&b)?).map(|(&a, &b)| f(a, b)).collect();
    Ok(Tensor::from_slice(&values, &shape)?)
}

fn masked_fill(call: &Call<'_>) -> Results {
    let (x, mask, value) = (call.operand("self")?, call.operand("mask")?, call.operand("value")?);
    let value = floats(&value)?.first().copied().unwrap_or(0.0);
    Ok(vec![joined(&x, &mask, |x, masked| if masked == 0.0 { x } else { value })?])
}

fn cumprod(line: &[f64]) -> Vec<f64> {
    let multiply = |total: &mut f64, v: &f64| {
        *total *= v;
        Some(*total)
    };
    line.iter().scan(1.0, multiply).collect()
}

fn logsumexp(line: &[f64]) -> f64 {
    let most = line.iter().copied().fold(f64::NEG_INFINITY, larger);
    if most.is_infinite() { most } else { line.iter().map(|v| (v - most).exp()).sum::<f64>().ln() + most }
}

/// The index of the first best element, as `better` chooses between two elements. NaN is best.
fn extreme_index(call: &Call<'_>, better: fn(f64, f64) -> f64) -> Results {
    call.fold(|line| {
        let mut best = 0;
        for (i, &v) in line.iter().enumerate() {
            let stays = line[best].is_nan() || v == line[best] || better(line[best], v) == line[best];
            best = if stays { best } else { i };
        }
        best as f64
    })
}

/// The variance with its divisor corrected, and a function of it.
fn spread(call: &Call<'_>, f: impl Fn(f64) -> f64) -> Results {
    let unbiased = !matches!(call.arg("unbiased"), Some(Argument::Bool(false)));
    let correction = call.number_or("correction", truth(unbiased))?;
    call.fold(|line| {
        let n = line.len() as f64;
        let mean = line.iter().sum::<f64>() / n;
        f(line.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - correction).max(0.0))
    })
}

/// The product of matrices `[.., M, K]` and `[.., K, N]`, whose leading axes broadcast; a vector
/// lacks its own axis.
fn product(call: &Call<'_>, left: &'static str, right: &'static str) -> Results {
    let (a, b) = (call.operand(left)?, call.operand(right)?);
    Ok(vec![matrices(&a, &b)?])
}

fn matrices(a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
    let (is_row, is_column) = (a.rank() == 1, b.rank() == 1);
    let a = if is_row { a.reshape(&[1, a.numel()])? } else { a.clone() };
    let b = if is_column { b.reshape(&[b.numel(), 1])? } else { b.clone() };
    let (lead_a, [m, k]) = split(a.shape())?;
    let (lead_b, [k_b, n]) = split(b.shape())?;
    if k != k_b {
        return Err(Error::Broadcast { from: a.shape().to_vec(), to: b.shape().to_vec() });
    }
    let lead = common_shape(lead_a, lead_b)?;
    let (a, b) = (broadcast(&a, &[&lead[..], &[m, k]].concat())?, broadcast(&b, &[&lead[..], &[k, n]].concat())?);
    let (x, y) = (floats(&a)?, floats(&b)?);
    let mut values = Vec::with_capacity(lead.iter().product::<usize>() * m * n);
    for at in 0..lead.iter().product::<usize>() {
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let terms = (0..k).map(|i| x[(at * m + row) * k + i] * y[(at * k + i) * n + column]);
            values.push(terms.sum::<f64>());
        }
    }
    let mut shape = lead;
    shape.extend((!is_row).then_some(m));
    shape.extend((!is_column).then_some(n));
    Ok(Tensor::from_slice(&values, &shape)?)
}

/// Leading axes and the sizes of a matrix.
fn split(shape: &[usize]) -> Result<(&[usize], [usize; 2]), Error> {
    match shape {
        [lead @ .., m, k] => Ok((lead, [*m, *k])),
        _ => Err(Error::Broadcast { from: shape.to_vec(), to: vec![0, 0] }),
    }
}

fn addmm(call: &Call<'_>) -> Results {
    let (beta, alpha) = (call.number_or("beta", 1.0)?, call.number_or("alpha", 1.0)?);
    let product = matrices(&call.operand("mat1")?, &call.operand("mat2")?)?;
    Ok(vec![joined(&call.operand("self")?, &product, |bias, p| beta * bias + alpha * p)?])
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

    use super::*;
    use crate::call::testing::run;

    fn check(target: &str, args: &[Argument], shape: &[usize], expected: &[f64]) {
        let found = run(target, args, &[DType::F64]).unwrap_or_else(|e| panic!("{target}: {e}")).remove(0);
        assert_eq!((found.shape(), found.as_slice::<f64>().unwrap()), (shape, expected), "{target}");
    }

    #[test]
    fn numbers_become_tensors_of_64_bits() {
        let narrow = Argument::Tensor(Tensor::from_slice(&[2.0f32, -1.0], &[2]).unwrap());
        let (int, float) = (Argument::Int, Argument::Float);
        check("aten.full.default", &[Argument::Ints(vec![2]), float(0.1)], &[2], &[0.1, 0.1]);
        check("aten.full_like.default", &[narrow.clone(), float(0.1)], &[2], &[0.1, 0.1]);
        check("aten.new_zeros.default", &[narrow.clone(), Argument::Ints(vec![1, 1])], &[1, 1], &[0.0]);
        check("aten.arange.start_step", &[float(0.5), int(2), float(0.5)], &[3], &[0.5, 1.0, 1.5]);
        check("aten.linspace.default", &[int(0), float(0.3), int(4)], &[4], &[0.0, 0.3 / 3.0, 0.3 - 0.3 / 3.0, 0.3]);
        check("aten.float_power.Tensor_Scalar", &[narrow, float(3.0)], &[2], &[8.0, -1.0]);
    }

    #[test]
    fn lines_and_products_are_in_64_bits() {
        let x = Argument::Tensor(Tensor::from_slice(&[1.0, 4.0, 2.0, 3.0f64], &[2, 2]).unwrap());
        check("aten.mm.default", &[x.clone(), x.clone()], &[2, 2], &[9.0, 16.0, 8.0, 17.0]);
        check("aten.argmax.default", &[x.clone(), Argument::Int(0)], &[2], &[1.0, 0.0]);
        check("aten.clamp.default", &[x.clone(), Argument::Float(1.5), Argument::Int(3)], &[2, 2], &[1.5, 3.0, 2.0, 3.0]);
        check("aten.var.correction", &[x, Argument::None, Argument::Int(0)], &[], &[1.25]);
    }
}
