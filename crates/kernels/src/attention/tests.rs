use flambeau_tensor::DType;
use half::{bf16, f16};

use super::*;
use crate::testing::{Precision, Rng, assert_close, assert_threads_agree, isas};

/// Batch, query heads, key heads, queries, keys, depth, width of values.
type Sizes = [usize; 7];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    None,
    Causal,
    Window,
    Spans,
    Bool,
    Add,
}

/// Keys of a window.
const WINDOW: usize = 40;

fn expected<T: Float>(q: &View<T>, k: &View<T>, v: &View<T>, mask: &Mask, scoring: Scoring, s: Sizes) -> Vec<f64> {
    let [batch, heads, kv, tq, tk, d, dv] = s;
    let mut out = Vec::new();
    let at = |x: &View<T>, i: [usize; 4]| f64::from(x.get(&i).unwrap().to_f32());
    for i in 0..batch * heads * tq {
        let (b, h, t) = (i / tq / heads, i / tq % heads, i % tq);
        let g = h / (heads / kv);
        let score = |j: usize| {
            let dot: f64 = (0..d).map(|p| at(q, [b, h, t, p]) * at(k, [b, g, j, p])).sum::<f64>() * f64::from(scoring.scale);
            let dot = scoring.cap.map(f64::from).map_or(dot, |cap| cap * (dot / cap).tanh());
            match mask {
                Mask::Causal | Mask::Window(_) if j + tq > t + tk => f64::NEG_INFINITY,
                Mask::Window(size) if j + tq + size <= t + tk => f64::NEG_INFINITY,
                Mask::Spans(spans) if !(spans[t][0]..spans[t][1]).contains(&(j as i64)) => f64::NEG_INFINITY,
                Mask::Bool(m) if !m.broadcast_to(&[batch, heads, tq, tk]).unwrap().get(&[b, h, t, j]).unwrap().get() => {
                    f64::NEG_INFINITY
                }
                Mask::Add(FloatView::F32(m)) => {
                    dot + f64::from(*m.broadcast_to(&[batch, heads, tq, tk]).unwrap().get(&[b, h, t, j]).unwrap())
                }
                _ => dot,
            }
        };
        let scores: Vec<f64> = (0..tk).map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| if top.is_finite() { (s - top).exp() } else { 0.0 }).collect();
        let sink = scoring.sinks.filter(|_| top.is_finite()).map_or(0.0, |sinks| (f64::from(sinks[h]) - top).exp());
        let total: f64 = (weights.iter().sum::<f64>() + sink).max(1e-300);
        out.extend((0..dv).map(|p| (0..tk).map(|j| weights[j] * at(v, [b, g, j, p])).sum::<f64>() / total));
    }
    out
}

