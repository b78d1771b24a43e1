//! Tokenizers, whose library panics on some files; the reader turns that into an error.

use std::panic;

use flambeau_text::Tokenizer;

/// Lets panics unwind to those who catch them, where the fuzzer's hook would end the process. What
/// nobody catches is still a finding.
pub fn keep_unwinding() {
    drop(panic::take_hook());
}

/// Encodes and decodes a text.
pub fn use_tokenizer(tokenizer: &Tokenizer) {
    for text in ["Hello, wörld! 1234\n  <s> 你好", ""] {
        if let Ok(ids) = tokenizer.encode(text, true) {
            let _ = tokenizer.decode(&ids, true);
        }
        let _ = tokenizer.encode_plain(text);
    }
}
