//! Best time of one call per kernel family, as lines of `family <tab> case <tab> microseconds`.
//! `scripts/bench/ops.py` times PyTorch on cases of the same names. Arguments: number of threads,
//! then name filters.

use std::{hint::black_box, time::Instant};

use flambeau_kernels::{
    Float, FloatView, Pool, View, ViewMut,
    attention::{Mask, attention},
    bf16, cast,
    conv::{Conv, conv},
    elementwise,
    gemm::{Addmm, matmul},
    linear::{Epilogue, Gate, Layer, Weight, layers},
    math::Unary,
    norm, order, reduce,
    rope::{Rope, rope},
};
use flambeau_tensor::WindowAxis;

/// Seconds a case is repeated for.
const SPAN: f64 = 0.4;

struct Bench {
    pool: Pool,
    filters: Vec<String>,
}

impl Bench {
    fn time(&self, family: &str, name: &str, mut f: impl FnMut(&Pool)) {
        if !self.filters.is_empty() && !self.filters.iter().any(|f| name.contains(f.as_str()) || family.contains(f.as_str())) {
            return;
        }
        f(&self.pool);
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        while begin.elapsed().as_secs_f64() < SPAN {
            let start = Instant::now();
            f(&self.pool);
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("{family}\t{name}\t{:.2}", best * 1e6);
    }
}

fn numbers<T: Float>(n: usize) -> Vec<T> {
    (0..n).map(|i| T::from_f32(((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0)).collect()
}

fn view<'a, T>(data: &'a [T], shape: &[usize]) -> View<'a, T> {
    View::contiguous(data, shape).expect("sizes fit")
}

fn out<'a, T>(data: &'a mut [T], shape: &[usize]) -> ViewMut<'a, T> {
    ViewMut::contiguous(data, shape).expect("sizes fit")
}

fn linear<T: Float>(b: &Bench, dtype: &str, [m, k, n]: [usize; 3])
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    let (x, w, mut y) = (numbers::<T>(m * k), numbers::<T>(n * k), numbers::<T>(m * n));
    b.time("linear", &format!("linear {dtype} {m}x{k}x{n}"), |pool| {
        let weight = Weight::Float(view(&w, &[n, k]).into());
        let mut all = [Layer { weight, epilogue: Epilogue::default(), out: out(&mut y, &[m, n]) }];
        layers(pool, &view(black_box(&x), &[m, k]), &mut all).expect("sizes fit");
    });
}

/// A gated pair of projections, against PyTorch's three calls.
fn gated(b: &Bench, [m, k, n]: [usize; 3]) {
    let (x, w, mut y) = (numbers::<bf16>(m * k), numbers::<bf16>(2 * n * k), numbers::<bf16>(m * n));
    b.time("linear", &format!("gated bf16 {m}x{k}x{n}"), |pool| {
        let weight = |w| Weight::Float(view(w, &[n, k]).into());
        let gate = Gate { weight: weight(&w[n * k..]), bias: None, activation: Unary::Silu };
        let epilogue = Epilogue { gate: Some(gate), ..Epilogue::default() };
        let mut all = [Layer { weight: weight(&w), epilogue, out: out(&mut y, &[m, n]) }];
        layers(pool, &view(black_box(&x), &[m, k]), &mut all).expect("sizes fit");
    });
}

fn product<T: Float>(b: &Bench, dtype: &str, [batch, m, k, n]: [usize; 4]) {
    let (x, w, mut y) = (numbers::<T>(batch * m * k), numbers::<T>(batch * n * k), numbers::<T>(batch * m * n));
    b.time("matmul", &format!("matmul {dtype} {batch}x{m}x{k}x{n}"), |pool| {
        let (x, w) = (view(black_box(&x), &[batch, m, k]), view(&w, &[batch, k, n]));
        matmul(pool, &x, &w, &mut out(&mut y, &[batch, m, n]), &Addmm::default()).expect("sizes fit");
    });
}

fn heads<T: Float>(b: &Bench, dtype: &str, [hq, hkv, queries, keys, d]: [usize; 5], causal: bool) {
    let (q, k, v) = (numbers::<T>(hq * queries * d), numbers::<T>(hkv * keys * d), numbers::<T>(hkv * keys * d));
    let mut y = numbers::<T>(hq * queries * d);
    let mask = if causal { Mask::Causal } else { Mask::None };
    b.time("attention", &format!("attention {dtype} {hq}/{hkv} q{queries} k{keys} d{d}"), |pool| {
        let q = view(black_box(&q), &[1, hq, queries, d]);
        let kv = (&view(&k, &[1, hkv, keys, d]), &view(&v, &[1, hkv, keys, d]));
        attention(pool, &q, kv, &mut out(&mut y, &[1, hq, queries, d]), 0.125, &mask).expect("sizes fit");
    });
}

