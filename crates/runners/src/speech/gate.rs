//! Removes long pauses from a recording, and maps times back to the recording.

use std::ops::Range;

use flambeau_audio::VoiceActivity;

use super::{
    SAMPLE_RATE, Segment, Word,
    stream::{Stream, seconds},
};

/// Samples of margin on either side of speech, and the shortest pause that is removed.
const PAD: u64 = SAMPLE_RATE as u64 / 2;
const PAUSE: u64 = SAMPLE_RATE as u64 * 2;
/// Tolerance in samples for a model's times that reach into another stretch.
const STRAY: u64 = SAMPLE_RATE as u64;

/// Removes pauses from a recording. It buffers at most one pause and remembers every removed pause.
#[derive(Debug)]
pub(crate) struct Gate {
    activity: VoiceActivity,
    speech: Vec<Range<u64>>,
    /// Samples of the recording from `first` on that are neither passed on nor removed yet.
    held: Vec<f32>,
    first: u64,
    /// End of the samples that may pass on, as an index into the recording.
    open_until: u64,
    /// Samples passed on in total, and before the last removed pause.
    passed: u64,
    paused: u64,
    stretches: Vec<Stretch>,
}

/// A part of the recording without a removed pause.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Index of its first sample, in the passed-on samples and in the recording.
    passed: u64,
    first: u64,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            activity: VoiceActivity::with_soft_ends(),
            speech: Vec::new(),
            held: Vec::new(),
            first: 0,
            open_until: 0,
            passed: 0,
            paused: 0,
            stretches: Vec::new(),
        }
    }
}

impl Gate {
    /// Takes the next samples, and appends the ones to transcribe to `to`.
    pub(crate) fn push(&mut self, samples: &[f32], to: &mut Stream) {
        self.held.extend_from_slice(samples);
        let judged = self.activity.push(samples, &mut self.speech);
        self.pass_speech(to);
        // All speech before `judged` is known, so the margin of later speech starts after
        // `judged - PAD`.
        if judged >= self.said() + PAUSE {
            self.leave_out(judged.saturating_sub(PAD), to);
        }
    }

    /// Marks the end of the recording.
    pub(crate) fn finish(&mut self, to: &mut Stream) {
        self.activity.finish(&mut self.speech);
        self.pass_speech(to);
        // A short rest after speech passes on like a short pause.
        let end = self.first + self.held.len() as u64;
        if self.passed > 0 && end < self.said() + PAUSE {
            self.open_until = end;
        }
        self.pass(to);
        self.leave_out(end, to);
    }

    /// Seconds of the recording that were transcribed or removed, at the position of a stream.
    pub(crate) fn seconds(&self, stream: &Stream) -> f64 {
        seconds(if stream.samples.is_empty() { self.first } else { self.at(stream.position()) })
    }

    /// Maps a word's times to the recording.
    pub(crate) fn restore_word(&self, word: &mut Word) {
        (word.start, word.end) = self.restored(word.start, word.end, 0);
    }

    /// Maps a segment's times, in seconds of the passed-on samples, to the recording.
    pub(crate) fn restore(&self, segment: &mut Segment) {
        segment.window = self.restored(segment.window, segment.window, STRAY).0;
        (segment.start, segment.end) = self.restored(segment.start, segment.end, STRAY);
        segment.words.iter_mut().for_each(|word| self.restore_word(word));
        segment.hold_words();
    }

    /// Maps a start and an end in the passed-on samples to the recording. The result is within the
    /// stretch of largest overlap. It reaches into others only by more than `stray` samples, and
    /// never if `stray` is 0.
    fn restored(&self, start: f64, end: f64, stray: u64) -> (f64, f64) {
        if self.stretches.is_empty() {
            return (start, end);
        }
        let (start, end) = (samples(start), samples(end));
        let last = self.stretch(end);
        let shared = |at: &usize| end.min(self.end(*at)).saturating_sub(start.max(self.stretches[*at].passed));
        let main = (self.stretch(start)..=last).rev().max_by_key(shared).unwrap_or(last);
        let (first, bound) = (self.stretches[main].passed, self.end(main));
        let start = if stray > 0 && start + stray < first { self.at(start) } else { self.at(start.max(first)) };
        let end = if stray > 0 && end > bound + stray {
            self.at(end)
        } else {
            self.stretches[main].first + end.min(bound).saturating_sub(first)
        };
        (seconds(start), seconds(end.max(start)))
    }

    /// Index of the stretch with a passed-on sample.
    fn stretch(&self, sample: u64) -> usize {
        self.stretches.partition_point(|stretch| stretch.passed <= sample).saturating_sub(1)
    }

    /// End of a stretch in the passed-on samples.
    fn end(&self, stretch: usize) -> u64 {
        self.stretches.get(stretch + 1).map_or(self.passed, |next| next.passed)
    }

    /// Index in the recording of a passed-on sample.
    fn at(&self, sample: u64) -> u64 {
        self.stretches.get(self.stretch(sample)).map_or(sample, |stretch| stretch.first + (sample - stretch.passed))
    }

    fn pass_speech(&mut self, to: &mut Stream) {
        for speech in std::mem::take(&mut self.speech) {
            if speech.start >= self.said() + PAUSE {
                self.leave_out(speech.start.saturating_sub(PAD), to);
            }
            self.open_until = speech.end + PAD;
            self.pass(to);
        }
        self.pass(to);
    }

