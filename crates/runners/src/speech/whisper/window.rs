//! Divides a window's tokens into spans of time by their timestamps.

use super::Vocabulary;

/// Tokens of a window between two timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start and end in steps of 20 ms from the beginning of the window.
    pub start: usize,
    pub end: usize,
    /// Indices of the tokens, including the timestamps.
    pub tokens: std::ops::Range<usize>,
}

/// The spans of a window of `steps` steps, and the step at which the next window begins. If the
/// window cuts a sentence, the next window begins at the end of the last whole span. Otherwise it
/// begins at the end of this window.
pub fn spans(vocabulary: &Vocabulary, tokens: &[u32], steps: usize) -> (Vec<Span>, usize) {
    let stamp = |at: usize| tokens.get(at).filter(|&&id| vocabulary.is_timestamp(id));
    let step = |at: usize| stamp(at).map_or(0, |id| (id - vocabulary.first_timestamp()) as usize).min(steps);
    let ends_alone = tokens.len() >= 2 && stamp(tokens.len() - 1).is_some() && stamp(tokens.len() - 2).is_none();
    // Between two adjacent timestamps, one span ends and the next one begins.
    let mut cuts: Vec<usize> = (1..tokens.len()).filter(|&at| stamp(at - 1).is_some() && stamp(at).is_some()).collect();
    if cuts.is_empty() {
        let last = tokens.iter().rposition(|&id| vocabulary.is_timestamp(id)).filter(|&at| at > 0);
        let end = last.map_or(steps, step);
        return (vec![Span { start: step(0).min(end), end, tokens: 0..tokens.len() }], steps);
    }
    if ends_alone {
        cuts.push(tokens.len());
    }
    let mut first = 0;
    let made = cuts.iter().map(|&cut| {
        let span = Span { start: step(first), end: step(cut - 1).max(step(first)), tokens: first..cut };
        first = cut;
        span
    });
    let spans: Vec<Span> = made.collect();
    let next = if ends_alone { steps } else { spans.last().map_or(steps, |span| span.end) };
    (spans, next)
}

/// The spans of a window of `steps` steps. Text after the last whole span extends to the window's
/// end. A last timestamp without text has no span.
pub(super) fn all_spans(vocabulary: &Vocabulary, tokens: &[u32], steps: usize) -> Vec<Span> {
    let (mut spans, _) = spans(vocabulary, tokens, steps);
    let first = spans.last().map_or(0, |span| span.tokens.end);
    if let Some(&id) = tokens.get(first).filter(|_| vocabulary.text_of(&tokens[first..]).next().is_some()) {
        let start =
            if vocabulary.is_timestamp(id) { (id - vocabulary.first_timestamp()) as usize } else { spans[spans.len() - 1].end };
        spans.push(Span { start: start.min(steps), end: steps, tokens: first..tokens.len() });
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tokens: &[u32]) -> (Vec<(usize, usize, usize)>, usize) {
        let (spans, next) = spans(&Vocabulary::small(), tokens, 1500);
        (spans.into_iter().map(|span| (span.start, span.end, span.tokens.len())).collect(), next)
    }

    #[test]
    fn pairs_of_timestamps_separate_spans_and_an_open_span_is_decoded_again() {
        assert_eq!(read(&[10, 1, 2, 110, 110, 3]), (vec![(0, 100, 4)], 100));
        assert_eq!(read(&[10, 1, 2, 110, 120, 3, 210, 210]), (vec![(0, 100, 4), (110, 200, 3)], 200));
    }

    #[test]
    fn the_open_span_of_a_final_window_extends_to_its_end() {
        let all = |tokens: &[u32]| all_spans(&Vocabulary::small(), tokens, 1500).into_iter().map(|span| (span.start, span.end));
        assert!(all(&[10, 1, 2, 110, 120, 3]).eq([(0, 100), (110, 1500)]));
        assert!(all(&[10, 1, 110, 110, 2, 210]).eq([(0, 100), (100, 200)]));
        assert!(all(&[10, 1, 2]).eq([(0, 1500)]));
        assert!(all(&[10, 1, 110, 120]).eq([(0, 100)]), "there is no text after the last timestamp");
    }

    #[test]
    fn a_timestamp_at_the_very_end_ends_the_window() {
        assert_eq!(read(&[10, 1, 110]), (vec![(0, 100, 3)], 1500));
        assert_eq!(read(&[10, 1, 110, 110, 2, 210]), (vec![(0, 100, 3), (100, 200, 3)], 1500));
    }

    #[test]
    fn text_without_pairs_of_timestamps_is_one_span() {
        assert_eq!(read(&[10, 1, 2]), (vec![(0, 1500, 3)], 1500));
        assert_eq!(read(&[]), (vec![(0, 1500, 0)], 1500));
        assert_eq!(read(&[30, 1, 2]), (vec![(20, 1500, 3)], 1500));
    }
}
