//! Whisper in CTranslate2's format: the variables of `model.bin`, and the model's program.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Options, build};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let files = [("config.json", &b"{}"[..]), ("tokenizer.json", b"{}"), ("model.bin", bytes)];
    let files = files.map(|(name, contents)| (name.to_owned(), Bytes::copy_from_slice(contents)));
    let Ok(checkpoint) = Checkpoint::from_folder(files.to_vec()) else { return };
    if let Ok(model) = build(&checkpoint, &Options::default()) {
        model.methods.values().for_each(flambeau_fuzz::read_weights);
    }
});