fn rows<T: Float + reduce::Numeric + reduce::Ordered>(b: &Bench, dtype: &str, [n, width]: [usize; 2])
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    let (x, w, mut y) = (numbers::<T>(n * width), numbers::<T>(width), numbers::<T>(n * width));
    let weight: FloatView = view(&w, &[width]).into();
    b.time("norm", &format!("rms_norm {dtype} {n}x{width}"), |pool| {
        norm::rms_norm(pool, black_box(&x), width, Some(&weight), 1e-5, &mut y).expect("sizes fit");
    });
    b.time("norm", &format!("layer_norm {dtype} {n}x{width}"), |pool| {
        norm::layer_norm(pool, black_box(&x), width, (Some(&weight), Some(&weight)), 1e-5, &mut y).expect("sizes fit");
    });
    b.time("softmax", &format!("softmax {dtype} {n}x{width}"), |pool| {
        norm::softmax(pool, black_box(&x), width, &mut y).expect("sizes fit");
    });
    let mut y = numbers::<T>(n);
    b.time("reduce", &format!("sum {dtype} {n}x{width}"), |pool| {
        reduce::sum(pool, &view(black_box(&x), &[n, width]), &[1], &mut y).expect("sizes fit");
    });
    b.time("reduce", &format!("max {dtype} {n}x{width}"), |pool| {
        reduce::max(pool, &view(black_box(&x), &[n, width]), &[1], &mut y).expect("sizes fit");
    });
}

fn rotation(b: &Bench) {
    let (x, mut y) = (numbers::<bf16>(9 * 512 * 64), numbers::<bf16>(9 * 512 * 64));
    let spec = Rope { dims: 64, traditional: false, base: 1e4, scale: 1.0, periods: None };
    b.time("rope", "rope bf16 9x512x64", |pool| {
        rope(pool, &view(black_box(&x), &[1, 9, 512, 64]), &[0], &spec, &mut out(&mut y, &[1, 9, 512, 64])).expect("sizes fit");
    });
}

fn elements<T: Float + reduce::Numeric + reduce::Ordered>(b: &Bench, dtype: &str) {
    let (n, shape) = (512 * 1536, [512, 1536]);
    let (x, z, mut y) = (numbers::<T>(n), numbers::<T>(n), numbers::<T>(n));
    for (name, op) in [
        ("exp", Unary::Exp),
        ("tanh", Unary::Tanh),
        ("silu", Unary::Silu),
        ("gelu", Unary::Gelu),
        ("gelu_tanh", Unary::GeluTanh),
        ("sin", Unary::Sin),
    ] {
        b.time("elementwise", &format!("{name} {dtype}"), |pool| {
            elementwise::unary(pool, op, &view(black_box(&x), &shape), &mut out(&mut y, &shape)).expect("sizes fit");
        });
    }
    b.time("elementwise", &format!("add {dtype}"), |pool| {
        elementwise::zip_float(pool, &view(black_box(&x), &shape), &view(&z, &shape), &mut out(&mut y, &shape), |a, b| a + b)
            .expect("sizes fit");
    });
    b.time("elementwise", &format!("mul row {dtype}"), |pool| {
        let row = view(&z, &[1536]);
        elementwise::zip_float(pool, &view(black_box(&x), &shape), &row, &mut out(&mut y, &shape), |a, b| a * b)
            .expect("sizes fit");
    });
    b.time("copy", &format!("transpose {dtype}"), |pool| {
        let transposed = view(black_box(&x), &shape).permute(&[1, 0]).expect("a permutation");
        elementwise::copy(pool, &transposed, &mut out(&mut y, &[1536, 512])).expect("sizes fit");
    });
    let mut sums = numbers::<T>(1536);
    b.time("reduce", &format!("sum rows {dtype}"), |pool| {
        reduce::sum(pool, &view(black_box(&x), &shape), &[0], &mut sums).expect("sizes fit");
    });
}

