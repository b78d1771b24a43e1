//! Tests of Whisper in CTranslate2's form, written from a Hugging Face folder.

use std::{fs, path::Path};

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Model, Options, build};
use safetensors::{Dtype, SafeTensors};

const LAYERS: usize = 2;
const WIDTH: usize = 16;

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints/speech-whisper/checkpoint");
    fs::read(folder.join(name)).unwrap()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16 + 1).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

fn variable(out: &mut Vec<u8>, name: &str, shape: &[usize], code: u8, bytes: &[u8]) {
    text(out, name);
    out.push(shape.len() as u8);
    shape.iter().for_each(|&size| out.extend((size as u32).to_le_bytes()));
    out.push(code);
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

/// `model.bin` with the weights of the folder.
fn converted() -> Vec<u8> {
    let stored = file("model.safetensors");
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let mut variables: Vec<(String, Vec<usize>, u8, Vec<u8>)> = Vec::new();
    let mut copy = |from: String, to: &str| {
        let tensor = stored.tensor(&from).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32);
        variables.push((to.to_owned(), tensor.shape().to_vec(), 0, tensor.data().to_vec()));
    };
    let mut both = |from: &str, to: &str, names: [&str; 2]| {
        copy(format!("{from}.weight"), &format!("{to}/{}", names[0]));
        copy(format!("{from}.bias"), &format!("{to}/{}", names[1]));
    };
    let (linear, norm) = (["weight", "bias"], ["gamma", "beta"]);
    both("model.encoder.conv1", "encoder/conv1", linear);
    both("model.encoder.conv2", "encoder/conv2", linear);
    for side in ["encoder", "decoder"] {
        both(&format!("model.{side}.layer_norm"), &format!("{side}/layer_norm"), norm);
        for layer in 0..LAYERS {
            let (from, to) = (format!("model.{side}.layers.{layer}"), format!("{side}/layer_{layer}"));
            both(&format!("{from}.self_attn_layer_norm"), &format!("{to}/self_attention/layer_norm"), norm);
            both(&format!("{from}.self_attn.out_proj"), &format!("{to}/self_attention/linear_1"), linear);
            both(&format!("{from}.final_layer_norm"), &format!("{to}/ffn/layer_norm"), norm);
            both(&format!("{from}.fc1"), &format!("{to}/ffn/linear_0"), linear);
            both(&format!("{from}.fc2"), &format!("{to}/ffn/linear_1"), linear);
            if side == "decoder" {
                both(&format!("{from}.encoder_attn_layer_norm"), &format!("{to}/attention/layer_norm"), norm);
                both(&format!("{from}.encoder_attn.q_proj"), &format!("{to}/attention/linear_0"), linear);
                both(&format!("{from}.encoder_attn.out_proj"), &format!("{to}/attention/linear_2"), linear);
            }
        }
    }
    copy("model.decoder.embed_tokens.weight".into(), "decoder/embeddings/weight");
    for side in ["encoder", "decoder"] {
        copy(format!("model.{side}.embed_positions.weight"), &format!("{side}/position_encodings/encodings"));
    }
    let mut joined = |from: &str, to: &str, names: &[&str]| {
        let part = |name: &&str| stored.tensor(&format!("{from}.{name}_proj.weight")).unwrap().data().to_vec();
        variables.push((format!("{to}/weight"), vec![names.len() * WIDTH, WIDTH], 0, names.iter().flat_map(part).collect()));
        let zeros = || vec![0; WIDTH * 4];
        let bias = |name: &&str| stored.tensor(&format!("{from}.{name}_proj.bias")).map_or_else(|_| zeros(), |t| t.data().to_vec());
        variables.push((format!("{to}/bias"), vec![names.len() * WIDTH], 0, names.iter().flat_map(bias).collect()));
    };
    for layer in 0..LAYERS {
        for side in ["encoder", "decoder"] {
            joined(
                &format!("model.{side}.layers.{layer}.self_attn"),
                &format!("{side}/layer_{layer}/self_attention/linear_0"),
                &["q", "k", "v"],
            );
        }
        joined(
            &format!("model.decoder.layers.{layer}.encoder_attn"),
            &format!("decoder/layer_{layer}/attention/linear_1"),
            &["k", "v"],
        );
    }
    for side in ["encoder", "decoder"] {
        variables.push((format!("{side}/num_heads"), Vec::new(), 2, 2i16.to_le_bytes().to_vec()));
    }
    let mut out = 6u32.to_le_bytes().to_vec();
    text(&mut out, "WhisperSpec");
    out.extend(3u32.to_le_bytes());
    out.extend((variables.len() as u32).to_le_bytes());
    variables.iter().for_each(|(name, shape, code, bytes)| variable(&mut out, name, shape, *code, bytes));
    out.extend(1u32.to_le_bytes());
    text(&mut out, "decoder/projection/weight");
    text(&mut out, "decoder/embeddings/weight");
    out
}

fn built(model: Vec<u8>) -> Result<Model, flambeau_zoo::Error> {
    let config = br#"{"alignment_heads": [[0, 1], [1, 0]], "lang_ids": [], "suppress_ids": [1, -1], "suppress_ids_begin": [32]}"#;
    let files = [("model.bin", model), ("config.json", config.to_vec()), ("tokenizer.json", file("tokenizer.json"))];
    build(&Checkpoint::from_folder(files.map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes))).to_vec())?, &Options::default())
}

#[test]
fn the_weights_are_those_of_the_hugging_face_folder() {
    let found = built(converted()).unwrap();
    let names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    let files = names.map(|name| (name.to_owned(), Bytes::from(file(name)))).to_vec();
    let expected = build(&Checkpoint::from_folder(files).unwrap(), &Options::default()).unwrap();
    assert_eq!(found.methods.keys().collect::<Vec<_>>(), expected.methods.keys().collect::<Vec<_>>());
    for (name, method) in &expected.methods {
        let weights = &found.methods[name].weights;
        assert_eq!(weights.len(), method.weights.len());
        for (name, weight) in &method.weights {
            let (found, expected) = (weights[name].tensor().unwrap(), weight.tensor().unwrap());
            assert_eq!((found.shape(), &found.bytes()[..]), (expected.shape(), &expected.bytes()[..]), "{name}");
        }
    }
}

#[test]
fn files_cut_anywhere_are_refused() {
    let whole = converted();
    for len in (0..whole.len()).step_by(997).chain(0..64).chain(whole.len() - 8..whole.len()) {
        assert!(built(whole[..len].to_vec()).is_err(), "{len} bytes");
    }
}

#[test]
fn changed_bytes_never_panic() {
    let whole = converted();
    for at in (0..600).chain((600..whole.len()).step_by(211)) {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        // The result is either a valid model or an error.
        let _any = built(changed);
    }
}
