//! Tokens as words, and words as segments.

use std::ops::Range;

use flambeau_text::Tokenizer;

use super::TimedToken;
use crate::{
    Result,
    speech::{
        SAMPLE_RATE, Segment, Word,
        segment::{ends_sentence, has_words},
    },
};

/// What SentencePiece writes for the space ahead of a word.
const SPACE: char = '▁';
/// Samples without a word that part segments, and most samples of a segment.
const PAUSE: u64 = SAMPLE_RATE as u64;
const LONGEST: u64 = 30 * SAMPLE_RATE as u64;

/// A word, and when it was said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimedWord {
    /// Without the space ahead of it.
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    pub(super) log_probability: f32,
    /// Samples, or positions, from the beginning.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl TimedWord {
    pub(super) fn ends_sentence(&self) -> bool {
        ends_sentence(&self.text)
    }
}

/// The words of tokens, timed by positions.
pub(super) fn words(tokenizer: &Tokenizer, tokens: &[TimedToken]) -> Result<Vec<TimedWord>> {
    let pieces: Vec<String> = tokens.iter().map(|token| tokenizer.id_to_token(token.id).unwrap_or_default()).collect();
    let starts = (0..tokens.len()).filter(|&at| at == 0 || pieces[at].starts_with(SPACE));
    let ends = (1..=tokens.len()).filter(|&at| at == tokens.len() || pieces[at].starts_with(SPACE));
    let word = |range: Range<usize>| {
        let (own, pieces) = (&tokens[range.clone()], &pieces[range]);
        let ids: Vec<u32> = own.iter().map(|token| token.id).collect();
        // Marks are heard late: they end with what they follow.
        let said = own.iter().zip(pieces).filter(|(_, piece)| has_words(piece));
        let end = said.map(|(token, _)| token).chain(own.first()).map(|token| token.frame + token.duration.max(1)).max();
        Ok(TimedWord {
            text: tokenizer.decode(&ids, true)?.trim().to_owned(),
            ids,
            log_probability: own.iter().map(|token| token.log_probability).sum(),
            start: own.first().map_or(0, |token| token.frame as u64),
            end: end.unwrap_or(0) as u64,
        })
    };
    let words = starts.zip(ends).map(|(start, end)| word(start..end));
    words.filter(|word| word.as_ref().map_or(true, |word| !word.text.is_empty())).collect()
}

/// Takes the words of whole segments off the front: sentences, and what pauses part. The rest waits, unless nothing follows it.
pub(super) fn whole_segments(words: &mut Vec<TimedWord>, nothing_follows: bool) -> Vec<Vec<TimedWord>> {
    let mut segments = Vec::new();
    while let Some(end) = end_of_first(words, nothing_follows) {
        segments.push(words.drain(..end).collect());
    }
    segments
}

fn end_of_first(words: &[TimedWord], nothing_follows: bool) -> Option<usize> {
    let first = words.first()?;
    let is_end = |at: usize| {
        let word = &words[at];
        let next = words.get(at + 1);
        let is_apart = next.is_some_and(|next| next.start.saturating_sub(word.end) >= PAUSE || next.end - first.start > LONGEST);
        word.ends_sentence() || is_apart
    };
    (0..words.len()).find(|&at| is_end(at)).map(|at| at + 1).or(nothing_follows.then_some(words.len()))
}

/// A segment of words timed by samples, of which the recording has `length` so far and which were heard in a window that began at
/// `window` seconds.
pub(super) fn segment(words: &[TimedWord], length: u64, window: f64, with_words: bool) -> Segment {
    let seconds = |samples: u64| (samples.min(length) as f64 / f64::from(SAMPLE_RATE) * 1000.0).round() / 1000.0;
    let text: String = words.iter().map(|word| format!(" {}", word.text)).collect();
    let tokens: Vec<u32> = words.iter().flat_map(|word| &word.ids).copied().collect();
    let timed = |word: &TimedWord| Word { text: format!(" {}", word.text), start: seconds(word.start), end: seconds(word.end) };
    let start = words.first().map_or(0.0, |word| seconds(word.start));
    let end = words.last().map_or(0.0, |word| seconds(word.end));
    let mean = words.iter().map(|word| word.log_probability).sum::<f32>() / tokens.len().max(1) as f32;
    let timed = if with_words { words.iter().map(timed).collect() } else { Vec::new() };
    Segment { words: timed, ..Segment::greedy(start..end, window, text, tokens, mean) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn word(text: &str, start: u64, end: u64) -> TimedWord {
        TimedWord { text: text.into(), ids: vec![1], log_probability: -0.5, start, end }
    }

    fn texts(segments: &[Vec<TimedWord>]) -> Vec<String> {
        segments.iter().map(|words| words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn sentences_and_pauses_end_segments_and_the_rest_waits() {
        let mut words = vec![word("Go", 0, 10), word("on.", 20, 30), word("Then", 40, 50), word("stop", 30_000, 30_100)];
        assert_eq!(texts(&whole_segments(&mut words, false)), ["Go on.", "Then"]);
        assert_eq!(texts(&[words.clone()]), ["stop"]);
        assert_eq!(texts(&whole_segments(&mut words, true)), ["stop"]);
        assert!(words.is_empty() && whole_segments(&mut words, true).is_empty());
    }

    #[test]
    fn segments_without_marks_have_an_end() {
        let mut words: Vec<TimedWord> = (0..100).map(|i| word("so", i * 8000, i * 8000 + 4000)).collect();
        let segments = whole_segments(&mut words, false);
        assert!(segments.iter().all(|words| words[words.len() - 1].end - words[0].start <= LONGEST));
        assert_eq!(segments.len(), 1);
    }

    #[test]
    fn times_do_not_pass_the_end() {
        let segment = segment(&[word("so", 16_000, 24_000), word("on", 30_000, 40_000)], 32_000, 0.5, true);
        assert_eq!((segment.start, segment.end, segment.text.as_str()), (1.0, 2.0, " so on"));
        assert_eq!((segment.words[1].start, segment.words[1].end, segment.mean_log_probability), (1.875, 2.0, -0.5));
    }
}