fn check<T: Precision>(pool: &Pool, s: Sizes, kind: Kind, strided: bool) {
    let [batch, heads, kv, tq, tk, d, dv] = s;
    let mut rng = Rng::new(s.iter().sum::<usize>() as u64);
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) =
        (rng.floats(batch * heads * tq * d), rng.floats(batch * kv * tk * d), rng.floats(batch * kv * tk * dv));
    let allowed: Vec<Bool> = (0..heads * tq * tk).map(|_| Bool::from(rng.below(3) > 0)).collect();
    let added: Vec<f32> = rng.floats(tq * tk);
    // Some begin before the first key, some end after the last one, and some are empty.
    let spans: Vec<[i64; 2]> = (0..tq).map(|_| [rng.below(tk + 3) as i64 - 3, rng.below(tk + 3) as i64]).collect();
    // Keys and values as `[B, T, H, D]` seen as `[B, H, T, D]`, as a projection leaves them.
    let view = |x: &'_ [T], h: usize, t: usize, d: usize| -> Vec<isize> {
        let _ = x;
        if strided {
            [t * h * d, d, h * d, 1].map(|s| s as isize).to_vec()
        } else {
            [h * t * d, t * d, d, 1].map(|s| s as isize).to_vec()
        }
    };
    let q = View::new(&q, &[batch, heads, tq, d], &view(&q, heads, tq, d), 0).unwrap();
    let k = View::new(&k, &[batch, kv, tk, d], &view(&k, kv, tk, d), 0).unwrap();
    let v = View::new(&v, &[batch, kv, tk, dv], &view(&v, kv, tk, dv), 0).unwrap();
    let mask = match kind {
        Kind::None => Mask::None,
        Kind::Causal => Mask::Causal,
        Kind::Window => Mask::Window(WINDOW),
        Kind::Spans => Mask::Spans(&spans),
        Kind::Bool => Mask::Bool(View::contiguous(&allowed, &[heads, tq, tk]).unwrap()),
        Kind::Add => Mask::Add(View::contiguous(&added, &[tq, tk]).unwrap().into()),
    };
    let mut out = vec![T::from_f32(f32::NAN); batch * heads * tq * dv];
    let sinks: Vec<f32> = rng.floats(heads);
    // Views that are not strided also have a cap and sinks.
    let further = !strided;
    let scoring = Scoring { scale: 0.7, cap: further.then_some(1.5), sinks: further.then_some(&sinks) };
    let mut view = ViewMut::contiguous(&mut out, &[batch, heads, tq, dv]).unwrap();
    attention(pool, &q, (&k, &v), &mut view, scoring, &mask).unwrap();
    let expected = expected(&q, &k, &v, &mask, scoring, s);
    // Weights are rounded to the element type before the sum over values.
    let rounding = match T::DTYPE {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 4e-6,
    };
    assert_close(&format!("{:?} {s:?} {kind:?} {strided}", pool.isa()), &out, &expected, rounding);
}