    /// End of the last speech in the recording; 0 before any speech.
    fn said(&self) -> u64 {
        self.open_until.saturating_sub(PAD)
    }

    /// Passes on the held samples before `open_until`.
    fn pass(&mut self, to: &mut Stream) {
        let count = self.open_until.saturating_sub(self.first).min(self.held.len() as u64);
        if count == 0 {
            return;
        }
        let follows = |last: &Stretch| last.first + (self.passed - last.passed) == self.first;
        if !self.stretches.last().is_some_and(follows) {
            self.stretches.push(Stretch { passed: self.passed, first: self.first });
        }
        to.samples.extend(self.held.drain(..count as usize));
        self.passed += count;
        self.first += count;
    }

    /// Removes the held samples before a sample, and marks the pause in the stream.
    fn leave_out(&mut self, before: u64, to: &mut Stream) {
        let count = before.saturating_sub(self.first).min(self.held.len() as u64);
        if count > 0 && self.passed > self.paused {
            self.paused = self.passed;
            to.pauses.push_back(self.passed);
        }
        self.held.drain(..count as usize);
        self.first += count;
    }
}

fn samples(seconds: f64) -> u64 {
    (seconds * f64::from(SAMPLE_RATE)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: usize = SAMPLE_RATE as usize;

    /// A silent recording with a buzz in these ranges of seconds. The buzz rises and falls like
    /// syllables.
    fn recording(seconds: usize, voices: &[Range<usize>]) -> Vec<f32> {
        let voice = |i: usize| {
            let at = i as f32 / SECOND as f32;
            0.4 * (at * 12.0).sin().powi(2) * ((at * 120.0).fract() - 0.5)
        };
        let is_voice = |i: usize| voices.iter().any(|voice| voice.contains(&(i / SECOND)));
        (0..seconds * SECOND).map(|i| if is_voice(i) { voice(i) } else { 0.0 }).collect()
    }

    fn passed(samples: &[f32], block: usize) -> (Gate, Stream) {
        let (mut gate, mut to) = (Gate::default(), Stream::default());
        for block in samples.chunks(block) {
            gate.push(block, &mut to);
            assert!(gate.held.len() <= block.len() + 4 * SECOND, "holds {} samples back", gate.held.len());
        }
        gate.finish(&mut to);
        assert_eq!(gate.first, samples.len() as u64);
        (gate, to)
    }

    #[test]
    fn what_passes_is_speech_with_a_margin_and_its_times_are_put_back() {
        let all = recording(30, &[5..8, 9..10, 20..22]);
        let (gate, to) = passed(&all, 1000);
        assert_eq!(gate.stretches.len(), 2, "a second's pause passes: {:?}", gate.stretches);
        let around = |seconds: f64, expected: f64| (seconds - expected).abs() < 0.15;
        let [first, second] = [gate.stretches[0], gate.stretches[1]].map(|stretch| super::seconds(stretch.first));
        assert!(around(first, 4.5) && around(second, 19.5), "{first}, {second}");
        let length = to.samples.len() as f64 / SECOND as f64;
        assert!((length - 6.0 - 3.0).abs() < 0.3, "{length}");
        assert_eq!(to.pauses, [gate.stretches[1].passed, gate.passed], "behind either stretch");
        // Words of the first and second stretch, with times outside of them.
        let cut = gate.stretches[1].passed as f64 / SECOND as f64;
        let close = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 0.002 && (b - d).abs() < 0.002;
        for (times, expected) in [
            ((cut - 1.5, cut - 0.5), (first + cut - 1.5, first + cut - 0.5)),
            ((cut - 2.0, cut + 0.9), (first + cut - 2.0, first + cut)),
            ((cut - 0.9, cut + 2.0), (second, second + 2.0)),
            ((cut - 1.5, cut + 2.0), (first + cut - 1.5, second + 2.0)),
            ((cut + 1.0, cut + 1.0), (second + 1.0, second + 1.0)),
        ] {
            let found = gate.restored(times.0, times.1, STRAY);
            assert!(close(found, expected), "{times:?}: {found:?}, expected {expected:?}");
        }
        let (start, end) = gate.restored(cut - 0.2, cut + 1.5, 0);
        assert!(close((start, end), (second, second + 1.5)), "a word lies in one stretch: {start}, {end}");
        for block in [77, 480_000] {
            let again = passed(&all, block).1;
            assert_eq!((again.samples, again.pauses), (to.samples.clone(), to.pauses.clone()), "blocks of {block}");
        }
    }

    #[test]
    fn nothing_passes_of_silence() {
        for seconds in [0, 1, 100] {
            let (gate, to) = passed(&recording(seconds, &[]), 1600);
            assert!(to.samples.is_empty() && to.pauses.is_empty(), "{seconds} s");
            assert_eq!(gate.restored(0.5, 1.0, STRAY), (0.5, 1.0), "a model may write something all the same");
        }
    }

    #[test]
    fn all_passes_where_somebody_speaks_throughout() {
        let all = recording(6, std::slice::from_ref(&(0..6)));
        let (gate, to) = passed(&all, 1600);
        assert_eq!((to.samples.len(), gate.stretches.len()), (6 * SECOND, 1));
        assert_eq!(gate.restored(1.0, 2.0, STRAY), (1.0, 2.0));
    }
}
