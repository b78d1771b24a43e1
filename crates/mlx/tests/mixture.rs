//! Language models on every MLX device, compared with the CPU engine on prompts and single tokens.
//! Two have gated delta nets and a mixture of experts; one of them keeps floats in routers and
//! gates. One has windows and heads of several widths. One shares caches among its last layers and
//! has inputs for each layer. On a GPU, our own kernels compute single tokens.
//!
//! `flambeau inspect --nodes` printed `mixture/layers.txt`, `mixture/floats.txt` (`--float-gates`),
//! `mixture/windows.txt` and `mixture/shared.txt`, here without the text of kernels. The exports
//! (`--max-seq-len 256`) are of folders by `scripts/bench/gpu_shapes.py make --tiny`. `windows.txt`
//! has the shape `gemma4-31b`, `shared.txt` has `gemma4-e2b`. The tests give values to constants.

use std::{collections::HashMap, process::ExitCode, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Graph, check,
    engine::{Constants, Engine, LoadOptions, Run, Session, Value},
};
use flambeau_mlx::{Device, MlxEngine, Options};
use flambeau_tensor::{Bytes, DType, Tensor, cast};
use flambeau_testcases::{Outcome, test};
use flambeau_text::Rng;

#[path = "support/mod.rs"]
mod installed;

use installed::alone;

const LAYERS: &str = include_str!("mixture/layers.txt");
const FLOATS: &str = include_str!("mixture/floats.txt");
const WINDOWS: &str = include_str!("mixture/windows.txt");
const SHARED: &str = include_str!("mixture/shared.txt");
const VOCABULARY: f64 = 512.0;
/// Codes that share a scale, and the standard deviation of equally likely codes of 4 bits.
const GROUP: usize = 64;
const DEVIATION: f64 = 4.61;

/// Element type and shape as the text has them.
fn meta(text: &str) -> (DType, Vec<usize>) {
    let (name, sizes) = text.strip_suffix(']').and_then(|text| text.split_once('[')).expect("a type and a shape");
    let dtype = [("u32", DType::U32), ("f32", DType::F32), ("bf16", DType::BF16), ("i64", DType::I64)];
    let dtype = dtype.iter().find(|(known, _)| *known == name).expect("a known type").1;
    (dtype, sizes.split(',').filter(|s| !s.is_empty()).map(|s| s.parse().expect("a size")).collect())
}

/// A constant's random value, in a range that depends on its name.
fn constant(name: &str, dtype: DType, shape: &[usize], rng: &mut Rng) -> Bytes {
    let count = shape.iter().product::<usize>();
    if dtype == DType::U32 {
        return (0..count * 4).map(|_| (rng.next_unit() * 256.0) as u8).collect::<Vec<_>>().into();
    }
    let scale = 1.0 / (DEVIATION * ((shape.last().copied().unwrap_or(1) * GROUP) as f64).sqrt());
    let scalar = name.strip_prefix("_scalar_").and_then(|rest| rest.split('_').next()?.parse::<f64>().ok());
    let bound = (3.0 / shape.last().copied().unwrap_or(1) as f64).sqrt();
    let (low, high) = match (scalar, name) {
        (Some(value), _) => (value, value),
        (_, name) if name.ends_with(".scales") => (0.7 * scale, 1.3 * scale),
        (_, name) if name.ends_with(".biases") => (-9.0 * scale, -6.0 * scale),
        (_, name) if name.ends_with("A_log") => (-2.0, -0.1),
        (_, name) if name.ends_with("dt_bias") => (-1.0, 1.0),
        (_, name) if name.contains("conv1d") => (-0.5, 0.5),
        _ if shape.len() == 2 => (-bound, bound),
        _ => (0.8, 1.2),
    };
    let values: Vec<f32> = (0..count).map(|_| (low + (high - low) * rng.next_unit()) as f32).collect();
    let tensor = Tensor::from_slice(&values, shape).and_then(|t| cast(&t, dtype)).expect("floats");
    tensor.bytes().to_vec().into()
}

struct Given(HashMap<String, Bytes>);

impl Constants for Given {
    fn get(&self, name: &str) -> Option<Bytes> {
        self.0.get(name).cloned()
    }
}

fn constants(layers: &'static str) -> Given {
    let lines = |kind: &'static str| layers.lines().filter_map(move |line| line.strip_prefix(kind)?.split_once(' '));
    let metas: HashMap<&str, &str> = lines("meta ").collect();
    let mut rng = Rng::new(3);
    let values = lines("name ").map(|(slot, name)| {
        let (name, (dtype, shape)) = (name.trim_matches('"'), meta(metas[slot]));
        (name.to_owned(), constant(name, dtype, &shape, &mut rng))
    });
    Given(values.collect())
}

/// The inputs of a call with `tokens` from a position on.
fn inputs(tokens: &[i64], position: i64) -> Vec<Value> {
    let positions: Vec<i64> = (position..position + tokens.len() as i64).collect();
    let tokens = Tensor::from_slice(tokens, &[1, tokens.len()]).expect("tokens");
    let positions = Tensor::from_slice(&positions, &[positions.len()]).expect("positions");
    vec![Value::Tensor(tokens), Value::Tensor(positions)]
}

