use half::{bf16, f16};

use super::*;
use crate::{
    elementwise::{unary, zip_float},
    quant::{Format, Scales},
    testing::{Precision, Rng, assert_threads_agree, isas},
};

/// Owned operands of a gated layer and of two others that share its input.
struct Case<T> {
    size: [usize; 3],
    x: Vec<T>,
    floats: Vec<T>,
    words: Vec<u32>,
    scales: Vec<T>,
    bias: Vec<f32>,
    residual: Vec<T>,
}

fn none() -> Epilogue<'static> {
    Epilogue::default()
}

const FORMAT: Format = Format::Affine { bits: 4, group: 32 };

impl<T: Precision> Case<T>
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    fn new([m, n, k]: [usize; 3]) -> Case<T> {
        let mut rng = Rng::new((m + n * 3 + k) as u64);
        Case {
            size: [m, n, k],
            x: rng.floats(m * k),
            floats: rng.floats(n * k),
            words: (0..n * k / 8).map(|_| rng.word()).collect(),
            scales: rng.floats(n * k / 32),
            bias: rng.floats(n),
            residual: rng.floats(m * n),
        }
    }

    fn scales(&self) -> Scales<'_> {
        match FloatView::from(View::contiguous(&self.scales, &[self.scales.len()]).unwrap()) {
            FloatView::F32(v) => Scales::F32(v.as_slice().unwrap()),
            FloatView::F16(v) => Scales::F16(v.as_slice().unwrap()),
            FloatView::BF16(v) => Scales::BF16(v.as_slice().unwrap()),
        }
    }

    /// The floats as a weight whose columns are contiguous.
    fn columns(&self) -> Weight<'_> {
        let [_, n, k] = self.size;
        Weight::Float(View::new(&self.floats, &[n, k], &[1, n as isize], 0).unwrap().into())
    }

    fn weight(&self, codes: bool) -> Weight<'_> {
        let [_, n, k] = self.size;
        if codes {
            Weight::Codes(QMatrix::new(FORMAT, &self.words, self.scales(), Some(self.scales()), [n, k]).unwrap())
        } else {
            Weight::Float(View::contiguous(&self.floats, &[n, k]).unwrap().into())
        }
    }

    fn bias(&self) -> FloatView<'_> {
        View::contiguous(&self.bias, &[self.bias.len()]).unwrap().into()
    }

    fn matrix<'a>(&self, data: &'a [T]) -> View<'a, T> {
        View::contiguous(data, &[self.size[0], self.size[1]]).unwrap()
    }

    fn run(&self, pool: &Pool, epilogue: Epilogue<'_>, codes: bool) -> Vec<T> {
        let [m, n, k] = self.size;
        let mut out = self.residual.clone();
        let layer = Layer { weight: self.weight(codes), epilogue, out: ViewMut::contiguous(&mut out, &[m, n]).unwrap() };
        layers(pool, &View::contiguous(&self.x, &[m, k]).unwrap(), &mut [layer]).unwrap();
        out
    }

    fn zip(&self, pool: &Pool, a: &[T], b: &[T], f: impl Fn(f32, f32) -> f32 + Sync) -> Vec<T> {
        let mut out = a.to_vec();
        let shape = [self.size[0], self.size[1]];
        zip_float(pool, &self.matrix(a), &self.matrix(b), &mut ViewMut::contiguous(&mut out, &shape).unwrap(), f).unwrap();
        out
    }

    fn activated(&self, pool: &Pool, op: Unary, x: &[T]) -> Vec<T> {
        let mut out = x.to_vec();
        let shape = [self.size[0], self.size[1]];
        unary(pool, op, &self.matrix(x), &mut ViewMut::contiguous(&mut out, &shape).unwrap()).unwrap();
        out
    }
}

