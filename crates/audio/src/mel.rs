//! Log-mel spectrograms as Whisper was trained with.

use crate::spectrum::PowerSpectrum;

/// What Whisper's features and those of its relatives have in common: rate, samples of a frame, and from frame to frame.
const RATE: f64 = 16_000.0;
const WINDOW: usize = 400;
const HOP: usize = 160;
/// The logarithm of the least power, and how far below the loudest bin of a spectrogram the others may lie, in powers of ten.
const LEAST_POWER: f32 = 1e-10;
const RANGE: f32 = 8.0;

/// A triangle over neighbouring frequencies.
#[derive(Clone, Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

/// Whisper's log-mel spectrogram: frames of 400 samples under a Hann window, 160 samples apart; Slaney's filters from 0 to 8 kHz;
/// the logarithm to base 10, no further than 8 below the maximum of the window, plus 4, divided by 4.
#[derive(Debug)]
pub struct LogMel {
    filters: Vec<Filter>,
    spectrum: PowerSpectrum,
    power: Vec<f32>,
    frame: Vec<f32>,
}

impl LogMel {
    /// A spectrogram of `mels` bins: 80, or 128 in the large models from version 3 on.
    pub fn new(mels: usize) -> LogMel {
        let spectrum = PowerSpectrum::hann(WINDOW);
        let frequencies = spectrum.samples() / 2 + 1;
        LogMel { filters: filters(mels, frequencies), spectrum, power: vec![0.0; frequencies], frame: vec![0.0; WINDOW] }
    }

    /// Samples from frame to frame.
    pub fn hop(&self) -> usize {
        HOP
    }

    /// The spectrogram [mels, frames] of a window of `frames` frames that begins with `samples` at 16 kHz and goes on with
    /// silence; further samples are ignored. Beyond either end, the window is taken to be mirrored.
    pub fn window(&mut self, samples: &[f32], frames: usize) -> Vec<f32> {
        let end = frames * HOP;
        let samples = &samples[..samples.len().min(end)];
        let mut out = vec![LEAST_POWER.log10(); self.filters.len() * frames];
        for at in 0..frames {
            let first = (at * HOP) as isize - (WINDOW / 2) as isize;
            // What only sees silence has the least power already.
            if first < samples.len() as isize || first + WINDOW as isize > end as isize {
                self.gather(samples, first, end);
                self.spectrum.of(&self.frame, &mut self.power);
                for (bin, filter) in self.filters.iter().enumerate() {
                    let power = &self.power[filter.first..];
                    let sum: f32 = filter.weights.iter().zip(power).map(|(weight, power)| weight * power).sum();
                    out[bin * frames + at] = sum.max(LEAST_POWER).log10();
                }
            }
        }
        let loudest = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for value in &mut out {
            *value = (value.max(loudest - RANGE) + 4.0) / 4.0;
        }
        out
    }

    /// The samples of a frame that begins at `first`, of a window of `end` samples.
    fn gather(&mut self, samples: &[f32], first: isize, end: usize) {
        let inside = usize::try_from(first).ok().and_then(|first| samples.get(first..first + WINDOW));
        if let Some(inside) = inside {
            self.frame.copy_from_slice(inside);
            return;
        }
        let last = end as isize - 1;
        for (sample, at) in self.frame.iter_mut().zip(first..) {
            let mirrored = if at > last { 2 * last - at } else { at.abs() };
            *sample = usize::try_from(mirrored).ok().and_then(|at| samples.get(at)).copied().unwrap_or(0.0);
        }
    }
}

/// Slaney's mel scale: linear below 1 kHz, logarithmic above.
fn hertz(mel: f64) -> f64 {
    let log_step = 6.4f64.ln() / 27.0;
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * log_step).exp() }
}

fn mel(hertz: f64) -> f64 {
    let log_step = 6.4f64.ln() / 27.0;
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() / log_step }
}

/// Triangles over three neighbouring points each, of equal area, for spectra of `frequencies` values up to half the rate.
fn filters(mels: usize, frequencies: usize) -> Vec<Filter> {
    let highest = mel(RATE / 2.0);
    let points: Vec<f64> = (0..mels + 2).map(|i| hertz(highest * i as f64 / (mels + 1) as f64)).collect();
    let hertz_of = |i: usize| i as f64 * RATE / 2.0 / (frequencies - 1) as f64;
    let triangle = |&[low, middle, high]: &[f64; 3]| {
        let weight = |i| ((hertz_of(i) - low) / (middle - low)).min((high - hertz_of(i)) / (high - middle)) * 2.0 / (high - low);
        let within = (0..frequencies).filter(|&i| weight(i) > 0.0);
        let first = within.clone().next().unwrap_or(0);
        Filter { first, weights: within.map(|i| weight(i) as f32).collect() }
    };
    points.array_windows().map(triangle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_goes_both_ways() {
        for hertz_in in [0.0, 440.0, 999.0, 1000.0, 4321.0, 8000.0] {
            assert!((hertz(mel(hertz_in)) - hertz_in).abs() < 1e-9);
        }
        assert!((mel(1000.0) - 15.0).abs() < 1e-12 && (mel(6400.0) - 42.0).abs() < 1e-12);
    }

    #[test]
    fn a_tone_is_loudest_in_the_filter_around_it() {
        let tone: Vec<f32> =
            (0..16_000).map(|i| (2.0 * std::f64::consts::PI * 1000.0 * f64::from(i) / RATE).sin() as f32).collect();
        let frames = 100;
        let features = LogMel::new(80).window(&tone, frames);
        let column: Vec<f32> = (0..80).map(|bin| features[bin * frames + 50]).collect();
        let loudest = (0..80).max_by(|&a, &b| column[a].total_cmp(&column[b])).unwrap();
        // 1000 Hz is the 15th of 45.245 mels.
        let expected = 15.0 / mel(8000.0) * 81.0 - 1.0;
        assert!((loudest as f64 - expected).abs() <= 1.0, "bin {loudest}, expected {expected}");
    }

    #[test]
    fn silence_after_the_samples_is_silence() {
        let features = LogMel::new(80).window(&[0.5; 1600], 3000);
        assert_eq!(features.len(), 80 * 3000);
        let (least, most) = features.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        assert!((most - least - 2.0).abs() < 1e-6, "8 powers of ten: {least} to {most}");
        assert!(features[2999] == least);
        let silent = LogMel::new(80).window(&[], 10);
        assert!(silent.iter().all(|&v| v == -1.5));
    }
}
