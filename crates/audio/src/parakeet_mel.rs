//! Log-mel spectrograms as Parakeet and NeMo's other models were trained with.

use crate::{bins::MelBins, spectrum::PowerSpectrum};

/// Samples of a frame, from frame to frame, and of its Fourier transform.
const WINDOW: usize = 400;
const HOP: usize = 160;
const TRANSFORM: usize = 512;
/// Pre-emphasis: fraction of each sample subtracted from the next one.
const EMPHASIS: f32 = 0.97;
/// Constants added to each power (2^-24) and to each deviation.
const LEAST_POWER: f32 = 5.960_464_5e-8;
const LEAST_DEVIATION: f32 = 1e-5;

/// Parakeet's log-mel spectrogram at 16 kHz. Pre-emphasis subtracts 0.97 times the previous sample.
/// Frames have 400 samples under a symmetric Hann window and are 160 samples apart. The first frame
/// is centred on the first sample; beyond either end there is silence. The filters are Slaney's,
/// from 0 to 8 kHz, with the natural logarithm. Each bin is normalised: minus its mean over time,
/// divided by its deviation.
///
/// Samples are pushed in blocks of any size. At most one frame of samples is kept.
#[derive(Debug)]
pub struct ParakeetMel {
    bins: MelBins,
    /// Emphasized samples from the beginning of the next frame on.
    pending: Vec<f32>,
    /// The sample that was pushed last.
    last: Option<f32>,
    /// Number of pushed samples, and number of frames made from them.
    samples: usize,
    frames: usize,
}

impl ParakeetMel {
    /// A spectrogram of `mels` bins: 80 or 128.
    pub fn new(mels: usize) -> ParakeetMel {
        ParakeetMel {
            bins: MelBins::new(mels, WINDOW, PowerSpectrum::symmetric_hann(WINDOW, TRANSFORM)),
            pending: vec![0.0; WINDOW / 2],
            last: None,
            samples: 0,
            frames: 0,
        }
    }

    /// Samples from frame to frame.
    pub fn hop(&self) -> usize {
        HOP
    }

    /// Appends the logarithms [n, mels] of the frames that these samples complete.
    pub fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        for &sample in samples {
            self.pending.push(self.last.map_or(sample, |last| sample - EMPHASIS * last));
            self.last = Some(sample);
        }
        self.samples += samples.len();
        self.complete(rows);
    }

    /// Appends the frames that extend past the end, up to one per 160 samples, and resets the
    /// stream.
    pub fn finish(&mut self, rows: &mut Vec<f32>) {
        let missing = self.samples / HOP - self.frames;
        self.pending.resize(if missing == 0 { 0 } else { WINDOW + (missing - 1) * HOP }, 0.0);
        self.complete(rows);
        self.pending.clear();
        self.pending.resize(WINDOW / 2, 0.0);
        (self.last, self.samples, self.frames) = (None, 0, 0);
    }

    /// The spectrogram [samples / 160, mels] of a whole recording, normalized.
    pub fn window(&mut self, samples: &[f32]) -> Vec<f32> {
        let mut rows = Vec::with_capacity(samples.len() / HOP * self.bins.len());
        self.push(samples, &mut rows);
        self.finish(&mut rows);
        self.normalize(&mut rows);
        rows
    }

    /// Takes the mean of each bin over rows [n, mels] away and divides by its deviation, whose
    /// estimate is the unbiased one.
    pub fn normalize(&self, rows: &mut [f32]) {
        let mels = self.bins.len();
        let count = rows.len() / mels;
        for bin in 0..mels {
            let values = || rows.iter().skip(bin).step_by(mels).copied();
            let mean = (values().map(f64::from).sum::<f64>() / count as f64) as f32;
            let squares: f64 = values().map(|value| f64::from(value - mean).powi(2)).sum();
            let deviation = (squares / count.saturating_sub(1).max(1) as f64).sqrt() as f32 + LEAST_DEVIATION;
            rows.iter_mut().skip(bin).step_by(mels).for_each(|value| *value = (*value - mean) / deviation);
        }
    }

    /// Computes the complete frames of the pending samples.
    fn complete(&mut self, rows: &mut Vec<f32>) {
        let waiting = self.pending.len();
        rows.extend(self.bins.drain(&mut self.pending, HOP, |power| (power + LEAST_POWER).ln()));
        self.frames += (waiting - self.pending.len()) / HOP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn blocks_of_any_size_make_the_same_frames() {
        for count in [0, 1, 159, 160, 200, 201, 399, 400, 1640, 16_001] {
            let samples = noise(count);
            let mut mel = ParakeetMel::new(80);
            let whole = mel.window(&samples);
            assert_eq!(whole.len(), count / 160 * 80, "{count} samples");
            for size in [1, 37, 160, 1000] {
                let mut rows = Vec::new();
                samples.chunks(size).for_each(|block| mel.push(block, &mut rows));
                mel.finish(&mut rows);
                mel.normalize(&mut rows);
                assert!(rows == whole, "{count} samples in blocks of {size}");
            }
        }
    }

    #[test]
    fn every_bin_has_mean_0_and_deviation_1() {
        let rows = ParakeetMel::new(80).window(&noise(16_000));
        for bin in 0..80 {
            let values: Vec<f32> = rows.iter().skip(bin).step_by(80).copied().collect();
            let mean = values.iter().sum::<f32>() / 100.0;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 99.0;
            assert!(mean.abs() < 1e-4 && (variance - 1.0).abs() < 1e-3, "bin {bin}: {mean}, {variance}");
        }
    }

    #[test]
    fn silence_and_single_frames_stay_finite() {
        assert!(ParakeetMel::new(128).window(&[0.0; 3200]).iter().all(|&value| value == 0.0));
        assert!(ParakeetMel::new(128).window(&noise(170)).iter().all(|&value| value == 0.0));
    }
}
