use half::{bf16, f16};

use super::*;
use crate::{
    Float, Pool,
    gemm::quantized::{Gather, gather_linear, linear, matmul},
    testing::{Precision, Rng, assert_close, assert_threads_agree, isas},
};

/// An owned matrix with scales and biases of `S`.
struct Owned<S> {
    format: Format,
    words: Vec<u32>,
    scales: Vec<S>,
    biases: Vec<S>,
    codes: Vec<u8>,
    size: [usize; 2],
}

trait Scale: Precision {
    fn wrap(s: &[Self]) -> Scales<'_>;
}
impl Scale for f32 {
    fn wrap(s: &[f32]) -> Scales<'_> {
        Scales::F32(s)
    }
}
impl Scale for f16 {
    fn wrap(s: &[f16]) -> Scales<'_> {
        Scales::F16(s)
    }
}
impl Scale for bf16 {
    fn wrap(s: &[bf16]) -> Scales<'_> {
        Scales::BF16(s)
    }
}

impl<S: Scale> Owned<S> {
    fn new(rng: &mut Rng, format: Format, [rows, cols]: [usize; 2]) -> Owned<S> {
        let bits = format.bits() as usize;
        let mut words = vec![0u32; rows * cols * bits / 32];
        for word in &mut words {
            *word = rng.word();
            if format == Format::Mxfp8 {
                // Keeps clear of the NaN codes.
                *word &= 0xbfbf_bfbf;
            }
        }
        let groups = rows * cols / format.group();
        let count = if has_float_scales(format) { groups } else { 0 };
        let codes =
            (0..groups).map(|_| if format == Format::Nvfp4 { 40 + rng.below(30) } else { 120 + rng.below(6) } as u8).collect();
        Owned { format, words, scales: rng.floats(count), biases: rng.floats(count), codes, size: [rows, cols] }
    }

    fn view(&self) -> QMatrix<'_> {
        let affine = matches!(self.format, Format::Affine { .. });
        let scales = if has_float_scales(self.format) { S::wrap(&self.scales) } else { Scales::U8(&self.codes) };
        QMatrix::new(self.format, &self.words, scales, affine.then(|| S::wrap(&self.biases)), self.size).unwrap()
    }

    /// Value `(row, col)` by the definition.
    fn value(&self, row: usize, col: usize) -> f64 {
        let (bits, cols) = (self.format.bits() as usize, self.size[1]);
        let stream = &self.words[row * cols * bits / 32..];
        let code = (0..bits).map(|b| (stream[(col * bits + b) / 32] >> ((col * bits + b) % 32) & 1) << b).sum::<u32>();
        let g = row * (cols / self.format.group()) + col / self.format.group();
        let fp4 = |c: u32| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][c as usize & 7] * if c & 8 == 0 { 1.0 } else { -1.0 };
        let fp8 = |c: u32| {
            let (e, m) = ((c >> 3 & 15) as i32, f64::from(c & 7));
            let magnitude = if e == 0 { m * 2f64.powi(-9) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
            if c & 0x80 == 0 { magnitude } else { -magnitude }
        };
        let e8m0 = |c: u8| 2f64.powi(i32::from(c) - 127);
        match self.format {
            Format::Affine { .. } => f64::from(code) * f64::from(self.scales[g].to_f32()) + f64::from(self.biases[g].to_f32()),
            Format::Symmetric { bits, .. } => (f64::from(code) - 2f64.powi(bits as i32 - 1)) * f64::from(self.scales[g].to_f32()),
            Format::Nvfp4 => fp4(code) * fp8(u32::from(self.codes[g])),
            Format::Mxfp4 => fp4(code) * e8m0(self.codes[g]),
            Format::Mxfp8 => fp8(code) * e8m0(self.codes[g]),
        }
    }
}

fn has_float_scales(format: Format) -> bool {
    matches!(format, Format::Affine { .. } | Format::Symmetric { .. })
}

fn formats() -> Vec<Format> {
    let affine = |bits| [16, 32, 64, 128].map(|group| Format::Affine { bits, group });
    let symmetric = [(4, 32), (5, 32), (6, 16), (8, 32)].map(|(bits, group)| Format::Symmetric { bits, group });
    [2, 3, 4, 5, 6, 8].into_iter().flat_map(affine).chain(symmetric).chain([Format::Nvfp4, Format::Mxfp4, Format::Mxfp8]).collect()
}

/// The smallest row that has whole groups and words.
fn unit(format: Format) -> usize {
    if format.group() == 16 && !(format.bits() * 16).is_multiple_of(32) { 32 } else { format.group() }
}