fn casts(b: &Bench) {
    let n = 512 * 1536;
    let (x, mut y) = (numbers::<f32>(n), numbers::<bf16>(n));
    b.time("copy", "cast f32 bf16", |pool| {
        cast::cast_float(pool, &view(black_box(&x), &[n]), &mut out(&mut y, &[n])).expect("sizes fit");
    });
    let (x, mut y) = (numbers::<bf16>(n), numbers::<f32>(n));
    b.time("copy", "cast bf16 f32", |pool| {
        cast::cast_float(pool, &view(black_box(&x), &[n]), &mut out(&mut y, &[n])).expect("sizes fit");
    });
    let (x, mut y) = (numbers::<f32>(49152), numbers::<f32>(49152));
    b.time("order", "sort f32 49152", |pool| order::sort(pool, &view(black_box(&x), &[49152]), 0, &mut y).expect("sizes fit"));
    let (x, mut y) = (numbers::<f32>(64 * 1024), numbers::<f32>(64 * 1024));
    b.time("order", "cumsum f32 64x1024", |pool| {
        order::cumsum(pool, &view(black_box(&x), &[64, 1024]), 1, (false, true), &mut y).expect("sizes fit");
    });
}

struct Convolution {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    axis: WindowAxis,
    groups: usize,
    transposed: bool,
}

fn convolution(b: &Bench, c: &Convolution) {
    let spatial = c.x.len() - 2;
    let axes = vec![c.axis; spatial];
    let spec = Conv { axes: &axes, groups: c.groups, transposed: c.transposed };
    let mut shape = c.x.to_vec();
    for i in 0..spatial {
        shape[i + 1] = spec.outputs(i, c.x[i + 1], c.w[i + 1]).expect("sizes fit");
    }
    shape[spatial + 1] = c.w[0];
    let count = |s: &[usize]| s.iter().product::<usize>();
    let (x, w, mut y) = (numbers::<f32>(count(c.x)), numbers::<f32>(count(c.w)), numbers::<f32>(count(&shape)));
    b.time("conv", c.name, |pool| conv(pool, (black_box(&x), c.x), (&w, c.w), &spec, (&mut y, &shape)).expect("sizes fit"));
}

fn convolutions(b: &Bench) {
    let axis = |stride, padding| WindowAxis { stride, padding, ..WindowAxis::default() };
    let case = |name, x, w, axis, groups, transposed| Convolution { name, x, w, axis, groups, transposed };
    for c in [
        case("conv1d 80-384 k3 3000", &[1, 3000, 80], &[384, 3, 80], axis(1, 1), 1, false),
        case("conv2d 64-64 k3 56", &[1, 56, 56, 64], &[64, 3, 3, 64], axis(1, 1), 1, false),
        case("conv2d 3-32 k3 s2 224", &[1, 224, 224, 3], &[32, 3, 3, 3], axis(2, 1), 1, false),
        case("conv2d pointwise 64-128 56", &[1, 56, 56, 64], &[128, 1, 1, 64], axis(1, 0), 1, false),
        case("conv2d depthwise 32 k3 112", &[1, 112, 112, 32], &[32, 3, 3, 1], axis(1, 1), 32, false),
        case("conv1d depthwise 512 k31 400", &[1, 400, 512], &[512, 31, 1], axis(1, 15), 512, false),
        case("conv2d transposed 64-32 k4 s2 28", &[1, 28, 28, 64], &[32, 4, 4, 64], axis(2, 1), 1, true),
    ] {
        convolution(b, &c);
    }
}

fn main() {
    let mut filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let threads = filters.iter().position(|a| a.parse::<usize>().is_ok()).map_or(0, |i| filters.remove(i).parse().unwrap_or(0));
    let b = Bench { pool: Pool::new(threads), filters };
    for size in
        [[1, 576, 1536], [1, 1536, 576], [1, 576, 49152], [4, 576, 1536], [128, 576, 1536], [512, 576, 1536], [512, 2048, 2048]]
    {
        linear::<bf16>(&b, "bf16", size);
        linear::<f32>(&b, "f32", size);
    }
    gated(&b, [512, 576, 1536]);
    for size in [[1, 512, 512, 512], [1, 1024, 1024, 1024], [9, 128, 64, 128]] {
        product::<f32>(&b, "f32", size);
        product::<bf16>(&b, "bf16", size);
    }
    for (size, causal) in [([9, 3, 1, 1024, 64], false), ([9, 3, 1, 4096, 64], false), ([9, 3, 512, 512, 64], true)] {
        heads::<bf16>(&b, "bf16", size, causal);
        heads::<f32>(&b, "f32", size, causal);
    }
    heads::<f32>(&b, "f32", [12, 12, 128, 128, 32], false);
    rows::<f32>(&b, "f32", [512, 576]);
    rows::<bf16>(&b, "bf16", [512, 576]);
    rows::<f32>(&b, "f32", [1, 49152]);
    rotation(&b);
    elements::<f32>(&b, "f32");
    elements::<bf16>(&b, "bf16");
    casts(&b);
    convolutions(&b);
}
