//! What happens to the elements of a product before they are stored.

use crate::{
    Float, FloatView,
    convert::{FloatPtr, with_float},
    math::{Unary, activate},
    simd::{Cpu, Isa, Kernel, load_partial, store_partial},
};

/// A matrix that is read or written beside the product. Whoever makes one vouches for its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    pub(crate) origin: FloatPtr,
    pub(crate) step: [isize; 2],
}

impl Beside {
    /// The last two axes of `view`, from the element at `offset` on.
    ///
    /// # Safety
    /// That element is inside the view, whose rank is at least 2.
    pub(crate) unsafe fn of(view: &FloatView, offset: isize) -> Beside {
        let s = view.strides();
        // SAFETY: the caller's promise.
        Beside { origin: unsafe { view.origin().offset(offset) }, step: [s[s.len() - 2], s[s.len() - 1]] }
    }

    /// # Safety
    /// The element is inside the matrix.
    unsafe fn at(&self, i: usize, j: usize) -> FloatPtr {
        // SAFETY: the caller's promise.
        unsafe { self.origin.offset(i as isize * self.step[0] + j as isize * self.step[1]) }
    }

    /// Elements `(i, j..j + n)`, the other lanes being anything.
    ///
    /// # Safety
    /// They are inside the matrix.
    #[inline(always)]
    unsafe fn load<I: Isa>(&self, isa: I, i: usize, j: usize, n: usize) -> I::V {
        // SAFETY: the caller's promise.
        unsafe {
            with_float!(self.at(i, j), p => match self.step[1] {
                1 if n == I::LANES => Float::load(isa, p.cast_const()),
                1 => load_partial(isa, p.cast_const(), n),
                0 => isa.splat((*p).to_f32()),
                step => {
                    let mut lanes = [0.0; 16];
                    lanes.iter_mut().enumerate().take(n).for_each(|(l, x)| *x = (*p.offset(l as isize * step)).to_f32());
                    isa.load(lanes.as_ptr())
                }
            })
        }
    }
}

/// The steps after a product, and where it goes: `residual + gate · activation(alpha · product + beta · bias)`, each step rounded
/// to the type of `out`. Whoever holds one keeps the operands borrowed that it was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) out: Beside,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) bias: Option<Beside>,
    pub(crate) activation: Option<Unary>,
    /// Activation and bias of the gate's product.
    pub(crate) gate: Option<(Unary, Option<Beside>)>,
    pub(crate) residual: Option<Beside>,
}

/// Lines of raw products.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) data: &'a [f32],
    /// Of the gate, laid out alike.
    pub(crate) gate: Option<&'a [f32]>,
    /// Elements between lines.
    pub(crate) stride: usize,
    /// Lines, and elements of each.
    pub(crate) size: [usize; 2],
}

impl Finish {
    /// Only a place to go to.
    pub(crate) fn plain(origin: FloatPtr, step: [isize; 2]) -> Finish {
        let out = Beside { origin, step };
        Finish { out, alpha: 1.0, beta: 1.0, bias: None, activation: None, gate: None, residual: None }
    }

    /// The same for the transposed product.
    pub(crate) fn turned(&self) -> Finish {
        let turn = |b: Beside| Beside { origin: b.origin, step: [b.step[1], b.step[0]] };
        Finish {
            out: turn(self.out),
            bias: self.bias.map(turn),
            residual: self.residual.map(turn),
            gate: self.gate.map(|(op, bias)| (op, bias.map(turn))),
            ..*self
        }
    }

    /// Takes `lines` as the elements from `(i, j)` on.
    ///
    /// # Safety
    /// They are inside the output, and no other task stores them.
    pub(crate) unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, lines: Lines) {
        with_float!(self.out.origin, p => cpu.dispatch(Store { finish: self, out: p, i, j, lines }));
    }
}

struct Store<'a, Y> {
    finish: &'a Finish,
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
                // SAFETY: the caller of `Finish::store` vouches for the elements.
                unsafe {
                    let v = read(isa, &self.lines.data[from..], n);
                    let gate = self.lines.gate.map(|g| read(isa, &g[from..], n));
                    let v = self.steps(isa, v, gate, [i, j, n]);
                    let step = self.finish.out.step;
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
    // SAFETY: the caller's promise.
    unsafe { if from.len() >= I::LANES { isa.load(from.as_ptr()) } else { load_partial(isa, from.as_ptr(), n) } }
}

impl<Y: Float> Store<'_, Y> {
    /// # Safety
    /// The elements from `(i, j)` on are inside the output, whose shape all operands have.
    #[inline(always)]
    unsafe fn steps<I: Isa>(&self, isa: I, product: I::V, gate: Option<I::V>, [i, j, n]: [usize; 3]) -> I::V {
        let f = self.finish;
        // SAFETY: the caller's promise.
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
