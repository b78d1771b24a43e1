//! Statistics of the inputs of a tiny model's linear layers.
#![cfg(all(feature = "cpu", feature = "zoo"))]

use std::{fs, sync::Arc};

use flambeau::{
    compile::{Observer, Options, Scheme, SchemeName},
    cpu::CpuEngine,
    engine::Value,
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
    let positions: Vec<i64> = (0..TOKENS.len() as i64).collect();
    let ids = Tensor::from_slice(&TOKENS, &[1, TOKENS.len()]).unwrap();
    observer.run(&[ids, Tensor::from_slice(&positions, &[TOKENS.len()]).unwrap()].map(Value::Tensor)).unwrap();
    observer
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
