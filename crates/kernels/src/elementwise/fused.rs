//! Several steps on each element in one pass: intermediate results stay in the L1 cache.

use flambeau_tensor::DType;
use half::{bf16, f16};

use super::execute;
use crate::{
    Error, Float, FloatView, Pool, ViewMut,
    convert::FloatPtr,
    elementwise::Runs,
    math::{Unary, apply_block},
    simd::{Cpu, Isa, Kernel},
    view::Walk,
};

/// Maximum number of operands of a fused computation.
pub const MAX_INPUTS: usize = 4;

/// Maximum number of steps of a fused computation, including operands.
pub const MAX_STEPS: usize = 16;

/// Elements that take a step together.
const BLOCK: usize = 128;

/// The operation of a step, in `f32`. Operands are indices of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Reads the operand of that number.
    Input(usize),
    /// The value as it is, to round it to another type.
    Keep(usize),
    Unary(Unary, usize),
    Neg(usize),
    Abs(usize),
    Add(usize, usize),
    Subtract(usize, usize),
    Multiply(usize, usize),
    Divide(usize, usize),
    /// NaN of the first operand wins; else the second, unless the first is larger.
    Maximum(usize, usize),
    /// NaN of the first operand wins; else the second, unless the first is smaller.
    Minimum(usize, usize),
}

impl Op {
    /// The steps that it reads.
    fn reads(self) -> [Option<usize>; 2] {
        match self {
            Op::Input(_) => [None, None],
            Op::Keep(a) | Op::Unary(_, a) | Op::Neg(a) | Op::Abs(a) => [Some(a), None],
            Op::Add(a, b) | Op::Subtract(a, b) | Op::Multiply(a, b) | Op::Divide(a, b) | Op::Maximum(a, b) | Op::Minimum(a, b) => {
                [Some(a), Some(b)]
            }
        }
    }

    /// The same step with its operands renumbered.
    #[must_use]
    pub fn renumbered(self, f: impl Fn(usize) -> usize) -> Op {
        match self {
            Op::Input(i) => Op::Input(i),
            Op::Keep(a) => Op::Keep(f(a)),
            Op::Unary(op, a) => Op::Unary(op, f(a)),
            Op::Neg(a) => Op::Neg(f(a)),
            Op::Abs(a) => Op::Abs(f(a)),
            Op::Add(a, b) => Op::Add(f(a), f(b)),
            Op::Subtract(a, b) => Op::Subtract(f(a), f(b)),
            Op::Multiply(a, b) => Op::Multiply(f(a), f(b)),
            Op::Divide(a, b) => Op::Divide(f(a), f(b)),
            Op::Maximum(a, b) => Op::Maximum(f(a), f(b)),
            Op::Minimum(a, b) => Op::Minimum(f(a), f(b)),
        }
    }
}

/// A step, and the float type of its rounded result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedStep {
    pub op: Op,
    pub dtype: DType,
}

/// Sets `out[i]` to the last step's result for the operands' elements at `i`. Each step rounds to
/// its type, so the result is bit-identical to separate passes.
///
/// # Errors
/// [`Error::Broadcast`] if an operand does not broadcast to `out`. [`Error::Size`] if there are too
/// many operands or steps, or none. [`Error::Parameter`] if a step reads a later step, or the last
/// step's type differs from `out`.
pub fn fused<T: Float>(pool: &Pool, steps: &[FusedStep], inputs: &[FloatView], out: &mut ViewMut<T>) -> Result<(), Error> {
    check(steps, inputs.len(), T::DTYPE)?;
    let inputs = inputs.iter().map(|x| x.broadcast_to(out.shape())).collect::<Result<smallvec::SmallVec<[FloatView; 4]>, _>>()?;
    let target = FloatPtr::of(out.origin());
    let mut origins = [target; MAX_INPUTS];
    let mut strides = [out.strides(); MAX_INPUTS + 1];
    for (i, x) in inputs.iter().enumerate() {
        (origins[i], strides[i + 1]) = (x.origin(), x.strides());
    }
    let walk = Walk::new(out.shape(), strides);
    let runs = Fused { steps, origins, target, cpu: pool.cpu() };
    // SAFETY: the walk is made from these views; operands that are not there are never read.
    unsafe { execute(pool, &walk, &runs) };
    Ok(())
}

