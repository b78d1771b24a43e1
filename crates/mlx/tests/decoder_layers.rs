//! Decoder layers of one token, step by step, on every available MLX device, compared with the CPU
//! engine. On a GPU the fused kernels compute them.

use std::{fmt::Write as _, process::ExitCode, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Graph, check,
    engine::{Constants, Engine, LoadOptions, Run, Session, Value},
};
use flambeau_mlx::{Device, MlxEngine, Options};
use flambeau_tensor::{Bytes, DType, Tensor, bf16, cast};
use flambeau_testcases::{Outcome, test};
use flambeau_text::Rng;

#[path = "support/mod.rs"]
mod installed;

use installed::alone;

const LAYERS: usize = 3;
const HIDDEN: usize = 512;
const INNER: usize = 1536;
const HEADS: usize = 8;
const KEY_HEADS: usize = 2;
const CAPACITY: usize = 400;
const GROUP: usize = 64;

/// Properties that vary between models.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// Bits of a weight; 16 are the model's own type.
    bits: usize,
    dtype: &'static str,
    dim: usize,
    has_norms: bool,
    has_periods: bool,
}

/// A program's text under construction, and its constants.
struct Writer {
    model: Model,
    rng: Rng,
    constants: Vec<Bytes>,
    head: String,
    nodes: String,
    values: usize,
}

impl Writer {
    fn constant(&mut self, meta: &str, bytes: Vec<u8>) -> usize {
        let at = self.constants.len();
        let _ = writeln!(self.head, "name t{at} \"{at}\"\nmeta t{at} {meta}");
        self.constants.push(bytes.into());
        at
    }

