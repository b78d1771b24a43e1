//! Tests of Whisper in whisper.cpp's form, written from the tensors of a Hugging Face folder.

use std::collections::BTreeMap;

use flambeau_pt2::Weight;
use flambeau_tensor::{Bytes, DType};
use flambeau_zoo::{Checkpoint, MethodConstant, Model, Options, build};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;

const VOCAB: usize = 51_864;
const WIDTH: usize = 32;
const FEED: usize = 64;
const HEADS: usize = 2;
const LAYERS: usize = 2;
const MELS: usize = 80;
const AUDIO: usize = 10;
const TEXT: usize = 16;

/// Tensors by OpenAI's name, with their shapes.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut out = Vec::new();
    let mut add = |name: String, shape: &[usize]| out.push((name, shape.to_vec()));
    add("encoder.positional_embedding".into(), &[AUDIO, WIDTH]);
    for (conv, inputs) in [("conv1", MELS), ("conv2", WIDTH)] {
        add(format!("encoder.{conv}.weight"), &[WIDTH, inputs, 3]);
        add(format!("encoder.{conv}.bias"), &[WIDTH, 1]);
    }
    add("decoder.positional_embedding".into(), &[TEXT, WIDTH]);
    add("decoder.token_embedding.weight".into(), &[VOCAB, WIDTH]);
    for (side, last) in [("encoder", "ln_post"), ("decoder", "ln")] {
        for part in ["weight", "bias"] {
            add(format!("{side}.{last}.{part}"), &[WIDTH]);
        }
        for layer in 0..LAYERS {
            let kinds = if side == "encoder" { &["attn"][..] } else { &["attn", "cross_attn"] };
            for (part, square) in [("weight", &[WIDTH, WIDTH][..]), ("bias", &[WIDTH])] {
                let mut module = |name: &str, shape: &[usize]| add(format!("{side}.blocks.{layer}.{name}.{part}"), shape);
                for kind in kinds {
                    let names = ["query", "key", "value", "out"].into_iter().filter(|name| part == "weight" || *name != "key");
                    names.for_each(|name| module(&format!("{kind}.{name}"), square));
                    module(&format!("{kind}_ln"), &[WIDTH]);
                }
                module("mlp.0", if part == "weight" { &[FEED, WIDTH] } else { &[FEED] });
                module("mlp.2", if part == "weight" { &[WIDTH, FEED] } else { &[WIDTH] });
                module("mlp_ln", &[WIDTH]);
            }
        }
    }
    out
}

/// Multiples of 1/128 from -1 to 1 that depend on the name. Every layout here holds them exactly.
fn codes(name: &str, count: usize) -> Vec<i8> {
    let mut state = name.bytes().fold(1u32, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as i8
    };
    (0..count).map(|_| next()).collect()
}

fn f32s(codes: &[i8]) -> Vec<u8> {
    codes.iter().flat_map(|&code| (f32::from(code) / 128.0).to_le_bytes()).collect()
}

/// Blocks of 32 codes after their scale, 1/128 in half precision.
fn q8_0(codes: &[i8]) -> Vec<u8> {
    let block = |codes: &[i8]| [&0x2000u16.to_le_bytes()[..], &codes.iter().map(|&code| code as u8).collect::<Vec<u8>>()].concat();
    codes.chunks(32).flat_map(block).collect()
}

/// All bytes, and the first pairs of bytes.
fn texts() -> Vec<Vec<u8>> {
    let pairs = (0..=u8::MAX).flat_map(|first| (0..=u8::MAX).map(move |second| vec![first, second]));
    (0..=u8::MAX).map(|byte| vec![byte]).chain(pairs).take(50_256).collect()
}

/// The file. If `is_quantized`, matrices of layers and the embedding are quantized.
fn file(is_quantized: bool) -> Vec<u8> {
    let words = |out: &mut Vec<u8>, words: &[usize]| words.iter().for_each(|&word| out.extend((word as u32).to_le_bytes()));
    let mut out = b"lmgg".to_vec();
    words(&mut out, &[VOCAB, AUDIO, WIDTH, HEADS, LAYERS, TEXT, WIDTH, HEADS, LAYERS, MELS, 0]);
    words(&mut out, &[MELS, 201]);
    out.extend(vec![0; MELS * 201 * 4]);
    let texts = texts();
    words(&mut out, &[texts.len()]);
    for text in texts {
        words(&mut out, &[text.len()]);
        out.extend(text);
    }
    for (name, shape) in shapes() {
        let codes = codes(&name, shape.iter().product());
        let as_blocks = is_quantized && shape.len() == 2 && name.ends_with(".weight");
        words(&mut out, &[shape.len(), name.len(), if as_blocks { 8 } else { 0 }]);
        words(&mut out, &shape.iter().rev().copied().collect::<Vec<usize>>());
        out.extend(name.as_bytes());
        out.extend(if as_blocks { q8_0(&codes) } else { f32s(&codes) });
    }
    out
}

/// Name of a tensor in Hugging Face's form.
fn published(name: &str) -> String {
    const PARTS: [(&str, &str); 13] = [
        ("decoder.token_embedding", "decoder.embed_tokens"),
        ("positional_embedding", "embed_positions.weight"),
        ("blocks.", "layers."),
        ("ln_post", "layer_norm"),
        ("decoder.ln.", "decoder.layer_norm."),
        (".cross_attn", ".encoder_attn"),
        (".attn", ".self_attn"),
        ("attn_ln", "attn_layer_norm"),
        ("mlp_ln", "final_layer_norm"),
        ("mlp.0", "fc1"),
        ("mlp.2", "fc2"),
        (".query", ".q_proj"),
        (".value", ".v_proj"),
    ];
    let name = PARTS.iter().fold(format!("model.{name}"), |name, (from, to)| name.replace(from, to));
    name.replace(".key", ".k_proj").replace("attn.out.", "attn.out_proj.")
}

