//! Whether a window's text covers the speech in it, and what is heard again if it does not.

use std::ops::Range;

use flambeau_audio::VoiceActivity;

use super::{Span, Vocabulary};
use crate::speech::{
    SAMPLE_RATE,
    stream::{BLOCK, Stream},
};

/// Minimum tokens a second of speech, and the shortest speech, in seconds, to which it applies.
const LEAST_TOKENS: f64 = 1.8;
const LONG: f64 = 4.0;
/// Seconds of speech that tell how much there is to say.
const LEAST_SPEECH: f64 = 1.0;
/// Seconds of speech between two stretches, and behind the last one, that are heard again.
const BETWEEN: f64 = 1.0;
const BEHIND: f64 = 0.3;
/// Seconds by which timestamps miss the end of what was said.
const LATE: f64 = 0.6;
/// The shortest pause at which a stretch is cut, the least ahead of it, and what of the pause goes with that: seconds.
const PAUSE: f64 = 0.3;
const AHEAD: f64 = 1.0;
const TAIL: f64 = 0.5;

/// Use of a window's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coverage {
    /// How many of its stretches stay.
    pub(super) kept: usize,
    /// The step at which the next window begins.
    pub(super) next: usize,
    /// The step at which that one ends, if it is to end early.
    pub(super) cut: Option<usize>,
}

/// The speech of a window, in steps of 20 ms; it is looked for when it is first needed.
#[derive(Debug)]
pub(super) struct Speech<'a> {
    samples: &'a [f32],
    found: Option<Vec<Range<usize>>>,
}