    /// Numbers around `middle`, in the model's type.
    fn floats(&mut self, shape: &[usize], middle: f32, spread: f32) -> usize {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|_| middle + spread * (self.rng.next_unit() as f32 - 0.5)).collect();
        let meta = format!("{}{shape:?}", self.model.dtype).replace(' ', "");
        let tensor = Tensor::from_slice(&values, shape).and_then(|t| cast(&t, dtype_of(self.model.dtype))).expect("floats");
        self.constant(&meta, tensor.bytes().to_vec())
    }

    /// A node that multiplies with a new matrix `[rows, columns]`.
    fn product(&mut self, x: &str, rows: usize, columns: usize, out: &str) {
        let spread = 3.0 / (columns as f32).sqrt();
        if self.model.bits == 16 {
            let w = self.floats(&[rows, columns], 0.0, spread);
            let _ = writeln!(self.nodes, "  Transpose x=t{w} out=T9 perm=[1,0]\n  Addmm mat1={x} mat2=T9 out={out}");
            return;
        }
        let bits = self.model.bits;
        let words = columns * bits / 32;
        let codes: Vec<u8> = (0..rows * words * 4).map(|_| (self.rng.next_unit() * 256.0) as u8).collect();
        let w = self.constant(&format!("u32[{rows},{words}]"), codes);
        let scale = spread / (1 << bits) as f32;
        let s = self.floats(&[rows, columns / GROUP], scale, scale / 4.0);
        let b = self.floats(&[rows, columns / GROUP], -spread / 2.0, spread / 8.0);
        let _ = writeln!(
            self.nodes,
            "  QuantizedMatmul x={x} w=t{w} scales=t{s} out={out} biases=t{b} group_size={GROUP} bits={bits} mode=affine"
        );
    }

    fn norm(&mut self, x: &str, width: usize, out: &str) {
        let weight = self.floats(&[width], 1.0, 0.4);
        let _ = writeln!(self.nodes, "  RMSNorm x={x} weight=t{weight} out={out} eps=0.00001");
    }

    fn layer(&mut self, layer: usize, x: &str, out: &str, periods: Option<usize>) {
        let Model { dim, has_norms, .. } = self.model;
        self.norm(x, HIDDEN, "T0");
        self.product("T0", HEADS * dim, HIDDEN, "T1");
        self.product("T0", KEY_HEADS * dim, HIDDEN, "T2");
        self.product("T0", KEY_HEADS * dim, HIDDEN, "T3");
        for (tid, heads) in [("T1", HEADS), ("T2", KEY_HEADS), ("T3", KEY_HEADS)] {
            let _ = writeln!(self.nodes, "  Reshape x={tid} out={tid} shape=[1,-1,{heads},{dim}]");
            if has_norms && tid != "T3" {
                self.norm(tid, dim, tid);
            }
            let _ = writeln!(self.nodes, "  Transpose x={tid} out={tid} perm=[0,2,1,3]");
        }
        let (start, one, stop) = (self.values, self.values + 1, self.values + 2);
        self.values += 3;
        let _ = writeln!(self.nodes, "  Take x=POS out=T4 index=0 axis=0\n  ItemInt x=T4 out=v{start}");
        for tid in ["T1", "T2"] {
            let turn = periods.map_or("base=10000.0".to_owned(), |t| format!("freqs=t{t} base=0.0"));
            let _ = writeln!(self.nodes, "  Rope x={tid} out={tid} dims={dim} offset=v{start} {turn}");
        }
        let _ = writeln!(self.nodes, "  SymSize a={x} dim=1 out=v{one}\n  AddInt a=v{start} b=v{one} out=v{stop}");
        for (tid, cache) in [("T2", 2 * layer), ("T3", 2 * layer + 1)] {
            let _ = writeln!(self.nodes, "  SliceUpdate dst=B{cache} update={tid} out=B{cache} axis=2 start=v{start} stop=v{stop}");
        }
        for (tid, cache) in [("T2", 2 * layer), ("T3", 2 * layer + 1)] {
            let _ = writeln!(self.nodes, "  Slice x=B{cache} out={tid} axis=2 start=0 stop=v{stop}");
        }
        let (scale, width) = (1.0 / (dim as f32).sqrt(), HEADS * dim);
        let _ = writeln!(self.nodes, "  Sdpa q=T1 k=T2 v=T3 out=T1 scale={scale:?} causal=true");
        let _ = writeln!(self.nodes, "  Transpose x=T1 out=T1 perm=[0,2,1,3]\n  Reshape x=T1 out=T1 shape=[1,-1,{width}]");
        self.product("T1", HIDDEN, width, "T1");
        let _ = writeln!(self.nodes, "  Add a={x} b=T1 out=T5");
        self.norm("T5", HIDDEN, "T0");
        self.product("T0", INNER, HIDDEN, "T1");
        let _ = writeln!(self.nodes, "  Silu x=T1 out=T1");
        self.product("T0", INNER, HIDDEN, "T2");
        let _ = writeln!(self.nodes, "  Multiply a=T1 b=T2 out=T2");
        self.product("T2", HIDDEN, INNER, "T2");
        let _ = writeln!(self.nodes, "  Add a=T5 b=T2 out={out}");
    }
}

fn dtype_of(name: &str) -> DType {
    if name == "f16" { DType::F16 } else { DType::BF16 }
}

