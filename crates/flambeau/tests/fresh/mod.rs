//! Tiny checkpoints of model families with random weights, written from a config alone.

#![allow(dead_code, unused_imports, reason = "every test file uses its part")]

mod configs;

use flambeau::{
    compile::{self, Output, Scheme, SchemeName, WeightRule},
    cpu::CpuEngine,
    tensor::Bytes,
    zoo::{self, Adapter, Checkpoint, Error, Model},
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

pub(crate) use configs::{VOCABULARY, families};

/// Positions of the caches.
pub(crate) const POSITIONS: usize = 256;

/// Tokens of a call at most. With fewer, caches of windows are rings.
pub(crate) const CHUNK: usize = POSITIONS;
pub(crate) const CHUNK_WITH_RINGS: usize = 64;

/// Rank of adapters.
const RANK: usize = 8;

/// Names and shapes of a checkpoint's tensors.
type Shapes = Vec<(String, Vec<usize>)>;

/// The model of a config with random weights in bf16.
pub(crate) fn model(config: &Value, chunk: usize) -> Model {
    let shapes = shapes(config, Vec::new());
    random(config, &shapes, chunk)
}

/// The same, with a matrix for the gates of all experts of a layer and one for their ups, as MLX
/// stores them. Otherwise both are one matrix.
pub(crate) fn model_with_separate_gates(config: &Value) -> Model {
    let layers = config["num_hidden_layers"].as_u64().unwrap_or(0);
    let parts = ["gate_proj", "up_proj", "down_proj"];
    let names = (0..layers).flat_map(|i| parts.map(|part| format!("model.layers.{i}.mlp.switch_mlp.{part}.weight")));
    random(config, &shapes(config, names.map(|name| (name, vec![1])).collect()), CHUNK)
}

/// The same, with an adapter of rank 8 on every linear layer of the decoder, applied at run time.
pub(crate) fn model_with_adapter(config: &Value) -> Model {
    let shapes = shapes(config, Vec::new());
    let mut rng = fastrand::Rng::with_seed(3);
    let data: Vec<Vec<u8>> = shapes.iter().map(|(name, shape)| values(name, shape, &mut rng)).collect();
    let mut factors = Vec::new();
    for (name, shape) in shapes.iter().filter(|(name, _)| name.ends_with("_proj.weight")) {
        let module = name.trim_end_matches(".weight");
        for (part, sizes) in [("lora_A", vec![RANK, shape[1]]), ("lora_B", vec![shape[0], RANK])] {
            factors.push((format!("base_model.model.{module}.{part}.weight"), sizes));
        }
    }
    let values = factors.iter().map(|(name, shape)| values(name, shape, &mut rng)).collect::<Vec<_>>();
    let settings = serde_json::json!({ "peft_type": "LORA", "r": RANK, "lora_alpha": RANK });
    let files = [
        ("adapter_config.json", settings.to_string().into_bytes().into()),
        ("adapter_model.safetensors", tensors(&factors, &values)),
    ];
    let adapter = Adapter::from_folder(files.map(|(name, bytes)| (name.to_owned(), bytes)).into()).expect("an adapter");
    let mut checkpoint = checkpoint(config, &shapes, &data).expect("a checkpoint");
    checkpoint.attach("adapter", &adapter, 1.0).expect("the adapter fits");
    zoo::build(&checkpoint, &options(CHUNK)).expect("the model builds")
}

fn random(config: &Value, shapes: &Shapes, chunk: usize) -> Model {
    let mut rng = fastrand::Rng::with_seed(3);
    let data: Vec<Vec<u8>> = shapes.iter().map(|(name, shape)| values(name, shape, &mut rng)).collect();
    build(config, shapes, &data, chunk).unwrap_or_else(|error| panic!("{}: {error}", config["model_type"]))
}

/// The model's program with quantized linear layers, or with none where `scheme` is `bf16`.
pub(crate) fn export<'m>(model: &'m Model, scheme: &str) -> Output<'m> {
    export_with(model, scheme, Vec::new())
}

