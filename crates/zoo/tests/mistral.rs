//! Tests of folders in Mistral's form, written from Hugging Face's form.

use std::{collections::BTreeMap, fs, path::Path};

use flambeau_tensor::{Bytes, DType};
use flambeau_zoo::{Checkpoint, Error, Options, build};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

/// Pairs of names: Hugging Face's and Mistral's. More specific names come first.
const NAMES: [(&str, &str); 26] = [
    ("audio_tower.embedder.conv1.", "@whisper_encoder.conv_layers.0.conv."),
    ("audio_tower.embedder.conv2.", "@whisper_encoder.conv_layers.1.conv."),
    ("audio_tower.conv1.", "@whisper_encoder.conv_layers.0."),
    ("audio_tower.conv2.", "@whisper_encoder.conv_layers.1."),
    ("audio_tower.layers.", "@whisper_encoder.transformer.layers."),
    ("audio_tower.layer_norm.", "@whisper_encoder.transformer.norm."),
    ("audio_tower.norm.", "@whisper_encoder.transformer.norm."),
    ("multi_modal_projector.linear_1.", "@audio_language_projection.0."),
    ("multi_modal_projector.linear_2.", "@audio_language_projection.2."),
    ("language_model.lm_head.", "output."),
    ("language_model.model.embed_tokens.", "@tok_embeddings."),
    ("language_model.model.", ""),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.out_proj", "attention.wo"),
    ("self_attn.o_proj", "attention.wo"),
    ("self_attn_layer_norm", "attention_norm"),
    ("final_layer_norm", "ffn_norm"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("ada_rms_norm.linear1", "ada_rms_norm_t_cond.0"),
    ("ada_rms_norm.linear2", "ada_rms_norm_t_cond.2"),
];

fn folder(case: &str) -> Vec<(String, Bytes)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case).join("checkpoint");
    let read = |name: &str| (name.to_owned(), fs::read(folder.join(name)).unwrap().into());
    ["config.json", "model.safetensors"].map(read).to_vec()
}

/// Reorders rows of heads so that the partners of each pair are adjacent.
fn interleaved(bytes: &[u8], rows: usize, head: usize) -> Vec<u8> {
    let stride = bytes.len() / rows;
    let source = |row: usize| row / head * head + row % head / 2 + row % 2 * (head / 2);
    (0..rows).flat_map(|row| &bytes[source(row) * stride..][..stride]).copied().collect()
}

/// The weights of a folder under Mistral's names. Heads of rotary positions have 8 elements in all
/// cases.
fn consolidated(stored: &[u8], root: &str, rotary: &[&str]) -> Vec<u8> {
    let stored = SafeTensors::deserialize(stored).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, tensor) in stored.iter().filter(|(name, _)| !name.ends_with("embed_positions.weight")) {
        let is_turned =
            rotary.iter().any(|part| name.starts_with(part)) && (name.contains(".q_proj.") || name.contains(".k_proj."));
        let (shape, data) = (tensor.shape().to_vec(), tensor.data());
        let data = if is_turned { interleaved(data, shape[0], 8) } else { data.to_vec() };
        let mut name = NAMES.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        if root.contains("whisper") {
            name = name.replace(".fc1.", ".feed_forward.w1.").replace(".fc2.", ".feed_forward.w2.");
        }
        tensors.insert(name.replace('@', root), (tensor.dtype(), shape, data));
    }
    let view = |(name, (dtype, shape, data)): (String, (_, Vec<usize>, Vec<u8>))| (name, dtype, shape, data);
    let all: Vec<_> = tensors.into_iter().map(view).collect();
    let views = all.iter().map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A stack of layers in the form of `params.json`.
fn sizes(config: &Value, theta: &Value) -> Value {
    json!({
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"], "n_kv_heads": config["num_key_value_heads"], "head_dim": config["head_dim"],
        "vocab_size": config["vocab_size"], "norm_eps": config["rms_norm_eps"], "rope_theta": theta,
        "sliding_window": config["sliding_window"],
    })
}

