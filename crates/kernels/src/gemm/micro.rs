//! The innermost kernel: a tile of the product held in registers.

use crate::simd::{Isa, IsaKind};

/// Rows, and vectors of columns, of the register tile.
pub(crate) const fn tile(kind: IsaKind) -> (usize, usize) {
    match kind {
        IsaKind::Avx512 => (12, 2),
        IsaKind::Avx2 => (6, 2),
        IsaKind::Neon => (8, 2),
        IsaKind::Portable => (4, 1),
    }
}

/// `c[MR, NR] += a · b` over `k` steps of packed panels (`a[k][MR]`, `b[k][NR]`), with rows of `c` `stride` apart.
///
/// # Safety
/// The panels hold `k` steps, and the tile is writable.
#[inline(always)]
pub(crate) unsafe fn accumulate<I: Isa>(isa: I, k: usize, a: *const f32, b: *const f32, c: *mut f32, stride: usize) {
    // SAFETY: the caller's promise; the sizes are those of `tile`.
    unsafe {
        match I::KIND {
            IsaKind::Avx512 => step::<I, 12, 2>(isa, k, a, b, c, stride),
            IsaKind::Avx2 => step::<I, 6, 2>(isa, k, a, b, c, stride),
            IsaKind::Neon => step::<I, 8, 2>(isa, k, a, b, c, stride),
            IsaKind::Portable => step::<I, 4, 1>(isa, k, a, b, c, stride),
        }
    }
}

#[inline(always)]
unsafe fn step<I: Isa, const MR: usize, const NV: usize>(
    isa: I,
    k: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    stride: usize,
) {
    let mut sums = [[isa.splat(0.0); NV]; MR];
    for p in 0..k {
        // SAFETY: the caller's promise.
        unsafe {
            let b = b.add(p * NV * I::LANES);
            let b: [I::V; NV] = std::array::from_fn(|v| isa.load(b.add(v * I::LANES)));
            let a = a.add(p * MR);
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = isa.splat(*a.add(i));
                for v in 0..NV {
                    sums[v] = isa.fma(x, b[v], sums[v]);
                }
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let at = c.add(i * stride + v * I::LANES);
                isa.store(at, isa.add(isa.load(at), sum));
            }
        }
    }
}