/// `x · wᵀ` (or `x · w`) in `f64`, the sum of magnitudes for the rounding bound, and the sum of the
/// terms' magnitudes.
fn product<X: Float, S: Scale>(x: &[X], w: &Owned<S>, m: usize, transpose: bool) -> (Vec<f64>, f64, f64) {
    let [rows, cols] = w.size;
    let (n, k) = if transpose { (rows, cols) } else { (cols, rows) };
    let (mut largest, mut terms_size) = (0f64, 0f64);
    let out = (0..m * n)
        .map(|i| {
            let terms = (0..k).map(|p| {
                let v = if transpose { w.value(i % n, p) } else { w.value(p, i % n) };
                // Codes and biases are summed separately, so the error bound uses their separate
                // magnitudes.
                (f64::from(x[i / n * k + p].to_f32()) * v, f64::from(x[i / n * k + p].to_f32()).abs() * 300.0)
            });
            let (sum, size, terms) = terms.fold((0.0, 0.0, 0f64), |(a, b, c), (t, s)| (a + t, b + s, c + f64::abs(t)));
            (largest, terms_size) = (largest.max(size), terms_size.max(terms));
            sum
        })
        .collect();
    (out, largest, terms_size)
}

fn check<X: Precision, S: Scale>(pool: &Pool, format: Format, [m, n, k]: [usize; 3], transpose: bool) {
    let mut rng = Rng::new((m * 31 + n * 7 + k) as u64);
    let w = Owned::<S>::new(&mut rng, format, if transpose { [n, k] } else { [k, n] });
    let x: Vec<X> = rng.floats(m * k);
    let mut out = vec![X::from_f32(f32::NAN); m * n];
    if transpose {
        linear(pool, &x, &w.view(), &mut out).unwrap()
    } else {
        matmul(pool, &x, &w.view(), &mut out).unwrap()
    }
    let (expected, size, terms) = product(&x, &w, m, transpose);
    // Where rows of 16 bits are multiplied by panels, both sides are rounded to bf16.
    let rounded = X::DTYPE.size() == 2 && (m > 8 || !transpose);
    let what = format!("{:?} {format:?} [{m}, {n}, {k}] transpose {transpose}", pool.isa());
    assert_close(&what, &out, &expected, size * 2f64.powi(-22) + if rounded { terms / 256.0 } else { 0.0 });
}

/// Rows of f16 with `f32` results, as for products with a later cast: nothing is rounded.
fn wide_results_are_exact(pool: &Pool, format: Format, [m, n, k]: [usize; 3]) {
    let mut rng = Rng::new((m + n + k) as u64);
    let (w, x) = (Owned::<f32>::new(&mut rng, format, [n, k]), rng.floats::<f16>(m * k));
    let mut out = vec![f32::NAN; m * n];
    linear(pool, &x, &w.view(), &mut out).unwrap();
    let (expected, size, _) = product(&x, &w, m, true);
    assert_close(&format!("{:?} {format:?} to f32", pool.isa()), &out, &expected, size * 2f64.powi(-22));
}

#[test]
fn few_rows_match_the_definition() {
    for pool in isas() {
        for format in formats() {
            let u = unit(format);
            for (i, k) in [u, 3 * u, 9 * u].into_iter().enumerate() {
                check::<f32, f32>(&pool, format, [1 + i, 17 + i, k], true);
                check::<bf16, bf16>(&pool, format, [5 - i, 6, k], true);
            }
            check::<f16, f16>(&pool, format, [4, 5, 2 * u], true);
            check::<f16, f32>(&pool, format, [1, 4, 5 * u], true);
        }
    }
}

/// More groups a row than numbers of rows are widened together.
#[test]
fn rows_of_many_groups_match_the_definition() {
    for pool in isas() {
        check::<f16, f16>(&pool, Format::Affine { bits: 4, group: 32 }, [2, 5, 32 * 700], true);
    }
}

#[test]
fn activations_that_are_no_numbers_reach_every_result() {
    for pool in isas() {
        for format in [Format::Affine { bits: 4, group: 32 }, Format::Affine { bits: 5, group: 32 }, Format::Nvfp4] {
            let w = Owned::<f32>::new(&mut Rng::new(6), format, [5, 128]);
            for wrong in [f16::INFINITY, f16::NAN] {
                let mut x = [f16::from_f32(0.5); 2 * 128];
                x[37] = wrong;
                let mut out = [0f32; 10];
                linear(&pool, &x, &w.view(), &mut out).unwrap();
                let finite: Vec<bool> = out.iter().map(|y| y.is_finite()).collect();
                assert_eq!(finite, [[false; 5], [true; 5]].concat(), "{:?} {format:?} {wrong}", pool.isa());
            }
        }
    }
}