fn config(case: &str) -> Value {
    serde_json::from_slice(&folder(case)[0].1).unwrap()
}

/// `params.json` of a case, and the name of its encoder.
fn params(case: &str) -> (Value, &'static str) {
    let config = config(case);
    let (text, audio) = (&config["text_config"], &config["audio_config"]);
    let mut args = sizes(audio, &audio["rope_parameters"]["rope_theta"]);
    args["audio_encoding_args"] =
        json!({ "sampling_rate": 16000, "num_mel_bins": audio["num_mel_bins"], "hop_length": 160, "window_size": 400 });
    args["use_biases"] = json!(true);
    let is_realtime = case.ends_with("realtime");
    if is_realtime {
        args["audio_encoding_args"]["global_log_mel_max"] = json!(1.5);
        args["pos_embed"] = json!("rope");
        args["causal"] = json!(true);
    } else {
        args["max_source_positions"] = audio["max_source_positions"].clone();
        args["causal"] = json!(false);
    }
    let mut top = sizes(text, &text["rope_parameters"]["rope_theta"]);
    top["rope_theta"] = json!(top["rope_theta"].to_string());
    top["max_position_embeddings"] = text["max_position_embeddings"].clone();
    top["tied_embeddings"] = config["tie_word_embeddings"].clone();
    top["multimodal"] = json!({ "whisper_model_args": { "encoder_args": args, "downsample_args": { "downsample_factor": if is_realtime { 4 } else { 5 } } } });
    if is_realtime {
        top["ada_rms_norm_t_cond"] = json!(true);
        top["ada_rms_norm_t_cond_dim"] = json!(32);
    }
    (top, if is_realtime { "mm_streams_embeddings.embedding_module." } else { "mm_whisper_embeddings." })
}

fn mistral(case: &str, change: impl Fn(&mut Value)) -> Result<Checkpoint, Error> {
    let (mut params, root) = params(case);
    change(&mut params);
    let rotary: &[&str] = if case.ends_with("realtime") { &["audio_tower", "language_model"] } else { &["language_model"] };
    let weights = consolidated(&folder(case)[1].1, root, rotary);
    let files = [("params.json", params.to_string().into_bytes()), ("consolidated.safetensors", weights)];
    Checkpoint::from_folder(files.map(|(name, bytes)| (name.to_owned(), bytes.into())).to_vec())
}

/// The weights of each method, by name.
fn weights(checkpoint: &Checkpoint) -> Vec<(String, Bytes)> {
    let model = build(checkpoint, &Options { dtype: Some(DType::F32), ..Options::default() }).unwrap();
    let all = model.methods.values().flat_map(|method| method.weights.iter());
    all.map(|(name, weight)| (name.clone(), weight.tensor().unwrap().bytes().clone())).collect()
}

const POSITIONS: &str = "audio_tower.embed_positions.weight";

#[test]
fn a_folder_of_mistrals_is_hugging_faces() {
    for (case, computed) in [("speech-voxtral", 1), ("speech-voxtral-realtime", 0)] {
        let hugging_face = |key: &str, value: Value| {
            let mut files = folder(case);
            let mut config = config(case);
            config[key] = value;
            files[0].1 = config.to_string().into_bytes().into();
            Checkpoint::from_folder(files).unwrap()
        };
        // `params.json` does not state a delay.
        let theirs =
            if computed == 0 { hugging_face("default_num_delay_tokens", json!(6)) } else { hugging_face("dtype", Value::Null) };
        let (ours, theirs) = (weights(&mistral(case, |_| {}).unwrap()), weights(&theirs));
        assert_eq!(ours.len(), theirs.len(), "{case}");
        let differ = |((ours, own), (theirs, other)): (&(String, Bytes), &(String, Bytes))| {
            assert_eq!(ours, theirs);
            (own != other).then(|| ours.clone())
        };
        let different: Vec<String> = ours.iter().zip(&theirs).filter_map(differ).collect();
        assert_eq!(different, vec![POSITIONS; computed], "{case}");
    }
}

