//! Hugging Face folders and Mistral's: `config.json` or `params.json`, a line break, and
//! `model.safetensors`.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Options, build};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&b| b == b'\n').unwrap_or(bytes.len());
    for config in ["config.json", "params.json"] {
        let files = [(config, &bytes[..end]), ("model.safetensors", bytes.get(end + 1..).unwrap_or_default())];
        let files = files.map(|(name, contents)| (name.to_owned(), Bytes::copy_from_slice(contents)));
        let Ok(checkpoint) = Checkpoint::from_folder(files.to_vec()) else { continue };
        if let Ok(model) = build(&checkpoint, &Options::default()) {
            model.methods.values().for_each(flambeau_fuzz::read_weights);
        }
    }
});
