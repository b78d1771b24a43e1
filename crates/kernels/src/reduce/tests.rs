use half::{bf16, f16};

use flambeau_tensor::Bool;

use super::*;
use crate::testing::{Rng, assert_close, assert_threads_agree};

/// The elements of each output, row-major over the reduced axes.
fn groups(x: &View<f32>, axes: &[usize]) -> Vec<Vec<f64>> {
    let shape = x.shape();
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    let order: Vec<usize> = kept.iter().copied().chain(sorted).collect();
    let n: usize = kept.iter().map(|&a| shape[a]).product();
    let count: usize = x.len() / n.max(1);
    let mut out = vec![Vec::new(); n];
    for i in 0..n * count {
        let (mut index, mut rest) = (vec![0; shape.len()], i);
        for &a in order.iter().rev() {
            index[a] = rest % shape[a];
            rest /= shape[a];
        }
        out[i / count].push(f64::from(*x.get(&index).unwrap()));
    }
    out
}

fn check(pool: &Pool, x: &View<f32>, axes: &[usize]) {
    let groups = groups(x, axes);
    let n = groups.len();
    let expect = |f: &dyn Fn(&[f64]) -> f64| groups.iter().map(|g| f(g)).collect::<Vec<_>>();
    let mean_of = |g: &[f64]| g.iter().sum::<f64>() / g.len() as f64;
    let what = format!("{:?} over {axes:?}", x.shape());
    let mut out = vec![0f32; n];
    sum(pool, x, axes, &mut out).unwrap();
    assert_close(&what, &out, &expect(&|g| g.iter().sum()), 1e-4);
    mean(pool, x, axes, &mut out).unwrap();
    assert_close(&what, &out, &expect(&mean_of), 1e-6);
    var(pool, x, axes, 1, &mut out).unwrap();
    let squares = |g: &[f64]| g.iter().map(|v| (v - mean_of(g)).powi(2)).sum::<f64>();
    assert_close(&what, &out, &expect(&|g| squares(g) / (g.len() - 1) as f64), 1e-5);
    max(pool, x, axes, &mut out).unwrap();
    assert_close(&what, &out, &expect(&|g| g.iter().copied().fold(f64::NEG_INFINITY, f64::max)), 0.0);
    logsumexp(pool, x, axes, &mut out).unwrap();
    assert_close(&what, &out, &expect(&|g| g.iter().map(|v| v.exp()).sum::<f64>().ln()), 2e-6);
    let mut index = vec![0u32; n];
    argmin(pool, x, axes, &mut index).unwrap();
    let least = |g: &[f64]| (0..g.len()).fold(0, |b, i| if g[i] < g[b] { i } else { b }) as u32;
    assert_eq!(index, groups.iter().map(|g| least(g)).collect::<Vec<_>>(), "{what}");
}

#[test]
fn reductions_match_the_definition_over_any_axes() {
    let pool = Pool::new(2);
    for shape in [vec![7], vec![3, 70], vec![70, 33], vec![2, 3, 40, 5], vec![4, 1, 129, 2]] {
        let n: usize = shape.iter().product();
        let data: Vec<f32> = Rng::new(n as u64).floats(n);
        let x = View::contiguous(&data, &shape).unwrap();
        for mask in 0..1usize << shape.len() {
            let axes: Vec<usize> = (0..shape.len()).filter(|a| mask >> a & 1 == 1).collect();
            // A variance of one element has no degrees of freedom left.
            if axes.iter().map(|&a| shape[a]).product::<usize>() < 2 {
                continue;
            }
            check(&pool, &x, &axes);
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            check(&pool, &x.permute(&order).unwrap(), &axes.iter().map(|a| shape.len() - 1 - a).collect::<Vec<_>>());
        }
    }
}

#[test]
fn integers_wrap_and_halves_accumulate_in_full_precision() {
    let pool = Pool::new(1);
    let (x, mut total) = ([i64::MAX, 2], [0]);
    let x = View::contiguous(&x, &[2]).unwrap();
    sum(&pool, &x, &[0], &mut total).unwrap();
    assert_eq!(total, [i64::MIN + 1]);
    prod(&pool, &x, &[0], &mut total).unwrap();
    assert_eq!(total, [-2]);
    let ones = vec![bf16::ONE; 3000];
    let mut total = [bf16::ZERO];
    sum(&pool, &View::contiguous(&ones, &[3000]).unwrap(), &[0], &mut total).unwrap();
    assert_eq!(total[0], bf16::from_f32(3000.0));
    let mut total = [f16::ZERO];
    sum(&pool, &View::contiguous(&[f16::MAX, f16::MAX], &[2]).unwrap(), &[0], &mut total).unwrap();
    assert_eq!(total, [f16::INFINITY]);
}

