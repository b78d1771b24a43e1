//! Lets a recording pass where somebody may be speaking, and puts times back.

use std::ops::Range;

use flambeau_audio::VoiceActivity;

use super::{
    SAMPLE_RATE, Segment, Word,
    stream::{Stream, seconds},
};

/// Samples that pass on either side of speech, and the shortest pause that is left out.
const PAD: u64 = SAMPLE_RATE as u64 / 2;
const PAUSE: u64 = SAMPLE_RATE as u64 * 2;
/// Samples by which a model's times may stray into another stretch than the one where something was said.
const STRAY: u64 = SAMPLE_RATE as u64;

/// Leaves out of a recording where nobody speaks. It buffers at most one pause and remembers every skipped pause.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    activity: VoiceActivity,
    speech: Vec<Range<u64>>,
    /// Samples of the recording from `first` on that neither passed nor were left out.
    held: Vec<f32>,
    first: u64,
    /// The sample of the recording up to which it is open.
    open_until: u64,
    /// Samples that passed, and those of them ahead of the last pause that was left out.
    passed: u64,
    paused: u64,
    stretches: Vec<Stretch>,
}

/// A part of the recording without a pause.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Where it begins among what passed, and in the recording.
    passed: u64,
    first: u64,
}

impl Gate {
    /// Takes the next samples, and appends those that pass.
    pub(crate) fn push(&mut self, samples: &[f32], to: &mut Stream) {
        self.held.extend_from_slice(samples);
        let judged = self.activity.push(samples, &mut self.speech);
        self.pass_speech(to);
        // No speech before that sample is yet to be found, so that no lead of speech begins earlier.
        if judged >= self.said() + PAUSE {
            self.leave_out(judged.saturating_sub(PAD), to);
        }
    }

    /// Says that no samples follow.
    pub(crate) fn finish(&mut self, to: &mut Stream) {
        self.activity.finish(&mut self.speech);
        self.pass_speech(to);
        // A short end passes as short pauses do, behind something that was said.
        let end = self.first + self.held.len() as u64;
        if self.passed > 0 && end < self.said() + PAUSE {
            self.open_until = end;
        }
        self.pass(to);
        self.leave_out(end, to);
    }

    /// Seconds of the recording that were listened to or left out, of what passed to a stream.
    pub(crate) fn seconds(&self, stream: &Stream) -> f64 {
        seconds(if stream.samples.is_empty() { self.first } else { self.at(stream.position()) })
    }

    /// Puts a word's times back.
    pub(crate) fn restore_word(&self, word: &mut Word) {
        (word.start, word.end) = self.restored(word.start, word.end, 0);
    }

    /// Puts a segment's times, seconds of what passed, back to those of the recording.
    pub(crate) fn restore(&self, segment: &mut Segment) {
        segment.window = self.restored(segment.window, segment.window, STRAY).0;
        (segment.start, segment.end) = self.restored(segment.start, segment.end, STRAY);
        segment.words.iter_mut().for_each(|word| self.restore_word(word));
        segment.hold_words();
    }

    /// When something was said that begins and ends at these times of what passed: in the stretch that has most of it, unless it goes
    /// on into others by more than `stray` samples; with a `stray` of 0, in that stretch alone.
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

    /// The stretch that has a sample of what passed.
    fn stretch(&self, sample: u64) -> usize {
        self.stretches.partition_point(|stretch| stretch.passed <= sample).saturating_sub(1)
    }

    /// Where a stretch ends among what passed.
    fn end(&self, stretch: usize) -> u64 {
        self.stretches.get(stretch + 1).map_or(self.passed, |next| next.passed)
    }

    /// Where a sample of what passed is in the recording.
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

    /// Where speech ended last, or the recording began.
    fn said(&self) -> u64 {
        self.open_until.saturating_sub(PAD)
    }

    /// Lets pass what was held back up to where it is open.
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

    /// Leaves out what was held back before a sample, and says so behind what passed last.
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

    /// A buzz that comes and goes as syllables do, between these seconds of a silent recording.
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
