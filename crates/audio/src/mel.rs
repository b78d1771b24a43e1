//! Log-mel spectrograms as Whisper was trained with.

use crate::{bins::MelBins, spectrum::PowerSpectrum};

/// Parameters of Whisper and its relatives: samples per frame, and samples from frame to frame.
const WINDOW: usize = 400;
const HOP: usize = 160;
/// The logarithm of the least power, and the range of a spectrogram below its loudest bin, in
/// powers of ten.
const LEAST_POWER: f32 = 1e-10;
const RANGE: f32 = 8.0;

/// Whisper's log-mel spectrogram. Frames have 400 samples under a Hann window and are 160 samples
/// apart. The filters are Slaney's, from 0 to 8 kHz. Values are base-10 logarithms, at least the
/// maximum of the window minus 8, plus 4, divided by 4.
#[derive(Debug)]
pub struct LogMel(MelBins);

impl LogMel {
    /// A spectrogram of `mels` bins: 80, or 128 in the large models from version 3 on.
    pub fn new(mels: usize) -> LogMel {
        LogMel(MelBins::new(mels, WINDOW, PowerSpectrum::hann(WINDOW)))
    }

    /// Samples from frame to frame.
    pub fn hop(&self) -> usize {
        HOP
    }

    /// The spectrogram [mels, frames] of a window of `frames` frames: `samples` at 16 kHz, then
    /// silence. Further samples are ignored. The window is mirrored beyond either end.
    pub fn window(&mut self, samples: &[f32], frames: usize) -> Vec<f32> {
        let end = frames * HOP;
        let samples = &samples[..samples.len().min(end)];
        let mels = self.0.len();
        let mut out = vec![LEAST_POWER.log10(); mels * frames];
        // Frames behind these only see silence, which has the least power.
        let heard = (samples.len() + WINDOW / 2).div_ceil(HOP).min(frames);
        let begin = |at: usize| (at * HOP) as isize - (WINDOW / 2) as isize;
        let rows = self.0.rows(heard, |at, frame| gather(samples, begin(at), end, frame), logarithm);
        for (bin, line) in out.chunks_exact_mut(frames.max(1)).enumerate() {
            line.iter_mut().zip(rows.iter().skip(bin).step_by(mels)).for_each(|(out, value)| *out = *value);
        }
        let loudest = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for value in &mut out {
            *value = scaled(*value, loudest);
        }
        out
    }
}

fn logarithm(power: f32) -> f32 {
    power.max(LEAST_POWER).log10()
}

/// The samples of a frame that begins at `first`, of a window of `end` samples.
fn gather(samples: &[f32], first: isize, end: usize, frame: &mut [f32]) {
    let inside = usize::try_from(first).ok().and_then(|first| samples.get(first..first + WINDOW));
    if let Some(inside) = inside {
        frame.copy_from_slice(inside);
        return;
    }
    let last = end as isize - 1;
    for (sample, at) in frame.iter_mut().zip(first..) {
        let mirrored = if at > last { 2 * last - at } else { at.abs() };
        *sample = usize::try_from(mirrored).ok().and_then(|at| samples.get(at)).copied().unwrap_or(0.0);
    }
}

/// As [`LogMel`], of sound without end: no further than 8 below a fixed maximum, as Voxtral
/// Realtime was trained with. Ahead of the first sample there is silence.
#[derive(Debug)]
pub struct LogMelStream {
    mel: LogMel,
    loudest: f32,
    /// Samples from the beginning of the next frame on.
    pending: Vec<f32>,
}

impl LogMelStream {
    /// A stream of `mels` bins. `loudest` is the assumed base-10 logarithm of the maximum power.
    pub fn new(mels: usize, loudest: f32) -> LogMelStream {
        LogMelStream { mel: LogMel::new(mels), loudest, pending: vec![0.0; WINDOW / 2] }
    }

    /// Samples from frame to frame.
    pub fn hop(&self) -> usize {
        HOP
    }

    /// Samples beyond its own 160 that a frame needs.
    pub fn lookahead(&self) -> usize {
        WINDOW / 2 - HOP
    }

    /// Resets the stream.
    pub fn restart(&mut self) {
        self.pending.clear();
        self.pending.resize(WINDOW / 2, 0.0);
    }

    /// Appends the frames [n, mels] that these samples complete.
    pub fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        self.pending.extend_from_slice(samples);
        let loudest = self.loudest;
        rows.extend(self.mel.0.drain(&mut self.pending, HOP, |power| scaled(logarithm(power), loudest)));
    }
}

/// A logarithm as models take it.
fn scaled(value: f32, loudest: f32) -> f32 {
    (value.max(loudest - RANGE) + 4.0) / 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_frames_are_those_of_few() {
        let samples: Vec<f32> = (0..100_000).map(|i| (i as f32 * 0.05 + (i as f32 * 1e-3).sin()).sin() * 0.3).collect();
        let mut stream = LogMelStream::new(80, 1.5);
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        stream.push(&samples, &mut whole);
        stream.restart();
        samples.chunks(1280).for_each(|samples| stream.push(samples, &mut parts));
        assert!(whole.len() == 80 * 624 && whole == parts);
        assert_eq!(LogMel::new(80).window(&samples, 0), []);
        assert_eq!(LogMel::new(0).window(&samples, 10), []);
    }

    #[test]
    fn a_stream_has_the_frames_of_a_window_in_which_nothing_is_louder() {
        let samples: Vec<f32> = (0..16_000).map(|i| (i as f32 * 0.3).sin() * 0.1).collect();
        let (mels, frames) = (80, 90);
        let whole = LogMel::new(mels).window(&samples, 100);
        let loudest = whole.iter().copied().fold(f32::MIN, f32::max) * 4.0 - 4.0;
        let mut stream = LogMelStream::new(mels, loudest);
        for size in [16_000, 1280, 37] {
            stream.restart();
            let mut rows = Vec::new();
            samples.chunks(size).for_each(|block| stream.push(block, &mut rows));
            assert_eq!(rows.len() / mels, 1 + (16_000 - 200) / 160, "blocks of {size}");
            // The window mirrors its start, the stream begins with silence.
            for (at, bin) in (2..frames).flat_map(|at| (0..mels).map(move |bin| (at, bin))) {
                let (found, expected) = (rows[at * mels + bin], whole[bin * 100 + at]);
                assert!((found - expected).abs() < 1e-6, "frame {at}, bin {bin}: {found} instead of {expected}");
            }
        }
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
