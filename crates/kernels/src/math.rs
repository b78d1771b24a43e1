//! Elementary functions over whole vectors, with stated accuracy.

mod functions;

use half::{bf16, f16};

use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::{FloatPtr, float_view},
    elementwise::map_blocks,
    simd::{Cpu, Isa, Kernel},
};
pub(crate) use functions::{activate, exp};

/// A float function of one operand.
///
/// Bounds are the largest error in units in the last place of the `f32` result over all finite `f16` and `bf16` inputs, against
/// the exact value, with the hardware's fused multiply-add; the portable path may be one unit worse. Where a factor falls below
/// the smallest normal `f32`, one denormal step of it is added. Those marked "libm" are computed one by one by the platform's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unary {
    /// eˣ: 2.
    Exp,
    /// Natural logarithm: 2.
    Log,
    /// Hyperbolic tangent: 3.
    Tanh,
    /// 1/(1+e⁻ˣ): 3.
    Sigmoid,
    /// x·sigmoid(x): 4.
    Silu,
    /// max(x, 0): exact; NaN stays.
    Relu,
    /// x·(1+erf(x/√2))/2: 4, plus 2⁻²²·|x| absolute for negative x.
    Gelu,
    /// x·(1+tanh(√(2/π)(x+0.044715x³)))/2: 8 + 4x², the last from the exponential's argument.
    GeluTanh,
    /// Error function: 4.
    Erf,
    /// Sine: 2.
    Sin,
    /// Cosine: 2.
    Cos,
    /// Square root: correctly rounded.
    Sqrt,
    /// 1/√x: 1.
    Rsqrt,
    /// 1/x: correctly rounded.
    Reciprocal,
    /// x·x: correctly rounded.
    Square,
    /// Tangent: libm.
    Tan,
    /// Arc sine: libm.
    Asin,
    /// Arc cosine: libm.
    Acos,
    /// Arc tangent: libm.
    Atan,
    /// Hyperbolic sine: libm.
    Sinh,
    /// Hyperbolic cosine: libm.
    Cosh,
    /// Inverse hyperbolic sine: libm, in `f64`.
    Asinh,
    /// Inverse hyperbolic cosine: libm, in `f64`.
    Acosh,
    /// Inverse hyperbolic tangent: libm, in `f64`.
    Atanh,
    /// Base-2 logarithm: libm.
    Log2,
    /// Base-10 logarithm: libm.
    Log10,
    /// ln(1+x): libm.
    Log1p,
    /// eˣ−1: libm.
    Expm1,
}

/// `out[i] = op(x[i])` in `f32`, rounded once to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn unary<A: Float, C: Float>(pool: &Pool, op: Unary, x: &View<A>, out: &mut ViewMut<C>) -> Result<(), Error> {
    let cpu = pool.cpu();
    let block = move |block: &mut [f32; 64]| cpu.dispatch(Apply(op, block));
    match (float_view(x), FloatPtr::of(out.origin())) {
        (FloatView::F32(x), FloatPtr::F32(_)) => map_blocks(pool, &x, &mut out.reinterpret::<f32>(), block),
        (FloatView::F16(x), FloatPtr::F16(_)) => map_blocks(pool, &x, &mut out.reinterpret::<f16>(), block),
        (FloatView::BF16(x), FloatPtr::BF16(_)) => map_blocks(pool, &x, &mut out.reinterpret::<bf16>(), block),
        _ => map_blocks(pool, x, out, block),
    }
}

/// `block[i] = op(block[i])`
pub(crate) fn apply_block(cpu: Cpu, op: Unary, block: &mut [f32; 64]) {
    cpu.dispatch(Apply(op, block));
}

struct Apply<'a>(Unary, &'a mut [f32; 64]);

impl Kernel for Apply<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        functions::apply(isa, self.0, self.1);
    }
}

/// `data[i] = op(data[i])` on the calling thread.
pub fn unary_in_place(pool: &Pool, op: Unary, data: &mut [f32]) {
    apply_in_place(pool.cpu(), op, data);
}

pub(crate) fn apply_in_place(cpu: Cpu, op: Unary, data: &mut [f32]) {
    let (blocks, tail) = data.as_chunks_mut();
    blocks.iter_mut().for_each(|block| cpu.dispatch(Apply(op, block)));
    if !tail.is_empty() {
        let mut block = [0.0; 64];
        block[..tail.len()].copy_from_slice(tail);
        cpu.dispatch(Apply(op, &mut block));
        tail.copy_from_slice(&block[..tail.len()]);
    }
}
