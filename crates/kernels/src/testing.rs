//! Helpers for the tests of several kernels.

use half::{bf16, f16};

use crate::{Float, IsaKind, Pool};

/// Pools of every instruction set of this machine.
pub(crate) fn isas() -> Vec<Pool> {
    IsaKind::ALL.iter().filter_map(|&kind| Pool::with_isa(1, kind)).collect()
}

/// Repeatable numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.word() as usize % n
    }

    /// Uniform in [−1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        self.word() as f32 / 2_147_483_648.0 - 1.0
    }

    pub(crate) fn floats<T: Float>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f32(self.unit())).collect()
    }
}

/// Half a unit in the last place at 1.
pub(crate) trait Precision: Float {
    const ULP: f64;
}
impl Precision for f32 {
    const ULP: f64 = 1.0 / (1u64 << 24) as f64;
}
impl Precision for f16 {
    const ULP: f64 = 1.0 / 2048.0;
}
impl Precision for bf16 {
    const ULP: f64 = 1.0 / 256.0;
}

/// Asserts that each value differs from the expected one by at most `absolute` plus one rounding of
/// its type.
pub(crate) fn assert_close<T: Precision>(what: &str, found: &[T], expected: &[f64], absolute: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(f.to_f32()) - e).abs();
        assert!(error <= absolute + T::ULP * e.abs() * 1.01, "{what}: element {i} is {f:?} instead of {e}");
    }
}

/// Asserts that `f` gives the same bytes for 1, 2 and 3 threads.
pub(crate) fn assert_threads_agree<T: Float>(f: impl Fn(&Pool) -> Vec<T>) {
    let one = f(&Pool::new(1));
    for threads in 2..4 {
        let bytes = |v: &[T]| bytemuck::cast_slice::<T, u8>(v).to_vec();
        assert!(bytes(&one) == bytes(&f(&Pool::new(threads))), "{threads} threads");
    }
}
