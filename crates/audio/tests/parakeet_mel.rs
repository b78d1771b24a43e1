//! Parakeet's features against those that transformers computed of the same recording.

use std::{fs, path::Path};

use flambeau_audio::{ParakeetMel, Recording};

/// Greatest distance from transformers' features, which have deviation 1.
const ERROR: f32 = 5e-5;

/// The last two sizes and the elements of a file's only tensor, of rank 3 and type f32.
fn tensor(path: &Path) -> ([usize; 2], Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(*bytes[4 * at..].first_chunk().unwrap());
    assert_eq!([0, 1, 2, 3].map(word), [1, 0, 3, 1], "one tensor of f32 [1, ..]");
    let values = bytes[24..].as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    ([4, 5].map(|at| word(at) as usize), values)
}

#[test]
fn features_are_those_of_transformers_in_blocks_of_any_size() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints/speech-parakeet-tdt");
    let ([frames, mels], expected) = tensor(&case.join("features.bin"));
    let samples = Recording::from_file(fs::File::open(case.join("audio.wav")).unwrap(), 16_000).unwrap().read_to_end().unwrap();
    for block in [samples.len(), 1280, 333] {
        let (mut mel, mut rows) = (ParakeetMel::new(mels), Vec::new());
        samples.chunks(block).for_each(|block| mel.push(block, &mut rows));
        mel.finish(&mut rows);
        mel.normalize(&mut rows);
        assert_eq!(rows.len(), frames * mels);
        let error = rows.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < ERROR, "blocks of {block}: {error}");
    }
}
