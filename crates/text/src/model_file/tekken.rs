//! Mistral's `tekken.json`: special tokens first, then byte sequences by rank, and the expression
//! that cuts text.

use serde::Deserialize;

use super::{from_base64, ranks};
use crate::error::ModelFileFault;
use crate::gguf::{CONTROL, GgufVocab, NORMAL};

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// The special tokens of files that list none.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

pub(super) fn read(bytes: &[u8]) -> Result<(Vec<u8>, GgufVocab), ModelFileFault> {
    let file: File = serde_json::from_slice(bytes)?;
    let (size, count) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    let Some(ordinary) = size.checked_sub(count).filter(|&ordinary| ordinary > 0 && ordinary <= file.vocab.len()) else {
        let found = format!("{size} tokens of which {count} are special, and {} ranks", file.vocab.len());
        return Err(ModelFileFault::Form { expected: "as many ranks as there are tokens", found });
    };
    let token = |(rank, token): (usize, &Token)| {
        let fault = |what| ModelFileFault::Token { rank, what };
        if token.rank != rank {
            return Err(fault("expected ranks in order"));
        }
        from_base64(token.token_bytes.as_bytes()).ok_or_else(|| fault("expected base64"))
    };
    let tokens: Vec<Vec<u8>> = file.vocab[..ordinary].iter().enumerate().map(token).collect::<Result<_, _>>()?;
    let ranked = ranks::ranked(&tokens)?;
    let special = special(file.special_tokens, count)?;
    let id = |text: &str| special.iter().position(|token| token == text).map(|id| id as u32);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        token_types: [vec![CONTROL; count], vec![NORMAL; ranked.tokens.len()]].concat(),
        bos: id("<s>"),
        eos: id("</s>"),
        unk: id("<unk>"),
        pad: id("<pad>"),
        add_bos: Some(true),
        tokens: special.iter().cloned().chain(ranked.tokens).collect(),
        merges: ranked.merges,
        ..GgufVocab::default()
    };
    Ok((vocab.to_tokenizer_json_cut_by(&file.config.pattern)?, vocab))
}

/// The texts of the `count` special tokens. Tokens without a text are numbered.
fn special(listed: Option<Vec<Special>>, count: usize) -> Result<Vec<String>, ModelFileFault> {
    if count > super::MAX_TOKENS {
        return Err(ModelFileFault::Form { expected: "at most 2^21 special tokens", found: count.to_string() });
    }
    let mut texts: Vec<String> = (0..count).map(|rank| format!("<SPECIAL_{rank}>")).collect();
    let known = match listed {
        Some(listed) => listed.into_iter().map(|token| (token.rank, token.token_str)).collect(),
        None => SPECIAL.iter().map(|text| (*text).to_owned()).enumerate().collect::<Vec<_>>(),
    };
    for (rank, text) in known {
        *texts.get_mut(rank).ok_or(ModelFileFault::Token { rank, what: "its rank is not that of a special token" })? = text;
    }
    Ok(texts)
}
