//! Samples that wait to be listened to.

use std::{collections::VecDeque, ops::Range};

use super::SAMPLE_RATE;

/// Threshold of silence: 78 dB below full scale.
const QUIET: f32 = 1.25e-4;
/// Samples of silence that are worth leaving out, and how many stay ahead of the first sound.
const LONG_SILENCE: usize = 2 * SAMPLE_RATE as usize;
const LEAD: usize = SAMPLE_RATE as usize / 2;

/// Samples whose mean power is measured, and how many such blocks make a pause.
pub(crate) const BLOCK: usize = SAMPLE_RATE as usize / 50;
const PAUSE: usize = 15;

/// Samples at the end of a stretch among which it ends.
const PAUSES: usize = 5 * SAMPLE_RATE as usize;
/// Samples shorter than this say nothing.
pub(crate) const SHORTEST: usize = SAMPLE_RATE as usize / 20;

/// A recording from where it was listened to.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Samples from `position` on.
    pub(crate) samples: Vec<f32>,
    /// Samples that were listened to.
    position: u64,
    /// Whether no samples follow.
    pub(crate) is_whole: bool,
    /// Samples behind which a pause of the recording was left out.
    pub(crate) pauses: VecDeque<u64>,
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
        while self.pauses.pop_front_if(|pause| *pause < self.position).is_some() {}
    }

    /// Takes that many samples off, as a recording of their own that keeps their times.
    pub(crate) fn take(&mut self, samples: usize) -> Stream {
        let taken =
            Stream { samples: self.samples[..samples].to_vec(), position: self.position, is_whole: true, ..Stream::default() };
        self.pass(samples);
        taken
    }

    /// The middle of the softest pause that lies in a range of the samples: a place to stop at.
    pub(crate) fn pause(&self, range: Range<usize>) -> usize {
        Stream::softest(&self.samples, range)
    }

    /// The middle of the softest pause in a range of samples.
    pub(crate) fn softest(samples: &[f32], range: Range<usize>) -> usize {
        let powers = powers(&samples[range.clone()]);
        let pauses = powers.windows(PAUSE).map(|pause| pause.iter().sum::<f32>()).enumerate();
        let softest = pauses.min_by(|(_, a), (_, b)| a.total_cmp(b));
        softest.map_or(range.end, |(at, _)| range.start + (at + PAUSE / 2) * BLOCK)
    }

    /// Samples of the next stretch of at most `longest`, if it lies in the stream; it ends in a pause where the recording goes on.
    pub(crate) fn stretch(&self, longest: usize) -> Option<usize> {
        match self.samples.len() {
            whole if self.is_whole && whole <= longest => Some(whole),
            some if some >= longest => Some(self.pause(longest - PAUSES.min(longest / 2)..longest)),
            _ => None,
        }
    }

    /// How many of the next `heard` samples need not be listened to, if they begin with silence: all, or those up to shortly before the
    /// first sound.
    pub(crate) fn silence(&self, heard: usize) -> Option<usize> {
        let quiet = self.samples[..heard].iter().take_while(|sample| sample.abs() < QUIET).count();
        let passed = if quiet == heard { heard } else { quiet.saturating_sub(LEAD) };
        (passed > 0 && (quiet == heard || quiet >= LONG_SILENCE)).then_some(passed)
    }
}

/// Seconds that samples take, in whole milliseconds.
pub(crate) fn seconds(samples: u64) -> f64 {
    (samples as f64 * 1000.0 / f64::from(SAMPLE_RATE)).round() / 1000.0
}

/// Mean power of each whole block.
pub(crate) fn powers(samples: &[f32]) -> Vec<f32> {
    samples.chunks_exact(BLOCK).map(|block| block.iter().map(|sample| sample * sample).sum::<f32>() / BLOCK as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_softest_pause_of_a_range_is_found() {
        let mut stream = Stream { samples: vec![0.5; 320_000], ..Stream::default() };
        stream.samples[16_000..48_000].fill(0.0);
        stream.samples[200_000..210_000].fill(0.01);
        let end = stream.pause(160_000..320_000);
        assert!((200_000..210_000).contains(&end), "{end}");
        assert_eq!(stream.pause(0..100), 100, "too short for a pause");
    }
}
