use half::{bf16, f16};

use super::*;
use crate::{
    View,
    testing::{Precision, Rng, assert_close, assert_threads_agree, isas},
};

fn f64s<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|v| f64::from(v.to_f32())).collect()
}

fn check<T: Precision>(pool: &Pool, rows: usize, width: usize) {
    let mut rng = Rng::new(width as u64);
    let x: Vec<T> = rng.floats(rows * width);
    let (w, b): (Vec<bf16>, Vec<f32>) = (rng.floats(width), rng.floats(width));
    let (wv, bv): (FloatView, FloatView) =
        (View::contiguous(&w, &[width]).unwrap().into(), View::contiguous(&b, &[width]).unwrap().into());
    let (xs, ws, bs) = (f64s(&x), f64s(&w), f64s(&b));
    let by_row = |f: &dyn Fn(&[f64]) -> Vec<f64>| -> Vec<f64> { xs.chunks(width).flat_map(f).collect() };
    let what = format!("{:?} width {width}", pool.isa());
    let mut out = vec![T::from_f32(0.0); x.len()];

    // Bound on the earlier rounding errors; results rarely exceed 8.
    let rounding = 8.0 * T::ULP;

    rms_norm(pool, &x, width, Some(&wv), 1e-5, &mut out).unwrap();
    let rms = |r: &[f64]| (r.iter().map(|v| v * v).sum::<f64>() / width as f64 + 1e-5).sqrt();
    let expected = by_row(&|r| r.iter().zip(&ws).map(|(v, w)| v / rms(r) * w).collect());
    assert_close(&format!("rms {what}"), &out, &expected, 2e-6 + rounding);

    layer_norm(pool, &x, width, (Some(&wv), Some(&bv)), 1e-5, &mut out).unwrap();
    let layer = |r: &[f64]| -> Vec<f64> {
        let mean = r.iter().sum::<f64>() / width as f64;
        let var = r.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        r.iter().enumerate().map(|(i, v)| (v - mean) / (var + 1e-5).sqrt() * ws[i] + bs[i]).collect()
    };
    assert_close(&format!("layer {what}"), &out, &by_row(&layer), 4e-6 + 2.0 * rounding);

    softmax(pool, &x, width, &mut out).unwrap();
    let total = |r: &[f64]| r.iter().map(|v| v.exp()).sum::<f64>();
    let expected = by_row(&|r| r.iter().map(|v| v.exp() / total(r)).collect());
    assert_close(&format!("softmax {what}"), &out, &expected, 1e-6);

    log_softmax(pool, &x, width, &mut out).unwrap();
    let expected = by_row(&|r| r.iter().map(|v| v - total(r).ln()).collect());
    assert_close(&format!("log softmax {what}"), &out, &expected, 2e-6);
}

#[test]
fn rows_match_the_definition() {
    for pool in isas() {
        for width in [1, 3, 16, 17, 64, 100, 577] {
            check::<f32>(&pool, 3, width);
            check::<f16>(&pool, 2, width);
            check::<bf16>(&pool, 2, width);
        }
    }
}

#[test]
fn norms_round_as_pytorch_does() {
    let numbers = |values: &[f32]| values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>();
    let check = |found: &[bf16], expected: [f32; 2]| assert_eq!(found, numbers(&expected));
    for pool in isas() {
        let mut out = numbers(&[0.0; 2]);
        let (w, b) = (numbers(&[1.46875, 1.0]), numbers(&[0.0078125, 0.0]));
        let [w, b] = [&w, &b].map(|v| FloatView::from(View::contiguous(v, &[2]).unwrap()));
        // 3/√12.5 is 0.8485 and rounds to 0.84765625. Times the weight it is 1.24500; the unrounded
        // 1.24628 would give 1.25.
        rms_norm(&pool, &numbers(&[3.0, 4.0]), 2, Some(&w), 0.0, &mut out).unwrap();
        check(&out, [1.2421875, 1.1328125]);
        // 1/√1.5 is 0.8165. With weight and bias it is 1.2070 and rounds to 1.2109375, not to
        // 1.203125.
        layer_norm(&pool, &numbers(&[1.0, -1.0]), 2, (Some(&w), Some(&b)), 0.5, &mut out).unwrap();
        check(&out, [1.2109375, -0.81640625]);
    }
}

#[test]
fn means_are_not_rounded_to_the_step_of_large_numbers() {
    for pool in isas() {
        let x: Vec<f32> = (0..64).map(|i| 10_000.0 + (i * i % 29) as f32 / 1024.0).collect();
        let (xs, mut out) = (f64s(&x), vec![0.0f32; 64]);
        let mean = xs.iter().sum::<f64>() / 64.0;
        let variance = xs.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 64.0;
        let expected: Vec<f64> = xs.iter().map(|v| (v - mean) / (variance + 1e-5).sqrt()).collect();
        layer_norm(&pool, &x, 64, (None, None), 1e-5, &mut out).unwrap();
        assert_close(&format!("large mean {:?}", pool.isa()), &out, &expected, 4e-6);
    }
}

#[test]
fn softmax_handles_infinities() {
    let inf = f32::INFINITY;
    let mut out = [0f32; 3];
    softmax(&Pool::new(1), &[-inf, 0.0, -inf], 3, &mut out).unwrap();
    assert_eq!(out, [0.0, 1.0, 0.0]);
    softmax(&Pool::new(1), &[-inf; 3], 3, &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_nan()));
    softmax(&Pool::new(1), &[1e30f32, 0.0, 1e30], 3, &mut out).unwrap();
    assert_eq!(out, [0.5, 0.0, 0.5]);
}

#[test]
fn thread_counts_agree() {
    let x: Vec<f32> = Rng::new(1).floats(100 * 1000);
    assert_threads_agree(|pool| {
        let mut out = vec![0f32; x.len()];
        softmax(pool, &x, 1000, &mut out).unwrap();
        out
    });
}

#[test]
fn sizes_are_checked() {
    let pool = Pool::new(1);
    assert!(softmax(&pool, &[0f32; 7], 3, &mut [0f32; 7]).is_err());
    assert!(softmax(&pool, &[0f32; 6], 3, &mut [0f32; 7]).is_err());
    assert!(softmax(&pool, &[0f32; 6], 0, &mut [0f32; 6]).is_err());
    assert!(softmax::<f32, f32>(&pool, &[], 3, &mut []).is_ok());
    let w: FloatView = View::contiguous(&[1f32; 4], &[4]).unwrap().into();
    assert!(rms_norm(&pool, &[0f32; 6], 3, Some(&w), 1e-5, &mut [0f32; 6]).is_err());
}
