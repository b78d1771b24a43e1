//! The operations on a product's elements before they are stored.

use super::operand::Dense;
use crate::{
    Float,
    convert::{FloatPtr, with_float},
    math::{Unary, activate},
    simd::{Cpu, Isa, Kernel, load_partial, store_partial},
};

/// The steps after a product and its destination: `residual + gate · activation(alpha · product +
/// beta · bias)`, each step rounded to the type of `out`. Its owner must keep the underlying
/// operands borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEpilogue {
    pub(crate) out: Dense,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) bias: Option<Dense>,
    pub(crate) activation: Option<Unary>,
    /// Activation and bias of the gate's product.
    pub(crate) gate: Option<(Unary, Option<Dense>)>,
    pub(crate) residual: Option<Dense>,
}

/// Lines of raw products.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) data: &'a [f32],
    /// The gate's sums in the same layout.
    pub(crate) gate: Option<&'a [f32]>,
    /// Elements between lines.
    pub(crate) stride: usize,
    /// Lines, and elements of each.
    pub(crate) size: [usize; 2],
}

impl RawEpilogue {
    /// Only a place to go to.
    pub(crate) fn plain(origin: FloatPtr, step: [isize; 2]) -> RawEpilogue {
        let out = Dense { origin, step };
        RawEpilogue { out, alpha: 1.0, beta: 1.0, bias: None, activation: None, gate: None, residual: None }
    }

    /// The same for the transposed product.
    pub(crate) fn transposed(&self) -> RawEpilogue {
        RawEpilogue {
            out: self.out.transposed(),
            bias: self.bias.map(Dense::transposed),
            residual: self.residual.map(Dense::transposed),
            gate: self.gate.map(|(op, bias)| (op, bias.map(Dense::transposed))),
            ..*self
        }
    }

    /// Takes `lines` as the elements from `(i, j)` on.
    ///
    /// # Safety
    /// They are inside the output, and no other task stores them.
    pub(crate) unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, lines: Lines) {
        with_float!(self.out.origin, p => cpu.dispatch(Store { epilogue: self, out: p, i, j, lines }));
    }
}

struct Store<'a, Y> {
    epilogue: &'a RawEpilogue,
    out: *mut Y,
    i: usize,
    j: usize,
    lines: Lines<'a>,
}

impl<Y: Float> Kernel for Store<'_, Y> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let [count, len] = self.lines.size;
        for line in 0..count {
            for at in (0..len).step_by(I::LANES) {
                let n = I::LANES.min(len - at);
                let (i, j) = (self.i + line, self.j + at);
                let from = line * self.lines.stride + at;
                // SAFETY: `RawEpilogue::store` requires these elements to be valid and writable.
                unsafe {
                    let v = read(isa, &self.lines.data[from..], n);
                    let gate = self.lines.gate.map(|g| read(isa, &g[from..], n));
                    let v = self.steps(isa, v, gate, [i, j, n]);
                    let step = self.epilogue.out.step;
                    let to = self.out.offset(i as isize * step[0] + j as isize * step[1]);
                    match step[1] {
                        1 if n == I::LANES => Y::store(isa, to, v),
                        1 => store_partial(isa, to, v, n),
                        step => {
                            let mut lanes = [0.0; 16];
                            isa.store(lanes.as_mut_ptr(), v);
                            (0..n).for_each(|l| *to.offset(l as isize * step) = Y::from_f32(lanes[l]));
                        }
                    }
                }
            }
        }
    }
}

/// The first `n` of `from`.
///
/// # Safety
/// There are as many.
#[inline(always)]
unsafe fn read<I: Isa>(isa: I, from: &[f32], n: usize) -> I::V {
    // SAFETY: a whole vector is read only if the slice has one; else only the `n` elements that the
    // caller guarantees.
    unsafe { if from.len() >= I::LANES { isa.load(from.as_ptr()) } else { load_partial(isa, from.as_ptr(), n) } }
}

impl<Y: Float> Store<'_, Y> {
    /// # Safety
    /// The elements from `(i, j)` on are inside the output, whose shape all operands have.
    #[inline(always)]
    unsafe fn steps<I: Isa>(&self, isa: I, product: I::V, gate: Option<I::V>, [i, j, n]: [usize; 3]) -> I::V {
        let f = self.epilogue;
        // SAFETY: `bias` and `residual` have the output's shape, and the caller keeps the elements
        // from `(i, j)` on inside it.
        unsafe {
            let mut v = if f.alpha == 1.0 { product } else { isa.mul(product, isa.splat(f.alpha)) };
            if let Some(bias) = &f.bias {
                let bias = bias.load(isa, i, j, n);
                v = if f.beta == 1.0 { isa.add(v, bias) } else { isa.fma(isa.splat(f.beta), bias, v) };
            }
            if let Some(op) = f.activation {
                v = activate(isa, op, Y::round_lanes(isa, v));
            }
            if let (Some((op, bias)), Some(gate)) = (&f.gate, gate) {
                let gate = bias.as_ref().map_or(gate, |b| isa.add(gate, b.load(isa, i, j, n)));
                let gate = activate(isa, *op, Y::round_lanes(isa, gate));
                v = isa.mul(Y::round_lanes(isa, gate), Y::round_lanes(isa, v));
            }
            if let Some(residual) = &f.residual {
                v = isa.add(residual.load(isa, i, j, n), Y::round_lanes(isa, v));
            }
            v
        }
    }
}