#[test]
fn whispers_positions_are_computed() {
    let weights = weights(&mistral("speech-voxtral", |_| {}).unwrap());
    let (_, table) = weights.iter().find(|(name, _)| name == POSITIONS).unwrap();
    let table: Vec<f32> = table.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(table.len(), 50 * 16);
    for (i, &value) in table.iter().enumerate() {
        let (row, column) = (i / 16, i % 16);
        let angle = row as f64 / 10_000f64.powf((column % 8) as f64 / 7.0);
        let expected = if column < 8 { angle.sin() } else { angle.cos() };
        assert!((f64::from(value) - expected).abs() < 1e-6, "{row}, {column}: {value}, {expected}");
    }
}

/// A text model: the language model of Voxtral.
#[test]
fn a_language_model_alone_is_read() {
    let case = "speech-voxtral";
    let (mut params, root) = params(case);
    params.as_object_mut().unwrap().remove("multimodal");
    let all = consolidated(&folder(case)[1].1, root, &["language_model"]);
    let all = SafeTensors::deserialize(&all).unwrap();
    let text = all.iter().filter(|(name, _)| !name.contains("whisper_encoder") && !name.contains("projection"));
    let text = text.map(|(name, tensor)| (name.replace(root, ""), tensor));
    let weights = safetensors::serialize(text, None).unwrap();
    let files = [("params.json", params.to_string().into_bytes()), ("consolidated.safetensors", weights)];
    let read = |files: &[(&str, Vec<u8>)]| {
        Checkpoint::from_folder(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone().into())).collect()).unwrap()
    };
    let checkpoint = read(&files);
    assert!(!checkpoint.is_speech());
    // An additional config describes absent weights.
    read(&[("config.json", b"{}".to_vec()), files[0].clone(), files[1].clone()]);
    build(&checkpoint, &Options::default()).unwrap();
}

#[test]
fn what_is_not_computed_is_refused_by_its_key() {
    let complaint = |case: &str, change: &dyn Fn(&mut Value)| match mistral(case, change) {
        Ok(_) => "nothing".to_owned(),
        Err(error) => error.to_string(),
    };
    let (voxtral, realtime) = ("speech-voxtral", "speech-voxtral-realtime");
    for (key, value) in [
        ("moe", json!({ "num_experts": 8 })),
        ("yarn", json!({ "factor": 16 })),
        ("quantization", json!({ "qformat_weight": "fp8_e4m3" })),
        ("use_biases", json!(true)),
        ("multimodal", json!({ "vision_encoder_args": {} })),
        ("n_layers", json!(-1)),
        ("dim", Value::Null),
    ] {
        let found = complaint(voxtral, &|params| params[key] = value.clone());
        assert!(found.contains(key) || found.contains("hidden_layers"), "{key}: {found}");
    }
    let args = |key: &str, value: Value| {
        complaint(realtime, &|params| params["multimodal"]["whisper_model_args"]["encoder_args"][key] = value.clone())
    };
    for (key, value) in [("pos_embed", json!("sinusoidal")), ("causal", json!(false)), ("max_source_positions", json!(1500))] {
        assert!(args(key, value).contains(key), "{key}");
    }
    let sound = |key: &str, value: Value| {
        complaint(realtime, &|params| {
            params["multimodal"]["whisper_model_args"]["encoder_args"]["audio_encoding_args"][key] = value.clone();
        })
    };
    for (key, value) in [("global_log_mel_max", json!(2.0)), ("hop_length", json!(80)), ("new_key", json!(1))] {
        assert!(sound(key, value).contains(key), "{key}");
    }
}
