//! Elementary functions over whole vectors, with stated accuracy.

mod functions;

use crate::{
    Error, Float, Pool, View, ViewMut,
    elementwise::map_blocks,
    simd::{Cpu, Isa, Kernel},
};
pub(crate) use functions::{activate, exp};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A float function of one operand, computed within [`Unary::bound`]. Those marked "libm" are computed one by one by the
        /// platform's library.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Unary { $($(#[$doc])* $name,)* }

        impl Unary {
            /// All of them.
            pub const ALL: &[Unary] = &[$(Unary::$name),*];
        }
    };
}

functions! {
    /// eˣ
    Exp,
    /// Natural logarithm.
    Log,
    /// Hyperbolic tangent.
    Tanh,
    /// 1/(1+e⁻ˣ)
    Sigmoid,
    /// x·sigmoid(x)
    Silu,
    /// max(x, 0); NaN stays.
    Relu,
    /// x·(1+erf(x/√2))/2
    Gelu,
    /// x·(1+tanh(√(2/π)(x+0.044715x³)))/2
    GeluTanh,
    /// Error function.
    Erf,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Square root.
    Sqrt,
    /// 1/√x
    Rsqrt,
    /// 1/x
    Reciprocal,
    /// x·x
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

impl Unary {
    /// The largest error at `x`: units in the last place of the `f32` result, and an absolute error that may come on top. Half a
    /// unit is correct rounding.
    ///
    /// Bounds hold for all finite `f16` and `bf16` inputs, with the hardware's fused multiply-add; without one, all but correctly
    /// rounded functions may be one unit worse.
    pub fn bound(self, x: f64) -> (f64, f64) {
        // A factor below the smallest normal `f32` is off by one denormal step.
        let denormal = x.abs() * 2f64.powi(-149);
        match self {
            Unary::Sqrt | Unary::Reciprocal | Unary::Square | Unary::Relu => (0.5, 0.0),
            // The square root is off by half a unit, which its reciprocal at most doubles, and the division adds its own.
            Unary::Rsqrt => (1.5, 0.0),
            Unary::Exp | Unary::Log | Unary::Sin | Unary::Cos => (2.0, 0.0),
            Unary::Tanh | Unary::Sigmoid => (3.0, 0.0),
            Unary::Silu => (4.0, denormal),
            Unary::Gelu => (4.0, if x < 0.0 { 2f64.powi(-22) * x.abs() } else { 0.0 }),
            // The square comes from the exponential's argument.
            Unary::GeluTanh => (8.0 + 4.0 * x * x, denormal),
            _ => (4.0, 0.0),
        }
    }
}

/// `out[i] = op(x[i])` in `f32`, rounded once to the output's type.
///
/// # Errors
/// [`Error::Broadcast`] if `x` does not broadcast to `out`.
pub fn unary<T: Float>(pool: &Pool, op: Unary, x: &View<T>, out: &mut ViewMut<T>) -> Result<(), Error> {
    let cpu = pool.cpu();
    map_blocks(pool, x, out, move |block| apply_block(cpu, op, block))
}

/// `block[i] = op(block[i])`
#[inline(never)]
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
    blocks.iter_mut().for_each(|block| apply_block(cpu, op, block));
    if !tail.is_empty() {
        let mut block = [0.0; 64];
        block[..tail.len()].copy_from_slice(tail);
        apply_block(cpu, op, &mut block);
        tail.copy_from_slice(&block[..tail.len()]);
    }
}
