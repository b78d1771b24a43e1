//! Whether a window's text covers its speech, and which part is decoded again if it does not.

use std::ops::Range;

use flambeau_audio::VoiceActivity;

use super::{Span, Vocabulary};
use crate::speech::{
    SAMPLE_RATE,
    stream::{BLOCK, Stream, powers},
};

/// A span of more than `LONG` seconds lacks text if it has fewer tokens per second of speech.
const LEAST_TOKENS: f64 = 1.8;
const LONG: f64 = 4.0;
/// Minimum detected speech in seconds. With less, the whole window counts as speech.
const LEAST_SPEECH: f64 = 1.0;
/// Seconds of speech between two spans, and after the last span, above which it is decoded again.
const BETWEEN_SPANS: f64 = 1.0;
const AFTER_SPANS: f64 = 0.3;
/// Maximum seconds of a span's speech after the timestamp that ends it.
const LATE: f64 = 0.6;
/// A span is cut in a pause of at least `PAUSE` seconds, after at least `BEFORE_CUT` seconds. The
/// first part keeps up to `TAIL` seconds of the pause.
const PAUSE: f64 = 0.3;
const BEFORE_CUT: f64 = 1.0;
const TAIL: f64 = 0.5;
/// Seconds of the shortest pause between two phrases.
const BETWEEN_PHRASES: f64 = 0.3;
/// Seconds of a window before its first phrase.
const LEAD: f64 = 0.2;
/// Pairs of the minimum pause before a phrase and the maximum delay of a timestamp after the
/// phrase's start, in seconds. The next window then begins before the phrase.
const ONSETS: [(f64, f64); 2] = [(1.5, 0.6), (0.5, 0.2)];
/// A span bridges a pause of at least `BRIDGE` seconds after at least `MISSED` seconds of speech.
/// Its text may lack this speech.
const BRIDGE: f64 = 0.9;
const MISSED: f64 = 0.4;
/// As `LEAST_TOKENS` and `LONG`, for a span that bridges a pause.
const LEAST_TOKENS_OVER_BRIDGE: f64 = 2.5;
const LONG_OVER_BRIDGE: f64 = 3.0;
/// Seconds below which sound is too short for a word, and minimum power of sound as a share of the
/// loudest power.
const SHORT: f64 = 0.25;
const LOUD: f32 = 0.003;
/// Sound below `BRIEF` seconds is too short for more than `MOST_LETTERS` letters per second. Its
/// soft ends add `ENDS` seconds. Fast speech has 20 letters per second.
const BRIEF: f64 = 1.0;
const MOST_LETTERS: f64 = 20.0;
const ENDS: f64 = 0.25;
/// Minimum tokens per second of speech, and in total, of a text that outweighs a high no-speech
/// probability.
const TOKENS_A_SECOND: f64 = 1.0;
const TOKENS: f64 = 4.0;

/// The part of a window's text to keep, and the sound to decode next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coverage {
    /// Number of leading spans to keep.
    pub(super) kept: usize,
    /// Step of this window at which the next window begins.
    pub(super) next: usize,
    /// Step of this window at which the next window ends, if it has a part of this one.
    pub(super) cut: Option<usize>,
}

/// The speech in a window's samples, in steps of 20 ms. It is detected at first use.
#[derive(Debug)]
pub(super) struct Speech<'a> {
    samples: &'a [f32],
    found: Option<Vec<Range<usize>>>,
}