/// The program's text and its constants.
fn program(model: Model) -> (String, Vec<Bytes>) {
    let rng = Rng::new(11);
    let mut w = Writer { model, rng, constants: Vec::new(), head: String::new(), nodes: String::new(), values: 0 };
    let periods = model.has_periods.then(|| {
        let each = (0..model.dim / 2).flat_map(|i| (1.5 * 10f32.powf(i as f32 * 0.1)).to_le_bytes()).collect();
        w.constant(&format!("f32[{}]", model.dim / 2), each)
    });
    for layer in 0..LAYERS {
        let x = if layer == 0 { "IN" } else { "T6" };
        w.layer(layer, x, if layer + 1 == LAYERS { "OUT" } else { "T6" }, periods);
    }
    let count = w.constants.len();
    let (input, position, output, buffers) = (count, count + 1, count + 2, count + 3);
    let temps = buffers + 2 * LAYERS;
    let mut text = format!(
        "slots constants={count} inputs=2 outputs=1 buffers={} temps=10 values={}\nmain 0\ninput t{input}\ninput t{position}\noutput t{output}\n",
        2 * LAYERS,
        w.values
    );
    (0..2 * LAYERS).for_each(|i| text += &format!("buffer t{}\n", buffers + i));
    text += &w.head;
    let ty = model.dtype;
    text += &format!("meta t{input} {ty}[1,1..8,{HIDDEN}]\nmeta t{position} i64[1..8]\nmeta t{output} {ty}[1,1..8,{HIDDEN}]\n");
    (0..2 * LAYERS).for_each(|i| text += &format!("meta t{} {ty}[1,{KEY_HEADS},{CAPACITY},{}]\n", buffers + i, model.dim));
    let mut nodes = w.nodes.replace("POS", &format!("t{position}")).replace("OUT", &format!("t{output}"));
    nodes = nodes.replace("IN\n", &format!("t{input}\n")).replace("IN ", &format!("t{input} "));
    (0..10).for_each(|i| nodes = nodes.replace(&format!("=T{i}"), &format!("=t{}", temps + i)));
    (0..2 * LAYERS).for_each(|i| nodes = nodes.replace(&format!("=B{i}"), &format!("=t{}", buffers + i)));
    (format!("{text}chain 0\n{nodes}"), w.constants)
}

struct Given(Vec<Bytes>);

impl Constants for Given {
    fn get(&self, name: &str) -> Option<Bytes> {
        self.0.get(name.parse::<usize>().ok()?).cloned()
    }
}

fn at(position: i64) -> Value {
    Value::Tensor(Tensor::from_slice(&[position], &[1]).expect("one element"))
}

fn floats(results: &[Value]) -> Vec<f32> {
    let Value::Tensor(result) = &results[0] else { panic!("a tensor was expected") };
    cast(&result.aligned(), DType::F32).and_then(|t| Ok(t.as_slice::<f32>()?.to_vec())).expect("floats")
}

fn run(session: &mut Box<dyn Session>, x: &Tensor, position: i64) -> Vec<f32> {
    floats(&session.run(&[Value::Tensor(x.clone()), at(position)]).expect("the step runs"))
}

/// Norm of the difference, relative to the norm of the expected row.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Tolerance of a row: twice the difference of MLX's own operations. MLX rounds where the CPU
/// engine does not.
fn bound(model: Model) -> f32 {
    if model.dtype == "f16" { 8e-3 } else { 5e-2 }
}

