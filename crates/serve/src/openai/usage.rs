//! Token usage of requests.

use serde_json::{Value as Json, json};

use crate::answer::Choice;

/// Token counts of a prompt and its answers.
pub(crate) fn usage<'a>(prompt: usize, choices: impl IntoIterator<Item = &'a Choice>) -> Json {
    let (mut cached, mut completion, mut thinking) = (0, 0, 0);
    for choice in choices {
        // Several answers to one prompt may reuse different lengths.
        cached = cached.max(choice.cached);
        completion += choice.tokens;
        thinking += choice.thinking_tokens;
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": thinking },
    })
}

/// Generation speed under llama.cpp's names; `null` before the end.
pub(crate) fn timings(choice: &Choice) -> Json {
    let Some(stats) = &choice.stats else { return Json::Null };
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    json!({
        "cache_n": choice.cached,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": milliseconds(stats.prefill),
        "prompt_per_second": stats.prefill_rate(),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": milliseconds(stats.decode),
        "predicted_per_second": stats.decode_rate(),
    })
}