fn check(steps: &[FusedStep], inputs: usize, dtype: DType) -> Result<(), Error> {
    let too_many = |what, most, found| Err(Error::Size { what, expected: most, found });
    if steps.is_empty() || steps.len() > MAX_STEPS {
        return too_many("fused steps", MAX_STEPS, steps.len());
    }
    if inputs > MAX_INPUTS {
        return too_many("operands of fused steps", MAX_INPUTS, inputs);
    }
    for (i, step) in steps.iter().enumerate() {
        let is_known = step.op.reads().into_iter().flatten().all(|read| read < i);
        let is_there = !matches!(step.op, Op::Input(number) if number >= inputs);
        if !is_known || !is_there || !step.dtype.is_float() {
            return Err(bad(i));
        }
    }
    if steps[steps.len() - 1].dtype == dtype { Ok(()) } else { Err(bad(steps.len() - 1)) }
}

fn bad(step: usize) -> Error {
    Error::Parameter { what: "fused step", found: step as i64 }
}

struct Fused<'a> {
    steps: &'a [FusedStep],
    origins: [FloatPtr; MAX_INPUTS],
    target: FloatPtr,
    cpu: Cpu,
}

impl Runs<{ MAX_INPUTS + 1 }> for Fused<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self, _: I, at: [isize; MAX_INPUTS + 1], step: [isize; MAX_INPUTS + 1], n: usize) {
        // SAFETY: the caller keeps the `n` elements of each operand valid, and no other thread
        // accesses the written ones.
        unsafe { self.blocks(at, step, n) }
    }
}

impl Fused<'_> {
    /// # Safety
    /// As for [`Runs::run`].
    unsafe fn blocks(&self, at: [isize; MAX_INPUTS + 1], step: [isize; MAX_INPUTS + 1], n: usize) {
        let mut values = [[0.0; BLOCK]; MAX_STEPS];
        for i in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - i);
            for (number, s) in self.steps.iter().enumerate() {
                let (before, rest) = values.split_at_mut(number);
                let to = &mut rest[0];
                if let Op::Input(x) = s.op {
                    // SAFETY: the elements are inside the operand.
                    unsafe {
                        self.origins[x].offset(at[x + 1] + i as isize * step[x + 1]).read(self.cpu, step[x + 1], &mut to[..len])
                    };
                } else {
                    self.cpu.dispatch(Compute { op: s.op, before, to, len, cpu: self.cpu });
                    match s.dtype {
                        DType::BF16 => self.cpu.dispatch(Round::<bf16>(to, len, std::marker::PhantomData)),
                        DType::F16 => self.cpu.dispatch(Round::<f16>(to, len, std::marker::PhantomData)),
                        _ => {}
                    }
                }
            }
            let last = &values[self.steps.len() - 1][..len];
            // SAFETY: the elements are inside the output, and no other task has them.
            unsafe { self.target.offset(at[0] + i as isize * step[0]).write(self.cpu, step[0], last) };
        }
    }
}

/// One step on `len` elements; whole vectors may extend past them.
struct Compute<'a> {
    op: Op,
    before: &'a [[f32; BLOCK]],
    to: &'a mut [f32; BLOCK],
    len: usize,
    cpu: Cpu,
}

impl Kernel for Compute<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Compute { op, before, to, len, cpu } = self;
        let len = len.next_multiple_of(16).min(BLOCK);
        macro_rules! zip {
            ($a:expr, $b:expr, $f:expr) => {{
                let (a, b) = (&before[$a][..len], &before[$b][..len]);
                to[..len].iter_mut().zip(a).zip(b).for_each(|((to, &a), &b)| *to = $f(a, b));
            }};
        }
        match op {
            Op::Input(_) => {}
            Op::Keep(a) => to[..len].copy_from_slice(&before[a][..len]),
            Op::Neg(a) => to[..len].iter_mut().zip(&before[a][..len]).for_each(|(to, &a)| *to = -a),
            Op::Abs(a) => to[..len].iter_mut().zip(&before[a][..len]).for_each(|(to, &a)| *to = a.abs()),
            Op::Unary(op, a) => {
                to[..len].copy_from_slice(&before[a][..len]);
                let (blocks, _) = to.as_chunks_mut();
                blocks.iter_mut().take(len.div_ceil(64)).for_each(|block| apply_block(cpu, op, block));
            }
            Op::Add(a, b) => zip!(a, b, |a: f32, b: f32| a + b),
            Op::Subtract(a, b) => zip!(a, b, |a: f32, b: f32| a - b),
            Op::Multiply(a, b) => zip!(a, b, |a: f32, b: f32| a * b),
            Op::Divide(a, b) => zip!(a, b, |a: f32, b: f32| a / b),
            Op::Maximum(a, b) => zip!(a, b, |a: f32, b: f32| if a.is_nan() || a > b { a } else { b }),
            Op::Minimum(a, b) => zip!(a, b, |a: f32, b: f32| if a.is_nan() || a < b { a } else { b }),
        }
    }
}

struct Round<'a, T>(&'a mut [f32; BLOCK], usize, std::marker::PhantomData<T>);

