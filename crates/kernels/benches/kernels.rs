//! Rates of the kernels that decide decode and prefill speed. Arguments: instruction set and
//! threads (`avx2 1`); both optional.

use std::{hint::black_box, time::Instant};

use flambeau_kernels::{
    Float, FloatView, IsaKind, Pool, View, ViewMut,
    attention::{Coded, Mask, attention, attention_over_codes},
    bf16, elementwise, f16,
    gemm::{Addmm, matmul, quantized::linear},
    math::Unary,
    norm::rms_norm,
    quant::{Format, QMatrix, Scales},
};

/// Best of several runs, in seconds.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn report(name: &str, seconds: f64, bytes: usize, flops: usize) {
    let (rate, work) = (bytes as f64 / seconds / 1e9, flops as f64 / seconds / 1e9);
    println!("{name:<44} {:>9.1} us {rate:>8.1} GB/s {work:>8.1} GFLOP/s", seconds * 1e6);
}

/// Bytes a second that all threads together can read.
fn bandwidth(pool: &Pool) {
    let data: Vec<u64> = (0..COLD_BYTES as u64 / 4).collect();
    let seconds = best(|| {
        pool.run_ranges(data.len(), 1 << 16, |r| {
            let sums = data[r].chunks_exact(32).fold([0u64; 32], |mut sums, part| {
                sums.iter_mut().zip(part).for_each(|(s, x)| *s ^= x);
                sums
            });
            black_box(sums);
        });
    });
    report("reading memory", seconds, data.len() * 8, 0);
}

/// Enough copies that none is found in a cache.
const COLD_BYTES: usize = 96 << 20;

fn quantized(pool: &Pool, bits: u32, [m, n, k]: [usize; 3], cold: bool) {
    let words = n * k * bits as usize / 32;
    let bytes = words * 4 + n * k / 64 * 4;
    let copies = if cold { COLD_BYTES.div_ceil(bytes) } else { 1 };
    let codes: Vec<u32> = (0..words * copies).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
    let scales = vec![bf16::from_f32(0.01); n * k / 64];
    let x = vec![bf16::ONE; m * k];
    let mut out = vec![bf16::ZERO; m * n];
    let mut turn = 0;
    let seconds = best(|| {
        let part = &codes[turn % copies * words..][..words];
        let format = Format::Affine { bits, group: 64 };
        let w = QMatrix::new(format, part, Scales::BF16(&scales), Some(Scales::BF16(&scales)), [n, k]).expect("sizes fit");
        linear(pool, black_box(&x), &w, &mut out).expect("sizes fit");
        turn += 1;
    });
    let state = if cold { "cold" } else { "warm" };
    report(&format!("{bits}-bit [{m},{k}]x[{n},{k}] {state}"), seconds, bytes, 2 * m * n * k);
}

/// Four bits against `f32` activations.
fn single(pool: &Pool, [m, n, k]: [usize; 3]) {
    let (words, bytes) = (n * k / 8, n * k / 2 + n * k / 64 * 8);
    let copies = COLD_BYTES.div_ceil(bytes);
    let codes: Vec<u32> = (0..words * copies).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
    let (scales, x, mut out, mut turn) = (vec![0.01f32; n * k / 64], vec![1f32; m * k], vec![0f32; m * n], 0);
    let seconds = best(|| {
        let part = &codes[turn % copies * words..][..words];
        let format = Format::Affine { bits: 4, group: 64 };
        let w = QMatrix::new(format, part, Scales::F32(&scales), Some(Scales::F32(&scales)), [n, k]).expect("sizes fit");
        linear(pool, black_box(&x), &w, &mut out).expect("sizes fit");
        turn += 1;
    });
    report(&format!("4-bit f32 [{m},{k}]x[{n},{k}] cold"), seconds, bytes, 2 * m * n * k);
}

/// Few rows of 16 bits, as steps of one and of several sequences multiply.
fn few<T: Float>(pool: &Pool, bits: u32, [m, n, k]: [usize; 3]) {
    let (words, bytes) = (n * k * bits as usize / 32, n * k * bits as usize / 8 + n * k / 32 * 4);
    let codes: Vec<u32> = (0..words).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
    let scales = vec![f16::from_f32(0.01); n * k / 32];
    let (x, mut out) = (vec![T::from_f32(1.0); m * k], vec![T::from_f32(0.0); m * n]);
    let seconds = best(|| {
        let format = Format::Affine { bits, group: 32 };
        let w = QMatrix::new(format, &codes, Scales::F16(&scales), Some(Scales::F16(&scales)), [n, k]).expect("sizes fit");
        linear(pool, black_box(&x), &w, &mut out).expect("sizes fit");
    });
    report(&format!("{bits}-bit {:?} [{m},{k}]x[{n},{k}] warm", T::DTYPE), seconds, bytes, 2 * m * n * k);
}

