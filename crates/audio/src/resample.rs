//! From a recording's rate to a model's.

use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, SincInterpolationParameters, WindowFunction,
    audioadapter_buffers::direct::InterleavedSlice,
};

/// Frames that go in at a time.
const CHUNK: usize = 1024;

/// Length of the filter, in frames that go in.
const POINTS: usize = 256;

/// Places between two frames for which the filter is held. The library is late by one of them.
const STEPS: usize = 256;

/// One channel from one rate to another, its delay taken away.
pub(crate) struct Resampler {
    inner: Async<f32>,
    pending: Vec<f32>,
    made: Vec<f32>,
    rates: [u64; 2],
    taken: u64,
    given: u64,
    /// Frames of the delay that are still to come.
    delay: usize,
}

impl std::fmt::Debug for Resampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resampler").field("rates", &self.rates).field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Resampler {
    /// `None` for rates that the library cannot bring together.
    pub(crate) fn new(from: u32, to: u32) -> Option<Resampler> {
        let period = from.checked_div(gcd(from, to)).filter(|&period| period > 0)? as usize;
        let filter = SincInterpolationParameters {
            oversampling_factor: STEPS,
            ..SincInterpolationParameters::new(POINTS, WindowFunction::BlackmanHarris2)
        };
        let inner = Async::new_sinc(f64::from(to) / f64::from(from), 1.0, &filter, CHUNK, 1, FixedAsync::Input).ok()?;
        // With silence ahead, the delay is a whole number of frames at either rate. The library
        // leaves the first frame out.
        let before = (POINTS / 2).next_multiple_of(period);
        let pending = vec![0.0; before - POINTS / 2];
        let delay = (before as u64 * u64::from(to) / u64::from(from)) as usize - 1;
        let made = vec![0.0; inner.output_frames_max()];
        Some(Resampler { inner, pending, made, rates: [from.into(), to.into()], taken: 0, given: 0, delay })
    }

    /// Appends the results completed by `samples` to `out`.
    pub(crate) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        self.pending.extend_from_slice(samples);
        let mut done = 0;
        while self.pending.len() - done >= self.inner.input_frames_next() {
            done += self.chunk(done, None, out);
        }
        self.pending.drain(..done);
    }

    /// Appends the remaining samples, up to the length of the input.
    pub(crate) fn finish(&mut self, out: &mut Vec<f32>) {
        let [from, to] = self.rates;
        let whole = (self.taken * to + from / 2) / from;
        let mut left = Some(self.pending.len());
        while self.given < whole {
            let before = out.len();
            self.chunk(0, left.take().or(Some(0)), out);
            let excess = self.given.saturating_sub(whole) as usize;
            out.truncate(out.len() - excess.min(out.len() - before));
        }
    }

    /// Computes one chunk of the pending samples from `first` on, or of the last `part` frames and
    /// silence. Returns the number of consumed frames.
    fn chunk(&mut self, first: usize, part: Option<usize>, out: &mut Vec<f32>) -> usize {
        let frames = self.inner.input_frames_next();
        if part.is_some() {
            self.pending.resize(frames, 0.0);
        }
        let (pending, made) = (&self.pending[first..], self.made.len());
        let input = InterleavedSlice::new(pending, 1, pending.len());
        let output = InterleavedSlice::new_mut(&mut self.made, 1, made);
        let (Ok(input), Ok(mut output)) = (input, output) else { return frames };
        let indexing = Indexing { partial_len: part, ..Indexing::new() };
        let (taken, given) = self.inner.process_into_buffer(&input, &mut output, Some(&indexing)).unwrap_or((frames, 0));
        let skipped = self.delay.min(given);
        self.delay -= skipped;
        self.given += (given - skipped) as u64;
        out.extend_from_slice(&self.made[skipped..given]);
        taken.max(1)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hertz: f64, rate: u32, seconds: f64) -> Vec<f32> {
        let n = (seconds * f64::from(rate)) as usize;
        (0..n).map(|i| (2.0 * std::f64::consts::PI * hertz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn resampled(samples: &[f32], from: u32, block: usize) -> Vec<f32> {
        let (mut resampler, mut out) = (Resampler::new(from, 16_000).unwrap(), Vec::new());
        samples.chunks(block).for_each(|part| resampler.push(part, &mut out));
        resampler.finish(&mut out);
        out
    }

    #[test]
    fn tones_keep_their_place_and_their_length() {
        for from in [8_000, 11_025, 22_050, 44_100, 48_000, 96_000] {
            let found = resampled(&tone(440.0, from, 0.5), from, 777);
            let expected = tone(440.0, 16_000, 0.5);
            assert!(found.len().abs_diff(expected.len()) <= 1, "{from}: {} samples", found.len());
            let inner = 500..expected.len() - 500;
            let error = inner.map(|i| (found[i] - expected[i]).abs()).fold(0.0, f32::max);
            assert!(error < 2e-3, "{from}: {error}");
        }
    }

    #[test]
    fn blocks_of_any_size_give_the_same() {
        let samples = tone(1234.0, 44_100, 0.3);
        assert_eq!(resampled(&samples, 44_100, 1), resampled(&samples, 44_100, samples.len()));
    }

    #[test]
    fn what_a_lower_rate_cannot_hold_is_gone() {
        let found = resampled(&tone(12_000.0, 48_000, 0.5), 48_000, 4096);
        let loudest = found[500..7500].iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(loudest < 1e-4, "{loudest}");
    }
}
