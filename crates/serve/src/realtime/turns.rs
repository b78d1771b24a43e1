//! Turn detection: by voice activity, or by the client's commits.

use std::{collections::VecDeque, ops::Range};

use flambeau::audio::VoiceActivity;

/// Sample rate of the detector in Hz.
const RATE: u64 = 16_000;

/// Audio kept before a turn in addition to the requested padding: the detector decides up to a
/// second late.
const KEPT_MS: u64 = 1500;

/// Settings of the turn detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detection {
    /// Padding: audio kept before the speech.
    pub(super) prefix_ms: u64,
    /// Silence that ends a turn.
    pub(super) silence_ms: u64,
}

impl Default for Detection {
    fn default() -> Detection {
        Detection { prefix_ms: 300, silence_ms: 500 }
    }
}

/// An event of the turn detection. `T` receives a turn's audio.
#[derive(Debug, PartialEq)]
pub(super) enum Change<'a, T> {
    /// A turn begins. The time is that of the first speech, if detected.
    Begins { at_ms: Option<u64> },
    /// More audio of the turn.
    Sound { open: &'a mut T, bytes: Vec<u8> },
    /// The turn ends.
    Ends { open: T, at_ms: u64 },
}

/// Splits audio into turns. Times are counted in bytes of 16-bit samples since the start.
#[derive(Debug)]
pub(super) struct TurnSplitter<T> {
    rate: u64,
    detector: Option<Detector>,
    /// Audio outside of turns, and the time of its first byte.
    sound: VecDeque<u8>,
    begin: u64,
    open: Option<T>,
}

impl<T> TurnSplitter<T> {
    /// Creates a splitter for this sample rate in Hz.
    pub(super) fn new(rate: u32, detection: Option<Detection>) -> TurnSplitter<T> {
        let rate = u64::from(rate);
        let detector = detection.map(|detection| Detector::new(rate, detection));
        TurnSplitter { rate, detector, sound: VecDeque::new(), begin: 0, open: None }
    }

    /// Whether a turn is open.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Appends audio. [`next`](Self::next) returns the events.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(detector) = &mut self.detector {
            detector.push(bytes);
        }
        self.sound.extend(bytes);
    }

    /// The next event. After [`Change::Begins`], call [`begin`](Self::begin).
    pub(super) fn next(&mut self) -> Option<Change<'_, T>> {
        let end = self.begin + self.sound.len() as u64;
        let Some(detector) = &mut self.detector else {
            return match &mut self.open {
                _ if self.sound.is_empty() => None,
                None => Some(Change::Begins { at_ms: None }),
                Some(open) => {
                    self.begin = end;
                    Some(Change::Sound { open, bytes: self.sound.drain(..).collect() })
                }
            };
        };
        let bytes_of = |sample: u64| sample * self.rate / RATE * 2;
        let ms_of = |sample: u64| sample * 1000 / RATE;
        if self.open.is_none() {
            let speech = detector.speech();
            let wanted = speech.as_ref().map_or(detector.samples, |speech| speech.start);
            let spare = if speech.is_some() { 0 } else { KEPT_MS };
            let from = wanted.saturating_sub((detector.detection.prefix_ms + spare) * RATE / 1000);
            let gone = (bytes_of(from).saturating_sub(self.begin)).min(self.sound.len() as u64);
            self.sound.drain(..gone as usize);
            self.begin += gone;
            return speech.map(|speech| Change::Begins { at_ms: Some(ms_of(speech.start)) });
        }
        // Sound that the detector has not judged may belong to the next turn.
        let (until, is_over) = detector.turn();
        let ready = (bytes_of(until).saturating_sub(self.begin)).min(self.sound.len() as u64);
        if ready > 0 {
            self.begin += ready;
            let bytes = self.sound.drain(..ready as usize).collect();
            return self.open.as_mut().map(|open| Change::Sound { open, bytes });
        }
        if !is_over {
            return None;
        }
        detector.forget(until);
        self.open.take().map(|open| Change::Ends { open, at_ms: ms_of(until) })
    }

    /// Opens a turn.
    pub(super) fn begin(&mut self, open: T) {
        self.open = Some(open);
    }

    /// Ends the turn early and returns its remaining audio; `None` if no turn is open.
    pub(super) fn end(&mut self) -> Option<(T, Vec<u8>)> {
        let open = self.open.take()?;
        let rest: Vec<u8> = self.sound.drain(..).collect();
        self.begin += rest.len() as u64;
        if let Some(detector) = &mut self.detector {
            let all = detector.samples;
            detector.forget(all);
        }
        Some((open, rest))
    }
}

