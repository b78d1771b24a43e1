//! Tests of refused speech models: unsupported configs and damaged files.

use std::{fs, io::Write, path::PathBuf};

use flambeau_pt2::Weight;
use flambeau_tensor::{Bytes, DType};
use flambeau_zoo::{Checkpoint, KvCache, Options, build};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use serde_json::{Value, json};

fn case(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(name)
}

/// The folder of a case, with a changed file.
fn folder(name: &str, changed: &str, change: impl Fn(&mut Value)) -> Result<Checkpoint, flambeau_zoo::Error> {
    let read = |file: &str| {
        let bytes = fs::read(case(name).join("checkpoint").join(file)).unwrap();
        if file != changed {
            return (file.to_owned(), Bytes::from(bytes));
        }
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut json);
        (file.to_owned(), Bytes::from(json.to_string().into_bytes()))
    };
    Checkpoint::from_folder(["config.json", "preprocessor_config.json", "model.safetensors"].map(read).to_vec())
}

fn complaint(name: &str, file: &str, change: impl Fn(&mut Value)) -> String {
    folder(name, file, change).err().map_or("nothing".into(), |error| error.to_string())
}

#[test]
fn configs_of_what_is_not_computed_are_refused_by_their_key() {
    let parakeet = |key: &str, value: Value| {
        complaint("speech-parakeet-tdt", "config.json", |json| json["encoder_config"][key] = value.clone())
    };
    for (key, value) in [
        ("subsampling_factor", json!(4)),
        ("conv_kernel_size", json!(4)),
        ("num_mel_bins", json!(81)),
        ("hidden_act", json!("gelu")),
        ("num_key_value_heads", json!(1)),
        ("attention_window", json!(128)),
    ] {
        assert!(parakeet(key, value).contains(&format!("encoder_config.{key}")), "{key}");
    }
    let top = |key: &str, value: Value| complaint("speech-parakeet-tdt", "config.json", |json| json[key] = value.clone());
    assert!(top("durations", json!([])).contains("durations") && top("durations", json!([-1])).contains("durations"));
    assert!(top("blank_token_id", json!(99)).contains("blank_token_id"));
    let features = complaint("speech-parakeet-tdt", "preprocessor_config.json", |json| json["hop_length"] = json!(200));
    assert!(features.contains("hop_length"), "{features}");
    let moonshine = |key: &str, value: Value| complaint("speech-moonshine", "config.json", |json| json[key] = value.clone());
    assert!(moonshine("decoder_num_key_value_heads", json!(1)).contains("decoder_num_key_value_heads"));
    assert!(moonshine("decoder_hidden_act", json!("gelu")).contains("decoder_hidden_act"));
    assert!(moonshine("rope_parameters", json!({ "rope_type": "linear", "factor": 2.0 })).contains("rope_type"));
}

#[test]
fn caches_of_codes_are_refused_and_every_float_type_is_built() {
    for name in ["speech-parakeet-tdt", "speech-parakeet-ctc", "speech-moonshine"] {
        let checkpoint = folder(name, "", |_| {}).unwrap();
        assert!(checkpoint.is_speech());
        let codes = Options { kv_cache: KvCache::Int8, ..Options::default() };
        assert!(build(&checkpoint, &codes).unwrap_err().to_string().contains("kv_cache"));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            build(&checkpoint, &Options { dtype: Some(dtype), ..Options::default() }).unwrap();
        }
    }
}

/// Reads all weights of a checkpoint's program.
fn read_all(bytes: &Bytes) -> Result<(), Box<dyn std::error::Error>> {
    let model = build(&Checkpoint::from_nemo(bytes)?, &Options::default())?;
    for method in model.methods.values() {
        method.weights.values().try_for_each(|weight| weight.tensor().map(drop))?;
    }
    Ok(())
}

fn nemo() -> Vec<u8> {
    fs::read(case("speech-parakeet-nemo").join("checkpoint.nemo")).unwrap()
}

#[test]
fn a_nemo_file_is_the_folder_that_it_came_from() {
    let model = build(&Checkpoint::from_nemo(&Bytes::from(nemo())).unwrap(), &Options::default()).unwrap();
    assert_eq!(model.methods.keys().copied().collect::<Vec<_>>(), ["encoder", "decoder_step", "joint"]);
    read_all(&Bytes::from(nemo())).unwrap();
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_nemo_files_hold_the_same_model() {
    let weights = |bytes: Vec<u8>| {
        let model = build(&Checkpoint::from_nemo(&bytes.into()).unwrap(), &Options::default()).unwrap();
        let of = |(name, weight): (&String, &Weight)| (name.clone(), weight.tensor().unwrap().bytes().clone());
        model.methods.values().map(|method| method.weights.iter().map(of).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let (plain, zipped) = (nemo(), compressed(&nemo()));
    assert_eq!(weights(zipped.clone()), weights(plain.clone()));
    let in_parts = [&plain[..20_000], &plain[20_000..]].map(compressed).concat();
    assert_eq!(weights(in_parts), weights(plain));
    for end in [2, 17, zipped.len() / 2, zipped.len() - 1] {
        let error = Checkpoint::from_nemo(&zipped[..end].to_vec().into()).unwrap_err().to_string();
        assert!(error.contains("cut short or damaged"), "{end} bytes: {error}");
    }
}

proptest! {
    #[test]
    fn damaged_nemo_files_end_in_an_error_or_a_model(at in 0usize..61_440, byte in any::<u8>(), end in 0usize..61_441) {
        let mut bytes = nemo();
        bytes[at] = byte;
        let _ = read_all(&Bytes::from(bytes.clone()));
        bytes.truncate(end);
        let _ = read_all(&Bytes::from(bytes));
    }

    #[test]
    fn damaged_configs_end_in_an_error_or_a_model(at in 512usize..2_032, byte in any::<u8>()) {
        let mut bytes = nemo();
        bytes[at] = byte;
        let _ = read_all(&Bytes::from(bytes));
    }
}
