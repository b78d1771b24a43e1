//! Log probabilities in the formats of both endpoints.

use flambeau::text::Tokenizer;
use serde_json::{Map, Value as Json, json};

use crate::answer::TokenLogprobs;

/// Text of a token inside a longer text. A partial character becomes U+FFFD.
fn text(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.token_bytes(token) {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => tokenizer.decode(&[token], false).unwrap_or_default(),
    }
}

/// OpenAI's substitute for negative infinity, which JSON lacks.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// The list `content` of a chat completion's log probabilities.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[TokenLogprobs]) -> Json {
    let entry = |token: u32, logprob: f32| {
        let text = text(tokenizer, token);
        let whole = || (!text.contains('\u{fffd}')).then(|| text.as_bytes().to_vec());
        let bytes = tokenizer.token_bytes(token).or_else(whole);
        json!({ "token": text, "logprob": finite(logprob), "bytes": bytes })
    };
    let content = tokens.iter().map(|TokenLogprobs { token, logprobs }| {
        let mut told = entry(*token, logprobs.chosen);
        told["top_logprobs"] = logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
        told
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// The lists of a completion's log probabilities. `offset` is the text offset of the first token;
/// it is advanced past the last one.
pub(crate) fn completion(tokenizer: &Tokenizer, tokens: &[TokenLogprobs], offset: &mut usize) -> Json {
    let mut lists: [Vec<Json>; 4] = Default::default();
    for TokenLogprobs { token, logprobs } in tokens {
        let own = text(tokenizer, *token);
        let top: Map<String, Json> =
            logprobs.top.iter().map(|&(token, logprob)| (text(tokenizer, token), finite(logprob).into())).collect();
        lists[3].push((*offset).into());
        *offset += own.chars().count();
        lists[0].push(own.into());
        lists[1].push(finite(logprobs.chosen).into());
        lists[2].push(Json::Object(top));
    }
    let [texts, chosen, top, offsets] = lists;
    json!({ "tokens": texts, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets })
}
