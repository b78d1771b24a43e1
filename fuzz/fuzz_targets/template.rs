//! Chat templates, rendered with messages and tools.

#![no_main]

use flambeau_text::{ChatInput, ChatTemplate, SpecialTokens, message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source, &SpecialTokens::default()) else { return };
    let messages = vec![message("system", "Be brief."), message("user", "Hi {{ x }}"), message("assistant", "Hello")];
    let _ = template.render(&ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() });
});
