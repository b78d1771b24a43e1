//! The functions themselves, each written once over an [`Isa`].

use super::Unary;
use crate::simd::Isa;

/// Applies a function to a block in one of four ways: to whole vectors, to the block, or to one
/// element after the other, in `f32` or `f64`. A macro calls the function by its path. As a value
/// it would be called through code without the instruction set, which inlines no vector
/// instruction.
macro_rules! on_block {
    (by_vectors, $isa:expr, $block:expr, $function:path) => {
        for i in (0..64).step_by(I::LANES) {
            let p = $block[i..].as_mut_ptr();
            // SAFETY: the block's length is a multiple of LANES.
            unsafe { $isa.store(p, $function($isa, $isa.load(p))) };
        }
    };
    (by_blocks, $isa:expr, $block:expr, $function:path) => {
        $function($isa, $block)
    };
    (by_elements, $isa:expr, $block:expr, $function:path) => {
        $block.iter_mut().for_each(|x| *x = $function(*x))
    };
    (by_wide_elements, $isa:expr, $block:expr, $function:path) => {
        $block.iter_mut().for_each(|x| *x = $function(f64::from(*x)) as f32)
    };
}
pub(super) use on_block;

/// `op` of one vector.
#[inline(always)]
pub(crate) fn activate<I: Isa>(isa: I, op: Unary, v: I::V) -> I::V {
    match op {
        Unary::Silu => silu(isa, v),
        Unary::Gelu => gelu(isa, v),
        Unary::GeluTanh => gelu_tanh(isa, v),
        Unary::Relu => relu(isa, v),
        Unary::Sigmoid => sigmoid(isa, v),
        Unary::Tanh => tanh(isa, v),
        _ => {
            let mut block = [0.0; 64];
            // SAFETY: a block is longer than a vector.
            unsafe {
                isa.store(block.as_mut_ptr(), v);
                Rare(op, &mut block).apply(isa);
                isa.load(block.as_ptr())
            }
        }
    }
}

struct Rare<'a>(Unary, &'a mut [f32; 64]);

impl Rare<'_> {
    /// Out of line: few products are followed by one of these.
    #[cold]
    #[inline(never)]
    fn apply<I: Isa>(self, isa: I) {
        super::apply(isa, self.0, self.1);
    }
}

#[inline(always)]
pub(super) fn sqrt<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.sqrt(x)
}

/// 1/√x
#[inline(always)]
pub(super) fn rsqrt<I: Isa>(isa: I, x: I::V) -> I::V {
    reciprocal(isa, isa.sqrt(x))
}

/// 1/x
#[inline(always)]
pub(super) fn reciprocal<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.div(isa.splat(1.0), x)
}

/// x·x
#[inline(always)]
pub(super) fn square<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.mul(x, x)
}

/// max(x, 0); NaN stays.
#[inline(always)]
pub(super) fn relu<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.select(isa.lt(x, isa.splat(0.0)), isa.splat(0.0), x)
}

/// Horner's rule, highest power first.
#[inline(always)]
fn polynomial<I: Isa, const N: usize>(isa: I, x: I::V, coefficients: [f32; N]) -> I::V {
    let mut y = isa.splat(coefficients[0]);
    for &c in &coefficients[1..] {
        y = isa.fma(y, x, isa.splat(c));
    }
    y
}

/// eˣ: x = n·ln 2 + r with |r| ≤ ln 2 / 2, then a polynomial in r. Overflows to ∞, keeps NaN.
#[inline(always)]
pub(crate) fn exp<I: Isa>(isa: I, x: I::V) -> I::V {
    let clamped = isa.min(isa.max(x, isa.splat(-104.0)), isa.splat(89.0));
    let n = isa.round(isa.mul(clamped, isa.splat(std::f32::consts::LOG2_E)));
    let r = isa.fma(n, isa.splat(-0.693_359_4), clamped);
    let r = isa.fma(n, isa.splat(2.121_944_4e-4), r);
    let p = polynomial(isa, r, [1.989_100_1e-4, 1.393_366_7e-3, 8.333_31e-3, 4.166_646_3e-2, 0.166_666_67, 0.5]);
    let y = isa.add(isa.splat(1.0), isa.fma(isa.mul(r, r), p, r));
    let y = isa.scale_by_power(y, n);
    isa.select(isa.is_nan(x), x, y)
}