impl<'a> Speech<'a> {
    pub(super) fn of(samples: &'a [f32]) -> Speech<'a> {
        Speech { samples, found: None }
    }

    /// Number of steps in the window.
    pub(super) fn steps(&self) -> usize {
        self.samples.len().div_ceil(BLOCK)
    }

    /// Minimum number of tokens of a text that outweighs a high no-speech probability. It is
    /// infinite for a long window without detected speech.
    pub(super) fn least_tokens(&mut self) -> f64 {
        if seconds(self.steps()) >= LONG && self.ranges().is_empty() {
            return f64::INFINITY;
        }
        let found = self.seconds_in(0..usize::MAX);
        let speech = if found >= LEAST_SPEECH { found } else { seconds(self.steps()) };
        (TOKENS_A_SECOND * speech).max(TOKENS)
    }

    /// Whether a window full of speech has more than `tokens` tokens.
    pub(super) fn is_little(&self, tokens: usize) -> bool {
        (tokens as f64) < TOKENS_A_SECOND * seconds(self.steps())
    }

    /// Mean power of each whole step.
    pub(super) fn powers(&self) -> Vec<f32> {
        powers(self.samples)
    }

    /// Whether a range of steps has speech.
    pub(super) fn has_speech(&mut self, part: Range<usize>) -> bool {
        self.seconds_in(part) > 0.0
    }

    /// Disjoint ranges of speech, in ascending order.
    fn ranges(&mut self) -> &[Range<usize>] {
        self.found.get_or_insert_with(|| {
            let (mut activity, mut ranges) = (VoiceActivity::default(), Vec::new());
            activity.push(self.samples, &mut ranges);
            activity.finish(&mut ranges);
            let mut merged: Vec<Range<usize>> = Vec::new();
            for range in ranges {
                let range = range.start as usize / BLOCK..(range.end as usize).min(self.samples.len()).div_ceil(BLOCK);
                match merged.last_mut().filter(|last| last.end >= range.start) {
                    Some(last) => last.end = last.end.max(range.end),
                    None => merged.push(range),
                }
            }
            merged
        })
    }

    /// Seconds of speech in a range of steps.
    fn seconds_in(&mut self, part: Range<usize>) -> f64 {
        let shared = |range: &Range<usize>| range.end.min(part.end).saturating_sub(range.start.max(part.start));
        seconds(self.ranges().iter().map(shared).sum())
    }

    /// Whether there is speech after the end of a span. Speech that ends shortly after this step
    /// belongs to the span.
    fn continues_after(&mut self, step: usize) -> bool {
        let ends = |range: &&Range<usize>| range.start < step && seconds(range.end.saturating_sub(step)) < LATE;
        let said = self.ranges().iter().rev().find(ends).map_or(step, |range| range.end.max(step));
        self.seconds_in(said..usize::MAX) > AFTER_SPANS
    }

    /// Whether the window has too little sound for a word, or for `letters` letters.
    pub(super) fn is_short(&mut self, letters: usize) -> bool {
        let powers = self.powers();
        let loudest = powers.iter().copied().fold(0.0, f32::max);
        let loud = powers.iter().filter(|&&power| power > LOUD * loudest).count();
        if seconds(loud) >= BRIEF {
            return false;
        }
        let sound = seconds(loud).max(self.seconds_in(0..usize::MAX));
        sound < SHORT || sound < BRIEF && letters as f64 > MOST_LETTERS * (sound + ENDS)
    }

    /// The part with all speech of the window, if it is at most half of the window.
    pub(super) fn spoken(&mut self) -> Option<Range<usize>> {
        let (length, ranges) = (self.steps(), self.ranges());
        let part = ranges.first()?.start.saturating_sub(steps(TAIL))..(ranges.last()?.end + steps(TAIL)).min(length);
        (2 * part.len() <= length && self.seconds_in(part.clone()) > TAIL).then_some(part)
    }

    /// Ranges of speech without long pauses.
    fn phrases(&mut self) -> Vec<Range<usize>> {
        let mut phrases: Vec<Range<usize>> = Vec::new();
        for range in self.ranges() {
            match phrases.last_mut().filter(|last| range.start < last.end + steps(BETWEEN_PHRASES)) {
                Some(last) => last.end = range.end,
                None => phrases.push(range.clone()),
            }
        }
        phrases
    }

    /// Start of the next window if this window's text ends at `step`. The next window begins before
    /// a phrase that follows a pause and started shortly before `step`.
    pub(super) fn onset(&mut self, step: usize) -> usize {
        let phrases = self.phrases();
        let Some(at) = phrases.iter().position(|phrase| phrase.start < step && step <= phrase.end) else { return step };
        let (start, end) = (phrases[at].start, phrases[at].end);
        let silent = at.checked_sub(1).map_or(0, |at| phrases[at].end);
        let (pause, late) = (start - silent, step - start);
        let is_late = ONSETS.iter().any(|&(least, most)| pause >= steps(least) && late <= steps(most));
        let continues = end == self.steps() || end - step >= late;
        if is_late && continues { start - steps(LEAD).min(pause / 2) } else { step }
    }

    /// Pauses between ranges of speech that overlap a part of the window.
    fn pauses_in(&mut self, part: &Range<usize>) -> Vec<Range<usize>> {
        let inside: Vec<&Range<usize>> =
            self.ranges().iter().filter(|range| range.end > part.start && range.start < part.end).collect();
        inside.windows(2).map(|pair| pair[0].end..pair[1].start).collect()
    }

    /// The last pause that a span over `part` bridges.
    fn bridge(&mut self, part: &Range<usize>) -> Option<Range<usize>> {
        let last = self.pauses_in(part).into_iter().rfind(|pause| pause.len() >= steps(BRIDGE))?;
        (self.seconds_in(part.start..last.start) >= MISSED).then_some(last)
    }

    /// The step at which to cut a part of the window. A bridged pause comes first, then the longest
    /// pause, then the softest moment of the part's middle half.
    fn cut(&mut self, part: Range<usize>) -> Option<usize> {
        if let Some(bridge) = self.bridge(&part) {
            return Some(bridge.start + steps(TAIL));
        }
        let first = part.start + steps(BEFORE_CUT);
        let is_inside = |pause: &Range<usize>| pause.start >= first && pause.end < part.end && pause.len() >= steps(PAUSE);
        let pauses = self.pauses_in(&part).into_iter().filter(is_inside);
        if let Some(pause) = pauses.max_by_key(ExactSizeIterator::len) {
            return Some(pause.start + (pause.len() / 2).min(steps(TAIL)));
        }
        let quarter = part.len() / 4;
        let middle = (part.start + quarter) * BLOCK..((part.end - quarter) * BLOCK).min(self.samples.len());
        let is_long = part.len() >= 4 * steps(BEFORE_CUT) && middle.start < middle.end;
        is_long.then(|| Stream::softest(self.samples, middle) / BLOCK)
    }
}

/// Compares the spans of a window's text with its speech. The next window begins at step `next`, or
/// earlier if there is speech after the last span. With `may_cut`, a span that lacks text, or
/// speech between two spans, becomes the next window.
pub(super) fn coverage(
    vocabulary: &Vocabulary,
    tokens: &[u32],
    (spans, next): (&[Span], usize),
    speech: &mut Speech<'_>,
    may_cut: bool,
) -> Coverage {
    let mut said = 0;
    for (kept, span) in spans.iter().enumerate().filter(|_| may_cut) {
        let gap = said..span.start;
        let is_long = seconds(gap.len()) > BETWEEN_SPANS;
        if is_long && speech.continues_after(gap.start) && speech.seconds_in(gap.clone()) > BETWEEN_SPANS {
            return Coverage { kept, next: gap.start, cut: Some(gap.end) };
        }
        let count = vocabulary.text_of(&tokens[span.tokens.clone()]).count() as f64;
        let part = span.start..span.end;
        let (long, least) = match speech.bridge(&part) {
            Some(_) => (LONG_OVER_BRIDGE, LEAST_TOKENS_OVER_BRIDGE),
            None => (LONG, LEAST_TOKENS),
        };
        let is_thin = |seconds: f64| seconds > long && count < least * seconds;
        if is_thin(seconds(part.len()))
            && is_thin(speech.seconds_in(part.clone()))
            && let Some(cut) = speech.cut(part)
        {
            return Coverage { kept, next: span.start, cut: Some(cut) };
        }
        said = span.end;
    }
    let is_left = said > 0 && said < next && seconds(next - said) > AFTER_SPANS && speech.continues_after(said);
    let next = if is_left { said } else { next };
    Coverage { kept: spans.len(), next: if next < speech.steps() { speech.onset(next) } else { next }, cut: None }
}

fn seconds(steps: usize) -> f64 {
    (steps * BLOCK) as f64 / f64::from(SAMPLE_RATE)
}

fn steps(seconds: f64) -> usize {
    (seconds * f64::from(SAMPLE_RATE)) as usize / BLOCK
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use crate::speech::whisper::{spans, window::all_spans};

    const SECOND: usize = SAMPLE_RATE as usize;

    /// Silence of `length` seconds, with a buzz in these ranges of seconds. The buzz rises and
    /// falls like syllables.
    fn recording(length: usize, voices: &[Range<usize>]) -> Vec<f32> {
        let voice = |i: usize| {
            let at = i as f32 / SECOND as f32;
            0.4 * (at * 12.0).sin().powi(2) * ((at * 120.0).fract() - 0.5)
        };
        (0..length * SECOND)
            .map(|i| if voices.iter().any(|voice| voice.contains(&(i / SECOND))) { voice(i) } else { 0.0 })
            .collect()
    }

    /// Spans of the small vocabulary: first step, number of text tokens and last step of each.
    fn text(parts: &[(u32, usize, u32)]) -> Vec<u32> {
        parts.iter().flat_map(|&(start, count, end)| once(10 + start).chain(vec![1; count]).chain([10 + end])).collect()
    }

    fn coverage_of(samples: &[f32], tokens: &[u32]) -> Coverage {
        let steps = samples.len().div_ceil(BLOCK);
        let vocabulary = Vocabulary::small();
        let (spans, next) = spans(&vocabulary, tokens, steps);
        coverage(&vocabulary, tokens, (&spans, next), &mut Speech::of(samples), true)
    }

    #[test]
    fn speech_after_the_last_timestamp_is_decoded_again() {
        let samples = recording(30, &[0..8, 20..28]);
        let found = coverage_of(&samples, &text(&[(0, 30, 400)]));
        assert_eq!(found, Coverage { kept: 1, next: 400, cut: None });
        let silence = coverage_of(&recording(30, std::slice::from_ref(&(0..8))), &text(&[(0, 30, 400)]));
        assert_eq!(silence, Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn a_timestamp_stretched_over_speech_is_cut_at_the_pause() {
        let samples = recording(30, &[0..8, 12..28]);
        let Coverage { kept, next, cut } = coverage_of(&samples, &text(&[(0, 13, 1400)]));
        assert_eq!((kept, next), (0, 0));
        assert!(cut.is_some_and(|cut| (400..450).contains(&cut)), "{cut:?}");
        let enough = coverage_of(&samples, &text(&[(0, 70, 1400)]));
        assert_eq!(enough, Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn a_span_over_a_pause_needs_more_text_than_others() {
        let samples = recording(30, &[0..2, 4..6, 9..12]);
        let Coverage { kept, next, cut } = coverage_of(&samples, &text(&[(0, 15, 620)]));
        assert_eq!((kept, next), (0, 0));
        assert!(cut.is_some_and(|cut| (300..330).contains(&cut)), "after the last phrase without text: {cut:?}");
        assert_eq!(coverage_of(&samples, &text(&[(0, 22, 620)])), Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn after_a_timestamp_shortly_after_a_pause_the_next_window_begins_before_the_phrase() {
        let samples = recording(30, &[0..4, 10..16]);
        let Coverage { next, .. } = coverage_of(&samples, &text(&[(0, 20, 520)]));
        assert!((480..500).contains(&next), "{next}");
        assert_eq!(coverage_of(&samples, &text(&[(0, 40, 650)])).next, 650, "the phrase has text");
    }

    #[test]
    fn a_last_timestamp_without_text_does_not_cover_the_speech_after_it() {
        let samples = recording(16, &[0..8, 10..16]);
        let tokens = [text(&[(0, 30, 400)]), vec![410]].concat();
        let vocabulary = Vocabulary::small();
        let (spans, steps) = (all_spans(&vocabulary, &tokens, 800), 800);
        let found = coverage(&vocabulary, &tokens, (&spans, steps), &mut Speech::of(&samples), true);
        assert_eq!(found, Coverage { kept: 1, next: 400, cut: None });
    }

    #[test]
    fn a_short_phrase_in_a_long_silence_becomes_a_window() {
        let spoken = |voices: &[Range<usize>]| Speech::of(&recording(30, voices)).spoken();
        let part = spoken(&[19..20, 20..21]).unwrap();
        assert!((900..950).contains(&part.start) && (1050..1100).contains(&part.end), "{part:?}");
        assert_eq!(spoken(&[2..10, 10..21]), None);
        assert_eq!(spoken(&[]), None);
    }

    #[test]
    fn a_click_is_too_short_for_a_word_and_a_syllable_is_too_short_for_a_sentence() {
        let burst = |milliseconds: usize, length: usize| {
            let voice = recording(1, std::slice::from_ref(&(0..1)));
            let mut samples = vec![0.0; length * SECOND];
            samples[SECOND / 2..][..16 * milliseconds].copy_from_slice(&voice[1600..][..16 * milliseconds]);
            move |letters| Speech::of(&samples).is_short(letters)
        };
        assert!(burst(50, 1)(1) && burst(100, 1)(1) && burst(100, 30)(1));
        assert!(!burst(400, 1)(8) && !burst(400, 30)(8));
        // A sentence takes longer.
        assert!(burst(300, 1)(36) && burst(400, 30)(36));
        assert!(!Speech::of(&recording(2, std::slice::from_ref(&(0..2)))).is_short(80));
    }

    #[test]
    fn a_word_does_not_outweigh_a_high_no_speech_probability() {
        let least = |samples: &[f32]| Speech::of(samples).least_tokens();
        assert_eq!(least(&vec![0.0; SECOND / 2]), TOKENS);
        assert_eq!(least(&recording(30, &[])), f64::INFINITY, "a long window without speech");
        assert!((12.0..21.0).contains(&least(&recording(30, std::slice::from_ref(&(5..25))))));
    }

    #[test]
    fn speech_between_two_spans_becomes_a_window() {
        let samples = recording(30, &[0..6, 10..16, 20..28]);
        let found = coverage_of(&samples, &text(&[(0, 20, 300), (1000, 30, 1400)]));
        assert_eq!(found, Coverage { kept: 1, next: 300, cut: Some(1000) });
    }
}
