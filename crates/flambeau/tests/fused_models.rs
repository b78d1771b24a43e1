//! Models that fused CUDA kernels compute, freshly exported: every available MLX device against the
//! CPU engine, alone and several sequences at once. On a GPU the kernels compute single tokens.
#![cfg(all(feature = "cpu", feature = "mlx", feature = "text", feature = "zoo"))]

mod fresh;

#[path = "../../mlx/tests/support/mod.rs"]
mod installed;

use std::{process::ExitCode, sync::Arc};

use flambeau::{
    compile::{Layers, Scheme, SchemeName, WeightRule},
    cpu::CpuEngine,
    engine::Engine,
    mlx::{Device, MlxEngine, Options},
    runners::llm::{Model, ModelOptions, Sequence, TokenInput},
    runtime::Program,
};
use flambeau_testcases::{Outcome, test};

use fresh::{CHUNK, CHUNK_WITH_RINGS, VOCABULARY, export_with, families, model, model_with_adapter, model_with_separate_gates};
use installed::alone;

/// Token counts of calls. Each row of calls begins a sequence: prompts below one chunk or of
/// several chunks, then single tokens.
const CALLS: [&[usize]; 3] = [&[64, 36, 1, 1, 1, 3, 1, 1], &[1, 1, 1], &[37, 1, 64, 1]];

/// Tokens of the prompts behind which sequences step together.
const PROMPTS: [usize; 6] = [3, 40, 17, 64, 1, 33];

/// A model of a family, and how it is exported.
#[derive(Clone, Copy)]
struct Exported {
    family: &'static str,
    scheme: &'static str,
    chunk: usize,
    has_separate_gates: bool,
    has_adapter: bool,
    rules: fn() -> Vec<WeightRule>,
}

/// A family with linear layers in 4 bits, and caches without rings.
const fn of(family: &'static str) -> Exported {
    Exported { family, scheme: "4w", chunk: CHUNK, has_separate_gates: false, has_adapter: false, rules: Vec::new }
}

impl Exported {
    fn program(self) -> Program {
        let config = families().into_iter().find(|(known, _)| *known == self.family).expect("a family of this name").1;
        let built = match self {
            Exported { has_adapter: true, .. } => model_with_adapter(&config),
            Exported { has_separate_gates: true, .. } => model_with_separate_gates(&config),
            _ => model(&config, self.chunk),
        };
        let mut bytes = Vec::new();
        export_with(&built, self.scheme, (self.rules)()).write(&mut bytes).expect("memory takes it");
        Program::from_bytes(bytes).expect("the program is sound")
    }
}

/// Rules that quantize routers and gates, too.
fn gates() -> Vec<WeightRule> {
    let rule = |suffix: &str| WeightRule {
        pattern: format!("*.{suffix}.weight"),
        layers: Layers::All,
        scheme: Some(Scheme::from_name("4w", None).expect("a scheme")),
        is_optional: false,
    };
    ["mlp.gate", "mlp.shared_expert_gate", "in_proj_a", "in_proj_b"].map(rule).into()
}

fn loaded(program: &Program, engine: &Arc<dyn Engine>) -> Model {
    Model::load(program, engine, &ModelOptions::default()).expect("it is a language model")
}

fn tokens(count: usize, rng: &mut fastrand::Rng) -> Vec<u32> {
    (0..count).map(|_| rng.u32(..VOCABULARY as u32)).collect()
}

/// Norm of the difference, relative to the norm of the expected row.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

fn check_median(mut differences: Vec<f32>) {
    differences.sort_by(f32::total_cmp);
    // Rounding to bf16 in two orders gives 0.02 to 0.06 for most rows; unrelated rows differ by
    // more than 1.
    let median = differences[differences.len() / 2];
    assert!(median < 0.1, "half of the rows differ by more than {median} of their norms");
}

fn check_alone(mlx: &Arc<dyn Engine>, program: &Program) {
    let cpu: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(2)));
    let models = [loaded(program, mlx), loaded(program, &cpu)];
    let mut rng = fastrand::Rng::with_seed(5);
    let mut differences = Vec::new();
    for calls in CALLS {
        let mut sequences = models.each_ref().map(|model| model.sequence().expect("there is room"));
        for &count in calls {
            let tokens = tokens(count, &mut rng);
            let [found, expected] = sequences.each_mut().map(|sequence| sequence.step(&tokens).expect("the call runs"));
            let difference = difference(&found, &expected);
            // If two experts score nearly the same, rounding may choose the other: MLX's CPU
            // backend differs by up to 0.24.
            assert!(difference < 0.5, "{count} tokens: {difference} of the row's norm");
            differences.push(difference);
        }
    }
    check_median(differences);
}