/// The voice activity detector with its resampler.
#[derive(Debug)]
struct Detector {
    detection: Detection,
    activity: VoiceActivity,
    /// Detected speech outside of turns, in detector samples.
    found: Vec<Range<u64>>,
    /// Numbers of detector samples received and judged.
    samples: u64,
    judged: u64,
    /// Resampler state: input rate, last input sample, and input time of the next detector sample.
    rate: f64,
    last: f32,
    next: f64,
}

impl Detector {
    fn new(rate: u64, detection: Detection) -> Detector {
        let activity = VoiceActivity::with_soft_ends();
        Detector { detection, activity, found: Vec::new(), samples: 0, judged: 0, rate: rate as f64, last: 0.0, next: 0.0 }
    }

    /// Appends audio, resampled by linear interpolation, which is enough to detect speech.
    fn push(&mut self, bytes: &[u8]) {
        let mut samples = Vec::with_capacity(bytes.len());
        for pair in bytes.chunks_exact(2) {
            let sample = f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0;
            while self.next <= 1.0 {
                samples.push(self.last + (sample - self.last) * self.next as f32);
                self.next += self.rate / RATE as f64;
            }
            self.next -= 1.0;
            self.last = sample;
        }
        self.samples += samples.len() as u64;
        self.judged = self.activity.push(&samples, &mut self.found);
    }

    /// The first detected speech.
    fn speech(&self) -> Option<Range<u64>> {
        self.found.first().cloned()
    }

    /// End of the turn that starts with the first speech, as known so far, and whether it is final.
    fn turn(&self) -> (u64, bool) {
        let silence = self.detection.silence_ms * RATE / 1000;
        let mut end = self.found.first().map_or(0, |speech| speech.end);
        for speech in &self.found {
            if speech.start > end + silence {
                break;
            }
            end = end.max(speech.end);
        }
        let over = end + silence;
        (over.min(self.judged), over <= self.judged)
    }

    /// Drops speech before this sample.
    fn forget(&mut self, until: u64) {
        self.found.retain(|speech| speech.end > until);
        self.found.iter_mut().for_each(|speech| speech.start = speech.start.max(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test audio at 24 kHz: segments of faint noise and of a loud, changing tone, in milliseconds.
    fn sound(stretches: &[(u64, bool)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut noise = fastrand::Rng::with_seed(1);
        for &(ms, is_loud) in stretches {
            for at in 0..ms * 24 {
                let time = at as f64 / 24_000.0;
                let tone = (time * 1500.0 * (1.0 + 0.1 * (time * 9.0).sin())).sin() * (0.6 + 0.4 * (time * 25.0).sin());
                let sample = if is_loud { tone * 9000.0 } else { 0.0 } + noise.f64() * 20.0;
                bytes.extend((sample as i16).to_le_bytes());
            }
        }
        bytes
    }

    /// Turns of test audio: start, end and audio length in milliseconds.
    fn turns(sound: &[u8], block: usize, detection: Option<Detection>) -> Vec<(Option<u64>, Option<u64>, u64)> {
        let (mut turns, mut found) = (TurnSplitter::new(24_000, detection), Vec::new());
        let mut take = |turns: &mut TurnSplitter<usize>| {
            loop {
                match turns.next() {
                    None => return,
                    Some(Change::Begins { at_ms }) => {
                        found.push((at_ms, None, 0));
                        turns.begin(found.len() - 1);
                    }
                    Some(Change::Sound { open, bytes }) => found[*open].2 += bytes.len() as u64,
                    Some(Change::Ends { open, at_ms }) => found[open].1 = Some(at_ms),
                }
            }
        };
        for block in sound.chunks(block) {
            turns.push(block);
            take(&mut turns);
        }
        if let Some((open, rest)) = turns.end() {
            found[open].2 += rest.len() as u64;
        }
        found.into_iter().map(|(begin, end, bytes)| (begin, end, bytes / 48)).collect()
    }

    #[test]
    fn speech_makes_turns_and_noise_makes_none() {
        let sound = sound(&[(4000, false), (1500, true), (2500, false), (1000, true), (200, false), (1000, true), (2500, false)]);
        for block in [960, 9600, 96_000] {
            let found = turns(&sound, block, Some(Detection::default()));
            let near = |value: u64, wanted: u64| value.abs_diff(wanted) < 350;
            let [(Some(a), Some(b), first), (Some(c), Some(d), second)] = found[..] else { panic!("{block}: {found:?}") };
            assert!(near(a, 4000) && near(b, 6000) && near(c, 8000) && near(d, 10_700), "{block}: {found:?}");
            assert!(near(first, b - a + 300) && near(second, d - c + 300), "each turn has its sound: {found:?}");
        }
        assert!(turns(&self::sound(&[(5000, false)]), 4800, Some(Detection::default())).is_empty());
    }

    #[test]
    fn without_a_detector_all_sound_is_one_turn() {
        let sound = sound(&[(300, false), (300, true)]);
        assert_eq!(turns(&sound, 1000, None), [(None, None, 600)]);
    }
}