fn check_model(mlx: &MlxEngine, model: Model) {
    let (text, constants) = program(model);
    let constants = Given(constants);
    let load = |engine: &dyn Engine| {
        let graph = check(text.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound");
        engine.load(Arc::new(graph), &constants, &LoadOptions::default()).expect("the graph loads")
    };
    let (mut found, mut expected) = (load(mlx), load(&CpuEngine::new(Some(2))));
    let mut rng = Rng::new(5);
    // In order, and with gaps behind which the caches hold zeros.
    let positions = (0..6).chain([63, 127, 128, 129, 255, 256, 300, CAPACITY as i64 - 1]);
    for position in positions {
        let x: Vec<bf16> = (0..HIDDEN).map(|_| bf16::from_f32(2.0 * rng.next_unit() as f32 - 1.0)).collect();
        let x = Tensor::from_slice(&x, &[1, 1, HIDDEN]).and_then(|t| cast(&t, dtype_of(model.dtype))).expect("a row");
        let (found, expected) = (run(&mut found, &x, position), run(&mut expected, &x, position));
        let difference = difference(&found, &expected);
        assert!(difference < bound(model), "{model:?} at position {position}: {difference} of the row's norm");
    }
}

/// Positions of the sequences in a joint step: starts and ends of the kernels' position ranges.
/// Zeros precede them in the caches.
const PLACES: [i64; 8] = [0, 127, 3, 254, 63, 300, 126, CAPACITY as i64 - 4];

/// Batched sequences give the same results as single ones, and no row's bits depend on the number
/// of rows.
fn check_together(mlx: &MlxEngine, model: Model) {
    let (text, constants) = program(model);
    let constants = Given(constants);
    let graph = Arc::new(check(text.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound"));
    let load = || mlx.load(Arc::clone(&graph), &constants, &LoadOptions::default()).expect("the graph loads");
    let mut rng = Rng::new(7);
    let mut row = || -> Value {
        let x: Vec<bf16> = (0..HIDDEN).map(|_| bf16::from_f32(2.0 * rng.next_unit() as f32 - 1.0)).collect();
        let x = Tensor::from_slice(&x, &[1, 1, HIDDEN]).and_then(|t| cast(&t, dtype_of(model.dtype))).expect("a row");
        Value::Tensor(x)
    };
    let steps: Vec<Vec<Vec<Value>>> =
        (0..3_i64).map(|step| (0..32).map(|i| vec![row(), at(PLACES[i % PLACES.len()] + step)]).collect()).collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    // On a CPU, the compared results come from sessions that run alone.
    let counts: &[usize] = if mlx.device() == Device::Cpu { &[2, 5] } else { &[5, 8, 9, 32] };
    for &count in counts {
        let mut sessions: Vec<_> = (0..count).map(|_| load()).collect();
        let mut others: Vec<_> = (0..count).map(|_| load()).collect();
        let mut own = Vec::new();
        for inputs in &steps {
            let before = mlx.joined_runs();
            let runs = sessions.iter_mut().zip(inputs).map(|(session, inputs)| Run { session: &mut **session, inputs });
            let outcomes = mlx.run_last_of_each(&mut runs.collect::<Vec<_>>());
            assert_eq!(mlx.joined_runs(), before + 1, "{model:?}, {count} sequences");
            let found: Vec<Vec<f32>> = outcomes.into_iter().map(|end| floats(&end.expect("no panic").expect("it runs"))).collect();
            for (i, ((found, other), inputs)) in found.iter().zip(&mut others).zip(inputs).enumerate() {
                let difference = difference(found, &floats(&other.run_last(inputs).expect("the step runs")));
                assert!(difference < bound(model), "{model:?}, {i} of {count}: {difference} of the row's norm");
            }
            own.push(found[1].clone());
        }
        if model.bits == 4 {
            assert!(*first.get_or_insert_with(|| own.clone()) == own, "{model:?}: {count} sequences change the bits of one");
        }
    }
}

fn check_device(device: Device) -> Outcome {
    let mlx = match MlxEngine::load(&installed::shim(), &Options { device: Some(device), ..Options::default() }) {
        Ok(mlx) => mlx,
        Err(error) if device != Device::Cpu => return Outcome::Ignored(error.to_string()),
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    for (bits, dtype) in [(16, "bf16"), (4, "bf16"), (8, "bf16"), (16, "f16"), (4, "f16")] {
        for (dim, has_norms, has_periods) in [(64, false, true), (128, true, false)] {
            let model = Model { bits, dtype, dim, has_norms, has_periods };
            check_model(&mlx, model);
            // Without norms, softmax comes so close to a choice that roundings decide it.
            check_together(&mlx, Model { has_norms: true, ..model });
        }
    }
    Outcome::Passed
}

fn main() -> ExitCode {
    let device = |device: Device| {
        test(&format!("decoder_layers_of_one_token_are_those_of_the_cpu_engine::{device}"), installed::requirement, move || {
            let _alone = alone();
            check_device(device)
        })
    };
    flambeau_testcases::run(vec![device(Device::Cpu), device(Device::Gpu(0))])
}
