//! NeMo's files: the archive, its config, its pickled weights, its tokenizer, the model's program.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_text::Tokenizer;
use flambeau_zoo::{Checkpoint, Options, TokenizerSource, build};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: flambeau_fuzz::keep_unwinding(), |bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_nemo(&Bytes::copy_from_slice(bytes)) else { return };
    if let Ok(model) = build(&checkpoint, &Options::default()) {
        model.methods.values().for_each(flambeau_fuzz::read_weights);
    }
    if let TokenizerSource::Pieces(vocab) = checkpoint.tokenizer()
        && let Ok(tokenizer) = Tokenizer::from_gguf(vocab)
    {
        flambeau_fuzz::use_tokenizer(&tokenizer);
    }
});