/// Sequences step together as each does alone.
fn check_together(mlx: &MlxEngine, engine: &Arc<dyn Engine>, program: &Program) {
    let model = loaded(program, engine);
    let mut rng = fastrand::Rng::with_seed(9);
    let (mut sequences, mut others): (Vec<Sequence>, Vec<Sequence>) = (Vec::new(), Vec::new());
    for count in PROMPTS {
        let prompt = tokens(count, &mut rng);
        for all in [&mut sequences, &mut others] {
            let mut sequence = model.sequence().expect("there is room");
            sequence.step(&prompt).expect("the prompt is read");
            all.push(sequence);
        }
    }
    let mut differences = Vec::new();
    for step in 0..4 {
        let drawn = tokens(PROMPTS.len(), &mut rng);
        let mut logits = vec![Vec::new(); drawn.len()];
        let pairs = sequences.iter_mut().zip(&mut logits).zip(&drawn);
        let mut feeds: Vec<TokenInput<'_>> =
            pairs.map(|((sequence, logits), &token)| TokenInput { sequence, token, logits }).collect();
        let before = mlx.joined_runs();
        for outcome in Sequence::step_each(&mut feeds) {
            outcome.expect("no panic").expect("the step runs");
        }
        assert_eq!(mlx.joined_runs(), before + 1, "the step is one run");
        for ((found, other), &token) in logits.iter().zip(&mut others).zip(&drawn) {
            let difference = difference(found, &other.step(&[token]).expect("the step runs"));
            assert!(difference < 0.5, "step {step}: {difference} of the row's norm");
            differences.push(difference);
        }
    }
    check_median(differences);
}

fn check_device(device: Device, program: &Program) -> Outcome {
    match MlxEngine::load(&installed::shim(), &Options { device: Some(device), ..Options::default() }) {
        Ok(mlx) => {
            let mlx = Arc::new(mlx);
            let engine: Arc<dyn Engine> = Arc::clone(&mlx) as Arc<dyn Engine>;
            check_alone(&engine, program);
            check_together(&mlx, &engine, program);
            Outcome::Passed
        }
        Err(error) if device != Device::Cpu => Outcome::Ignored(error.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn main() -> ExitCode {
    let case = |what: &str, device: Device, exported: Exported| {
        test(&format!("{what}_is_that_of_the_cpu_engine::{device}"), installed::requirement, move || {
            let _alone = alone();
            check_device(device, &exported.program())
        })
    };
    let apart = |family| Exported { has_separate_gates: true, ..of(family) };
    let adapted = |family| Exported { has_adapter: true, ..of(family) };
    let rings = |family| Exported { chunk: CHUNK_WITH_RINGS, ..of(family) };
    let cases = [
        ("a_mixture_behind_delta_nets", Exported { rules: gates, ..apart("qwen3_5_moe") }),
        ("a_mixture_with_a_router_of_floats", apart("qwen3_5_moe")),
        ("a_mixture_with_joined_matrices", of("qwen3_moe")),
        ("a_mixture_in_8_bits", Exported { scheme: "8w", ..of("qwen3_5_moe") }),
        ("projections_with_biases", of("qwen2")),
        ("an_adapter", adapted("llama")),
        ("an_adapter_beside_biases", Exported { scheme: "8w", ..adapted("qwen2") }),
        ("norms_in_f32_behind_products", of("gemma3")),
        ("attention_in_windows", of("gemma4, keys as values")),
        ("attention_over_shared_caches", of("gemma4, shared caches")),
        ("attention_over_rings", rings("mistral")),
        ("attention_over_shared_rings", rings("gemma4, shared caches")),
    ];
    let devices = [Device::Cpu, Device::Gpu(0)];
    let all = cases.into_iter().flat_map(|(what, exported)| devices.map(|device| case(what, device, exported)));
    flambeau_testcases::run(all.collect())
}
