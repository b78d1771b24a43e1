//! Byte-level BPE by ranks: which two tokens each one is merged of.

use std::collections::{HashMap, hash_map::Entry};

use super::{MAX_TOKEN_BYTES, MAX_TOKENS};
use crate::error::ModelFileFault;

/// Tokens in order of rank, in GPT-2's alphabet of bytes, and the merges that build tokens of
/// several bytes.
pub(super) struct Ranked {
    pub(super) tokens: Vec<String>,
    pub(super) merges: Vec<String>,
}

/// The character of a byte: the same code point if it is printable, else one of the first
/// characters from U+0100 on.
fn letter(byte: u8) -> char {
    let shown = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if shown(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !shown(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The vocabulary of these byte sequences.
///
/// # Errors
/// [`ModelFileFault::Token`] for a sequence that is empty, too long or listed twice.
/// [`ModelFileFault::Form`] if one of the 256 bytes is not a token.
pub(super) fn ranked(list: &[Vec<u8>]) -> Result<Ranked, ModelFileFault> {
    if list.len() > MAX_TOKENS {
        return Err(ModelFileFault::Form { expected: "at most 2^21 tokens", found: list.len().to_string() });
    }
    let letters: [char; 256] = std::array::from_fn(|byte| letter(byte as u8));
    let text = |bytes: &[u8]| bytes.iter().map(|&b| letters[usize::from(b)]).collect::<String>();
    let mut ranks: HashMap<&[u8], usize> = HashMap::with_capacity(list.len());
    let mut merges = Vec::new();
    for (rank, token) in list.iter().enumerate() {
        let fault = |what| ModelFileFault::Token { rank, what };
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(fault("expected 1 to 1024 bytes"));
        }
        if token.len() > 1
            && let Some([left, right]) = halves(token, &ranks)
        {
            merges.push(format!("{} {}", text(left), text(right)));
        }
        match ranks.entry(token) {
            Entry::Vacant(free) => free.insert(rank),
            Entry::Occupied(_) => return Err(fault("it is listed twice")),
        };
    }
    if let Some(missing) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
        return Err(ModelFileFault::Form { expected: "a token for each byte", found: format!("none for {missing:#x}") });
    }
    Ok(Ranked { tokens: list.iter().map(|token| text(token)).collect(), merges })
}

/// The two tokens that remain after all merges of lower rank; `None` if more remain, as for tokens
/// that only match as a whole.
fn halves<'a>(token: &'a [u8], ranks: &HashMap<&[u8], usize>) -> Option<[&'a [u8]; 2]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    while ends.len() > 3 {
        let pair = |i: usize| ranks.get(&token[ends[i]..ends[i + 2]]).map(|&rank| (rank, i));
        let (_, first) = (0..ends.len() - 2).filter_map(pair).min()?;
        ends.remove(first + 1);
    }
    let [start, middle, end] = ends[..] else { return None };
    let parts = [&token[start..middle], &token[middle..end]];
    parts.iter().all(|part| ranks.contains_key(part)).then_some(parts)
}