/// A fused layer against its steps, bit for bit.
fn check<T: Precision>(pool: &Pool, size: [usize; 3])
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    let case = Case::<T>::new(size);
    let bytes = |v: &[T]| bytemuck::cast_slice::<T, u8>(v).to_vec();
    for codes in [false, true] {
        let same = |what: &str, found: &[T], expected: &[T]| {
            assert!(bytes(found) == bytes(expected), "{:?} {size:?} codes {codes}: {what}", pool.isa());
        };
        let plain = case.run(pool, none(), codes);
        let biased = case.run(pool, Epilogue { bias: Some(case.bias()), ..none() }, codes);
        let active = case.activated(pool, Unary::Silu, &biased);
        let found = case.run(pool, Epilogue { bias: Some(case.bias()), activation: Some(Unary::Silu), ..none() }, codes);
        same("bias and activation", &found, &active);
        let sum = case.zip(pool, &case.residual, &plain, |a, b| a + b);
        same("residual in place", &case.run(pool, Epilogue { residual: Residual::Out, ..none() }, codes), &sum);
        let view = || case.matrix(&case.residual).into();
        same("residual beside", &case.run(pool, Epilogue { residual: Residual::View(view()), ..none() }, codes), &sum);
        // Many rows of f16 are multiplied by packed weights in bf16. A gate then uses the words of
        // its layer if both have the same storage.
        let gate_codes = if T::DTYPE == flambeau_tensor::DType::F16 && size[0] > 8 { codes } else { !codes };
        let other = case.run(pool, none(), gate_codes);
        let gate = case.activated(pool, Unary::GeluTanh, &other);
        let gated = case.zip(pool, &case.zip(pool, &gate, &plain, |a, b| a * b), &case.residual, |a, b| a + b);
        let make = || Gate { weight: case.weight(gate_codes), bias: None, activation: Unary::GeluTanh };
        let found = case.run(pool, Epilogue { gate: Some(make()), residual: Residual::Out, ..none() }, codes);
        same("gate and residual", &found, &gated);
    }
}

#[test]
fn a_layer_has_the_bits_of_its_steps() {
    for pool in isas() {
        for size in [[1, 70, 64], [3, 5, 96], [9, 37, 160], [40, 70, 96]] {
            check::<f32>(&pool, size);
            check::<bf16>(&pool, size);
            check::<f16>(&pool, size);
        }
    }
}

/// Three layers of one input, with two kinds of weight and one strided output, equal the same
/// layers run alone.
#[test]
fn layers_of_one_input_do_not_touch_each_other() {
    for (pool, m) in isas().into_iter().flat_map(|p| [(Pool::with_isa(2, p.isa()).unwrap(), 1), (p, 33)]) {
        let case = Case::<bf16>::new([m, 50, 128]);
        let alone = [case.run(&pool, none(), true), case.run(&pool, none(), false)];
        let (mut a, mut b, mut c) = (vec![bf16::ZERO; m * 50], vec![bf16::ZERO; m * 50], vec![bf16::ZERO; m * 120]);
        let mut all = [
            Layer { weight: case.weight(true), epilogue: none(), out: ViewMut::contiguous(&mut a, &[m, 50]).unwrap() },
            Layer { weight: case.weight(false), epilogue: none(), out: ViewMut::contiguous(&mut b, &[m, 50]).unwrap() },
            Layer { weight: case.weight(true), epilogue: none(), out: ViewMut::new(&mut c, &[m, 50], &[120, 2], 7).unwrap() },
        ];
        layers(&pool, &View::contiguous(&case.x, &[m, 128]).unwrap(), &mut all).unwrap();
        assert_eq!((&a, &b), (&alone[0], &alone[1]));
        for i in 0..m * 120 {
            let inside = i % 120 >= 7 && (i % 120 - 7) % 2 == 0 && (i % 120 - 7) / 2 < 50;
            let expected = if inside { alone[0][i / 120 * 50 + (i % 120 - 7) / 2] } else { bf16::ZERO };
            assert_eq!(c[i], expected, "{:?} element {i}", pool.isa());
        }
    }
}

