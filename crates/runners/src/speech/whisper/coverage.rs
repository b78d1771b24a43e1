//! Whether a window's text covers the speech in it, and what is heard again if it does not.

use std::ops::Range;

use flambeau_audio::VoiceActivity;

use super::{Span, Vocabulary};
use crate::speech::{
    SAMPLE_RATE,
    stream::{BLOCK, Stream, powers},
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
/// The shortest pause at which a stretch is cut, the least ahead of it, and what of the pause goes
/// with that: seconds.
const PAUSE: f64 = 0.3;
const AHEAD: f64 = 1.0;
const TAIL: f64 = 0.5;
/// Seconds of a pause that separates two phrases.
const BETWEEN_PHRASES: f64 = 0.3;
/// Seconds that a window has ahead of its first phrase.
const LEAD: f64 = 0.2;
/// Seconds of pauses, and how far behind the beginning of the next phrase a timestamp may then
/// stand.
const ONSETS: [(f64, f64); 2] = [(1.5, 0.6), (0.5, 0.2)];
/// Seconds of a pause that a stretch bridges, and of the speech that its text may have missed ahead
/// of that pause.
const BRIDGE: f64 = 0.9;
const MISSED: f64 = 0.4;
/// As `LEAST_TOKENS` and `LONG`, for a stretch that bridges a pause.
const LEAST_TOKENS_OVER_BRIDGE: f64 = 2.5;
const LONG_OVER_BRIDGE: f64 = 3.0;
/// Seconds of the longest sound that is too short for a word, and least power of sound as a share
/// of the loudest power.
const SHORT: f64 = 0.25;
const LOUD: f32 = 0.003;
/// Seconds of sound that are short, maximum letters a second of it, and seconds that its soft ends
/// add. Fast speech has 20 letters a second.
const BRIEF: f64 = 1.0;
const MOST_LETTERS: f64 = 20.0;
const ENDS: f64 = 0.25;
/// Tokens a second of speech, and tokens of a window, with which a text contradicts that the model
/// holds the window for silence.
const TOKENS_A_SECOND: f64 = 1.0;
const TOKENS: f64 = 4.0;

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

    /// Minimum number of tokens of a text that contradicts that the model holds the window for
    /// silence.
    pub(super) fn least_tokens(&mut self) -> f64 {
        if seconds(self.steps()) >= LONG && self.ranges().is_empty() {
            return f64::INFINITY;
        }
        let found = self.seconds_in(0..usize::MAX);
        let speech = if found >= LEAST_SPEECH { found } else { seconds(self.steps()) };
        (TOKENS_A_SECOND * speech).max(TOKENS)
    }

    /// Whether a text of so many tokens is too short for a window that is full of speech.
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

    /// Whether the window holds too little sound for a word, or for a text of so many letters.
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

    /// The part of the window that holds all of its speech, if the rest is at least as long.
    pub(super) fn spoken(&mut self) -> Option<Range<usize>> {
        let (length, ranges) = (self.steps(), self.ranges());
        let part = ranges.first()?.start.saturating_sub(steps(TAIL))..(ranges.last()?.end + steps(TAIL)).min(length);
        (2 * part.len() <= length && self.seconds_in(part.clone()) > TAIL).then_some(part)
    }

    /// Stretches of speech with no long pause.
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

    /// Where the next window begins if this one's text ends at a step: shortly ahead of a phrase
    /// that began just before it, behind a pause.
    pub(super) fn onset(&mut self, step: usize) -> usize {
        let phrases = self.phrases();
        let Some(at) = phrases.iter().position(|phrase| phrase.start < step && step <= phrase.end) else { return step };
        let (start, end) = (phrases[at].start, phrases[at].end);
        let silent = at.checked_sub(1).map_or(0, |at| phrases[at].end);
        let (pause, late) = (start - silent, step - start);
        let is_late = ONSETS.iter().any(|&(least, most)| pause >= steps(least) && late <= steps(most));
        let goes_on = end == self.steps() || end - step >= late;
        if is_late && goes_on { start - steps(LEAD).min(pause / 2) } else { step }
    }

    /// The last pause of a part that is long enough for its text to have missed the speech ahead of
    /// it.
    fn bridge(&mut self, part: &Range<usize>) -> Option<Range<usize>> {
        let inside: Vec<Range<usize>> =
            self.ranges().iter().filter(|range| range.end > part.start && range.start < part.end).cloned().collect();
        let mut pauses = inside.windows(2).rev().map(|pair| pair[0].end..pair[1].start);
        let last = pauses.find(|pause| pause.len() >= steps(BRIDGE))?;
        (self.seconds_in(part.start..last.start) >= MISSED).then_some(last)
    }

    /// Where to cut a part of the window: shortly behind speech at the longest pause, or in the
    /// softest moment of its middle.
    fn cut(&mut self, part: Range<usize>) -> Option<usize> {
        if let Some(bridge) = self.bridge(&part) {
            return Some(bridge.start + steps(TAIL));
        }
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

/// What stays of a text whose stretches these are, in a window of `steps` steps; `next` is where
/// the text leaves the window. A part that its text does not cover is heard again from its
/// beginning on, by itself if `may_cut` allows that.
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
    let is_left = said > 0 && said < next && seconds(next - said) > BEHIND && speech.goes_on(said);
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

    /// A text of so many tokens between two times of the small vocabulary, whose timestamps are 20
    /// ms apart.
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
        let enough = judged(&samples, &text(&[(0, 70, 1400)]));
        assert_eq!(enough, Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn a_stretch_over_a_pause_has_more_text_than_another_one() {
        let samples = recording(30, &[0..2, 4..6, 9..12]);
        let Coverage { kept, next, cut } = judged(&samples, &text(&[(0, 15, 620)]));
        assert_eq!((kept, next), (0, 0));
        assert!(cut.is_some_and(|cut| (300..330).contains(&cut)), "behind the last phrase without text: {cut:?}");
        assert_eq!(judged(&samples, &text(&[(0, 22, 620)])), Coverage { kept: 1, next: 1500, cut: None });
    }

    #[test]
    fn a_timestamp_just_behind_a_pause_begins_the_next_window_ahead_of_the_phrase() {
        let samples = recording(30, &[0..4, 10..16]);
        let Coverage { next, .. } = judged(&samples, &text(&[(0, 20, 520)]));
        assert!((480..500).contains(&next), "{next}");
        assert_eq!(judged(&samples, &text(&[(0, 40, 650)])).next, 650, "the phrase has text");
    }

    #[test]
    fn an_opening_timestamp_at_the_end_is_no_text_of_the_speech_behind_it() {
        let samples = recording(16, &[0..8, 10..16]);
        let tokens = [text(&[(0, 30, 400)]), vec![410]].concat();
        let vocabulary = Vocabulary::small();
        let (spans, steps) = (all_spans(&vocabulary, &tokens, 800), 800);
        let found = coverage(&vocabulary, &tokens, (&spans, steps), &mut Speech::of(&samples), true);
        assert_eq!(found, Coverage { kept: 1, next: 400, cut: None });
    }

    #[test]
    fn a_short_phrase_in_a_long_silence_is_heard_by_itself() {
        let spoken = |voices: &[Range<usize>]| Speech::of(&recording(30, voices)).spoken();
        let part = spoken(&[19..20, 20..21]).unwrap();
        assert!((900..950).contains(&part.start) && (1050..1100).contains(&part.end), "{part:?}");
        assert_eq!(spoken(&[2..10, 10..21]), None);
        assert_eq!(spoken(&[]), None);
    }

    #[test]
    fn a_click_is_too_short_for_a_word_and_a_syllable_for_a_sentence() {
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
    fn a_word_does_not_contradict_silence() {
        let least = |samples: &[f32]| Speech::of(samples).least_tokens();
        assert_eq!(least(&vec![0.0; SECOND / 2]), TOKENS);
        assert_eq!(least(&recording(30, &[])), f64::INFINITY, "a long window without speech");
        assert!((12.0..21.0).contains(&least(&recording(30, std::slice::from_ref(&(5..25))))));
    }

    #[test]
    fn speech_between_two_stretches_is_heard_by_itself() {
        let samples = recording(30, &[0..6, 10..16, 20..28]);
        let found = judged(&samples, &text(&[(0, 20, 300), (1000, 30, 1400)]));
        assert_eq!(found, Coverage { kept: 1, next: 300, cut: Some(1000) });
    }
}