/// Beside an activation a thousand times larger, small activations lose less than the large one's
/// rounding error. With other weights they lose less than a millionth of the large one.
#[test]
fn an_outlier_costs_its_neighbours_less_than_its_own_rounding() {
    for pool in isas() {
        for format in formats() {
            let w = Owned::<f32>::new(&mut Rng::new(8), format, [9, 128]);
            let mut x: Vec<f16> = Rng::new(9).floats(128);
            x[70] = f16::from_f32(2048.0);
            let mut out = vec![0f32; 9];
            linear(&pool, &x, &w.view(), &mut out).unwrap();
            let (expected, _, _) = product(&x, &w, 1, true);
            for (row, (&y, &expected)) in out.iter().zip(&expected).enumerate() {
                let largest = (64..96).map(|c| w.value(row, c).abs()).fold(0.0, f64::max);
                let all = (0..128).map(|c| w.value(row, c).abs()).sum::<f64>();
                let error = (f64::from(y) - expected).abs();
                let bound = 2048.0 * (largest * 2f64.powi(-12) + all * 2f64.powi(-22));
                assert!(error <= bound, "{:?} {format:?} row {row}: {error} > {bound}", pool.isa());
            }
        }
    }
}

#[test]
fn many_rows_match_the_definition() {
    for pool in isas() {
        for format in formats() {
            let u = unit(format);
            check::<f32, bf16>(&pool, format, [13, 37, 5 * u], true);
            check::<bf16, f16>(&pool, format, [25, 5, 3 * u], true);
            check::<f16, f16>(&pool, format, [9, 33, 3 * u], true);
            check::<f16, f32>(&pool, format, [40, 7, 2 * u], true);
            wide_results_are_exact(&pool, format, [40, 6, 3 * u]);
        }
        check::<bf16, bf16>(&pool, Format::Affine { bits: 4, group: 64 }, [250, 70, 576], true);
        check::<f32, f32>(&pool, Format::Affine { bits: 8, group: 32 }, [12, 33, 320], true);
    }
}

#[test]
fn untransposed_products_match_the_definition() {
    for pool in isas() {
        for format in formats() {
            let u = unit(format);
            check::<f32, f32>(&pool, format, [1, 2 * u, 7], false);
            check::<bf16, f32>(&pool, format, [14, u, 33], false);
            check::<f16, f16>(&pool, format, [14, u, 33], false);
        }
    }
}

#[test]
fn rows_dequantize_to_the_definition() {
    for pool in isas() {
        for format in formats() {
            let cols = 5 * unit(format);
            let w = Owned::<f32>::new(&mut Rng::new(5), format, [4, cols]);
            let rows = [2u32, 0, 3, 2];
            let expected: Vec<f64> =
                rows.iter().flat_map(|&r| (0..cols).map(move |c| (r, c))).map(|(r, c)| w.value(r as usize, c)).collect();
            let mut out = vec![0f32; rows.len() * cols];
            dequantize_rows(&pool, &w.view(), &rows, &mut out).unwrap();
            assert_close(&format!("{:?} {format:?}", pool.isa()), &out, &expected, 3e-5);
            let mut out = vec![bf16::ZERO; rows.len() * cols];
            dequantize_rows(&pool, &w.view(), &rows, &mut out).unwrap();
            assert_close(&format!("{:?} {format:?} bf16", pool.isa()), &out, &expected, 3e-5);
            let mut all = vec![0f32; 4 * cols];
            dequantize(&pool, &w.view(), &mut all).unwrap();
            let expected: Vec<f64> = (0..4 * cols).map(|i| w.value(i / cols, i % cols)).collect();
            assert_close("all rows", &all, &expected, 3e-5);
        }
    }
    let w = Owned::<f32>::new(&mut Rng::new(5), Format::Mxfp4, [4, 32]);
    assert!(dequantize_rows(&Pool::new(1), &w.view(), &[4], &mut [0f32; 32]).is_err());
}

#[test]
fn gathered_products_pair_the_named_matrices() {
    let (experts, n, k) = (3, 5, 64);
    let pool = Pool::new(2);
    for transpose in [true, false] {
        let format = Format::Affine { bits: 4, group: 32 };
        let (n, k) = if transpose { (n, k) } else { (k, n) };
        let rows = if transpose { n } else { k };
        let w = Owned::<f32>::new(&mut Rng::new(9), format, [experts * rows, if transpose { k } else { n }]);
        let x: Vec<f32> = Rng::new(3).floats(2 * 2 * k);
        let (lhs, rhs) = ([0u32, 1, 1, 0], [2u32, 2, 0, 1]);
        let mut out = vec![0f32; 4 * 2 * n];
        gather_linear(&pool, &x, &w.view(), &Gather { lhs: &lhs, rhs: &rhs, rows: 2, experts, transpose }, &mut out).unwrap();
        for i in 0..4 {
            let part = w.view().rows_from(rhs[i] as usize * rows, rows);
            let a = &x[lhs[i] as usize * 2 * k..][..2 * k];
            let mut expected = vec![0f32; 2 * n];
            if transpose { linear(&pool, a, &part, &mut expected) } else { matmul(&pool, a, &part, &mut expected) }.unwrap();
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            assert_close("gathered", &out[i * 2 * n..][..2 * n], &expected, 1e-4);
        }
        let outside = Gather { lhs: &[0], rhs: &[3], rows: 2, experts, transpose };
        assert!(gather_linear(&pool, &x, &w.view(), &outside, &mut out[..2 * n]).is_err());
    }
}

