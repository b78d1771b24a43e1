//! Samples that wait to be listened to.

use super::SAMPLE_RATE;

/// What is softer than this is silence: 78 dB below full scale.
const QUIET: f32 = 1.25e-4;
/// Samples of silence that are worth leaving out, and how many stay ahead of the first sound.
const LONG_SILENCE: usize = 2 * SAMPLE_RATE as usize;
const LEAD: usize = SAMPLE_RATE as usize / 2;

/// A recording from where it was listened to.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Samples from `position` on.
    pub(crate) samples: Vec<f32>,
    /// Samples that were listened to.
    position: u64,
    /// Whether no samples follow.
    pub(crate) is_whole: bool,
}

impl Stream {
    /// Samples that were listened to.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Seconds of the recording that were listened to.
    pub(crate) fn seconds(&self) -> f64 {
        self.position as f64 / f64::from(SAMPLE_RATE)
    }

    /// Seconds of the recording some samples behind those that were listened to, or ahead of their end; whole milliseconds.
    pub(crate) fn at(&self, samples: isize) -> f64 {
        let seconds = self.seconds() + samples as f64 / f64::from(SAMPLE_RATE);
        (seconds * 1000.0).round() / 1000.0
    }

    /// Goes on by that many samples.
    pub(crate) fn pass(&mut self, samples: usize) {
        self.samples.drain(..samples);
        self.position += samples as u64;
    }

    /// The middle of the quietest tenth of a second in the last seconds of the first `longest` samples, which are there: a place to
    /// stop at.
    pub(crate) fn pause(&self, longest: usize) -> usize {
        const PIECE: usize = SAMPLE_RATE as usize / 10;
        let first = longest - (5 * SAMPLE_RATE as usize).min(longest / 2);
        let loudness = |piece: &[f32]| piece.iter().map(|sample| sample * sample).sum::<f32>();
        let pieces = self.samples[first..longest].chunks_exact(PIECE).map(loudness).enumerate();
        let quietest = pieces.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(piece, _)| first + piece * PIECE + PIECE / 2);
        quietest.unwrap_or(longest)
    }

    /// How many of the next `heard` samples need not be listened to, if they begin with silence: all, or those up to shortly before the
    /// first sound.
    pub(crate) fn silence(&self, heard: usize) -> Option<usize> {
        let quiet = self.samples[..heard].iter().take_while(|sample| sample.abs() < QUIET).count();
        let passed = if quiet == heard { heard } else { quiet.saturating_sub(LEAD) };
        (passed > 0 && (quiet == heard || quiet >= LONG_SILENCE)).then_some(passed)
    }
}
