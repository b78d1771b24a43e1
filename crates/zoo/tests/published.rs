//! Tests of published configs: every key is read, or known to have no effect.

use std::collections::BTreeSet;

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Error, Options, build};
use serde_json::{Value, json};

/// Published configs and the defaults of transformers' classes, each with its source.
fn published() -> Vec<(String, Value)> {
    let rows = flambeau_zoo::parse_json(include_bytes!("data/published.json")).unwrap();
    rows.as_array().unwrap().iter().map(|row| (row["from"].as_str().unwrap().to_owned(), row["config"].clone())).collect()
}

/// Reads a folder with this config and an empty file of weights.
fn read(config: &Value) -> Result<Checkpoint, Error> {
    let weights = safetensors::serialize(Vec::<(&str, safetensors::tensor::TensorView<'_>)>::new(), None).unwrap();
    let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", weights)];
    let encoder = [("modules.json", b"[]".to_vec())];
    Checkpoint::from_folder(files.into_iter().chain(encoder).map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes))).collect())
}

#[test]
fn every_key_of_published_configs_is_known() {
    let complaints: Vec<String> =
        published().iter().filter_map(|(source, config)| Some(format!("{source}: {}", read(config).err()?))).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn every_family_has_a_published_config() {
    let error = read(&json!({"model_type": "none"})).unwrap_err();
    let Error::Family { supported, .. } = error else { panic!("{error}") };
    // Speech models need more files than a config. Their folders are among the cases.
    const SPEECH: [&str; 7] =
        ["moonshine", "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", "voxtral", "voxtral_realtime", "whisper"];
    // Names without a transformers class, or with a class without a complete config.
    const WITHOUT: [&str; 8] =
        ["bailing_hybrid", "deepseek", "exaone", "glm4v_moe_text", "iquestcoder", "joyai_llm_flash", "kimi_linear", "youtu_llm"];
    let rows = published();
    let names: BTreeSet<&str> = rows
        .iter()
        .flat_map(|(_, config)| [&config["model_type"], &config["text_config"]["model_type"]])
        .filter_map(Value::as_str)
        .collect();
    let missing: Vec<_> =
        supported.split(", ").filter(|name| !names.contains(name) && !SPEECH.contains(name) && !WITHOUT.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn published_values_count() {
    let rows = published();
    let config = |source: &str| rows.iter().find(|(from, _)| from == source).unwrap().1.clone();
    // In a folder without tensors, building fails at the first tensor, after all options are read.
    let missing = |config: &Value| build(&read(config).unwrap(), &Options::default()).unwrap_err().to_string();
    for source in ["google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-12B-it"] {
        let mut changed = config(source);
        assert!(missing(&changed).contains("model.embed_tokens.weight"));
        changed["text_config"]["use_bidirectional_attention"] = json!("all");
        let error = read(&changed).unwrap_err().to_string();
        assert!(error.contains("expected false or vision, found \"all\""), "{error}");
    }
}