/// ln x: x = 2ⁿ·m with m in [√½, √2), then a polynomial in m − 1.
#[inline(always)]
pub(crate) fn log<I: Isa>(isa: I, x: I::V) -> I::V {
    let tiny = isa.lt(x, isa.splat(f32::MIN_POSITIVE));
    let scaled = isa.select(tiny, isa.mul(x, isa.splat(8_388_608.0)), x);
    let bits = isa.sub_u(isa.bits(scaled), isa.splat_u(0x3f35_04f3));
    // An arithmetic shift by a logical one: a bias keeps the shifted exponent field positive.
    let n = isa.sub_u(isa.shr(isa.add_u(bits, isa.splat_u(128 << 23)), 23), isa.splat_u(128));
    let n = isa.int_to_float(n);
    let m = isa.with_bits(isa.add_u(isa.and(bits, isa.splat_u(0x007f_ffff)), isa.splat_u(0x3f35_04f3)));
    let n = isa.select(tiny, isa.sub(n, isa.splat(23.0)), n);
    let f = isa.sub(m, isa.splat(1.0));
    let p = polynomial(
        isa,
        f,
        [
            0.069_716_12,
            -0.114_797_34,
            0.116_854_2,
            -0.124_256_87,
            0.142_490_58,
            -0.166_678_03,
            0.200_007_16,
            -0.249_999_97,
            0.333_333_3,
        ],
    );
    let square = isa.mul(f, f);
    let y = isa.fma(isa.mul(square, f), p, isa.mul(n, isa.splat(-2.121_944_4e-4)));
    let y = isa.fma(square, isa.splat(-0.5), y);
    let y = isa.fma(n, isa.splat(0.693_359_4), isa.add(f, y));
    let infinite = isa.lt(isa.splat(f32::MAX), x);
    let y = isa.select(infinite, x, y);
    let y = isa.select(isa.lt(x, isa.splat(0.0)), isa.splat(f32::NAN), y);
    let zero = isa.lt(isa.abs(x), isa.splat(1e-45));
    let y = isa.select(zero, isa.splat(f32::NEG_INFINITY), y);
    isa.select(isa.is_nan(x), x, y)
}

/// An odd polynomial near zero, 1 − 2/(e²ˣ+1) elsewhere.
#[inline(always)]
pub(crate) fn tanh<I: Isa>(isa: I, x: I::V) -> I::V {
    let a = isa.abs(x);
    let s = isa.mul(x, x);
    let p = polynomial(isa, s, [2.370_765_7e-3, -8.410_07e-3, 2.178_832_1e-2, -5.396_155_3e-2, 0.133_333_13, -0.333_333_34]);
    let near = isa.fma(isa.mul(x, s), p, x);
    let e = exp(isa, isa.min(isa.add(a, a), isa.splat(40.0)));
    let far = isa.sub(isa.splat(1.0), isa.div(isa.splat(2.0), isa.add(e, isa.splat(1.0))));
    let y = isa.select(isa.lt(a, isa.splat(0.6)), near, isa.copysign(far, x));
    isa.select(isa.is_nan(x), x, y)
}

/// 1/(1+e⁻ˣ), through e^−|x| so that nothing overflows and small results keep their precision.
#[inline(always)]
pub(crate) fn sigmoid<I: Isa>(isa: I, x: I::V) -> I::V {
    let e = exp(isa, isa.neg(isa.abs(x)));
    let one = isa.splat(1.0);
    let numerator = isa.select(isa.lt(x, isa.splat(0.0)), e, one);
    isa.div(numerator, isa.add(one, e))
}

/// x·sigmoid(x); NaN at −∞, as in PyTorch.
#[inline(always)]
pub(crate) fn silu<I: Isa>(isa: I, x: I::V) -> I::V {
    isa.mul(x, sigmoid(isa, x))
}

/// x + x·p(x²) below 1; above, 1 − e^(x·q(x)).
#[inline(always)]
pub(crate) fn erf<I: Isa>(isa: I, x: I::V) -> I::V {
    let a = isa.min(isa.abs(x), isa.splat(4.0));
    let s = isa.mul(x, x);
    let p = polynomial(
        isa,
        s,
        [7.875_875e-5, -8.016_864_3e-4, 5.189_087e-3, -2.685_421_1e-2, 0.112_835_94, -0.376_126_26, 0.128_379_17],
    );
    let near = isa.fma(x, p, x);
    let q = polynomial(isa, a, ERF_TAIL);
    let far = isa.sub(isa.splat(1.0), exp(isa, isa.mul(a, q)));
    let y = isa.select(isa.lt(isa.abs(x), isa.splat(1.0)), near, isa.copysign(far, x));
    isa.select(isa.is_nan(x), x, y)
}

