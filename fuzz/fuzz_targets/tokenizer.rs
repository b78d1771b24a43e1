//! Tokenizers: `tokenizer.json` and its companion files, one per line.

#![no_main]

use flambeau_text::{GenerationDefaults, Tokenizer, TokenizerFiles};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: flambeau_fuzz::keep_unwinding(), |bytes: &[u8]| {
    let mut lines = bytes.splitn(4, |&b| b == b'\n');
    let files = TokenizerFiles {
        tokenizer: lines.next().unwrap_or_default(),
        tokenizer_config: lines.next(),
        special_tokens_map: lines.next(),
        generation_config: lines.next(),
        chat_template: None,
    };
    if let Some(defaults) = files.generation_config {
        let _ = GenerationDefaults::from_json(defaults).map(|defaults| defaults.sampling(0));
    }
    if let Ok(tokenizer) = Tokenizer::from_files(&files) {
        flambeau_fuzz::use_tokenizer(&tokenizer);
    }
});
