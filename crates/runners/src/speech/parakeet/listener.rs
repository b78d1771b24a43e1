//! Recordings of any length, in overlapping windows that are cut in pauses between words.

use std::ops::Range;

use flambeau_text::Tokenizer;

use super::{FAMILY, Parakeet, unfit, words::words};
use crate::{
    Result,
    speech::{
        Progress, Segment, Settings,
        stream::Stream,
        transcriber::{Listener, Takes},
        words::{TimedWord, segment, whole_segments},
    },
};

/// Positions of 80 ms in a window, and in the context at either end of it. The cost of attention
/// grows with the square of the window.
const WINDOW: usize = 525;
const CONTEXT: usize = 25;
/// Positions at the end of a window where it may be cut.
const CUTS: usize = 125;
/// Minimum positions that a model must accept, and the minimum ratio of a window to its context.
const LEAST_WINDOW: usize = 8;
/// Positions that the end of a sentence adds to a pause when pauses are compared.
const SENTENCE: u64 = 6;
/// Maximum difference in positions between two windows about the start of a word.
const SLACK: u64 = 2;

/// Transcribes one recording with Parakeet.
#[derive(Debug)]
pub(crate) struct ParakeetListener<'a> {
    pub(super) model: &'a mut Parakeet,
    tokenizer: &'a Tokenizer,
    with_words: bool,
    /// Positions of a window after its leading context, and positions of the context.
    window: usize,
    pub(super) context: usize,
    /// The last transcribed samples, as leading context: whole positions.
    pub(super) before: Vec<f32>,
    /// Words without a segment yet, timed by samples.
    waiting: Vec<TimedWord>,
    /// The last decoded word.
    pub(super) last: Option<TimedWord>,
}

impl<'a> ParakeetListener<'a> {
    /// Creates a listener for one recording.
    ///
    /// # Errors
    /// The settings ask for a translation, a language or a prompt.
    pub(crate) fn new(model: &'a mut Parakeet, tokenizer: &'a Tokenizer, settings: &Settings) -> Result<ParakeetListener<'a>> {
        settings.check(FAMILY, Takes { words: true, live: true, ..Takes::default() })?;
        let all = model.positions().min(WINDOW);
        if all < LEAST_WINDOW {
            return Err(unfit(format!("it takes {all} positions, expected at least {LEAST_WINDOW}")));
        }
        let context = CONTEXT.min(all / LEAST_WINDOW);
        Ok(ParakeetListener {
            model,
            tokenizer,
            with_words: settings.words,
            window: all - context,
            context,
            before: Vec::new(),
            waiting: Vec::new(),
            last: None,
        })
    }

    /// Decodes the context and the stream's next `heard` samples. Returns the words, timed by
    /// positions of this window.
    pub(super) fn decode_window(&mut self, stream: &Stream, heard: usize) -> Result<Vec<TimedWord>> {
        let window = [&self.before[..], &stream.samples[..heard]].concat();
        let features = self.model.features(&window)?;
        let [_, made] = self.model.encode(features)?;
        let tokens = self.model.decode(&made, &mut |_, _| {})?;
        words(self.tokenizer, &tokens)
    }

    /// The new words that begin in `range`, in positions of the window. Their returned times are
    /// samples of the recording.
    pub(super) fn fresh(&self, words: Vec<TimedWord>, range: Range<u64>, stream: &Stream) -> Vec<TimedWord> {
        let step = self.model.step_samples() as u64;
        let at = |position: u64| (stream.position() + position * step).saturating_sub(self.before.len() as u64);
        let (mut last, mut fresh) = (self.last.clone(), Vec::new());
        for word in words.into_iter().filter(|word| word.start + SLACK >= range.start && word.start < range.end) {
            let word = TimedWord { start: at(word.start), end: at(word.end), ..word };
            let is_known = |last: &TimedWord| word.start < last.start + SLACK * step || last.text == word.text;
            let is_early = word.start < stream.position();
            if !(is_early && last.as_ref().is_some_and(is_known)) {
                last = Some(word.clone());
                fresh.push(word);
            }
        }
        fresh
    }

    /// Keeps words until they form segments.
    fn keep(&mut self, words: Vec<TimedWord>) {
        self.last = words.last().or(self.last.as_ref()).cloned();
        self.waiting.extend(words);
    }

    /// Advances by that many samples, and keeps the last ones as context.
    pub(super) fn pass(&mut self, stream: &mut Stream, samples: usize) {
        self.before.extend_from_slice(&stream.samples[..samples]);
        let context = self.context * self.model.step_samples();
        self.before.drain(..self.before.len().saturating_sub(context));
        stream.pass(samples);
    }

    /// Removes and returns the complete segments.
    fn segments(&mut self, stream: &Stream, nothing_follows: bool) -> Vec<Segment> {
        let (length, window) = (stream.position(), stream.at(0));
        let segments = whole_segments(&mut self.waiting, nothing_follows);
        segments.iter().map(|words| segment(words, length, window, self.with_words)).collect()
    }
}

impl Listener for ParakeetListener<'_> {
    fn step(&mut self, stream: &mut Stream) -> Result<Progress> {
        let step = self.model.step_samples();
        // Sound shorter than a position gives no text.
        if stream.is_whole && stream.samples.len() < step {
            let rest = self.segments(stream, true);
            return Ok(if rest.is_empty() { Progress::Finished } else { Progress::Segments(rest) });
        }
        let window = self.window * step;
        if !stream.is_whole && stream.samples.len() < window {
            return Ok(Progress::NeedsSamples);
        }
        let heard = stream.samples.len().min(window);
        if let Some(passed) = stream.silence(heard) {
            stream.pass(passed);
            self.before.clear();
            return Ok(Progress::Segments(self.segments(stream, true)));
        }
        let words = self.decode_window(stream, heard)?;
        let first = self.before.len() / step;
        let (end, passed) = if stream.is_whole && stream.samples.len() == heard {
            (u64::MAX, heard)
        } else {
            let positions = first + heard / step;
            let cuts = CUTS.min(self.window / 2);
            let cut = cut(&words, (positions - cuts) as u64..(positions - self.context) as u64);
            (cut, (cut as usize - first) * step)
        };
        self.keep(self.fresh(words, first as u64..end, stream));
        self.pass(stream, passed);
        Ok(Progress::Segments(self.segments(stream, false)))
    }

    fn language(&self) -> Option<&str> {
        None
    }
}

/// The final position of a window: in the longest pause before a word that begins in `range`. The
/// later one of two equal pauses counts.
fn cut(words: &[TimedWord], range: Range<u64>) -> u64 {
    let pauses = words.array_windows().filter(|[_, next]| range.contains(&next.start)).map(|[word, next]| {
        let pause = next.start.saturating_sub(word.end);
        let middle = (next.start - pause / 2).max(range.start);
        (pause + if word.ends_sentence() { SENTENCE } else { 0 }, middle)
    });
    pauses.max().map_or(range.end, |(_, middle)| middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::words::tests::word;

    #[test]
    fn a_window_ends_in_its_longest_pause() {
        let words = [word("a", 90, 100), word("b", 104, 106), word("c", 116, 120), word("d", 122, 124)];
        assert_eq!(cut(&words, 100..200), 111);
        assert_eq!(cut(&words, 117..200), 121, "the pause ahead of d");
        assert_eq!(cut(&words, 150..200), 200, "no word begins there");
        let sentence = [word("a", 90, 100), word("b.", 104, 106), word("c", 108, 110), word("d", 115, 118)];
        assert_eq!(cut(&sentence, 100..200), 107, "a sentence ends");
    }
}
