//! Spectrograms of every family and voice activity, for samples of any value in blocks of any size.

#![no_main]

use flambeau_audio::{LogMel, LogMelStream, ParakeetMel, VoiceActivity};
use libfuzzer_sys::fuzz_target;

const MELS: usize = 80;
const FRAMES: usize = 100;

// The first byte is the block size in units of 37 samples.
fuzz_target!(init: flambeau_fuzz::keep_unwinding(), |bytes: &[u8]| {
    let Some((&size, bytes)) = bytes.split_first() else { return };
    let samples: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let block = 37 * (1 + usize::from(size));
    assert_eq!(LogMel::new(MELS).window(&samples, FRAMES).len(), MELS * FRAMES);
    assert_eq!(ParakeetMel::new(MELS).window(&samples).len(), samples.len() / 160 * MELS);
    let rows = |block: usize| {
        let (mut stream, mut rows) = (LogMelStream::new(MELS, 1.5), Vec::new());
        samples.chunks(block).for_each(|block| stream.push(block, &mut rows));
        rows.iter().map(|value: &f32| value.to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(rows(block), rows(samples.len().max(1)), "features do not depend on how samples come");
    let (mut activity, mut speech, mut judged) = (VoiceActivity::default(), Vec::new(), 0);
    for block in samples.chunks(block) {
        let now = activity.push(block, &mut speech);
        assert!(now >= judged);
        judged = now;
    }
    activity.finish(&mut speech);
    assert!(speech.windows(2).all(|pair| pair[0].start <= pair[1].start) && speech.iter().all(|range| range.start < range.end));
});
