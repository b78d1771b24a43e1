//! Audio of a session: formats, and the channel to the model.

use std::{
    io::{self, Cursor, Read},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use flambeau::audio::{Pcm, Sample};

use crate::speech::LiveSound;

/// Audio format of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// 16-bit little-endian mono samples at this rate, in Hz.
    Pcm(u32),
    /// G.711 µ-law at 8 kHz.
    Mulaw,
    /// G.711 A-law at 8 kHz.
    Alaw,
}

impl Format {
    /// Sample rate in Hz.
    pub(super) fn rate(self) -> u32 {
        match self {
            Format::Pcm(rate) => rate,
            Format::Mulaw | Format::Alaw => 8000,
        }
    }

    /// Decodes audio to 16-bit samples; `None` if it ends inside a sample.
    pub(super) fn decode(self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let expand = |one: fn(u8) -> i16| Some(bytes.iter().flat_map(|&byte| one(byte).to_le_bytes()).collect());
        match self {
            Format::Pcm(_) => bytes.len().is_multiple_of(2).then_some(bytes),
            Format::Mulaw => expand(mulaw),
            Format::Alaw => expand(alaw),
        }
    }
}

/// Decodes a G.711 µ-law sample.
fn mulaw(byte: u8) -> i16 {
    const BIAS: i16 = 0x84;
    let bits = !byte;
    let size = ((i16::from(bits & 0x0f) << 3) + BIAS) << ((bits & 0x70) >> 4);
    if bits & 0x80 == 0 { size - BIAS } else { BIAS - size }
}

/// Decodes a G.711 A-law sample.
fn alaw(byte: u8) -> i16 {
    let bits = byte ^ 0x55;
    let step = i16::from(bits & 0x0f) << 4;
    let size = match (bits & 0x70) >> 4 {
        0 => step + 8,
        segment => (step + 0x108) << (segment - 1),
    };
    if bits & 0x80 == 0 { -size } else { size }
}

/// Sender of a turn's audio.
#[derive(Debug)]
pub(super) struct Sound {
    blocks: Sender<Vec<u8>>,
    unheard: Arc<AtomicUsize>,
}

impl Sound {
    /// Sends audio; false if more than `most` bytes would be unprocessed.
    pub(super) fn send(&self, bytes: Vec<u8>, most: usize) -> bool {
        let waiting = self.unheard.fetch_add(bytes.len(), Ordering::Relaxed);
        let fits = waiting.saturating_add(bytes.len()) <= most;
        if fits {
            // A failed model reads nothing.
            let _ = self.blocks.send(bytes);
        } else {
            self.unheard.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        fits
    }
}

/// Receiver of a turn's audio.
struct Blocks {
    // An uncontended lock: decoders need a reader that threads could share.
    blocks: Mutex<Receiver<Vec<u8>>>,
    block: Cursor<Vec<u8>>,
    unheard: Arc<AtomicUsize>,
}

impl Read for Blocks {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.block.position() == self.block.get_ref().len() as u64 {
            let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
            match blocks.recv() {
                Ok(block) => self.block = Cursor::new(block),
                // The turn is over.
                Err(_) => return Ok(0),
            }
        }
        let count = self.block.read(to)?;
        self.unheard.fetch_sub(count, Ordering::Relaxed);
        Ok(count)
    }
}

/// Creates a channel for a turn's 16-bit samples. The audio ends when the sender is dropped.
pub(super) fn pipe(rate: u32) -> (Sound, LiveSound) {
    let (sender, blocks) = channel();
    let unheard = Arc::new(AtomicUsize::new(0));
    let reader = Blocks { blocks: Mutex::new(blocks), block: Cursor::default(), unheard: Arc::clone(&unheard) };
    let pcm = Pcm { sample: Sample::S16, rate, channels: 1 };
    (Sound { blocks: sender, unheard }, LiveSound { bytes: Box::new(reader), pcm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telephone_samples_are_those_of_g711() {
        // The ends and the middle of both tables (ITU-T G.711, tables 1a and 2a, in 16 bits).
        assert_eq!([0x00, 0x0f, 0x7f, 0x80, 0x8f, 0xff].map(mulaw), [-32124, -16764, 0, 32124, 16764, 0]);
        assert_eq!([0x2a, 0x55, 0xd5, 0xaa, 0x80].map(alaw), [-32256, -8, 8, 32256, 5504]);
    }

    #[test]
    fn sound_that_the_model_has_not_heard_is_bounded() {
        let (sound, mut source) = pipe(24_000);
        assert!(sound.send(vec![1; 6], 10) && !sound.send(vec![2; 6], 10));
        let mut heard = [0; 4];
        source.bytes.read_exact(&mut heard).unwrap();
        assert!(sound.send(vec![3; 6], 10), "what was heard makes room");
        drop(sound);
        let mut rest = Vec::new();
        source.bytes.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, [1, 1, 3, 3, 3, 3, 3, 3]);
    }
}