fn floats(results: &[Value]) -> Vec<f32> {
    let Value::Tensor(result) = &results[0] else { panic!("a tensor was expected") };
    cast(&result.aligned(), DType::F32).and_then(|t| Ok(t.as_slice::<f32>()?.to_vec())).expect("floats")
}

/// The last token's logits of a call.
fn logits(session: &mut Box<dyn Session>, tokens: &[i64], position: i64) -> Vec<f32> {
    floats(&session.run(&inputs(tokens, position)).expect("the call runs"))
}

/// Norm of the difference, relative to the norm of the expected row.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Token counts of calls. Each row of calls begins a sequence: prompts below one chunk or of
/// several chunks, then single tokens.
const CALLS: [&[usize]; 3] = [&[100, 1, 1, 1, 3, 1, 1], &[1, 1, 1], &[37, 1, 64, 1]];

fn check_engine(mlx: &MlxEngine, layers: &'static str) {
    let constants = constants(layers);
    let load = |engine: &dyn Engine| {
        let graph = check(layers.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound");
        engine.load(Arc::new(graph), &constants, &LoadOptions::default()).expect("the graph loads")
    };
    let (mut found, mut expected) = (load(mlx), load(&CpuEngine::new(Some(2))));
    let mut rng = Rng::new(5);
    let mut differences = Vec::new();
    for calls in CALLS {
        let mut position = 0;
        for &count in calls {
            let tokens: Vec<i64> = (0..count).map(|_| (rng.next_unit() * VOCABULARY) as i64).collect();
            let (found, expected) = (logits(&mut found, &tokens, position), logits(&mut expected, &tokens, position));
            let difference = difference(&found, &expected);
            // If two experts score nearly the same, rounding may choose the other: MLX's CPU
            // backend differs by up to 0.24.
            assert!(difference < 0.5, "{count} tokens at position {position}: {difference} of the row's norm");
            differences.push(difference);
            position += count as i64;
        }
    }
    check_median(differences);
}

fn check_median(mut differences: Vec<f32>) {
    differences.sort_by(f32::total_cmp);
    // Rounding to bf16 in two orders gives 0.02 to 0.06 for most rows; unrelated rows differ by
    // more than 1.
    let median = differences[differences.len() / 2];
    assert!(median < 0.1, "half of the rows differ by more than {median} of their norms");
}

/// Tokens of the prompts behind which sequences step together.
const PROMPTS: [usize; 6] = [3, 40, 17, 64, 1, 33];

/// Sequences step together as each does alone.
fn check_together(mlx: &MlxEngine, layers: &'static str) {
    let constants = constants(layers);
    let graph = Arc::new(check(layers.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound"));
    let mut rng = Rng::new(9);
    let mut draw = |count: usize| -> Vec<i64> { (0..count).map(|_| (rng.next_unit() * VOCABULARY) as i64).collect() };
    let mut pairs: Vec<[Box<dyn Session>; 2]> = Vec::new();
    for count in PROMPTS {
        let prompt = draw(count);
        pairs.push([(); 2].map(|()| {
            let mut session = mlx.load(Arc::clone(&graph), &constants, &LoadOptions::default()).expect("the graph loads");
            logits(&mut session, &prompt, 0);
            session
        }));
    }
    let mut differences = Vec::new();
    for step in 0..4 {
        let calls: Vec<Vec<Value>> = PROMPTS.iter().map(|&count| inputs(&draw(1), (count + step) as i64)).collect();
        let before = mlx.joined_runs();
        let runs = pairs.iter_mut().zip(&calls).map(|([session, _], inputs)| Run { session: &mut **session, inputs });
        let outcomes = mlx.run_last_of_each(&mut runs.collect::<Vec<_>>());
        assert_eq!(mlx.joined_runs(), before + 1, "the step is one run");
        for ((end, [_, other]), inputs) in outcomes.into_iter().zip(&mut pairs).zip(&calls) {
            let found = floats(&end.expect("no panic").expect("the step runs"));
            let difference = difference(&found, &floats(&other.run_last(inputs).expect("the step runs")));
            assert!(difference < 0.5, "step {step}: {difference} of the row's norm");
            differences.push(difference);
        }
    }
    check_median(differences);
}

fn check_device(device: Device, layers: &'static str) -> Outcome {
    match MlxEngine::load(&installed::shim(), &Options { device: Some(device), ..Options::default() }) {
        Ok(mlx) => {
            check_engine(&mlx, layers);
            check_together(&mlx, layers);
        }
        Err(error) if device != Device::Cpu => return Outcome::Ignored(error.to_string()),
        Err(error) => return Outcome::Failed(error.to_string()),
    }
    Outcome::Passed
}

fn main() -> ExitCode {
    let case = |what: &str, device: Device, layers: &'static str| {
        test(&format!("{what}_is_that_of_the_cpu_engine::{device}"), installed::requirement, move || {
            let _alone = alone();
            check_device(device, layers)
        })
    };
    let devices = [Device::Cpu, Device::Gpu(0)];
    let mixture = devices.map(|device| case("a_mixture_behind_delta_nets", device, LAYERS));
    let floats = devices.map(|device| case("a_mixture_with_a_router_of_floats", device, FLOATS));
    let windows = devices.map(|device| case("attention_in_windows", device, WINDOWS));
    let shared = devices.map(|device| case("attention_over_shared_caches", device, SHARED));
    flambeau_testcases::run(mixture.into_iter().chain(floats).chain(windows).chain(shared).collect())
}
