//! Tokenizers in other formats than `tokenizer.json`.

#![no_main]

use flambeau_text::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: flambeau_fuzz::keep_unwinding(), |bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_model_file(bytes) {
        flambeau_fuzz::use_tokenizer(&tokenizer);
    }
});
