use half::{bf16, f16};

use super::*;
use crate::testing::{Rng, assert_threads_agree, isas};

/// Operand shapes that broadcast to `[3, 4, 70]`, with strides.
fn operands() -> Vec<(Vec<usize>, Vec<isize>)> {
    vec![
        (vec![3, 4, 70], vec![280, 70, 1]),
        (vec![3, 4, 70], vec![1, 210, 3]),
        (vec![70], vec![1]),
        (vec![4, 1], vec![1, 1]),
        (vec![], vec![]),
        (vec![3, 1, 70], vec![-100, 0, 1]),
    ]
}

#[test]
fn operands_broadcast_over_any_strides() {
    let data: Vec<f32> = Rng::new(1).floats(900);
    let shape = [3, 4, 70];
    for pool in isas() {
        for (sa, ta) in operands() {
            for (sb, tb) in operands() {
                let offset = |t: &[isize]| if t.first().is_some_and(|&s| s < 0) { 200 } else { 0 };
                let a = View::new(&data, &sa, &ta, offset(&ta)).unwrap();
                let b = View::new(&data, &sb, &tb, offset(&tb)).unwrap();
                let (wide_a, wide_b) = (a.broadcast_to(&shape).unwrap(), b.broadcast_to(&shape).unwrap());
                let expected: Vec<f32> = (0..840)
                    .map(|i| [i / 280, i / 70 % 4, i % 70])
                    .map(|i| wide_a.get(&i).unwrap() - 2.0 * wide_b.get(&i).unwrap())
                    .collect();
                let mut out = vec![0f32; 840];
                zip(&pool, &a, &b, &mut ViewMut::contiguous(&mut out, &shape).unwrap(), |a, b| a - 2.0 * b).unwrap();
                assert_eq!(out, expected);
                zip_float(&pool, &a, &b, &mut ViewMut::contiguous(&mut out, &shape).unwrap(), |a, b| a - 2.0 * b).unwrap();
                assert_eq!(out, expected);
                let mut transposed = vec![0f32; 840];
                let mut view = ViewMut::new(&mut transposed, &shape, &[1, 3, 12], 0).unwrap();
                zip(&pool, &a, &b, &mut view, |a, b| a - 2.0 * b).unwrap();
                let back = View::new(&transposed, &shape, &[1, 3, 12], 0).unwrap();
                copy_to_slice(&pool, &back, &mut out).unwrap();
                assert_eq!(out, expected);
            }
        }
    }
}

#[test]
fn halves_compute_in_f32_and_round_once() {
    let x: Vec<f16> = (0..1000).map(|i| f16::from_f32(i as f32 / 7.0)).collect();
    let mut out = vec![bf16::ZERO; 999];
    for pool in isas() {
        let view = View::new(&x, &[999], &[1], 1).unwrap();
        map_float(&pool, &view, &mut ViewMut::contiguous(&mut out, &[999]).unwrap(), |x| x * x + 0.1).unwrap();
        for (x, y) in x[1..].iter().zip(&out) {
            assert_eq!(*y, bf16::from_f32(x.to_f32() * x.to_f32() + 0.1));
        }
    }
}

#[test]
fn selection_takes_either_side() {
    let (c, a, b) = ([Bool(0), Bool(9)], [1i64, 2], [-1i64]);
    let mut out = [0i64; 2];
    let view = |x| View::contiguous(x, &[2]).unwrap();
    let c = View::contiguous(&c, &[2]).unwrap();
    let b = View::contiguous(&b, &[1]).unwrap();
    select(&Pool::new(1), &c, &view(&a), &b, &mut ViewMut::contiguous(&mut out, &[2]).unwrap()).unwrap();
    assert_eq!(out, [-1, 2]);
}

#[test]
fn thread_counts_agree() {
    let x: Vec<f32> = Rng::new(2).floats(100_000);
    assert_threads_agree(|pool| {
        let mut out = x.clone();
        map_in_place(pool, &mut out, |x: f32| x * 3.0);
        let mut transposed = vec![bf16::ZERO; x.len()];
        let view = View::new(&out, &[250, 400], &[1, 250], 0).unwrap();
        map_float(pool, &view, &mut ViewMut::contiguous(&mut transposed, &[250, 400]).unwrap(), f32::exp).unwrap();
        transposed
    });
}

#[test]
fn shapes_are_checked() {
    let x = [0u8; 6];
    let mut out = [0u8; 6];
    let x = View::contiguous(&x, &[2, 3]).unwrap();
    assert!(copy(&Pool::new(1), &x, &mut ViewMut::contiguous(&mut out, &[3, 2]).unwrap()).is_err());
    assert!(copy_to_slice(&Pool::new(1), &x, &mut out[..5]).is_err());
}

/// Copies of matrices whose rows become columns, in whole blocks and in rests, under leading axes.
fn check_turned<T: Element + From<u8> + PartialEq>(pool: &Pool, [lead, rows, columns]: [usize; 3]) {
    let from: Vec<T> = (0..lead * rows * columns).map(|i| T::from((i * 7 % 251) as u8)).collect();
    let x = View::contiguous(&from, &[lead, columns, rows]).unwrap().permute(&[0, 2, 1]).unwrap();
    let (mut out, mut spread) = (vec![T::from(0); from.len()], vec![T::from(0); 2 * from.len()]);
    copy_to_slice(pool, &x, &mut out).unwrap();
    let steps = [2 * rows * columns, 2 * columns, 2].map(|s| s as isize);
    copy(pool, &x, &mut ViewMut::new(&mut spread, &[lead, rows, columns], &steps, 0).unwrap()).unwrap();
    for i in 0..out.len() {
        let index = [i / columns / rows, i / columns % rows, i % columns];
        assert_eq!((Some(&out[i]), Some(&spread[2 * i])), (x.get(&index), x.get(&index)), "{:?} {index:?}", pool.isa());
    }
}

#[test]
fn turned_copies_move_every_element() {
    for pool in isas() {
        for size in [[1, 64, 96], [2, 70, 33], [3, 8, 9], [1, 200, 8]] {
            check_turned::<f32>(&pool, size);
            check_turned::<u16>(&pool, size);
            check_turned::<i64>(&pool, size);
        }
    }
}
