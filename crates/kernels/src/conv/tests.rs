use half::bf16;

use super::*;
use crate::testing::{Precision, Rng, assert_close, assert_threads_agree, isas};

struct Case {
    input: &'static [usize],
    taps: &'static [usize],
    channels: [usize; 2],
    groups: usize,
    axis: WindowAxis,
}

fn axis(stride: i64, padding: i64, dilation: i64, output_padding: i64) -> WindowAxis {
    WindowAxis { stride, padding, dilation, output_padding }
}

/// Scatters or gathers term by term, in `f64`.
fn reference<T: Float>(x: &[T], w: &[T], case: &Case, transposed: bool, out: &[usize]) -> Vec<f64> {
    let n = case.input.len();
    let [ci, co] = case.channels;
    let (cig, cog) = (ci / case.groups, co / case.groups);
    let a = case.axis;
    let unravel = |mut i: usize, shape: &[usize]| -> Vec<usize> {
        let mut index = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            index[d] = i % shape[d];
            i /= shape[d];
        }
        index
    };
    let count = |s: &[usize]| s.iter().product::<usize>();
    let ravel = |index: &[usize], shape: &[usize]| index.iter().zip(shape).fold(0, |sum, (i, d)| sum * d + i);
    let mut result = vec![0.0; 2 * count(out) * co];
    // `near` is the side that the stride multiplies: outputs of a convolution, inputs of a
    // transposed one.
    let (near, far) = if transposed { (case.input, out) } else { (out, case.input) };
    for batch in 0..2 {
        for p in 0..count(near) {
            for t in 0..count(case.taps) {
                let (pi, ti) = (unravel(p, near), unravel(t, case.taps));
                let target: Option<Vec<usize>> = (0..n)
                    .map(|d| pi[d] as i64 * a.stride + ti[d] as i64 * a.dilation - a.padding)
                    .zip(far)
                    .map(|(at, &size)| usize::try_from(at).ok().filter(|&at| at < size))
                    .collect();
                let Some(target) = target else { continue };
                let q = ravel(&target, far);
                let (i, o) = if transposed { (p, q) } else { (q, p) };
                for c in 0..co {
                    for k in 0..cig {
                        let xv = x[(batch * count(case.input) + i) * ci + c / cog * cig + k].to_f32();
                        let wv = w[(c * count(case.taps) + t) * cig + k].to_f32();
                        result[(batch * count(out) + o) * co + c] += f64::from(xv) * f64::from(wv);
                    }
                }
            }
        }
    }
    result
}

fn check<T: Precision>(pool: &Pool, case: &Case, transposed: bool) {
    let [ci, co] = case.channels;
    let axes = vec![case.axis; case.input.len()];
    let spec = Conv { axes: &axes, groups: case.groups, transposed };
    let sizes = case.input.iter().zip(case.taps).enumerate();
    let out_sizes: Vec<usize> = sizes.map(|(i, (&n, &t))| spec.outputs(i, n, t).unwrap()).collect();
    let shape = |first: usize, middle: &[usize], last: usize| [&[first], middle, &[last]].concat();
    let (xs, ws) = (shape(2, case.input, ci), shape(co, case.taps, ci / case.groups));
    let os = shape(2, &out_sizes, co);
    let count = |s: &[usize]| s.iter().product::<usize>();
    let mut rng = Rng::new(count(&xs) as u64);
    let (x, w): (Vec<T>, Vec<T>) = (rng.floats(count(&xs)), rng.floats(count(&ws)));
    let mut out = vec![T::from_f32(f32::NAN); count(&os)];
    conv(pool, (&x, &xs), (&w, &ws), &spec, (&mut out, &os)).unwrap();
    let expected = reference(&x, &w, case, transposed, &out_sizes);
    assert_close(&format!("{:?} {xs:?} {ws:?} {:?} {transposed}", pool.isa(), case.axis), &out, &expected, 1e-5);
}

#[test]
fn convolutions_match_the_definition() {
    let cases = [
        Case { input: &[9], taps: &[3], channels: [4, 6], groups: 1, axis: axis(1, 1, 1, 0) },
        Case { input: &[10], taps: &[3], channels: [4, 6], groups: 2, axis: axis(2, 2, 2, 1) },
        Case { input: &[8], taps: &[4], channels: [21, 21], groups: 21, axis: axis(2, 1, 1, 0) },
        Case { input: &[5, 7], taps: &[3, 2], channels: [3, 5], groups: 1, axis: axis(2, 1, 1, 0) },
        Case { input: &[6, 6], taps: &[1, 1], channels: [7, 9], groups: 1, axis: axis(1, 0, 1, 0) },
        Case { input: &[6, 5], taps: &[3, 3], channels: [6, 6], groups: 6, axis: axis(1, 1, 1, 0) },
        Case { input: &[4, 5, 3], taps: &[2, 3, 2], channels: [2, 3], groups: 1, axis: axis(1, 1, 1, 0) },
        Case { input: &[3, 4, 4], taps: &[2, 2, 3], channels: [4, 2], groups: 2, axis: axis(2, 1, 1, 1) },
    ];
    for pool in isas() {
        for case in &cases {
            for transposed in [false, true] {
                check::<f32>(&pool, case, transposed);
                check::<bf16>(&pool, case, transposed);
            }
        }
    }
}

#[test]
fn thread_counts_agree() {
    let mut rng = Rng::new(4);
    let (x, w): (Vec<f32>, Vec<f32>) = (rng.floats(40 * 40 * 8), rng.floats(16 * 9 * 8));
    assert_threads_agree(|pool| {
        let mut out = vec![0f32; 40 * 40 * 16];
        let axes = [axis(1, 1, 1, 0); 2];
        let spec = Conv { axes: &axes, groups: 1, transposed: false };
        conv(pool, (&x, &[1, 40, 40, 8]), (&w, &[16, 3, 3, 8]), &spec, (&mut out, &[1, 40, 40, 16])).unwrap();
        out
    });
}

#[test]
fn sizes_are_checked() {
    let data = [0f32; 64];
    let run = |x: &[usize], w: &[usize], out: &[usize], groups: usize, a: WindowAxis| {
        let mut result = [0f32; 64];
        let n = |s: &[usize]| s.iter().product::<usize>();
        let axes = [a];
        let spec = Conv { axes: &axes, groups, transposed: false };
        conv(&Pool::new(1), (&data[..n(x)], x), (&data[..n(w)], w), &spec, (&mut result[..n(out)], out)).is_ok()
    };
    assert!(run(&[1, 5, 2], &[3, 3, 2], &[1, 3, 3], 1, WindowAxis::default()));
    assert!(!run(&[1, 5, 2], &[3, 3, 2], &[1, 4, 3], 1, WindowAxis::default()));
    assert!(!run(&[1, 2, 2], &[3, 3, 2], &[1, 0, 3], 1, WindowAxis::default()));
    assert!(!run(&[1, 5, 2], &[3, 3, 2], &[1, 3, 3], 0, WindowAxis::default()));
    assert!(!run(&[1, 5, 2], &[3, 3, 2], &[1, 3, 3], 1, axis(0, 0, 1, 0)));
    assert!(!run(&[1, 5, 2], &[3, 3, 2], &[1, 3, 3], 1, axis(1, 0, i64::MAX, 0)));
    assert!(!run(&[1, 5, 2], &[3, 0, 2], &[1, 6, 3], 1, WindowAxis::default()));
}
