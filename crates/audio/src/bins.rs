//! Mel spectrogram bins of sample frames, on several threads for many frames.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{filters::MelFilters, spectrum::PowerSpectrum};

/// Frames per work item of a thread: fewer are not worth a thread.
const BLOCK: usize = 128;

/// Computes a row of bins for each frame.
#[derive(Debug)]
pub(crate) struct MelBins {
    filters: MelFilters,
    scratch: Scratch,
}

/// Scratch memory of a thread.
#[derive(Clone, Debug)]
struct Scratch {
    spectrum: PowerSpectrum,
    frame: Vec<f32>,
    power: Vec<f32>,
}

impl MelBins {
    /// `mels` bins of frames of `samples` samples.
    pub(crate) fn new(mels: usize, samples: usize, spectrum: PowerSpectrum) -> MelBins {
        let frequencies = spectrum.frequencies();
        let scratch = Scratch { spectrum, frame: vec![0.0; samples], power: vec![0.0; frequencies] };
        MelBins { filters: MelFilters::new(mels, frequencies), scratch }
    }

    /// Bins of a frame.
    pub(crate) fn len(&self) -> usize {
        self.filters.len()
    }

    /// The rows of the complete frames, `hop` samples apart, in the pending samples. Removes the
    /// samples that no later frame needs.
    pub(crate) fn drain(&mut self, waiting: &mut Vec<f32>, hop: usize, log: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
        let length = self.scratch.frame.len();
        let frames = waiting.len().checked_sub(length).map_or(0, |rest| rest / hop + 1);
        let rows = self.rows(frames, |at, frame| frame.copy_from_slice(&waiting[at * hop..at * hop + length]), log);
        waiting.drain(..frames * hop);
        rows
    }

    /// The rows [frames, bins] of `frames` frames. `gather` writes a frame's samples, and `log`
    /// maps the power of a bin.
    pub(crate) fn rows(
        &mut self,
        frames: usize,
        gather: impl Fn(usize, &mut [f32]) + Sync,
        log: impl Fn(f32) -> f32 + Sync,
    ) -> Vec<f32> {
        let width = self.len();
        let mut out = vec![0.0; frames * width];
        if out.is_empty() {
            return out;
        }
        let fill = |scratch: &mut Scratch, first: usize, rows: &mut [f32]| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                gather(first + i, &mut scratch.frame);
                scratch.spectrum.of(&scratch.frame, &mut scratch.power);
                row.iter_mut().zip(self.filters.of(&scratch.power)).for_each(|(bin, power)| *bin = log(power));
            }
        };
        if frames < 2 * BLOCK {
            fill(&mut self.scratch, 0, &mut out);
            return out;
        }
        let threads = thread::available_parallelism().map_or(1, usize::from).min(frames / BLOCK);
        let (blocks, scratch) = (Mutex::new(out.chunks_mut(BLOCK * width).enumerate()), &self.scratch);
        let work = || {
            let mut scratch = scratch.clone();
            let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((block, rows)) = next() {
                fill(&mut scratch, block * BLOCK, rows);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // If a thread cannot be spawned, the other threads do its part.
                let _ = thread::Builder::new().name("features".into()).spawn_scoped(scope, work);
            }
            work();
        });
        out
    }
}
