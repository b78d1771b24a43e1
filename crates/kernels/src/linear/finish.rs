//! What happens to the elements of a product before they are stored.

use super::{Gate, Layer, Residual, full};
use crate::{
    Error, Float, FloatView,
    convert::{FloatPtr, with_float},
    error::same,
    gemm::Sink,
    math::{Unary, apply_block},
    simd::{Cpu, Isa, Kernel},
};

/// An operand that is read beside the output: its origin and strides.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    origin: FloatPtr,
    step: [isize; 2],
}

impl Beside {
    fn of(view: &FloatView, [m, n]: [usize; 2]) -> Result<Beside, Error> {
        let view = view.broadcast_to(&full(m, n))?;
        Ok(Beside { origin: view.origin(), step: [view.strides()[0], view.strides()[1]] })
    }

    /// # Safety
    /// The elements are inside the operand.
    unsafe fn read(&self, cpu: Cpu, i: usize, j: usize, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.origin.offset(i as isize * self.step[0] + j as isize * self.step[1]).read(cpu, self.step[1], to) };
    }
}

/// The steps after a product. Whoever holds one keeps the operands it was made from borrowed.
#[derive(Clone)]
pub(super) struct Finish {
    size: [usize; 2],
    out: Beside,
    bias: Option<Beside>,
    gate_bias: Option<Beside>,
    activation: Option<Unary>,
    /// `[M, N]` row-major, in the type of the output.
    pub(super) gate: Option<FloatPtr>,
    residual: Option<Beside>,
}

impl Finish {
    /// Checks all operands of a layer over `x` `[m, k]`.
    pub(super) fn new<Y: Float>(layer: &mut Layer<'_, Y>, [m, k]: [usize; 2]) -> Result<Finish, Error> {
        let [n, depth] = layer.weight.size()?;
        same("depth of a linear weight", k, depth)?;
        same("rank of a linear layer's output", 2, layer.out.shape().len())?;
        same("rows of a linear layer's output", m, layer.out.shape()[0])?;
        same("columns of a linear layer's output", n, layer.out.shape()[1])?;
        let size = [m, n];
        let beside = |view: Option<&FloatView>| view.map(|v| Beside::of(v, size)).transpose();
        let step = [layer.out.strides()[0], layer.out.strides()[1]];
        let out = Beside { origin: FloatPtr::of(layer.out.origin()), step };
        let mut gate_bias = None;
        if let Some(Gate { weight, bias, .. }) = &layer.after.gate {
            let [gate_n, gate_k] = weight.size()?;
            same("rows of a gate's weight", n, gate_n)?;
            same("depth of a gate's weight", k, gate_k)?;
            gate_bias = beside(bias.as_ref())?;
        }
        let residual = match &layer.after.residual {
            Residual::None => None,
            Residual::Out => Some(out),
            Residual::View(view) => Some(Beside::of(view, size)?),
        };
        let bias = beside(layer.after.bias.as_ref())?;
        Ok(Finish { size, out, bias, gate_bias, activation: layer.after.activation, gate: None, residual })
    }

    pub(super) fn len(&self) -> usize {
        self.size[0] * self.size[1]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The steps of the gate, which goes to `to`.
    pub(super) fn gate_part(&self, activation: Unary, to: FloatPtr) -> Finish {
        let out = Beside { origin: to, step: [self.size[1] as isize, 1] };
        Finish { out, bias: self.gate_bias, gate: None, activation: Some(activation), residual: None, ..self.clone() }
    }
}

/// Elements that take their steps together.
const BLOCK: usize = 64;

impl Sink for Finish {
    unsafe fn store(&self, cpu: Cpu, i: usize, j: usize, row: &[f32]) {
        let (mut values, mut other) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (c, part) in row.chunks(BLOCK).enumerate() {
            let (j, len) = (j + c * BLOCK, part.len());
            values[..len].copy_from_slice(part);
            let steps = &mut values;
            // SAFETY: the caller vouches that the elements are inside the output, whose shape all operands have.
            unsafe {
                if let Some(bias) = &self.bias {
                    bias.read(cpu, i, j, &mut other[..len]);
                    steps.iter_mut().zip(&other).for_each(|(v, b)| *v += b);
                }
                self.round(cpu, steps);
                if let Some(op) = self.activation {
                    apply_block(cpu, op, steps);
                    self.round(cpu, steps);
                }
                if let Some(gate) = self.gate {
                    gate.offset((i * self.size[1] + j) as isize).read(cpu, 1, &mut other[..len]);
                    steps.iter_mut().zip(&other).for_each(|(v, g)| *v *= g);
                    self.round(cpu, steps);
                }
                if let Some(residual) = &self.residual {
                    residual.read(cpu, i, j, &mut other[..len]);
                    steps.iter_mut().zip(&other).for_each(|(v, r)| *v += r);
                }
                let to = self.out.origin.offset(i as isize * self.out.step[0] + j as isize * self.out.step[1]);
                to.write(cpu, self.out.step[1], &steps[..len]);
            }
        }
    }
}

impl Finish {
    /// Rounds to the type of the output.
    fn round(&self, cpu: Cpu, values: &mut [f32; BLOCK]) {
        fn with<T: Float>(cpu: Cpu, _: *mut T, values: &mut [f32; BLOCK]) {
            cpu.dispatch(Round::<T>(values, std::marker::PhantomData));
        }
        if !matches!(self.out.origin, FloatPtr::F32(_)) {
            with_float!(self.out.origin, p => with(cpu, p, values));
        }
    }
}

struct Round<'a, T>(&'a mut [f32; BLOCK], std::marker::PhantomData<T>);

impl<T: Float> Kernel for Round<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for lanes in self.0.chunks_exact_mut(I::LANES) {
            // SAFETY: the chunk is LANES long.
            unsafe { isa.store(lanes.as_mut_ptr(), T::round_lanes(isa, isa.load(lanes.as_ptr()))) };
        }
    }
}