/// The same model as a folder.
fn folder() -> Checkpoint {
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, mut shape)| {
            let bytes = f32s(&codes(&name, shape.iter().product()));
            shape.retain(|&size| size > 1);
            (published(&name), shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    let weights = safetensors::serialize(views, None).unwrap();
    let config = json!({
        "model_type": "whisper", "vocab_size": VOCAB, "d_model": WIDTH, "num_mel_bins": MELS, "activation_function": "gelu",
        "encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": FEED, "max_source_positions": AUDIO,
        "decoder_layers": LAYERS, "decoder_attention_heads": HEADS, "decoder_ffn_dim": FEED, "max_target_positions": TEXT,
    });
    let generation = json!({
        "eos_token_id": 50_256, "decoder_start_token_id": 50_257, "no_timestamps_token_id": 50_362, "begin_suppress_tokens": [32, 50_256],
        "alignment_heads": [[1, 0], [1, 1]], "suppress_tokens": [],
    });
    let preprocessor = json!({ "feature_size": MELS, "n_fft": 400, "hop_length": 160, "sampling_rate": 16_000 });
    let json = |name: &str, json: serde_json::Value| (name.to_owned(), Bytes::from(json.to_string().into_bytes()));
    let files = [
        json("config.json", config),
        json("generation_config.json", generation),
        json("preprocessor_config.json", preprocessor),
        ("model.safetensors".to_owned(), weights.into()),
    ];
    Checkpoint::from_folder(files.to_vec()).unwrap()
}

fn program(checkpoint: &Checkpoint) -> Model {
    build(checkpoint, &Options { dtype: Some(DType::F32), ..Options::default() }).unwrap()
}

fn weights(model: &Model) -> BTreeMap<(&str, &str), Bytes> {
    let of = |(name, weight): (&String, &Weight)| (name.clone(), weight.tensor().unwrap().bytes().clone());
    let method = |(method, exported): (&&'static str, &flambeau_pt2::Exported)| {
        exported.weights.iter().map(of).map(|(name, bytes)| ((*method, &*name.leak()), bytes)).collect::<Vec<_>>()
    };
    model.methods.iter().flat_map(method).collect()
}

/// The suppressed tokens, and all other metadata for runners.
fn facts(model: &Model) -> (Vec<i64>, Vec<(String, MethodConstant)>) {
    let (suppressed, others): (Vec<_>, Vec<_>) = model.metadata.iter().cloned().partition(|(name, _)| name == "get_suppress_ids");
    let ids = suppressed.into_iter().flat_map(|(_, ids)| match ids {
        MethodConstant::Ints(ids) => ids,
        other => panic!("{other:?}"),
    });
    (ids.collect(), others)
}

#[test]
fn a_file_is_the_model_of_the_folder() {
    let (ours, folder) = (program(&Checkpoint::from_ggml(&file(false).into()).unwrap()), program(&folder()));
    assert_eq!(weights(&ours), weights(&folder));
    let ((suppressed, facts), (_, expected)) = (facts(&ours), facts(&folder));
    assert_eq!(facts, expected);
    let pair = |text: &[u8; 2]| 256 + i64::from(text[0]) * 256 + i64::from(text[1]);
    // Symbols, alone and after a space; a hyphen after a space; the first token of notes; control
    // tokens.
    let expected = [40, pair(b" ("), pair(b"<<"), pair(b" -"), pair(b" '"), pair(b" \xe2"), 50_257, 50_357, 50_361];
    assert!(expected.iter().all(|id| suppressed.contains(id)), "{suppressed:?}");
    assert!([b'-', b'\'', b'a', b'.'].iter().all(|&id| !suppressed.contains(&id.into())), "{suppressed:?}");
}

#[test]
fn tensors_may_be_quantized() {
    let model = program(&Checkpoint::from_ggml(&file(true).into()).unwrap());
    let plain = program(&folder());
    let bytes = |model: &Model| weights(model).values().map(|bytes| bytes.len()).sum::<usize>();
    assert!(bytes(&model) * 2 < bytes(&plain), "{} {}", bytes(&model), bytes(&plain));
}

#[test]
fn damaged_files_end_in_an_error() {
    let good = file(false);
    let read = |bytes: &[u8]| {
        Checkpoint::from_ggml(&Bytes::copy_from_slice(bytes)).map(|checkpoint| {
            let _ = build(&checkpoint, &Options::default());
        })
    };
    let head = 4 * 14 + MELS * 201 * 4;
    for end in [0, 3, 40, 50, 100, head - 2, head + 1, head + 5_000, good.len() - 1] {
        assert!(read(&good[..end]).is_err(), "{end} bytes");
    }
    for (at, value) in
        [(0, 0u32), (4, 51_000), (4, u32::MAX), (12, 0), (16, 3), (28, 33), (52, u32::MAX), (48, 0), (head, 5), (head, u32::MAX)]
    {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(read(&bad).is_err(), "{value} at {at}");
    }
    let first = good.windows(28).position(|window| window == b"encoder.positional_embedding").unwrap();
    for (at, value) in
        [(first - 20, 9u32), (first - 16, 5_000), (first - 12, 99), (first - 8, 0), (first - 4, u32::MAX), (first, 0)]
    {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(read(&bad).is_err(), "{value} at {at}");
    }
}