impl<'a> Speech<'a> {
    pub(super) fn of(samples: &'a [f32]) -> Speech<'a> {
        Speech { samples, found: None }
    }

    /// Steps of the window.
    pub(super) fn steps(&self) -> usize {
        self.samples.len().div_ceil(BLOCK)
    }

    /// Seconds of the window.
    pub(super) fn seconds(&self) -> f64 {
        seconds(self.steps())
    }

    /// Seconds of the speech in it, or of all of it where none is found.
    pub(super) fn speech_seconds(&mut self) -> f64 {
        let found = self.seconds_in(0..usize::MAX);
        if found >= LEAST_SPEECH { found } else { self.seconds() }
    }

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

    fn seconds_in(&mut self, part: Range<usize>) -> f64 {
        let shared = |range: &Range<usize>| range.end.min(part.end).saturating_sub(range.start.max(part.start));
        seconds(self.ranges().iter().map(shared).sum())
    }

    /// Whether somebody speaks behind a step, apart from the end of what was said there.
    fn goes_on(&mut self, step: usize) -> bool {
        let ends = |range: &&Range<usize>| range.start < step && seconds(range.end.saturating_sub(step)) < LATE;
        let said = self.ranges().iter().rev().find(ends).map_or(step, |range| range.end.max(step));
        self.seconds_in(said..usize::MAX) > BEHIND
    }

    /// Where to cut a part of the window: shortly behind speech at the longest pause, or in the softest moment of its middle.
    fn cut(&mut self, part: Range<usize>) -> Option<usize> {
        let first = part.start + steps(AHEAD);
        let inside: Vec<Range<usize>> =
            self.ranges().iter().filter(|range| range.end > part.start && range.start < part.end).cloned().collect();
        let pauses = inside.windows(2).map(|pair| pair[0].end..pair[1].start);
        let pauses = pauses.filter(|pause| pause.start >= first && pause.end < part.end && pause.len() >= steps(PAUSE));
        if let Some(pause) = pauses.max_by_key(ExactSizeIterator::len) {
            return Some(pause.start + (pause.len() / 2).min(steps(TAIL)));
        }
        let quarter = part.len() / 4;
        let middle = (part.start + quarter) * BLOCK..((part.end - quarter) * BLOCK).min(self.samples.len());
        let is_long = part.len() >= 4 * steps(AHEAD) && middle.start < middle.end;
        is_long.then(|| Stream::softest(self.samples, middle) / BLOCK)
    }
}

/// What stays of a text whose stretches these are, in a window of `steps` steps; `next` is where the text leaves the window. A part
/// that its text does not cover is heard again from its beginning on, by itself if `may_cut` allows that.
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
        if seconds(gap.len()) > BETWEEN && speech.goes_on(gap.start) && speech.seconds_in(gap.clone()) > BETWEEN {
            return Coverage { kept, next: gap.start, cut: Some(gap.end) };
        }
        let count = vocabulary.text_of(&tokens[span.tokens.clone()]).count() as f64;
        let part = span.start..span.end;
        let is_thin = |seconds: f64| seconds > LONG && count < LEAST_TOKENS * seconds;
        if is_thin(seconds(part.len()))
            && is_thin(speech.seconds_in(part.clone()))
            && let Some(cut) = speech.cut(part)
        {
            return Coverage { kept, next: span.start, cut: Some(cut) };
        }
        said = span.end;
    }
    let is_left = said > 0 && said < next && seconds(next - said) > BEHIND && speech.goes_on(said);
    Coverage { kept: spans.len(), next: if is_left { said } else { next }, cut: None }
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
    use crate::speech::whisper::spans;

    const SECOND: usize = SAMPLE_RATE as usize;

    /// A buzz that comes and goes as syllables do in these seconds, in silence.
    fn recording(length: usize, voices: &[Range<usize>]) -> Vec<f32> {
        let voice = |i: usize| {
            let at = i as f32 / SECOND as f32;
            0.4 * (at * 12.0).sin().powi(2) * ((at * 120.0).fract() - 0.5)
        };
        (0..length * SECOND)
            .map(|i| if voices.iter().any(|voice| voice.contains(&(i / SECOND))) { voice(i) } else { 0.0 })
            .collect()
    }

    /// A text of so many tokens between two times of the small vocabulary, whose timestamps are 20 ms apart.
    fn text(parts: &[(u32, usize, u32)]) -> Vec<u32> {
        parts.iter().flat_map(|&(start, count, end)| once(10 + start).chain(vec![1; count]).chain([10 + end])).collect()
    }

    fn judged(samples: &[f32], tokens: &[u32]) -> Coverage {
        let steps = samples.len().div_ceil(BLOCK);
        let vocabulary = Vocabulary::small();
        let (spans, next) = spans(&vocabulary, tokens, steps);
        coverage(&vocabulary, tokens, (&spans, next), &mut Speech::of(samples), true)
    }

    #[test]
    fn speech_behind_the_last_timestamp_is_heard_again() {
        let samples = recording(30, &[0..8, 20..28]);
        let found = judged(&samples, &text(&[(0, 30, 400)]));
        assert_eq!(found, Coverage { kept: 1, next: 400, cut: None });
        let silence = judged(&recording(30, std::slice::from_ref(&(0..8))), &text(&[(0, 30, 400)]));
        assert_eq!(silence, Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn a_timestamp_stretched_over_speech_is_cut_at_the_pause() {
        let samples = recording(30, &[0..8, 12..28]);
        let Coverage { kept, next, cut } = judged(&samples, &text(&[(0, 13, 1400)]));
        assert_eq!((kept, next), (0, 0));
        assert!(cut.is_some_and(|cut| (400..450).contains(&cut)), "{cut:?}");
        let enough = judged(&samples, &text(&[(0, 60, 1400)]));
        assert_eq!(enough, Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn speech_between_two_stretches_is_heard_by_itself() {
        let samples = recording(30, &[0..6, 10..16, 20..28]);
        let found = judged(&samples, &text(&[(0, 20, 300), (1000, 30, 1400)]));
        assert_eq!(found, Coverage { kept: 1, next: 300, cut: Some(1000) });
    }
}
