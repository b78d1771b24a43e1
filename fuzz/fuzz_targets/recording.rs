//! Recordings in containers, from files and from streams, and samples without one.

#![no_main]

use std::io::Cursor;

use flambeau_audio::{Pcm, Recording, Sample};
use libfuzzer_sys::fuzz_target;

/// Maximum number of samples to read, since a packet of a few bytes may hold a second of silence.
const MOST_SAMPLES: usize = 1 << 22;

const RATE: u32 = 16_000;

// The first byte selects the reader.
fuzz_target!(init: flambeau_fuzz::keep_unwinding(), |bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let stream = Cursor::new(bytes.to_vec());
    let recording = match choice {
        0 => Recording::from_bytes(bytes.to_vec(), RATE),
        1 => Recording::from_stream(stream, RATE),
        _ => {
            let samples = [Sample::U8, Sample::S16, Sample::S24, Sample::S32, Sample::F32, Sample::F64];
            let rates = [RATE, 0, 1, 999, 8_000, 11_025, 44_100, 384_000, u32::MAX];
            let sample = samples[usize::from(choice) % samples.len()];
            let pcm = Pcm { sample, rate: rates[usize::from(choice) % rates.len()], channels: u16::from(choice % 70) };
            Recording::from_pcm(stream, pcm, RATE)
        }
    };
    let Ok(mut recording) = recording else { return };
    let mut count = 0;
    while count < MOST_SAMPLES
        && let Ok(Some(block)) = recording.next_block()
    {
        assert!(!block.is_empty() && block.iter().all(|sample| sample.is_finite()));
        count += block.len();
    }
});
