//! Llama 3's `tokenizer.model`: a line for each rank, its bytes in base64.

use super::{MAX_TOKENS, from_base64, ranks};
use crate::error::ModelFileFault;
use crate::gguf::{CONTROL, GgufVocab, NORMAL};

/// Special tokens that follow the ranks.
const SPECIAL: usize = 256;
/// Special tokens with their own names, by position. The others are reserved tokens, numbered in
/// order.
const NAMED: [(usize, &str); 8] = [
    (0, "<|begin_of_text|>"),
    (1, "<|end_of_text|>"),
    (4, "<|finetune_right_pad_id|>"),
    (6, "<|start_header_id|>"),
    (7, "<|end_header_id|>"),
    (8, "<|eom_id|>"),
    (9, "<|eot_id|>"),
    (10, "<|python_tag|>"),
];

pub(super) fn read(bytes: &[u8]) -> Result<(Vec<u8>, GgufVocab), ModelFileFault> {
    let mut tokens = Vec::new();
    for (i, line) in bytes.split(|&b| b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let rank = |rank: &[u8]| str::from_utf8(rank).ok()?.trim_end().parse::<usize>().ok();
        let space = line.iter().position(|&b| b == b' ');
        let parts = space.and_then(|at| Some((from_base64(&line[..at])?, rank(&line[at + 1..])?)));
        match parts {
            Some((token, rank)) if rank == tokens.len() && rank < MAX_TOKENS => tokens.push(token),
            Some(_) => return Err(ModelFileFault::Token { rank: tokens.len(), what: "expected ranks in order" }),
            None => return Err(ModelFileFault::Line { line: i + 1 }),
        }
    }
    let ranked = ranks::ranked(&tokens)?;
    let first = ranked.tokens.len();
    let mut reserved = 0..;
    let special = (0..SPECIAL).map(|i| {
        let named = NAMED.iter().find(|(place, _)| *place == i).map(|(_, name)| (*name).to_owned());
        named.unwrap_or_else(|| format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or(i)))
    });
    let id = |place: usize| Some((first + place) as u32);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("llama-bpe".into()),
        token_types: [vec![NORMAL; first], vec![CONTROL; SPECIAL]].concat(),
        tokens: ranked.tokens.into_iter().chain(special).collect(),
        merges: ranked.merges,
        bos: id(0),
        eos: id(1),
        other_eos: id(8).into_iter().chain(id(9)).collect(),
        ..GgufVocab::default()
    };
    Ok((vocab.to_tokenizer_json()?, vocab))
}