#[test]
fn thread_counts_agree() {
    for m in [1, 6, 50] {
        let case = Case::<bf16>::new([m, 300, 256]);
        let make = || Gate { weight: case.weight(false), bias: Some(case.bias()), activation: Unary::Silu };
        assert_threads_agree(|pool| case.run(pool, Epilogue { gate: Some(make()), ..none() }, true));
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let case = Case::<f32>::new([2, 8, 64]);
    let pool = Pool::new(1);
    let refused = |x: [usize; 2], out: [usize; 2], epilogue: Epilogue<'_>| {
        let (data, mut y) = (vec![0f32; x[0] * x[1]], vec![7f32; out[0] * out[1]]);
        let layer = Layer { weight: case.weight(true), epilogue, out: ViewMut::contiguous(&mut y, &out).unwrap() };
        let result = layers(&pool, &View::contiguous(&data, &x).unwrap(), &mut [layer]);
        assert!(result.is_ok() || y.iter().all(|&y| y == 7.0));
        result.is_err()
    };
    assert!(!refused([2, 64], [2, 8], none()));
    assert!(refused([2, 32], [2, 8], none()));
    assert!(refused([3, 64], [2, 8], none()));
    assert!(refused([2, 64], [2, 9], none()));
    let short = [0f32; 7];
    let short = || View::contiguous(&short, &[7]).unwrap().into();
    assert!(refused([2, 64], [2, 8], Epilogue { bias: Some(short()), ..none() }));
    assert!(refused([2, 64], [2, 8], Epilogue { residual: Residual::View(short()), ..none() }));
    let narrow = [0f32; 8 * 32];
    let narrow = || Weight::Float(View::contiguous(&narrow, &[8, 32]).unwrap().into());
    let gate = Gate { weight: narrow(), bias: None, activation: Unary::Silu };
    assert!(refused([2, 64], [2, 8], Epilogue { gate: Some(gate), ..none() }));
}

impl<T: Precision> Case<T>
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    /// Two layers of this input with other weights; the first is gated.
    fn layers<'a>(&'a self, weights: &'a Case<T>, outs: &'a mut [Vec<T>; 2]) -> Vec<Layer<'a, T>> {
        let [m, n, k] = self.size;
        let gate = Gate { weight: weights.weight(false), bias: Some(weights.bias()), activation: Unary::Silu };
        let residual = Residual::View(self.matrix(&self.residual).into());
        // Groups of 32 divide the depth of packed weights.
        let first = (weights.weight(k.is_multiple_of(32)), Epilogue { gate: Some(gate), residual, ..none() });
        let both = [first, (weights.weight(false), none())].into_iter().zip(outs);
        let layer = |((weight, epilogue), out): (_, &'a mut Vec<T>)| {
            *out = vec![T::from_f32(7.0); m * n];
            Layer { weight, epilogue, out: ViewMut::contiguous(out, &[m, n]).unwrap() }
        };
        both.map(layer).collect()
    }

    fn x(&self) -> View<'_, T> {
        View::contiguous(&self.x, &[self.size[0], self.size[2]]).unwrap()
    }
}

/// Checks a layer whose weight has contiguous columns. Results are near the definition. Each row
/// has the same bits as in a product of this row alone.
fn check_columns<T: Precision + PartialEq>(pool: &Pool, [m, n, k]: [usize; 3])
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    let case = Case::<T>::new([m, n, k]);
    let residual = || Residual::View(case.matrix(&case.residual).into());
    let run = |x: &[T], m: usize, residual: Residual<'_>| {
        let mut out = vec![T::from_f32(7.0); m * n];
        let epilogue = Epilogue { bias: Some(case.bias()), residual, ..none() };
        let layer = Layer { weight: case.columns(), epilogue, out: ViewMut::contiguous(&mut out, &[m, n]).unwrap() };
        layers(pool, &View::contiguous(x, &[m, k]).unwrap(), &mut [layer]).unwrap();
        out
    };
    let found = run(&case.x, m, residual());
    let plain = run(&case.x, m, Residual::None);
    for (i, x) in case.x.chunks(k).enumerate() {
        let row = i * n..(i + 1) * n;
        if m <= 8 {
            assert!(run(x, 1, Residual::None)[..] == plain[row.clone()], "{:?} row {i} of [{m}, {n}, {k}]", pool.isa());
        }
        for (j, at) in row.enumerate() {
            let terms = x.iter().enumerate().map(|(p, x)| f64::from(x.to_f32()) * f64::from(case.floats[p * n + j].to_f32()));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), term| (sum + term, size + term.abs()));
            let want = sum + f64::from(case.bias[j]) + f64::from(case.residual[at].to_f32());
            let bound = 0.01 * (size + f64::from(case.bias[j].abs()) + f64::from(case.residual[at].to_f32().abs()));
            let error = (f64::from(found[at].to_f32()) - want).abs();
            assert!(error <= bound, "{:?} {} [{m}, {n}, {k}] at {at}: {error} > {bound}", pool.isa(), T::DTYPE);
        }
    }
}