fn dense(pool: &Pool, [m, n, k]: [usize; 3], cold: bool) {
    let bytes = n * k * 2;
    let copies = if cold { COLD_BYTES.div_ceil(bytes) } else { 1 };
    let weights = vec![bf16::ONE; n * k * copies];
    let x = vec![bf16::ONE; m * k];
    let mut out = vec![bf16::ZERO; m * n];
    let mut turn = 0;
    let seconds = best(|| {
        let part = &weights[turn % copies * n * k..][..n * k];
        let a = View::contiguous(black_box(&x), &[m, k]).expect("sizes fit");
        let b = View::new(part, &[k, n], &[1, k as isize], 0).expect("sizes fit");
        matmul(pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[m, n]).expect("sizes fit"), &Addmm::default())
            .expect("sizes fit");
        turn += 1;
    });
    let state = if cold { "cold" } else { "warm" };
    report(&format!("bf16 [{m},{k}]x[{n},{k}] {state}"), seconds, bytes, 2 * m * n * k);
}

/// Texts of few tokens in a layer of an encoder, `f32`.
fn text(pool: &Pool, [m, n, k]: [usize; 3]) {
    let bytes = n * k * 4;
    let copies = COLD_BYTES.div_ceil(bytes);
    let (weights, x, mut out, mut turn) = (vec![1f32; n * k * copies], vec![1f32; m * k], vec![0f32; m * n], 0);
    for (state, copies) in [("warm", 1), ("cold", copies)] {
        let seconds = best(|| {
            let part = &weights[turn % copies * n * k..][..n * k];
            let a = View::contiguous(black_box(&x), &[m, k]).expect("sizes fit");
            let b = View::new(part, &[k, n], &[1, k as isize], 0).expect("sizes fit");
            matmul(pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[m, n]).expect("sizes fit"), &Addmm::default())
                .expect("sizes fit");
            turn += 1;
        });
        report(&format!("f32 [{m},{k}]x[{n},{k}] {state}"), seconds, bytes, 2 * m * n * k);
    }
}

fn square(pool: &Pool, n: usize) {
    let x = vec![1f32; n * n];
    let mut out = vec![0f32; n * n];
    let seconds = best(|| {
        let a = View::contiguous(black_box(&x), &[n, n]).expect("sizes fit");
        matmul(pool, &a, &a, &mut ViewMut::contiguous(&mut out, &[n, n]).expect("sizes fit"), &Addmm::default())
            .expect("sizes fit");
    });
    report(&format!("f32 {n}^3"), seconds, 3 * 4 * n * n, 2 * n * n * n);
}

fn heads(pool: &Pool, queries: usize, keys: usize) {
    let (hq, hkv, d) = (9, 3, 64);
    let q = vec![bf16::ONE; hq * queries * d];
    let k = vec![bf16::ONE; hkv * keys * d];
    let mut out = vec![bf16::ZERO; hq * queries * d];
    let seconds = best(|| {
        let q = View::contiguous(black_box(&q), &[1, hq, queries, d]).expect("sizes fit");
        let k = View::contiguous(&k, &[1, hkv, keys, d]).expect("sizes fit");
        let mut out = ViewMut::contiguous(&mut out, &[1, hq, queries, d]).expect("sizes fit");
        attention(pool, &q, (&k, &k), &mut out, 0.125, &Mask::Causal).expect("sizes fit");
    });
    report(&format!("attention q {queries} k {keys}"), seconds, hkv * keys * d * 4, 4 * hq * queries * keys * d);
}

