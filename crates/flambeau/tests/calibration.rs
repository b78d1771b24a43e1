//! Statistics of the inputs of a tiny model's linear layers.
#![cfg(all(feature = "cpu", feature = "zoo"))]

use std::{fs, sync::Arc};

use flambeau::{
    compile::{Layers, Observer, Options, Scheme, SchemeName, WeightRule},
    cpu::CpuEngine,
    engine::{Engine, LoadOptions, Value},
    runtime::{self, Program},
    tensor::Tensor,
    zoo::{self, Checkpoint, Model},
};
use safetensors::SafeTensors;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/tiny-llama");
const TOKENS: [i64; 6] = [3, 9, 4, 3, 12, 7];
const HIDDEN: usize = 32;

fn model() -> Model {
    let files =
        ["config.json", "model.safetensors"].map(|name| (name.to_owned(), fs::read(format!("{FOLDER}/{name}")).unwrap().into()));
    let options = zoo::Options { dtype: Some(flambeau::tensor::DType::F32), ..zoo::Options::default() };
    zoo::build(&Checkpoint::from_folder(files.into()).unwrap(), &options).unwrap()
}

fn options() -> Options {
    Options { linear: Some(Scheme::from_name("4w", Some(32)).unwrap()), ..Options::default() }
}

/// An observer that saw the tokens once.
fn observed(model: &Model) -> Observer {
    let mut observer = zoo::observe(model, &options(), &CpuEngine::new(Some(2)), 64, usize::MAX).unwrap();
    observer.run(&inputs()).unwrap();
    observer
}

fn inputs() -> [Value; 2] {
    let positions: Vec<i64> = (0..TOKENS.len() as i64).collect();
    let ids = Tensor::from_slice(&TOKENS, &[1, TOKENS.len()]).unwrap();
    [ids, Tensor::from_slice(&positions, &[TOKENS.len()]).unwrap()].map(Value::Tensor)
}

fn tensor(value: &Value) -> &Tensor {
    let Value::Tensor(tensor) = value else { panic!("{value:?} is no tensor") };
    tensor
}

/// A weight in bf16 as f32.
fn weight(name: &str) -> Vec<f32> {
    let bytes = fs::read(format!("{FOLDER}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let halves = file.tensor(name).unwrap().data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect::<Vec<_>>();
    halves.into_iter().map(|half| f32::from_bits(u32::from(half) << 16)).collect()
}

#[test]
fn squares_are_those_of_the_normed_embeddings() {
    let statistics = observed(&model()).statistics(1);
    let (table, norm) = (weight("model.embed_tokens.weight"), weight("model.layers.0.input_layernorm.weight"));
    let mut expected = [0f32; HIDDEN];
    for token in TOKENS {
        let row = &table[token as usize * HIDDEN..][..HIDDEN];
        let mean = row.iter().map(|x| x * x).sum::<f32>() / HIDDEN as f32;
        for (sum, (x, w)) in expected.iter_mut().zip(row.iter().zip(&norm)) {
            *sum += (x * w).powi(2) / (mean + 1e-5);
        }
    }
    for name in ["q_proj", "k_proj", "v_proj"] {
        let found = statistics.get(&format!("model.layers.0.self_attn.{name}.weight")).unwrap().squares();
        let sums = [found, &expected].map(|squares| squares.iter().sum::<f32>());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found / sums[0] - expected / sums[1]).abs() < 1e-5, "{name}: {found} {expected}");
        }
    }
}

#[test]
fn calibrated_programs_have_other_codes_of_the_same_size() {
    let model = model();
    let engine = CpuEngine::new(Some(2));
    let written = |options: Options| {
        let mut file = Vec::new();
        zoo::compile(&model, options, &engine).unwrap().write(&mut file).unwrap();
        file
    };
    let statistics = Arc::new(observed(&model).statistics(2));
    let calibrated = written(Options { statistics: statistics.clone(), ..options() });
    let plain = written(options());
    assert_eq!(calibrated.len(), plain.len());
    assert_ne!(calibrated, plain);
    assert_eq!(calibrated, written(Options { statistics, threads: Some(1), ..options() }), "for any number of threads");
}

#[test]
fn a_loaded_method_computes_what_its_file_does() {
    let model = model();
    let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(2)));
    let options = Options { statistics: Arc::new(observed(&model).statistics(1)), ..options() };
    let mut file = Vec::new();
    zoo::compile(&model, options.clone(), &*engine).unwrap().write(&mut file).unwrap();
    let program = Program::from_bytes(file).unwrap();
    let given = inputs().map(|value| runtime::Value::Tensor(tensor(&value).clone()));
    let results = program.method("forward", &engine, &LoadOptions::default()).unwrap().run(&given).unwrap();
    let [runtime::Value::Tensor(expected)] = &results[..] else { panic!("{results:?} is not one tensor") };
    let mut loaded = zoo::load(&model, options.clone(), &*engine).unwrap();
    let found = loaded.run(&inputs()).unwrap();
    assert_eq!(tensor(&found[0]).bytes(), expected.bytes());
    let again = loaded.run(&inputs()).unwrap();
    assert_eq!(tensor(&again[0]).bytes(), expected.bytes(), "each run begins with empty caches");
    let floats = zoo::load(&model, Options { linear: None, ..options }, &*engine).unwrap().run(&inputs()).unwrap();
    assert_ne!(tensor(&floats[0]).bytes(), expected.bytes());
}

#[test]
fn linear_weights_are_those_without_a_rule() {
    let names = |rules: Vec<WeightRule>| {
        let weights = zoo::linear_weights(&model(), Options { rules, ..options() }).unwrap();
        weights.into_iter().map(|weight| (weight.name, weight.shape.to_vec())).collect::<Vec<_>>()
    };
    let all = names(Vec::new());
    assert_eq!(all.len(), 7);
    assert!(all.contains(&("model.layers.0.mlp.down_proj.weight".into(), vec![HIDDEN, 64])), "{all:?}");
    let rule = WeightRule { pattern: "*.mlp.*".into(), layers: Layers::All, scheme: None, is_optional: false };
    assert!(names(vec![rule]).iter().all(|(name, _)| name.contains("self_attn")));
}