#[test]
fn weights_with_contiguous_columns_are_read_in_their_order() {
    for pool in isas() {
        for size in [[1, 576, 16], [1, 70, 8], [3, 5, 33], [8, 130, 64], [2, 40, 65], [9, 37, 16]] {
            check_columns::<f32>(&pool, size);
            check_columns::<bf16>(&pool, size);
            check_columns::<f16>(&pool, size);
        }
    }
}

/// Inputs of `counts` rows, alone and together, to the bit.
fn check_together<T: Precision>(pool: &Pool, counts: &[usize], [n, k]: [usize; 2])
where
    for<'a> FloatView<'a>: From<View<'a, T>>,
{
    let weights = Case::<T>::new([1, n, k]);
    let cases: Vec<Case<T>> = counts.iter().map(|&m| Case::new([m, n, k])).collect();
    let none = || vec![<[Vec<T>; 2]>::default(); counts.len()];
    let (mut alone, mut together) = (none(), none());
    for (case, outs) in cases.iter().zip(&mut alone) {
        layers(pool, &case.x(), &mut case.layers(&weights, outs)).unwrap();
    }
    let xs: Vec<_> = cases.iter().map(Case::x).collect();
    let mut all: Vec<_> = cases.iter().zip(&mut together).flat_map(|(case, outs)| case.layers(&weights, outs)).collect();
    layers_of_each(pool, &xs, &mut all).unwrap();
    drop(all);
    let bytes = |all: &[[Vec<T>; 2]]| -> Vec<Vec<u8>> { all.iter().flatten().map(|v| bytemuck::cast_slice(v).to_vec()).collect() };
    assert!(bytes(&together) == bytes(&alone), "{:?} {} {counts:?} [{n}, {k}]", pool.isa(), T::DTYPE);
}

#[test]
fn rows_have_the_bits_that_they_have_alone() {
    for pool in isas() {
        for counts in [&[1, 1][..], &[1; 8], &[1; 9], &[1; 19], &[1, 2, 1, 3, 1, 1], &[3, 9, 1, 1], &[8, 1]] {
            // A task reads some of the rows of the weights, and pairs of an odd depth are at
            // unaligned addresses.
            for size in [[70, 64], [37, 160], [5, 33], [260, 576]] {
                check_together::<f32>(&pool, counts, size);
                check_together::<bf16>(&pool, counts, size);
                check_together::<f16>(&pool, counts, size);
            }
        }
    }
}

#[test]
fn inputs_with_other_weights_are_computed_by_themselves() {
    let pool = Pool::new(2);
    let cases = [Case::<f32>::new([1, 40, 64]), Case::new([1, 40, 96]), Case::new([1, 40, 64])];
    let alone: Vec<Vec<f32>> = cases.iter().map(|case| case.run(&pool, none(), true)).collect();
    let mut outs = vec![vec![0f32; 40]; 3];
    let mut all = Vec::new();
    for (case, out) in cases.iter().zip(&mut outs) {
        all.push(Layer { weight: case.weight(true), epilogue: none(), out: ViewMut::contiguous(out, &[1, 40]).unwrap() });
    }
    let mut xs: Vec<_> = cases.iter().map(Case::x).collect();
    layers_of_each(&pool, &xs, &mut all).unwrap();
    // A call that does not fit, or has no layer, leaves all outputs unchanged.
    xs[1] = View::contiguous(&cases[1].x, &[2, 48]).unwrap();
    assert!(layers_of_each(&pool, &xs, &mut all).is_err() && layers_of_each(&pool, &xs[..2], &mut all).is_err());
    assert!(layers_of_each(&pool, &xs[..0], &mut all).is_err() && layers_of_each::<f32, f32>(&pool, &[], &mut []).is_ok());
    drop(all);
    assert_eq!(outs, alone);
}
