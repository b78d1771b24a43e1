//! Several channels to one.

/// Channels cancel out if the power of their mean is below this share of its value for uncorrelated
/// channels.
const LEAST: f64 = 0.1;
/// Share of the power so far that is kept after a second.
const KEPT: f64 = 0.3;
/// Power of a sample below which there is nothing to cancel.
const SILENCE: f64 = 1e-10;

/// Mixes frames down to the mean of their channels, or to the loudest channel while they cancel one
/// another out.
#[derive(Debug, Default)]
pub(crate) struct Mixer {
    /// Power of each channel, and of their mean, over about the last second.
    channels: Vec<f64>,
    mean: f64,
    is_cancelling: bool,
    has_cancelled: bool,
}

impl Mixer {
    /// Whether channels cancelled one another out at any time.
    pub(crate) fn has_cancelled(&self) -> bool {
        self.has_cancelled
    }

    /// Appends a sample for each frame of `interleaved` samples at `rate`.
    pub(crate) fn mix(&mut self, interleaved: &[f32], (rate, channels): (u32, usize), to: &mut Vec<f32>) {
        let share = (channels as f32).recip();
        let frames = || interleaved.chunks_exact(channels);
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() * share;
        if channels == 1 {
            to.extend_from_slice(interleaved);
            return;
        }
        let kept = KEPT.powf(frames().len() as f64 / f64::from(rate));
        self.channels.resize(channels, 0.0);
        self.channels.iter_mut().for_each(|power| *power *= kept);
        self.mean *= kept;
        for frame in frames() {
            self.mean += f64::from(mean(frame)).powi(2);
            self.channels.iter_mut().zip(frame).for_each(|(power, &sample)| *power += f64::from(sample).powi(2));
        }
        let apart = self.channels.iter().sum::<f64>() / (channels * channels) as f64;
        self.is_cancelling = apart > SILENCE * f64::from(rate) && self.mean < LEAST * apart;
        self.has_cancelled |= self.is_cancelling;
        let loudest = self.channels.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(at, _)| at);
        if self.is_cancelling {
            to.extend(frames().map(|frame| frame[loudest]));
        } else {
            to.extend(frames().map(mean));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(gains: &[f32]) -> (Vec<f32>, bool) {
        let tone = |i: usize| (i as f32 * 0.3).sin() * 0.5;
        let (mut mixer, mut out) = (Mixer::default(), Vec::new());
        for first in (0..16_000).step_by(1000) {
            let block: Vec<f32> = (first..first + 1000).flat_map(|i| gains.iter().map(move |gain| gain * tone(i))).collect();
            mixer.mix(&block, (16_000, gains.len()), &mut out);
        }
        (out, mixer.has_cancelled())
    }

    fn power(samples: &[f32]) -> f32 {
        samples.iter().map(|sample| sample * sample).sum::<f32>() / samples.len() as f32
    }

    #[test]
    fn channels_in_opposite_phase_are_heard() {
        for gains in [&[1.0, -1.0][..], &[0.9, -1.0], &[1.0, -1.0, 0.5, -0.5]] {
            let (out, has_cancelled) = mixed(gains);
            assert!(has_cancelled && power(&out) > 0.1, "{gains:?}: {}", power(&out));
        }
    }

    #[test]
    fn other_channels_become_their_mean() {
        for gains in [&[1.0][..], &[1.0, 1.0], &[1.0, 0.0], &[0.0, 0.0], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0, -0.2]] {
            let (out, has_cancelled) = mixed(gains);
            let mean = gains.iter().sum::<f32>() / gains.len() as f32;
            let expected = (5.0f32 * 0.3).sin() * 0.5 * mean;
            assert!(!has_cancelled && (out[5] - expected).abs() < 1e-6, "{gains:?}");
        }
    }
}
