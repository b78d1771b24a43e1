//! Tokens as words.

use std::ops::Range;

use flambeau_text::Tokenizer;

use super::TimedToken;
use crate::{
    Result,
    speech::{segment::has_words, words::TimedWord},
};

/// SentencePiece's mark for the space ahead of a word.
const SPACE: char = '▁';

/// The words of a token sequence, timed by positions.
pub(super) fn words(tokenizer: &Tokenizer, tokens: &[TimedToken]) -> Result<Vec<TimedWord>> {
    let pieces: Vec<String> = tokens.iter().map(|token| tokenizer.id_to_token(token.id).unwrap_or_default()).collect();
    let starts = (0..tokens.len()).filter(|&at| at == 0 || pieces[at].starts_with(SPACE));
    let ends = (1..=tokens.len()).filter(|&at| at == tokens.len() || pieces[at].starts_with(SPACE));
    let word = |range: Range<usize>| {
        let (own, pieces) = (&tokens[range.clone()], &pieces[range]);
        let ids: Vec<u32> = own.iter().map(|token| token.id).collect();
        // Punctuation is decoded late: it ends with the word before it.
        let said = own.iter().zip(pieces).filter(|(_, piece)| has_words(piece));
        let end = said.map(|(token, _)| token).chain(own.first()).map(|token| token.frame + token.duration.max(1)).max();
        Ok(TimedWord {
            text: format!(" {}", tokenizer.decode(&ids, true)?.trim()),
            ids,
            log_probability: own.iter().map(|token| token.log_probability).sum(),
            start: own.first().map_or(0, |token| token.frame as u64),
            end: end.unwrap_or(0) as u64,
        })
    };
    let words = starts.zip(ends).map(|(start, end)| word(start..end));
    words.filter(|word| word.as_ref().map_or(true, |word| !word.text.trim().is_empty())).collect()
}