/// Attention of single queries over more layer caches than the processor's cache holds: in bf16,
/// then in 8 bits with one scale per 32 elements.
fn caches(pool: &Pool, [hq, hkv, keys]: [usize; 3]) {
    let (d, group) = (64, 32);
    let count = hkv * keys * d;
    let (q, mut out) = (vec![bf16::ONE; hq * d], vec![bf16::ZERO; hq * d]);
    let q = View::contiguous(&q, &[1, hq, 1, d]).expect("sizes fit");
    let mut out = ViewMut::contiguous(&mut out, &[1, hq, 1, d]).expect("sizes fit");
    let copies = COLD_BYTES.div_ceil(2 * count);
    let floats = vec![bf16::ONE; count * (copies + 1)];
    let mut turn = 0;
    let seconds = best(|| {
        let [k, v] = [0, 1].map(|i| &floats[(turn % copies + i) * count..][..count]);
        let [k, v] = [k, v].map(|part| View::contiguous(part, &[1, hkv, keys, d]).expect("sizes fit"));
        attention(pool, black_box(&q), (&k, &v), &mut out, 0.125, &Mask::Causal).expect("sizes fit");
        turn += 2;
    });
    report(&format!("bf16 cache {hq}/{hkv} heads, {keys} keys cold"), seconds, 4 * count, 4 * hq * keys * d);
    let codes = vec![1i8; count * (copies + 1)];
    let scales = vec![bf16::ONE; count / group * (copies + 1)];
    let seconds = best(|| {
        let [k, v] = [0, 1].map(|i| {
            let at = turn % copies + i;
            let (codes, scales) = (&codes[at * count..][..count], &scales[at * count / group..][..count / group]);
            let codes = View::contiguous(codes, &[1, hkv, keys, d / group, group]).expect("sizes fit");
            let scales = View::contiguous(scales, &[1, hkv, keys, d / group, 1]).expect("sizes fit");
            Coded::new(codes, scales.into()).expect("sizes fit")
        });
        attention_over_codes(pool, black_box(&q), (&k, &v), &mut out, 0.125, &Mask::Causal).expect("sizes fit");
        turn += 2;
    });
    let bytes = 2 * (count + 2 * count / group);
    report(&format!("8-bit cache {hq}/{hkv} heads, {keys} keys cold"), seconds, bytes, 4 * hq * keys * d);
}

fn small(pool: &Pool) {
    let x = vec![bf16::ONE; 576];
    let mut out = vec![bf16::ZERO; 576];
    let weight: FloatView = View::contiguous(&x, &[576]).expect("sizes fit").into();
    let seconds = best(|| rms_norm(pool, black_box(&x), 576, Some(&weight), 1e-5, &mut out).expect("sizes fit"));
    report("rms_norm 576", seconds, 576 * 4, 0);
    let x = vec![bf16::ONE; 1 << 20];
    let mut out = vec![bf16::ZERO; 1 << 20];
    let view = View::contiguous(&x, &[1 << 20]).expect("sizes fit");
    let seconds = best(|| {
        let mut out = ViewMut::contiguous(&mut out, &[1 << 20]).expect("sizes fit");
        elementwise::unary(pool, Unary::Silu, black_box(&view), &mut out).expect("sizes fit");
    });
    report("silu 2^20 bf16", seconds, 4 << 20, 0);
    report("empty fork-join", best(|| pool.run(4, |i| drop(black_box(Box::new(i))))), 0, 0);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let named = |kind: &&IsaKind| args.iter().any(|a| format!("{kind:?}").eq_ignore_ascii_case(a));
    let threads = args.iter().find_map(|a| a.parse().ok()).unwrap_or(0);
    let pool = match IsaKind::ALL.iter().find(named) {
        Some(&kind) => Pool::with_isa(threads, kind).unwrap_or_else(|| Pool::new(threads)),
        None => Pool::new(threads),
    };
    println!("{pool:?}");
    bandwidth(&pool);
    for cold in [false, true] {
        quantized(&pool, 4, [1, 1536, 576], cold);
        quantized(&pool, 4, [1, 8192, 2048], cold);
        quantized(&pool, 8, [1, 8192, 2048], cold);
        dense(&pool, [1, 1536, 576], cold);
        dense(&pool, [1, 8192, 2048], cold);
    }
    for bits in [2, 3, 5, 6] {
        quantized(&pool, bits, [1, 8192, 2048], true);
    }
    single(&pool, [1, 8192, 2048]);
    quantized(&pool, 4, [4, 8192, 2048], true);
    for (bits, n, k) in [(4, 1536, 576), (4, 576, 1536), (5, 1536, 576), (6, 1536, 576), (8, 1536, 576), (8, 49152, 576)] {
        [1, 2, 4, 8].into_iter().for_each(|m| few::<f16>(&pool, bits, [m, n, k]));
        [1, 2, 4, 8].into_iter().for_each(|m| few::<bf16>(&pool, bits, [m, n, k]));
    }
    for m in [6, 8, 9, 12, 16, 20, 24, 28, 32] {
        text(&pool, [m, 1536, 384]);
        text(&pool, [m, 384, 1536]);
    }
    quantized(&pool, 4, [128, 2048, 2048], false);
    dense(&pool, [128, 2048, 2048], false);
    square(&pool, 512);
    quantized(&pool, 4, [512, 1536, 576], false);
    dense(&pool, [512, 1536, 576], false);
    square(&pool, 1024);
    caches(&pool, [9, 3, 3968]);
    caches(&pool, [32, 8, 3968]);
    heads(&pool, 1, 1024);
    heads(&pool, 1, 4096);
    heads(&pool, 128, 128);
    heads(&pool, 512, 512);
    small(&pool);
}
