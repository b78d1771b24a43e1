//! Samples that wait for transcription.

use std::{collections::VecDeque, ops::Range};

use super::SAMPLE_RATE;

/// Threshold of silence: 78 dB below full scale.
const QUIET: f32 = 1.25e-4;
/// Minimum samples of silence to skip, and samples kept before the first sound.
const LONG_SILENCE: usize = 2 * SAMPLE_RATE as usize;
const LEAD: usize = SAMPLE_RATE as usize / 2;

/// Samples per block of measured power, and number of blocks in a pause.
pub(crate) const BLOCK: usize = SAMPLE_RATE as usize / 50;
const PAUSE: usize = 15;

/// Samples at the end of a stretch that may hold its final pause.
const PAUSES: usize = 5 * SAMPLE_RATE as usize;
/// Shorter sound gives no text.
pub(crate) const SHORTEST: usize = SAMPLE_RATE as usize / 20;

/// The part of a recording that is not transcribed yet.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Samples from `position` on.
    pub(crate) samples: Vec<f32>,
    /// Number of samples that were transcribed or skipped.
    position: u64,
    /// Whether no samples follow.
    pub(crate) is_whole: bool,
    /// Positions in samples of the pauses that were removed from the recording.
    pub(crate) pauses: VecDeque<u64>,
}

impl Stream {
    /// Number of samples that were transcribed or skipped.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Seconds of the recording that were transcribed or skipped.
    pub(crate) fn seconds(&self) -> f64 {
        self.position as f64 / f64::from(SAMPLE_RATE)
    }

    /// Time of the sample `samples` after the position, in seconds rounded to milliseconds. It may
    /// be negative.
    pub(crate) fn at(&self, samples: isize) -> f64 {
        let seconds = self.seconds() + samples as f64 / f64::from(SAMPLE_RATE);
        (seconds * 1000.0).round() / 1000.0
    }

    /// Advances by that many samples.
    pub(crate) fn pass(&mut self, samples: usize) {
        self.samples.drain(..samples);
        self.position += samples as u64;
        while self.pauses.pop_front_if(|pause| *pause < self.position).is_some() {}
    }

    /// Removes that many samples, and returns them as a recording with the same times.
    pub(crate) fn take(&mut self, samples: usize) -> Stream {
        let taken =
            Stream { samples: self.samples[..samples].to_vec(), position: self.position, is_whole: true, ..Stream::default() };
        self.pass(samples);
        taken
    }

    /// Middle of the softest pause in a range of the stream's samples: a good place for a cut.
    pub(crate) fn pause(&self, range: Range<usize>) -> usize {
        Stream::softest(&self.samples, range)
    }

    /// Middle of the softest pause in a range of samples. It is `range.end` if the range is too
    /// short.
    pub(crate) fn softest(samples: &[f32], range: Range<usize>) -> usize {
        let powers = powers(&samples[range.clone()]);
        let pauses = powers.windows(PAUSE).map(|pause| pause.iter().sum::<f32>()).enumerate();
        let softest = pauses.min_by(|(_, a), (_, b)| a.total_cmp(b));
        softest.map_or(range.end, |(at, _)| range.start + (at + PAUSE / 2) * BLOCK)
    }

    /// Length of the next stretch, at most `longest` samples, if the stream holds it. It ends in a
    /// pause unless the recording ends.
    pub(crate) fn stretch(&self, longest: usize) -> Option<usize> {
        match self.samples.len() {
            whole if self.is_whole && whole <= longest => Some(whole),
            some if some >= longest => Some(self.pause(longest - PAUSES.min(longest / 2)..longest)),
            _ => None,
        }
    }

    /// Number of samples to skip if the next `heard` samples begin with silence. Skipping stops
    /// shortly before the first sound.
    pub(crate) fn silence(&self, heard: usize) -> Option<usize> {
        let quiet = self.samples[..heard].iter().take_while(|sample| sample.abs() < QUIET).count();
        let passed = if quiet == heard { heard } else { quiet.saturating_sub(LEAD) };
        (passed > 0 && (quiet == heard || quiet >= LONG_SILENCE)).then_some(passed)
    }
}

/// Duration of samples in seconds, rounded to milliseconds.
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
