use super::*;
use crate::{Argument, call::testing};

/// Whole numbers from 0 to `below`, of a linear congruence.
fn drawn(count: usize, below: i64, seed: u64) -> Vec<i64> {
    let next = |state: &mut u64, _: usize| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*state >> 33) as i64 % below)
    };
    (0..count).scan(seed, next).collect()
}

fn run(target: &str, x: &Tensor, args: &[Argument]) -> Vec<Tensor> {
    let args: Vec<Argument> = std::iter::once(Argument::Tensor(x.clone())).chain(args.iter().cloned()).collect();
    testing::run(target, &args, &[]).unwrap_or_else(|e| panic!("{target}: {e}"))
}

/// A digest of positions, the last result.
fn digest(results: &[Tensor]) -> u64 {
    let positions = results.last().unwrap().as_slice::<i64>().unwrap();
    positions.iter().fold(0u64, |sum, &p| sum.wrapping_mul(1_000_003).wrapping_add(p as u64 + 1))
}

/// PyTorch 2.15 made the digests on a CPU.
#[test]
fn positions_of_equal_elements_are_pytorchs() {
    let expected: [(usize, i64, [u64; 7]); 6] = [
        (3, 2, [0xf4245, 0xf4245, 0x1, 0x1, 0x3, 0xe8d51f2212, 0xe8d51f2212]),
        (16, 3, [0xece26a8d630cf0f8, 0xa2b0573f2911ae9d, 0xa, 0xf, 0x10, 0x5a44b2741fc37d80, 0x2850cefbde0a079c]),
        (17, 3, [0xe51e3b56334c8d0f, 0xad08a43459f59544, 0x11, 0xb, 0x1, 0xa8a9011a89df8525, 0x4f02f727fe7b86dd]),
        (40, 4, [0xc6bd6fdf7c9e344, 0x34c447a22a8bf730, 0x13, 0x25, 0x7, 0xbf019872cfefcd92, 0xffff2291947d72e]),
        (300, 5, [0x442fa6525186762, 0x8fbd32f0a1e9f564, 0x6f05f8eac15283da, 0x29, 0x10, 0xdb7b36e9435e8290, 0x7fd66750b0728572]),
        (
            2000,
            40,
            [0x60b2a4c258398ea1, 0x36cb770eb9de3356, 0xd0e6a3691e9527fe, 0x34c, 0x33c, 0x727dce6c42f91a1e, 0x4005e1f61ee31840],
        ),
    ];
    let (int, flag) = (Argument::Int, Argument::Bool);
    for (n, below, digests) in expected {
        let x = Tensor::from_slice(&drawn(n, below, n as u64), &[n]).unwrap();
        let floats = cast(&x, DType::F32).unwrap();
        let half = n.div_ceil(2) as i64;
        let found = [
            run("aten.topk.default", &x, &[int(half)]),
            run("aten.topk.default", &floats, &[int(half), int(-1), flag(false), flag(false)]),
            run("aten.topk.default", &x, &[int((n as i64 / 64).max(1))]),
            run("aten.kthvalue.default", &x, &[int(half)]),
            run("aten.mode.default", &x, &[]),
            run("aten.sort.default", &x, &[]),
            run("aten.sort.default", &floats, &[int(0), flag(true)]),
        ];
        assert_eq!(found.map(|results| digest(&results)), digests, "{n} elements");
    }
}

/// A vector with the smallest possible medians of three, which makes quicksort switch to heaps.
#[test]
fn heaps_take_over_from_bad_pivots() {
    let (n, half) = (4096, 2048);
    let mut values = vec![0i64; n];
    for i in 1..=half {
        if i % 2 == 1 {
            (values[i - 1], values[i]) = (i as i64 / 5, (half + i) as i64 / 5);
        }
        values[half + i - 1] = 2 * i as i64 / 5;
    }
    let x = Tensor::from_slice(&values, &[n]).unwrap();
    assert_eq!(digest(&run("aten.sort.default", &x, &[])), 0x601a9ebb75f28cfc);
    let smallest = [Argument::Int(1000), Argument::Int(0), Argument::Bool(false)];
    assert_eq!(digest(&run("aten.topk.default", &x, &smallest)), 0xf93228aa22df6f15);
}

#[test]
fn long_vectors_of_integers_and_stable_sorts_keep_the_order_of_equals() {
    let x = Tensor::from_slice(&drawn(40_000, 4, 1), &[40_000]).unwrap();
    assert_eq!(digest(&run("aten.sort.default", &x, &[])), 0x4d24cf1b15aa9c74);
    let x = Tensor::from_slice(&drawn(100, 2, 1), &[100]).unwrap();
    let sorted = run("aten.argsort.stable", &x, &[Argument::Bool(true), Argument::Int(0), Argument::Bool(true)]);
    let positions = sorted[0].as_slice::<i64>().unwrap();
    let zeros = x.as_slice::<i64>().unwrap().iter().filter(|&&v| v == 0).count();
    assert!(positions[..100 - zeros].is_sorted() && positions[100 - zeros..].is_sorted());
}

#[test]
fn lines_are_along_any_axis_and_nan_is_the_largest() {
    let nan = f32::NAN;
    let x = Tensor::from_slice(&[1.0, 5.0, nan, 0.0, 1.0, 5.0, 0.0, 2.0, nan, 7.0], &[5, 2]).unwrap();
    let found = run("aten.topk.default", &x, &[Argument::Int(2), Argument::Int(0)]);
    assert_eq!((found[0].shape(), found[1].as_slice::<i64>().unwrap()), (&[2, 2][..], &[1i64, 4, 4, 2][..]));
    let found = run("aten.kthvalue.default", &x, &[Argument::Int(3), Argument::Int(0), Argument::Bool(true)]);
    assert_eq!((found[0].shape(), found[0].as_slice::<f32>().unwrap()), (&[1, 2][..], &[1.0f32, 5.0][..]));
    let found = run("aten.mode.default", &x, &[Argument::Int(0)]);
    assert_eq!((found[0].shape(), found[0].as_slice::<f32>().unwrap()), (&[2][..], &[0.0f32, 5.0][..]));
    let one = run("aten.topk.default", &Tensor::scalar(3i64), &[Argument::Int(1)]);
    assert_eq!((one[0].shape(), one[1].as_slice::<i64>().unwrap()), (&[][..], &[0i64][..]));
    let too_many = [Argument::Tensor(x), Argument::Int(6), Argument::Int(0)];
    assert!(testing::run("aten.kthvalue.default", &too_many, &[]).is_err());
}
