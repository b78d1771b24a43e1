use half::{bf16, f16};

use crate::{
    Float, Pool, View, ViewMut,
    elementwise::unary,
    math::{Unary, unary_in_place},
    testing::isas,
};

fn exact(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        Unary::GeluTanh => {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * y).exp())
        }
        Unary::Erf => libm::erf(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Square => x * x,
        Unary::Tan => x.tan(),
        Unary::Arcsin => x.asin(),
        Unary::Arccos => x.acos(),
        Unary::Arctan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Arcsinh => x.asinh(),
        Unary::Arccosh => x.acosh(),
        Unary::Arctanh => x.atanh(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Log1p => x.ln_1p(),
        Unary::Expm1 => x.exp_m1(),
    }
}

fn ulp(y: f64) -> f64 {
    let y = (y.abs() as f32).clamp(f32::MIN_POSITIVE, f32::MAX);
    f64::from(f32::from_bits(y.to_bits() + 1)) - f64::from(y)
}

fn check(pool: &Pool, op: Unary, inputs: &[f32]) {
    let mut out = inputs.to_vec();
    unary_in_place(pool, op, &mut out);
    let slack = if pool.isa() == crate::IsaKind::Portable { 1.0 } else { 0.0 };
    for (&x, &found) in inputs.iter().zip(&out) {
        let e = exact(op, f64::from(x));
        if e.is_nan() || found.is_nan() {
            assert!(e.is_nan() && found.is_nan(), "{op:?}({x}) is {found} instead of {e}");
            continue;
        }
        if (e as f32).is_infinite() || found.is_infinite() {
            assert!(e as f32 == found, "{op:?}({x}) is {found} instead of {e}");
            continue;
        }
        let (ulps, absolute) = op.bound(f64::from(x));
        let ulps = if ulps > 0.5 { ulps + slack } else { ulps };
        let error = (f64::from(found) - e).abs();
        let units = (error - absolute) / ulp(e);
        assert!(units <= ulps, "{:?} {op:?}({x}) is {found} instead of {e}: {units} units", pool.isa());
    }
}

#[test]
fn functions_keep_their_bounds_on_all_half_inputs() {
    let f16s: Vec<f32> = (0..=u16::MAX).map(|b| Float::to_f32(f16::from_bits(b))).collect();
    let bf16s: Vec<f32> = (0..=u16::MAX).map(|b| Float::to_f32(bf16::from_bits(b))).collect();
    for pool in isas() {
        for &op in Unary::ALL {
            check(&pool, op, &f16s);
            check(&pool, op, &bf16s);
        }
    }
}

#[test]
fn functions_keep_their_bounds_between_half_inputs() {
    // Every 40 961st bit pattern, with low mantissa bits set as no half has them.
    let inputs: Vec<f32> = (0..u32::MAX / 40_961).map(|i| f32::from_bits(i * 40_961)).collect();
    for pool in isas() {
        for op in
            [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sigmoid, Unary::Silu, Unary::Gelu, Unary::Erf, Unary::Sin, Unary::Cos]
        {
            check(&pool, op, &inputs);
        }
    }
}

#[test]
fn halves_round_once() {
    let x: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let mut out = vec![bf16::ZERO; x.len()];
    let view = View::contiguous(&x, &[x.len()]).unwrap();
    unary(&Pool::new(2), Unary::Exp, &view, &mut ViewMut::contiguous(&mut out, &[65536]).unwrap()).unwrap();
    for (x, y) in x.iter().zip(&out) {
        let expected = bf16::from_f64(x.to_f64().exp());
        let near = (i32::from(expected.to_bits()) - i32::from(y.to_bits())).abs() <= 1;
        assert!(near || (expected.is_nan() && y.is_nan()), "exp({x}) is {y} instead of {expected}");
    }
}