#[test]
fn attention_matches_the_definition() {
    let sizes = [
        [1, 2, 2, 1, 5, 8, 8],
        [2, 4, 2, 1, 130, 64, 64],
        [1, 6, 2, 2, 33, 20, 12],
        [1, 3, 3, 7, 7, 16, 16],
        [1, 4, 2, 40, 200, 24, 40],
        [2, 2, 1, 50, 50, 33, 7],
        [1, 1, 1, 9, 4, 8, 8],
        [1, 2, 1, 1, 1300, 16, 16],
        [1, 2, 1, 3, 1, 4, 4],
        [1, 3, 1, 1, 70, 64, 64],
        [2, 16, 2, 1, 300, 32, 20],
        [1, 9, 1, 1, 40, 32, 48],
    ];
    for pool in isas() {
        for s in sizes {
            for kind in [Kind::None, Kind::Causal, Kind::Window, Kind::Spans, Kind::Bool, Kind::Add] {
                for strided in [false, true] {
                    check::<f32>(&pool, s, kind, strided);
                }
                check::<bf16>(&pool, s, kind, true);
                check::<f16>(&pool, s, kind, false);
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let ones = [1f32; 64];
    let x = View::contiguous(&ones, &[1, 1, 16, 4]).unwrap();
    let no = [Bool(0)];
    let masks = [
        Mask::Spans(&[[9, 9]]),
        Mask::Bool(View::new(&no, &[1], &[1], 0).unwrap()),
        Mask::Add(View::new(&[f32::NEG_INFINITY], &[1, 1], &[1, 1], 0).unwrap().into()),
    ];
    for mask in masks {
        let mut out = [7f32; 64];
        attention(&Pool::new(1), &x, (&x, &x), &mut ViewMut::contiguous(&mut out, &[1, 1, 16, 4]).unwrap(), 1.0, &mask).unwrap();
        assert_eq!(out, [0.0; 64]);
    }
}

#[test]
fn thread_counts_agree() {
    let mut rng = Rng::new(1);
    for (tq, tk) in [(1, 2000), (70, 90)] {
        let (q, k): (Vec<f32>, Vec<f32>) = (rng.floats(4 * tq * 32), rng.floats(2 * tk * 32));
        assert_threads_agree(|pool| {
            let mut out = vec![0f32; 4 * tq * 32];
            let q = View::contiguous(&q, &[1, 4, tq, 32]).unwrap();
            let k = View::contiguous(&k, &[1, 2, tk, 32]).unwrap();
            let mut view = ViewMut::contiguous(&mut out, &[1, 4, tq, 32]).unwrap();
            attention(pool, &q, (&k, &k), &mut view, 0.2, &Mask::Causal).unwrap();
            out
        });
    }
}

#[test]
fn sizes_are_checked() {
    let data = [0f32; 256];
    let run = |q: &[usize], k: &[usize], v: &[usize]| {
        let mut out = [0f32; 256];
        let view = |s: &[usize]| View::contiguous(&data, s).unwrap();
        let mut out = ViewMut::contiguous(&mut out, q).unwrap();
        attention(&Pool::new(1), &view(q), (&view(k), &view(v)), &mut out, 1.0, &Mask::None).is_ok()
    };
    assert!(run(&[1, 4, 2, 8], &[1, 2, 3, 8], &[1, 2, 3, 8]));
    assert!(!run(&[1, 3, 2, 8], &[1, 2, 3, 8], &[1, 2, 3, 8]));
    assert!(!run(&[1, 4, 2, 8], &[1, 2, 3, 4], &[1, 2, 3, 8]));
    assert!(!run(&[1, 4, 2, 8], &[1, 2, 3, 8], &[1, 2, 4, 8]));
    assert!(!run(&[1, 4, 2, 8], &[1, 0, 3, 8], &[1, 0, 3, 8]));
    let one = View::contiguous(&data[..64], &[1, 4, 2, 8]).unwrap();
    let fits = |scoring: Scoring, mask: Mask| {
        let mut out = [0f32; 64];
        let mut out = ViewMut::contiguous(&mut out, &[1, 4, 2, 8]).unwrap();
        attention(&Pool::new(1), &one, (&one, &one), &mut out, scoring, &mask).is_ok()
    };
    let sinks = |sinks| Scoring { scale: 1.0, sinks: Some(sinks), cap: None };
    assert!(fits(sinks(&[0.0; 4]), Mask::None) && !fits(sinks(&[0.0; 2]), Mask::None));
    assert!(fits(1.0.into(), Mask::Spans(&[[0, 1]; 2])) && !fits(1.0.into(), Mask::Spans(&[[0, 1]; 3])));
    assert!(!fits(1.0.into(), Mask::Spans(&[])));
}

/// Codes of 8 bits in groups, for keys and values, with their decoded numbers.
struct Packed {
    codes: Vec<i8>,
    scales: Vec<bf16>,
    floats: Vec<f32>,
}

impl Packed {
    fn new(rng: &mut Rng, rows: usize, dim: usize, group: usize) -> Packed {
        let codes: Vec<i8> = (0..rows * dim).map(|_| (rng.below(255) as i64 - 127) as i8).collect();
        let scales: Vec<bf16> = (0..rows * dim / group).map(|_| bf16::from_f32(0.002 + rng.below(100) as f32 * 1e-4)).collect();
        let floats = codes.iter().enumerate().map(|(i, &code)| f32::from(code) * scales[i / group].to_f32()).collect();
        Packed { codes, scales, floats }
    }

    /// The middle rows of each head, `spare` of them being left out at either end.
    fn coded(&self, [batch, heads, keys, dim]: [usize; 4], group: usize, spare: usize) -> Coded<'_> {
        let (all, groups) = (keys + 2 * spare, dim / group);
        let strides = |of: usize| [heads * all * groups * of, all * groups * of, groups * of, of, 1].map(|s| s as isize);
        let view = View::new(&self.codes, &[batch, heads, keys, groups, group], &strides(group), spare * dim).unwrap();
        let scales = View::new(&self.scales, &[batch, heads, keys, groups, 1], &strides(1), spare * groups).unwrap();
        Coded::new(view, scales.into()).unwrap()
    }

    fn view(&self, [batch, heads, keys, dim]: [usize; 4], spare: usize) -> View<'_, f32> {
        let all = keys + 2 * spare;
        let strides = [heads * all * dim, all * dim, dim, 1].map(|s| s as isize);
        View::new(&self.floats, &[batch, heads, keys, dim], &strides, spare * dim).unwrap()
    }
}

/// Sizes of keys and values, sizes of groups.
fn check_codes(pool: &Pool, s: Sizes, [k_group, v_group]: [usize; 2], kind: Kind) {
    let [batch, heads, kv, tq, tk, d, dv] = s;
    let (mut rng, spare) = (Rng::new(s.iter().sum::<usize>() as u64), 3);
    let rows = batch * kv * (tk + 2 * spare);
    let (k, v) = (Packed::new(&mut rng, rows, d, k_group), Packed::new(&mut rng, rows, dv, v_group));
    let (k_sizes, v_sizes) = ([batch, kv, tk, d], [batch, kv, tk, dv]);
    let q: Vec<f32> = rng.floats(batch * heads * tq * d);
    let q = View::contiguous(&q, &[batch, heads, tq, d]).unwrap();
    let allowed: Vec<Bool> = (0..heads * tq * tk).map(|_| Bool::from(rng.below(3) > 0)).collect();
    let mask = match kind {
        Kind::Bool => Mask::Bool(View::contiguous(&allowed, &[heads, tq, tk]).unwrap()),
        _ => Mask::Causal,
    };
    let mut out = vec![f32::NAN; batch * heads * tq * dv];
    let mut to = ViewMut::contiguous(&mut out, &[batch, heads, tq, dv]).unwrap();
    let codes = (k.coded(k_sizes, k_group, spare), v.coded(v_sizes, v_group, spare));
    attention_over_codes(pool, &q, (&codes.0, &codes.1), &mut to, 0.7, &mask).unwrap();
    let expected = expected(&q, &k.view(k_sizes, spare), &v.view(v_sizes, spare), &mask, 0.7.into(), s);
    assert_close(&format!("{:?} {s:?} {kind:?} in codes", pool.isa()), &out, &expected, 4e-6);

    let mut decoded = vec![f32::NAN; batch * kv * tk * d];
    codes.0.decode(pool, &mut decoded).unwrap();
    let view = k.view(k_sizes, spare);
    let at = |i: usize| *view.get(&[i / d / tk / kv, i / d / tk % kv, i / d % tk, i % d]).unwrap();
    assert!(decoded.iter().enumerate().all(|(i, &x)| x == at(i)), "{:?} {s:?}", pool.isa());
}

#[test]
fn attention_reads_codes() {
    let cases = [
        ([1, 2, 2, 1, 5, 32, 32], [32, 32]),
        ([2, 4, 2, 1, 130, 64, 64], [32, 32]),
        ([1, 3, 1, 1, 70, 64, 96], [16, 96]),
        ([1, 9, 3, 1, 600, 64, 64], [32, 64]),
        ([1, 8, 1, 1, 40, 128, 32], [64, 16]),
        ([1, 5, 1, 1, 33, 20, 12], [20, 12]),
        ([1, 7, 1, 1, 261, 80, 48], [16, 16]),
    ];
    for pool in isas() {
        for (s, groups) in cases {
            for kind in [Kind::Causal, Kind::Bool] {
                check_codes(&pool, s, groups, kind);
            }
        }
    }
}

#[test]
fn codes_that_no_single_query_reads_are_decoded_alone() {
    let (pool, sizes) = (Pool::new(2), [1, 2, 10, 48]);
    let packed = |group| Packed::new(&mut Rng::new(7), 2 * 10, 48, group);
    let suits = |group, heads, queries| packed(group).coded(sizes, group, 0).suits(heads, queries);
    assert!(suits(48, 4, 1) && suits(16, 4, 1));
    // Vectors cross groups, more than one query, more than eight heads a key head.
    assert!(!suits(24, 4, 1) && !suits(16, 4, 2) && !suits(16, 18, 1));
    let crossed = packed(24);
    let coded = crossed.coded(sizes, 24, 0);
    let (q, mut out) = ([0f32; 4 * 48], [0f32; 4 * 48]);
    let q = View::contiguous(&q, &[1, 4, 1, 48]).unwrap();
    let mut out = ViewMut::contiguous(&mut out, &[1, 4, 1, 48]).unwrap();
    assert!(attention_over_codes(&pool, &q, (&coded, &coded), &mut out, 1.0, &Mask::None).is_err());
    let mut decoded = [f32::NAN; 2 * 10 * 48];
    coded.decode(&pool, &mut decoded).unwrap();
    assert_eq!(decoded[..], crossed.floats);
    assert!(coded.decode(&pool, &mut decoded[1..]).is_err());
}