#[test]
fn an_infinite_scale_stays_in_its_row() {
    let mut w = Owned::<f32>::new(&mut Rng::new(1), Format::Affine { bits: 4, group: 32 }, [4, 96]);
    w.scales[6] = f32::INFINITY;
    w.biases[6] = f32::INFINITY;
    for pool in isas() {
        let mut out = [0f32; 4];
        linear(&pool, &[1f32; 96], &w.view(), &mut out).unwrap();
        assert_eq!(out.map(f32::is_finite), [true, true, false, true], "{:?}", pool.isa());
    }
}

#[test]
fn thread_counts_agree() {
    for format in [Format::Affine { bits: 4, group: 64 }, Format::Affine { bits: 3, group: 32 }, Format::Nvfp4] {
        let w = Owned::<bf16>::new(&mut Rng::new(2), format, [700, 1024]);
        for m in [1, 5, 40] {
            let x: Vec<bf16> = Rng::new(4).floats(m * 1024);
            assert_threads_agree(|pool| {
                let mut out = vec![0f32; m * 700];
                linear(pool, &x, &w.view(), &mut out).unwrap();
                out
            });
        }
    }
}

#[test]
fn biases_that_follow_from_scales_are_found() {
    let format = Format::Affine { bits: 4, group: 32 };
    let mut w = Owned::<f16>::new(&mut Rng::new(7), format, [300, 32 * 700]);
    w.biases = w.scales.iter().map(|s| f16::from_f32(-8.0 * s.to_f32())).collect();
    for pool in isas() {
        let symmetric = Format::Symmetric { bits: 4, group: 32 };
        assert_eq!(w.view().symmetric(&pool), Some(symmetric));
        let (x, mut outs): (Vec<f16>, _) = (Rng::new(3).floats(32 * 700), [[0f32; 300]; 2]);
        linear(&pool, &x, &w.view(), &mut outs[0]).unwrap();
        let without = QMatrix::new(symmetric, &w.words, Scales::F16(&w.scales), None, w.size).unwrap();
        linear(&pool, &x, &without, &mut outs[1]).unwrap();
        assert_eq!(outs[0], outs[1], "{:?}", pool.isa());
    }
    let last = w.biases.len() - 1;
    w.biases[last] = f16::from_f32(w.biases[last].to_f32() * 1.01);
    assert_eq!(w.view().symmetric(&Pool::new(2)), None);
}

#[test]
fn sizes_are_checked() {
    let words = [0u32; 8];
    let scales = [0f32; 4];
    let make = |format, words: usize, scales_len: usize, biases: bool, size| {
        let s = Scales::F32(&scales[..scales_len]);
        QMatrix::new(format, &[0u32; 8][..words], s, biases.then_some(s), size).is_ok()
    };
    let f = Format::Affine { bits: 4, group: 32 };
    assert!(make(f, 8, 2, true, [2, 32]));
    assert!(!make(f, 7, 2, true, [2, 32]));
    assert!(!make(f, 8, 1, true, [2, 32]));
    assert!(!make(f, 8, 2, false, [2, 32]));
    assert!(!make(f, 8, 2, true, [usize::MAX, 32]));
    assert!(!make(Format::Affine { bits: 7, group: 32 }, 7, 1, true, [1, 32]));
    assert!(!make(Format::Affine { bits: 4, group: 48 }, 6, 1, true, [1, 48]));
    assert!(!make(Format::Mxfp4, 8, 2, false, [2, 32]));
    assert!(make(Format::Symmetric { bits: 4, group: 32 }, 8, 2, false, [2, 32]));
    assert!(!make(Format::Symmetric { bits: 4, group: 32 }, 8, 2, true, [2, 32]));
    let w = QMatrix::new(f, &words, Scales::F32(&scales[..2]), Some(Scales::F32(&scales[..2])), [2, 32]).unwrap();
    assert!(linear(&Pool::new(1), &[0f32; 33], &w, &mut [0f32; 2]).is_err());
    assert!(linear(&Pool::new(1), &[0f32; 32], &w, &mut [0f32; 3]).is_err());
}
