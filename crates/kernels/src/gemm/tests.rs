use half::{bf16, f16};

use super::*;
use crate::testing::{Precision, Rng, assert_close, assert_threads_agree, isas};

/// The memory layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Rows,
    Columns,
    Gaps,
}

fn strides(layout: Layout, rows: usize, cols: usize) -> [isize; 2] {
    match layout {
        Layout::Rows => [cols as isize, 1],
        Layout::Columns => [1, rows as isize],
        Layout::Gaps => [2 * cols as isize + 3, 2],
    }
}

fn check<A: Precision, B: Precision>(pool: &Pool, [m, n, k]: [usize; 3], la: Layout, lb: Layout, bias: bool) {
    let mut rng = Rng::new((m + 10 * n + 100 * k) as u64);
    let (a, b): (Vec<A>, Vec<B>) = (rng.floats(3 * m * k + 3 * m), rng.floats(3 * n * k + 3 * k));
    let row: Vec<f32> = rng.floats(n);
    let a = View::new(&a, &[m, k], &strides(la, m, k), 0).unwrap();
    let b = View::new(&b, &[k, n], &strides(lb, k, n), 0).unwrap();
    let mut out = vec![A::from_f32(f32::NAN); m * n];
    let addmm =
        Addmm { alpha: if bias { 0.5 } else { 1.0 }, beta: 2.0, bias: bias.then(|| View::contiguous(&row, &[n]).unwrap().into()) };
    matmul(pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[m, n]).unwrap(), &addmm).unwrap();
    let value = |i: usize, j: usize| {
        let sum: f64 =
            (0..k).map(|p| f64::from(a.get(&[i, p]).unwrap().to_f32()) * f64::from(b.get(&[p, j]).unwrap().to_f32())).sum();
        if bias { 0.5 * sum + 2.0 * f64::from(row[j]) } else { sum }
    };
    let expected: Vec<f64> = (0..m * n).map(|i| value(i / n, i % n)).collect();
    assert_close(&format!("{:?} {m} {n} {k} {la:?} {lb:?}", pool.isa()), &out, &expected, k as f64 * 2f64.powi(-22));
}

#[test]
fn products_match_the_definition() {
    use Layout::*;
    for pool in isas() {
        for (la, lb) in [(Rows, Columns), (Rows, Rows), (Columns, Columns), (Gaps, Gaps), (Rows, Gaps)] {
            for size in [[1, 1, 1], [1, 37, 19], [3, 130, 64], [4, 5, 100], [6, 7, 33], [13, 33, 17], [100, 70, 300], [64, 3, 40]] {
                for bias in [false, true] {
                    check::<f32, f32>(&pool, size, la, lb, bias);
                    check::<bf16, bf16>(&pool, size, la, lb, bias);
                }
                check::<f16, f32>(&pool, size, la, lb, false);
                check::<f32, bf16>(&pool, size, la, lb, false);
            }
        }
        check::<f32, f32>(&pool, [250, 65, 513], Rows, Columns, false);
        check::<bf16, bf16>(&pool, [17, 1300, 35], Rows, Rows, false);
        check::<bf16, bf16>(&pool, [1300, 50, 34], Rows, Columns, false);
        check::<f32, f32>(&pool, [2, 3, 0], Rows, Columns, true);
    }
}

#[test]
fn batches_broadcast() {
    let mut rng = Rng::new(8);
    let (a, b): (Vec<f32>, Vec<f32>) = (rng.floats(2 * 3 * 4 * 5), rng.floats(3 * 5 * 6));
    let pool = Pool::new(2);
    for shared in [false, true] {
        let a = View::contiguous(&a, &[2, 3, 4, 5]).unwrap();
        let b = if shared { View::contiguous(&b[..30], &[5, 6]) } else { View::contiguous(&b, &[3, 5, 6]) }.unwrap();
        let mut out = vec![0f32; 2 * 3 * 4 * 6];
        matmul(&pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[2, 3, 4, 6]).unwrap(), &Addmm::default()).unwrap();
        let b = b.broadcast_to(&[2, 3, 5, 6]).unwrap();
        for (i, &found) in out.iter().enumerate() {
            let (x, y, r, c) = (i / 72, i / 24 % 3, i / 6 % 4, i % 6);
            let sum: f32 = (0..5).map(|p| a.get(&[x, y, r, p]).unwrap() * b.get(&[x, y, p, c]).unwrap()).sum();
            assert!((found - sum).abs() < 1e-5);
        }
    }
}

#[test]
fn thread_counts_agree() {
    let mut rng = Rng::new(8);
    for [m, n, k] in [[1, 1000, 500], [5, 300, 300], [130, 200, 700]] {
        let (a, b): (Vec<bf16>, Vec<bf16>) = (rng.floats(m * k), rng.floats(n * k));
        assert_threads_agree(|pool| {
            let mut out = vec![0f32; m * n];
            let (a, b) = (View::contiguous(&a, &[m, k]).unwrap(), View::new(&b, &[k, n], &[1, k as isize], 0).unwrap());
            matmul(pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[m, n]).unwrap(), &Addmm::default()).unwrap();
            out
        });
    }
}

#[test]
fn sizes_are_checked() {
    let data = [0f32; 64];
    let view = |shape: &[usize]| View::contiguous(&data, shape).unwrap();
    let run = |a: &[usize], b: &[usize], c: &[usize]| {
        let mut out = [0f32; 64];
        let mut out = ViewMut::contiguous(&mut out, c).unwrap();
        matmul(&Pool::new(1), &view(a), &view(b), &mut out, &Addmm::default()).is_ok()
    };
    assert!(run(&[2, 3], &[3, 4], &[2, 4]));
    assert!(!run(&[2, 3], &[4, 3], &[2, 4]));
    assert!(!run(&[2, 3], &[3, 4], &[2, 5]));
    assert!(!run(&[3], &[3, 4], &[1, 4]));
    assert!(!run(&[2, 2, 3], &[3, 3, 4], &[2, 2, 4]));
}
