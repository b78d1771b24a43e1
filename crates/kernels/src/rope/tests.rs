use half::bf16;

use super::*;
use crate::testing::{Precision, Rng, assert_close, isas};

fn check<T: Precision>(pool: &Pool, shape: [usize; 4], offsets: &[i32], spec: &Rope, strided: bool, absolute: f64) {
    let [b, h, t, d] = shape;
    let x: Vec<T> = Rng::new(3).floats(b * h * t * d);
    let strides = if strided { [t * h * d, d, h * d, 1] } else { [h * t * d, t * d, d, 1] }.map(|s| s as isize);
    let x = View::new(&x, &shape, &strides, 0).unwrap();
    let mut out = vec![T::from_f32(f32::NAN); x.len()];
    rope(pool, &x, offsets, spec, &mut ViewMut::contiguous(&mut out, &shape).unwrap()).unwrap();
    let half = spec.dims / 2;
    let value = |i: usize| {
        let (p, pos, head, batch) = (i % d, i / d % t, i / d / t % h, i / d / t / h);
        let at = |p: usize| f64::from(x.get(&[batch, head, pos, p]).unwrap().to_f32());
        if p >= spec.dims {
            return at(p);
        }
        let (pair, second) = if spec.traditional { (p / 2, p % 2 == 1) } else { (p % half, p >= half) };
        let (p1, p2) = if spec.traditional { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let position = (f64::from(offsets[if offsets.len() == 1 { 0 } else { batch }]) + pos as f64) * f64::from(spec.scale);
        let frequency = match spec.periods {
            Some(periods) => 1.0 / f64::from(periods[pair]),
            None => f64::from(spec.base).powf(-(pair as f64) / half as f64),
        };
        let (s, c) = (position * frequency).sin_cos();
        if second { at(p1) * s + at(p2) * c } else { at(p1) * c - at(p2) * s }
    };
    let expected: Vec<f64> = (0..out.len()).map(value).collect();
    assert_close(&format!("{:?} {shape:?} {offsets:?} {spec:?}", pool.isa()), &out, &expected, absolute);
}

#[test]
fn rotations_match_the_definition() {
    let periods: Vec<f32> = (0..20).map(|i| 1.0 + 3.0 * i as f32).collect();
    for pool in isas() {
        for traditional in [false, true] {
            for (dims, d) in [(8, 8), (40, 64), (2, 3), (0, 4)] {
                let spec = Rope { dims, traditional, base: 10000.0, scale: 1.0, periods: None };
                check::<f32>(&pool, [2, 3, 5, d], &[7], &spec, false, 1e-5);
                check::<f32>(&pool, [2, 3, 5, d], &[7, 100], &spec, true, 1e-4);
                // Sine, products and sum each round to eight bits.
                check::<bf16>(&pool, [1, 2, 1, d], &[-3], &Rope { scale: 0.5, ..spec }, true, 0.02);
                if dims == 40 {
                    check::<f32>(&pool, [1, 2, 3, d], &[9], &Rope { periods: Some(&periods), ..spec }, false, 1e-5);
                }
            }
        }
    }
}

#[test]
fn large_positions_lose_no_more_than_the_angle_does() {
    let spec = Rope { dims: 64, traditional: false, base: 500_000.0, scale: 1.0, periods: None };
    // An f32 angle near 131 072 is accurate to 2^-8 of a radian at best; the rounding of one
    // product is half of that.
    for pool in isas() {
        check::<f32>(&pool, [1, 1, 2, 64], &[131_070], &spec, false, 2.0 * 131_072.0 * 2f64.powi(-23));
    }
}

#[test]
fn a_pool_that_remembers_rotations_gives_what_a_new_one_gives() {
    let x: Vec<f32> = Rng::new(4).floats(3 * 16);
    let x = View::contiguous(&x, &[1, 1, 3, 16]).unwrap();
    let transposed = |pool: &Pool, offset: i32, base: f32| {
        let mut out = [0f32; 3 * 16];
        let spec = Rope { dims: 16, traditional: false, base, scale: 1.0, periods: None };
        rope(pool, &x, &[offset], &spec, &mut ViewMut::contiguous(&mut out, &[1, 1, 3, 16]).unwrap()).unwrap();
        out
    };
    let pool = Pool::new(1);
    for (offset, base) in [(5, 1e4), (5, 1e4), (5, 5e5), (6, 1e4), (7, 1e4), (8, 1e4), (5, 1e4), (8, 1e4), (5, 5e5)] {
        assert_eq!(transposed(&pool, offset, base), transposed(&Pool::new(1), offset, base), "{offset} {base}");
    }
}

#[test]
fn sizes_are_checked() {
    let data = [0f32; 32];
    let x = View::contiguous(&data, &[2, 1, 2, 8]).unwrap();
    let run = |dims, offsets: &[i32], periods: Option<&[f32]>| {
        let mut out = [0f32; 32];
        let spec = Rope { dims, traditional: false, base: 1e4, scale: 1.0, periods };
        rope(&Pool::new(1), &x, offsets, &spec, &mut ViewMut::contiguous(&mut out, &[2, 1, 2, 8]).unwrap()).is_ok()
    };
    assert!(run(8, &[0], None));
    assert!(run(8, &[0, 1], Some(&[1.0; 4])));
    assert!(!run(7, &[0], None));
    assert!(!run(10, &[0], None));
    assert!(!run(8, &[0; 3], None));
    assert!(!run(8, &[], None));
    assert!(!run(8, &[0], Some(&[1.0; 3])));
}