/// The same, with rules that come before the scheme.
pub(crate) fn export_with<'m>(model: &'m Model, scheme: &str, rules: Vec<WeightRule>) -> Output<'m> {
    let linear = (scheme != "bf16").then(|| Scheme::from_name(scheme, None).expect("a scheme"));
    let options = compile::Options { linear, embedding: linear, rules, ..compile::Options::default() };
    zoo::compile(model, options, &CpuEngine::new(Some(1))).expect("the model compiles")
}

/// Asks the exporter for the tensors: it names each missing tensor, and the shape of a wrong one.
fn shapes(config: &Value, mut shapes: Shapes) -> Shapes {
    loop {
        let zeros: Vec<Vec<u8>> = shapes.iter().map(|(_, shape)| vec![0; 2 * shape.iter().product::<usize>()]).collect();
        match build(config, &shapes, &zeros, CHUNK) {
            Ok(_) => return shapes,
            Err(Error::MissingTensor(name)) if !shapes.iter().any(|(known, _)| *known == name) => shapes.push((name, vec![1])),
            Err(Error::Tensor { name, expected, .. }) => {
                let shape = shape(&expected).unwrap_or_else(|| panic!("{name}: expected {expected}"));
                match shapes.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) if *known == shape => panic!("{name}: expected {expected}"),
                    Some((_, known)) => *known = shape,
                    // The tensor joins those of single experts.
                    None => {
                        let experts = name.trim_end_matches(|c| c != '.');
                        let is_single = |(known, _): &(String, Vec<usize>)| {
                            known.strip_prefix(experts).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                        };
                        shapes.retain(|tensor| !is_single(tensor));
                        shapes.push((name, shape));
                    }
                }
            }
            Err(error) => panic!("{}: {error}", config["model_type"]),
        }
    }
}

/// The sizes of a text such as `shape [4, 8]`.
fn shape(text: &str) -> Option<Vec<usize>> {
    let sizes = text.strip_prefix("shape [")?.strip_suffix(']')?;
    sizes.split(", ").map(|size| size.parse().ok()).collect()
}

fn build(config: &Value, shapes: &Shapes, data: &[Vec<u8>], chunk: usize) -> Result<Model, Error> {
    zoo::build(&checkpoint(config, shapes, data)?, &options(chunk))
}

fn options(chunk: usize) -> zoo::Options {
    zoo::Options { max_seq_len: Some(POSITIONS), prefill_chunk: Some(chunk), ..zoo::Options::default() }
}

fn checkpoint(config: &Value, shapes: &Shapes, data: &[Vec<u8>]) -> Result<Checkpoint, Error> {
    let config: Bytes = config.to_string().into_bytes().into();
    Checkpoint::from_folder(vec![("config.json".into(), config), ("model.safetensors".into(), tensors(shapes, data))])
}

/// A safetensors file of tensors in bf16.
fn tensors(shapes: &Shapes, data: &[Vec<u8>]) -> Bytes {
    let views = shapes.iter().zip(data).map(|((name, shape), data)| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), data).expect("as many bytes as elements");
        (name.clone(), view)
    });
    safetensors::serialize(views, None).expect("tensors").into()
}

/// Random elements in bf16, in a range that keeps activations near 1.
fn values(name: &str, shape: &[usize], rng: &mut fastrand::Rng) -> Vec<u8> {
    let bound = (3.0 / shape.last().copied().unwrap_or(1) as f32).sqrt();
    let (low, high) = match shape.len() {
        _ if name.ends_with("A_log") => (-2.0, -0.1),
        _ if name.ends_with("dt_bias") => (-1.0, 1.0),
        _ if name.contains("conv1d") => (-0.5, 0.5),
        _ if name.ends_with("bias") => (-0.1, 0.1),
        0 | 1 => (0.8, 1.2),
        _ => (-bound, bound),
    };
    let mut bf16 = || (((low + (high - low) * rng.f32()).to_bits() >> 16) as u16).to_le_bytes();
    (0..shape.iter().product()).flat_map(|_| bf16()).collect()
}
