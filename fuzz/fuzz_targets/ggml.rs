//! Whisper in whisper.cpp's format: sizes, filters, vocabulary, tensors and the model's program.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Options, build};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_ggml(&Bytes::copy_from_slice(bytes)) else { return };
    if let Ok(model) = build(&checkpoint, &Options::default()) {
        model.methods.values().for_each(flambeau_fuzz::read_weights);
    }
});