#[test]
fn extremes_of_integers_reach_both_ends() {
    let (pool, x, mut out) = (Pool::new(1), [i64::MIN, 3, i64::MAX, -1], [0; 2]);
    let x = View::contiguous(&x, &[2, 2]).unwrap();
    max(&pool, &x, &[0], &mut out).unwrap();
    assert_eq!(out, [i64::MAX, 3]);
    min(&pool, &x, &[1], &mut out).unwrap();
    assert_eq!(out, [i64::MIN, -1]);
    let mut places = [0; 2];
    argmax(&pool, &x, &[1], &mut places).unwrap();
    assert_eq!(places, [1, 0]);
}

#[test]
fn nan_wins_and_the_first_of_equals_is_named() {
    let (pool, nan) = (Pool::new(1), f32::NAN);
    let arg = |x: &[f32]| {
        let (mut hi, mut lo) = ([0u32], [0u32]);
        let view = View::contiguous(x, &[x.len()]).unwrap();
        argmax(&pool, &view, &[0], &mut hi).unwrap();
        argmin(&pool, &view, &[0], &mut lo).unwrap();
        (hi[0], lo[0])
    };
    assert_eq!(arg(&[1.0, 3.0, 3.0, -2.0, -2.0]), (1, 3));
    assert_eq!(arg(&[1.0, nan, 3.0, nan]), (1, 1));
    let mut long = vec![0f32; 50];
    (long[20], long[40]) = (nan, nan);
    assert_eq!(arg(&long), (20, 20));
    let (mut a, mut b) = ([0f32], [0f32]);
    max(&pool, &View::contiguous(&long, &[50]).unwrap(), &[0], &mut a).unwrap();
    min(&pool, &View::contiguous(&long, &[50]).unwrap(), &[0], &mut b).unwrap();
    assert!(a[0].is_nan() && b[0].is_nan());
}

#[test]
fn empty_reductions_have_their_neutral_element() {
    let (pool, none) = (Pool::new(1), [0f32; 0]);
    let x = View::contiguous(&none, &[2, 0]).unwrap();
    let mut out = [9f32; 2];
    sum(&pool, &x, &[1], &mut out).unwrap();
    assert_eq!(out, [0.0; 2]);
    prod(&pool, &x, &[1], &mut out).unwrap();
    assert_eq!(out, [1.0; 2]);
    mean(&pool, &x, &[1], &mut out).unwrap();
    assert!(out[0].is_nan());
    assert!(max(&pool, &x, &[1], &mut out).is_err());
    assert!(argmax(&pool, &x, &[1], &mut [0; 2]).is_err());
    let (none, mut flags) = ([Bool(0); 0], [Bool(1), Bool(0)]);
    let x = View::contiguous(&none, &[2, 0]).unwrap();
    any(&pool, &x, &[0, 1], &mut flags[..1]).unwrap();
    all(&pool, &x, &[0, 1], &mut flags[1..]).unwrap();
    assert_eq!(flags, [Bool(0), Bool(1)]);
}

#[test]
fn infinities_pass_through_logsumexp() {
    let (pool, inf) = (Pool::new(1), f32::INFINITY);
    for (x, expected) in [([-inf, -inf], -inf), ([inf, 0.0], inf), ([inf, inf], inf), ([0.0, -inf], 0.0)] {
        let mut out = [0f32];
        logsumexp(&pool, &View::contiguous(&x, &[2]).unwrap(), &[0], &mut out).unwrap();
        assert_eq!(out[0], expected);
    }
}

#[test]
fn thread_counts_agree() {
    let data: Vec<f32> = Rng::new(7).floats(400_000);
    for (shape, axes) in [([4, 100_000], vec![0, 1]), ([4, 100_000], vec![1]), ([4, 100_000], vec![0])] {
        assert_threads_agree(|pool| {
            let x = View::contiguous(&data, &shape).unwrap();
            let n = (0..2).filter(|a| !axes.contains(a)).map(|a| shape[a]).product();
            let mut out = vec![0f32; n];
            sum(pool, &x, &axes, &mut out).unwrap();
            out
        });
    }
}

#[test]
fn axes_are_checked() {
    let x = [0f32; 4];
    let x = View::contiguous(&x, &[2, 2]).unwrap();
    let run = |axes: &[usize], n: usize| sum(&Pool::new(1), &x, axes, &mut [0f32; 4][..n]).is_ok();
    assert!(run(&[0], 2) && run(&[], 4) && run(&[1, 0], 1));
    assert!(!run(&[2], 2) && !run(&[0, 0], 2) && !run(&[0], 3));
}
