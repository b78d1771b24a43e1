//! Prints where recordings have speech, with its soft ends: a line for each file, with seconds as
//! `[[start, end], ...]`.
//!
//! ```text
//! cargo run --release -p flambeau-audio --example voice_activity -- talk.flac
//! ```
use std::{env, error::Error, fs::File, ops::Range};

use flambeau_audio::{Recording, VoiceActivity};

const RATE: u32 = 16_000;

fn main() -> Result<(), Box<dyn Error>> {
    for path in env::args().skip(1) {
        let mut recording = Recording::from_file(File::open(&path).map_err(|error| format!("{path}: {error}"))?, RATE)?;
        let (mut activity, mut speech) = (VoiceActivity::with_soft_ends(), Vec::new());
        while let Some(block) = recording.next_block()? {
            activity.push(block, &mut speech);
        }
        activity.finish(&mut speech);
        println!("{:?}", merged(&speech));
    }
    Ok(())
}

/// The ranges in seconds, where ranges that touch are one.
fn merged(ranges: &[Range<u64>]) -> Vec<[f64; 2]> {
    let mut list: Vec<[f64; 2]> = Vec::new();
    for range in ranges {
        let [start, end] = [range.start, range.end].map(|sample| sample as f64 / f64::from(RATE));
        match list.last_mut().filter(|last| last[1] >= start) {
            Some(last) => last[1] = end,
            None => list.push([start, end]),
        }
    }
    list
}