/// ln(erfc t)/t on [1, 4].
const ERF_TAIL: [f32; 8] =
    [1.166_032_5e-6, -3.659_301e-5, 5.157_455_5e-4, -4.373_922_5e-3, 2.530_860_2e-2, -0.108_091_91, -0.633_971_45, -1.128_957_3];

/// x·(½ + r) with r = erf(x/√2)/2 as a quotient of polynomials. r reaches ½ where x is clamped.
#[inline(always)]
pub(crate) fn gelu<I: Isa>(isa: I, x: I::V) -> I::V {
    let half = isa.splat(0.5);
    let c = isa.max(isa.min(x, isa.splat(GELU_END)), isa.splat(-GELU_END));
    let s = isa.mul(c, c);
    let r = isa.div(isa.mul(c, polynomial(isa, s, GELU_UPPER)), polynomial(isa, s, GELU_LOWER));
    isa.mul(x, isa.add(half, isa.max(isa.min(r, half), isa.splat(-0.5))))
}

/// Limit beyond which erf(x/√2)/2 rounds to ½.
const GELU_END: f32 = 5.5;

const GELU_UPPER: [f32; 6] = [2.275_722_9e-8, 6.352_735e-6, 1.688_15e-4, 4.677_232_3e-3, 3.385_107_5e-2, 0.398_942_24];

const GELU_LOWER: [f32; 6] = [1.197_755e-6, 7.364_701e-5, 1.884_395_8e-3, 2.864_514_3e-2, 0.251_517_98, 1.0];

/// x·sigmoid(2y) is the same as x·(1+tanh y)/2, without its cancellation for negative x.
#[inline(always)]
pub(crate) fn gelu_tanh<I: Isa>(isa: I, x: I::V) -> I::V {
    let cubic = isa.fma(isa.mul(isa.mul(x, x), isa.splat(0.044_715)), x, x);
    isa.mul(x, sigmoid(isa, isa.mul(cubic, isa.splat(1.595_769))))
}

/// Largest angle whose reduction by three parts of π/2 keeps full precision.
const TRIG_LIMIT: f32 = 8192.0;

#[inline(always)]
pub(super) fn sin<I: Isa>(isa: I, block: &mut [f32; 64]) {
    trigonometric(isa, block, false);
}

#[inline(always)]
pub(super) fn cos<I: Isa>(isa: I, block: &mut [f32; 64]) {
    trigonometric(isa, block, true);
}

/// Sine or cosine of a block: by vectors where all angles are moderate, else one by one.
#[inline(always)]
fn trigonometric<I: Isa>(isa: I, block: &mut [f32; 64], cosine: bool) {
    for i in (0..64).step_by(I::LANES) {
        let lanes = &mut block[i..i + I::LANES];
        if lanes.iter().all(|x| x.abs() <= TRIG_LIMIT) {
            // SAFETY: the slice is LANES long.
            unsafe { isa.store(lanes.as_mut_ptr(), sin_cos(isa, isa.load(lanes.as_ptr()), cosine)) };
        } else {
            lanes.iter_mut().for_each(|x| *x = if cosine { x.cos() } else { x.sin() });
        }
    }
}

#[inline(always)]
fn sin_cos<I: Isa>(isa: I, x: I::V, cosine: bool) -> I::V {
    let n = isa.round(isa.mul(x, isa.splat(std::f32::consts::FRAC_2_PI)));
    let r = isa.fma(n, isa.splat(-1.570_312_5), x);
    let r = isa.fma(n, isa.splat(-4.837_513e-4), r);
    let r = isa.fma(n, isa.splat(-7.549_79e-8), r);
    let s = isa.mul(r, r);
    let p = polynomial(isa, s, [2.724_992_6e-6, -1.984_008_7e-4, 8.333_332e-3, -0.166_666_67]);
    let sine = isa.fma(isa.mul(r, s), p, r);
    let p = polynomial(isa, s, [-2.730_096e-7, 2.480_06e-5, -1.388_888_8e-3, 4.166_666_8e-2]);
    let cos = isa.fma(isa.mul(s, s), p, isa.fma(s, isa.splat(-0.5), isa.splat(1.0)));
    let quadrant = isa.add_u(isa.float_to_int(n), isa.splat_u(u32::from(cosine)));
    let odd = isa.int_to_float(isa.and(quadrant, isa.splat_u(1)));
    let y = isa.select(isa.lt(isa.splat(0.5), odd), cos, sine);
    let sign = isa.shl(isa.and(quadrant, isa.splat_u(2)), 30);
    let flipped = isa.with_bits(isa.add_u(isa.bits(y), sign));
    isa.with_bits(isa.bits(flipped))
}

#[cfg(test)]
mod tests;
