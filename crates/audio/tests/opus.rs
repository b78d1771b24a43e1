//! Opus in the containers of browsers and messengers. `scripts/reference/opus_files.sh` made the
//! files.

use std::{f32::consts::TAU, fs, path::Path};

use flambeau_audio::Recording;

const RATE: usize = 16_000;

/// Share of the power of samples that is a tone of 440 Hz, and its amplitude.
fn tone(samples: &[f32]) -> (f32, f32) {
    let wave = |shift: f32| move |i: usize| (i as f32 * 440.0 * TAU / RATE as f32 + shift).sin();
    let product = |wave: &dyn Fn(usize) -> f32| samples.iter().enumerate().map(|(i, sample)| sample * wave(i)).sum::<f32>();
    let amplitude = (product(&wave(0.0)).powi(2) + product(&wave(TAU / 4.0)).powi(2)).sqrt() * 2.0 / samples.len() as f32;
    let power = samples.iter().map(|sample| sample * sample).sum::<f32>() / samples.len() as f32;
    (amplitude.powi(2) / 2.0 / power, amplitude)
}

#[test]
fn opus_is_decoded_in_ogg_and_webm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/opus");
    for (name, channels) in [("speech.ogg", 1), ("music.ogg", 2), ("low.ogg", 1), ("music.webm", 2)] {
        let bytes = fs::read(folder.join(name)).unwrap();
        let mut recording = Recording::from_bytes(bytes.clone(), RATE as u32).unwrap();
        assert_eq!(recording.channels().unwrap(), channels, "{name}");
        let samples = recording.read_to_end().unwrap();
        // Half a second; WebM has additional silence at its end.
        assert!((8000..8400).contains(&samples.len()), "{name}: {} samples", samples.len());
        let (share, amplitude) = tone(&samples[800..7200]);
        assert!(share > 0.85, "{name}: {share} of the power is the tone");
        // Each of two channels has half the power.
        let expected = if channels == 1 { 0.5 } else { 0.125f32.sqrt() };
        assert!((amplitude - expected).abs() < 0.05, "{name}: {amplitude}");
        let mut alone = Recording::from_bytes(bytes, RATE as u32).unwrap();
        alone.choose_channel(channels - 1).unwrap();
        assert_eq!(alone.read_to_end().unwrap().len(), samples.len(), "{name}");
    }
}