impl<T: Float> Kernel for Round<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for lanes in self.0.chunks_exact_mut(I::LANES).take(self.1.div_ceil(I::LANES)) {
            // SAFETY: the chunk is LANES long.
            unsafe { isa.store(lanes.as_mut_ptr(), T::round_lanes(isa, isa.load(lanes.as_ptr()))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        View,
        elementwise::{map_float, unary, zip_float},
        testing::isas,
    };

    /// Values in `±4`, with NaN and infinities among them.
    fn values<T: Float>(n: usize, seed: u32) -> Vec<T> {
        let mut x = seed | 1;
        let mut next = || {
            x = x.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
            (x >> 8) as f32 / (1 << 21) as f32 - 4.0
        };
        let mut list: Vec<T> = (0..n).map(|_| T::from_f32(next())).collect();
        for (i, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0].into_iter().enumerate() {
            if let Some(slot) = list.get_mut(i * 5) {
                *slot = T::from_f32(special);
            }
        }
        list
    }

    /// Bit patterns. Sign and payload of a NaN are the compiler's choice.
    fn bits<T: Float>(list: &[T]) -> Vec<u32> {
        list.iter().map(|x| x.to_f32()).map(|x| if x.is_nan() { f32::NAN } else { x }.to_bits()).collect()
    }

    /// `max(silu(a) · b, −a)` in one pass and in four.
    fn check<T: Float>(rows: usize, columns: usize)
    where
        for<'a> FloatView<'a>: From<View<'a, T>>,
    {
        let (a, b) = (values::<T>(rows * columns, 1), values::<T>(columns, 2));
        let shape = [rows, columns];
        let (a, b) = (View::contiguous(&a, &shape).unwrap(), View::contiguous(&b, &[columns]).unwrap());
        let step = |op| FusedStep { op, dtype: T::DTYPE };
        let steps = [
            step(Op::Input(0)),
            step(Op::Unary(Unary::Silu, 0)),
            step(Op::Input(1)),
            step(Op::Multiply(1, 2)),
            step(Op::Neg(0)),
            step(Op::Maximum(3, 4)),
        ];
        for pool in isas() {
            let zeros = || vec![T::from_f32(0.0); rows * columns];
            let (mut silu, mut product, mut negative, mut expected) = (zeros(), zeros(), zeros(), zeros());
            fn view<'a, T>(data: &'a mut [T], shape: &[usize]) -> ViewMut<'a, T> {
                ViewMut::contiguous(data, shape).unwrap()
            }
            unary(&pool, Unary::Silu, &a, &mut view(&mut silu, &shape)).unwrap();
            let silu = View::contiguous(&silu, &shape).unwrap();
            zip_float(&pool, &silu, &b, &mut view(&mut product, &shape), |a, b| a * b).unwrap();
            map_float(&pool, &a, &mut view(&mut negative, &shape), |a| -a).unwrap();
            let (p, n) = (View::contiguous(&product, &shape).unwrap(), View::contiguous(&negative, &shape).unwrap());
            zip_float(&pool, &p, &n, &mut view(&mut expected, &shape), |a, b| if a.is_nan() || a > b { a } else { b }).unwrap();
            let mut found = zeros();
            fused(&pool, &steps, &[a.clone().into(), b.clone().into()], &mut view(&mut found, &shape)).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{} {rows}×{columns} on {pool:?}", T::DTYPE);
        }
    }

    #[test]
    fn one_pass_has_the_bits_of_many() {
        for (rows, columns) in [(1, 1), (3, 17), (2, 300), (70, 1000)] {
            check::<f32>(rows, columns);
            check::<f16>(rows, columns);
            check::<bf16>(rows, columns);
        }
    }

    #[test]
    fn steps_that_read_ahead_are_refused() {
        let pool = Pool::new(1);
        let (x, mut y) = ([1.0f32; 4], [0.0f32; 4]);
        let mut refused = |ops: &[Op], dtype| {
            let steps: Vec<FusedStep> = ops.iter().map(|&op| FusedStep { op, dtype }).collect();
            let x = View::contiguous(&x, &[4]).unwrap();
            fused(&pool, &steps, &[x.into()], &mut ViewMut::contiguous(&mut y, &[4]).unwrap()).is_err()
        };
        assert!(refused(&[], DType::F32));
        assert!(refused(&[Op::Neg(0)], DType::F32));
        assert!(refused(&[Op::Input(1)], DType::F32));
        assert!(refused(&[Op::Input(0)], DType::BF16));
        assert!(refused(&[Op::Input(0); MAX_STEPS + 1], DType::F32));
        assert!(!refused(&[Op::Input(0), Op::Add(0, 0)], DType::F32));
    }
}
