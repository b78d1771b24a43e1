//! Power spectra of windowed frames.

use std::{f64::consts::PI, fmt, sync::Arc};

use realfft::{RealFftPlanner, RealToComplex, num_complex::Complex};

/// Power of the frequencies of a frame, after a window.
#[derive(Clone)]
pub(crate) struct PowerSpectrum {
    fft: Arc<dyn RealToComplex<f32>>,
    window: Vec<f32>,
    input: Vec<f32>,
    output: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
}

impl fmt::Debug for PowerSpectrum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PowerSpectrum").field("samples", &self.window.len()).finish_non_exhaustive()
    }
}

impl PowerSpectrum {
    /// Frames of `samples` samples under a periodic Hann window.
    pub(crate) fn hann(samples: usize) -> PowerSpectrum {
        PowerSpectrum::new(samples, hann(samples, samples))
    }

    /// Frames of `samples` samples under a symmetric Hann window, transformed as if silence made
    /// them `length` samples long.
    pub(crate) fn symmetric_hann(samples: usize, length: usize) -> PowerSpectrum {
        PowerSpectrum::new(length, hann(samples, samples - 1))
    }

    fn new(length: usize, window: Vec<f32>) -> PowerSpectrum {
        let fft = RealFftPlanner::new().plan_fft_forward(length);
        let (input, output, scratch) = (fft.make_input_vec(), fft.make_output_vec(), fft.make_scratch_vec());
        PowerSpectrum { fft, window, input, output, scratch }
    }

    /// Number of frequencies.
    pub(crate) fn frequencies(&self) -> usize {
        self.output.len()
    }

    /// Power of the frequencies of a frame, from 0 to half the rate, into `power` [frequencies].
    pub(crate) fn of(&mut self, frame: &[f32], power: &mut [f32]) {
        for ((input, &sample), &weight) in self.input.iter_mut().zip(frame).zip(&self.window) {
            *input = sample * weight;
        }
        self.input[self.window.len()..].fill(0.0);
        // It only fails on vectors of other lengths than its own.
        let done = self.fft.process_with_scratch(&mut self.input, &mut self.output, &mut self.scratch);
        debug_assert!(done.is_ok());
        for (power, value) in power.iter_mut().zip(&self.output) {
            *power = value.norm_sqr();
        }
    }
}

/// A Hann window of `samples` samples with period `period`.
fn hann(samples: usize, period: usize) -> Vec<f32> {
    (0..samples).map(|i| (0.5 - 0.5 * (2.0 * PI * i as f64 / period as f64).cos()) as f32).collect()
}
