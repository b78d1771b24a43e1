//! Words with their times, and words as segments.

use super::{SAMPLE_RATE, Segment, Word, segment::ends_sentence, stream::seconds};

/// Samples of a pause that separates segments, and maximum samples of a segment.
const PAUSE: u64 = SAMPLE_RATE as u64;
const LONGEST: u64 = 30 * SAMPLE_RATE as u64;

/// A word and its times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimedWord {
    /// With its leading space, as the model writes it.
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) log_probability: f32,
    /// Samples, or positions, from the beginning.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl TimedWord {
    pub(crate) fn ends_sentence(&self) -> bool {
        ends_sentence(&self.text)
    }
}

/// Removes the words of complete segments from the front. Sentence ends and pauses separate
/// segments. The rest stays, unless nothing follows it.
pub(crate) fn whole_segments(words: &mut Vec<TimedWord>, nothing_follows: bool) -> Vec<Vec<TimedWord>> {
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

/// A segment of words timed by samples, up to the recording's current `length`. Its window begins
/// at `window` seconds.
pub(crate) fn segment(words: &[TimedWord], length: u64, window: f64, with_words: bool) -> Segment {
    let text: String = words.iter().map(|word| word.text.as_str()).collect();
    let tokens: Vec<u32> = words.iter().flat_map(|word| &word.ids).copied().collect();
    let start = words.first().map_or(0.0, |word| seconds(word.start.min(length)));
    let end = words.last().map_or(0.0, |word| seconds(word.end.min(length)));
    let mean = words.iter().map(|word| word.log_probability).sum::<f32>() / tokens.len().max(1) as f32;
    let timed = if with_words { words.iter().map(|word| timed(word, length)).collect() } else { Vec::new() };
    Segment { words: timed, ..Segment::greedy(start..end, window, text, tokens, mean) }
}

/// A word timed by samples, up to the recording's current `length`.
pub(crate) fn timed(word: &TimedWord, length: u64) -> Word {
    let [start, end] = [word.start, word.end].map(|samples| seconds(samples.min(length)));
    Word { text: word.text.clone(), start, end }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn word(text: &str, start: u64, end: u64) -> TimedWord {
        TimedWord { text: format!(" {text}"), ids: vec![1], log_probability: -0.5, start, end }
    }

    fn texts(segments: &[Vec<TimedWord>]) -> Vec<String> {
        segments.iter().map(|words| words.iter().map(|word| word.text.as_str()).collect()).collect()
    }

    #[test]
    fn sentences_and_pauses_end_segments_and_the_rest_waits() {
        let mut words = vec![word("Go", 0, 10), word("on.", 20, 30), word("Then", 40, 50), word("stop", 30_000, 30_100)];
        assert_eq!(texts(&whole_segments(&mut words, false)), [" Go on.", " Then"]);
        assert_eq!(texts(&[words.clone()]), [" stop"]);
        assert_eq!(texts(&whole_segments(&mut words, true)), [" stop"]);
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
