//! Elementary functions over whole vectors, with stated accuracy.

mod functions;

use crate::{
    Pool,
    simd::{Cpu, Isa, Kernel},
};
pub(crate) use functions::{activate, exp, tanh};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $how:ident($function:path), |$x:pat_param| $bound:expr;)*) => {
        /// A float function of one operand, computed within [`Unary::bound`]. For functions marked
        /// "libm", the platform's library computes one element at a time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Unary { $($(#[$doc])* $name,)* }

        impl Unary {
            /// All of them.
            pub const ALL: &[Unary] = &[$(Unary::$name),*];

            /// The largest error at `x`: units in the last place of the `f32` result, plus an
            /// absolute error. Half a unit is correct rounding.
            ///
            /// Bounds hold for all finite `f16` and `bf16` inputs with hardware fused multiply-add.
            /// Without it, all but the correctly rounded functions may be one unit worse.
            pub fn bound(self, x: f64) -> (f64, f64) {
                match self { $(Unary::$name => { let $x = x; $bound })* }
            }
        }

        /// Applies `op` to a block; the choice is made once per block.
        #[inline(always)]
        fn apply<I: Isa>(isa: I, op: Unary, block: &mut [f32; 64]) {
            match op { $(Unary::$name => functions::on_block!($how, isa, block, $function)),* }
        }
    };
}

functions! {
    /// eˣ
    Exp: by_vectors(functions::exp), |_| ulps(2.0);
    /// Natural logarithm.
    Log: by_vectors(functions::log), |_| ulps(2.0);
    /// Hyperbolic tangent.
    Tanh: by_vectors(functions::tanh), |_| ulps(3.0);
    /// 1/(1+e⁻ˣ)
    Sigmoid: by_vectors(functions::sigmoid), |_| ulps(3.0);
    /// x·sigmoid(x)
    Silu: by_vectors(functions::silu), |x| (4.0, denormal(x));
    /// max(x, 0); NaN stays.
    Relu: by_vectors(functions::relu), |_| ulps(0.5);
    /// x·(1+erf(x/√2))/2
    Gelu: by_vectors(functions::gelu), |x| (4.0, if x < 0.0 { 2f64.powi(-22) * x.abs() } else { 0.0 });
    /// x·(1+tanh(√(2/π)(x+0.044715x³)))/2; the bound grows with x² as the exponential's argument
    /// does.
    GeluTanh: by_vectors(functions::gelu_tanh), |x| (8.0 + 4.0 * x * x, denormal(x));
    /// Error function.
    Erf: by_vectors(functions::erf), |_| ulps(4.0);
    /// Sine.
    Sin: by_blocks(functions::sin), |_| ulps(2.0);
    /// Cosine.
    Cos: by_blocks(functions::cos), |_| ulps(2.0);
    /// Square root.
    Sqrt: by_vectors(functions::sqrt), |_| ulps(0.5);
    /// 1/√x. The root's error is half a unit; its reciprocal at most doubles it, and the division
    /// adds half a unit.
    Rsqrt: by_vectors(functions::rsqrt), |_| ulps(1.5);
    /// 1/x
    Reciprocal: by_vectors(functions::reciprocal), |_| ulps(0.5);
    /// x·x
    Square: by_vectors(functions::square), |_| ulps(0.5);
    /// Tangent: libm.
    Tan: by_elements(f32::tan), |_| ulps(4.0);
    /// Arc sine: libm.
    Arcsin: by_elements(f32::asin), |_| ulps(4.0);
    /// Arc cosine: libm.
    Arccos: by_elements(f32::acos), |_| ulps(4.0);
    /// Arc tangent: libm.
    Arctan: by_elements(f32::atan), |_| ulps(4.0);
    /// Hyperbolic sine: libm.
    Sinh: by_elements(f32::sinh), |_| ulps(4.0);
    /// Hyperbolic cosine: libm.
    Cosh: by_elements(f32::cosh), |_| ulps(4.0);
    /// Inverse hyperbolic sine: libm, in `f64`.
    Arcsinh: by_wide_elements(f64::asinh), |_| ulps(4.0);
    /// Inverse hyperbolic cosine: libm, in `f64`.
    Arccosh: by_wide_elements(f64::acosh), |_| ulps(4.0);
    /// Inverse hyperbolic tangent: libm, in `f64`.
    Arctanh: by_wide_elements(f64::atanh), |_| ulps(4.0);
    /// Base-2 logarithm: libm.
    Log2: by_elements(f32::log2), |_| ulps(4.0);
    /// Base-10 logarithm: libm.
    Log10: by_elements(f32::log10), |_| ulps(4.0);
    /// ln(1+x): libm.
    Log1p: by_elements(f32::ln_1p), |_| ulps(4.0);
    /// eˣ−1: libm.
    Expm1: by_elements(f32::exp_m1), |_| ulps(4.0);
}

/// A bound without an absolute part.
fn ulps(units: f64) -> (f64, f64) {
    (units, 0.0)
}

/// The absolute error of a factor below the smallest normal `f32`, which is off by one denormal
/// step.
fn denormal(x: f64) -> f64 {
    x.abs() * 2f64.powi(-149)
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
        apply(isa, self.0, self.1);
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
