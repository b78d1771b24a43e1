//! Tokenizers. Their library panics on some files; the reader converts these panics to errors.

use std::panic;

use flambeau_text::Tokenizer;

/// Removes the fuzzer's panic hook, which ends the process even for caught panics. Uncaught panics
/// still count as findings.
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
