//! Windows of a tiny random Whisper that accepts every text it samples. Its texts are meaningless
//! and change with every sample.

use std::fs;

use ::flambeau::{
    runners::speech::{Progress, Segment, Settings, SpeechModel, Transcriber},
    runtime::Program,
    text::Tokenizer,
};

use crate::{
    flambeau,
    live::{of_case, samples},
};

fn model() -> (SpeechModel, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let exported = flambeau(dir.path(), &["export", &of_case("whisper", "checkpoint"), "-o", "model.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let engine = ::flambeau::engines(Some(2), false).get("cpu").unwrap();
    let program = Program::from_bytes(fs::read(dir.path().join("model.pte")).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_json(&fs::read(of_case("whisper", "checkpoint/tokenizer.json")).unwrap()).unwrap();
    (SpeechModel::load(&program, &engine).unwrap(), tokenizer)
}

fn segments(model: &mut (SpeechModel, Tokenizer), samples: &[f32], block: usize, settings: Settings) -> Vec<Segment> {
    let settings = Settings {
        language: Some("en".into()),
        words: true,
        least_log_probability: None,
        most_compression: None,
        most_no_speech: None,
        // The likeliest token is always the same.
        temperatures: vec![1.0],
        ..settings
    };
    let mut transcriber = Transcriber::new(&mut model.0, &model.1, settings).unwrap();
    let (mut blocks, mut all) = (samples.chunks(block), Vec::new());
    loop {
        match transcriber.step().unwrap() {
            Progress::NeedsSamples => transcriber.feed(blocks.next()),
            Progress::Segments(segments) => all.extend(segments),
            Progress::Finished => break,
        }
    }
    assert!((transcriber.seconds() - samples.len() as f64 / 16_000.0).abs() < 0.02);
    all
}

#[test]
fn each_window_of_a_batch_has_the_text_that_it_has_alone() {
    let (mut model, samples) = (model(), samples(100));
    let mut of_batch =
        |batch: usize, block: usize| segments(&mut model, &samples, block, Settings { batch, seed: 11, ..Settings::default() });
    let three = of_batch(3, 5000);
    assert!(three.len() > 3 && three.iter().any(|segment| !segment.words.is_empty()), "{three:?}");
    assert!(three.windows(2).all(|pair| pair[0].start <= pair[1].start) && three.iter().all(|segment| segment.end <= 100.0));
    assert_eq!(of_batch(2, 77_777), three);
    assert_eq!(of_batch(16, samples.len()), three);
}

#[test]
fn hotwords_stand_ahead_of_every_window() {
    let (mut model, samples) = (model(), samples(20));
    let mut with = |hotwords: &str, prompt: &str| {
        let settings = Settings { hotwords: hotwords.into(), prompt: prompt.into(), ..Settings::default() };
        segments(&mut model, &samples, 16_000, settings)
    };
    let hot = with("abc", "");
    // Alone they are what a prompt is.
    assert_eq!(hot, with("", "abc"));
    assert_ne!(hot, with("", ""));
    assert_ne!(hot, with("abc", "bd"));
}
