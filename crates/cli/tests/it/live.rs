//! Live transcription by tiny random models. Their texts have no meaning, and change with every
//! sample.

use std::{fs, path::Path};

use ::flambeau::{
    audio::Recording,
    runners::speech::{Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber},
    runtime::Program,
    text::Tokenizer,
};

use crate::flambeau;

pub(crate) fn of_case(family: &str, file: &str) -> String {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints");
    cases.join(format!("speech-{family}")).join(file).to_string_lossy().into_owned()
}

/// `seconds` of the committed recording, repeated with changing loudness and a silent part.
pub(crate) fn samples(seconds: usize) -> Vec<f32> {
    let recording = fs::read(of_case("whisper", "audio.wav")).unwrap();
    let once = Recording::from_bytes(recording, SAMPLE_RATE).unwrap().read_to_end().unwrap();
    let block = |i: usize| {
        let loudness = if (20..35).contains(&i) { 0.0 } else { 0.2 + 0.8 * ((i * 37 % 101) as f32 / 101.0) };
        once.iter().take(3000 + i * 1237 % 5000).map(move |sample| sample * loudness)
    };
    (0..).flat_map(block).take(seconds * SAMPLE_RATE as usize).collect()
}

/// The segments of a live stream whose samples arrive in blocks of `block`. Asserts that no final
/// word changes.
fn transcribed(model: &mut SpeechModel, tokenizer: &Tokenizer, samples: &[f32], block: usize, settings: &Settings) -> Vec<Segment> {
    let mut transcriber = Transcriber::new(model, tokenizer, settings.clone()).unwrap();
    let (mut blocks, mut all, mut closed, mut seen) = (samples.chunks(block), Vec::new(), String::new(), String::new());
    loop {
        match transcriber.step().unwrap() {
            Progress::NeedsSamples => transcriber.feed(blocks.next()),
            Progress::Segments(segments) => {
                for segment in &segments {
                    let words: String = segment.words.iter().map(|word| word.text.as_str()).collect();
                    assert_eq!(words, segment.text);
                    closed.push_str(&words);
                }
                all.extend(segments);
                let settled: String = transcriber.draft().settled.iter().map(|word| word.text.as_str()).collect();
                let now = format!("{closed}{settled}");
                assert!(now.starts_with(&seen), "{seen:?} became {now:?}");
                seen = now;
            }
            Progress::Finished => break,
        }
    }
    assert_eq!(seen, closed, "nothing is left");
    assert!((transcriber.seconds() - samples.len() as f64 / f64::from(SAMPLE_RATE)).abs() < 1e-3);
    all
}

#[test]
fn final_words_stay_and_do_not_depend_on_how_samples_come() {
    let engine = ::flambeau::engines(Some(2), false).get("cpu").unwrap();
    let samples = samples(40);
    for (family, vad) in
        [("whisper", false), ("whisper", true), ("parakeet-tdt", false), ("parakeet-ctc", true), ("voxtral-realtime", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let exported = flambeau(dir.path(), &["export", &of_case(family, "checkpoint"), "-o", "model.pte"]);
        assert_eq!(exported.code, 0, "{}", exported.stderr);
        let program = Program::open(dir.path().join("model.pte")).unwrap();
        let name = if family.starts_with("voxtral") { "tekken.json" } else { "tokenizer.json" };
        let tokenizer = fs::read(of_case(family, "checkpoint/") + name).unwrap();
        let tokenizer =
            if name == "tekken.json" { Tokenizer::from_model_file(&tokenizer) } else { Tokenizer::from_json(&tokenizer) }.unwrap();
        let mut model = SpeechModel::load(&program, &engine).unwrap();
        // Random models are never sure of anything.
        let settings = Settings {
            live: Some(1.0),
            voice_activity: vad,
            least_log_probability: None,
            most_compression: None,
            ..Settings::default()
        };
        let whole = transcribed(&mut model, &tokenizer, &samples, samples.len(), &settings);
        assert!(!whole.is_empty(), "{family} says something");
        for pair in whole.windows(2) {
            assert!(pair[0].start <= pair[0].end && pair[0].end <= pair[1].start + 0.001, "{family}: {pair:?}");
        }
        assert!(whole.iter().all(|segment| segment.end <= 40.0), "{family}");
        for block in [1600, 33_333] {
            assert_eq!(transcribed(&mut model, &tokenizer, &samples, block, &settings), whole, "{family} in blocks of {block}");
        }
    }
}

#[test]
fn words_are_printed_as_they_become_final() {
    let dir = tempfile::tempdir().unwrap();
    let audio = of_case("whisper", "audio.wav");
    let model = of_case("parakeet-ctc", "checkpoint");
    let run = |args: &[&str]| flambeau(dir.path(), &[&["transcribe", "-m", &model, &audio, "--live"], args].concat());
    let text = run(&[]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stderr.contains("a word is final") && text.stderr.contains("of its time"), "{}", text.stderr);
    let json = run(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let segments = json["segments"].as_array().unwrap();
    let lines: String = segments.iter().map(|segment| format!("{}\n", segment["text"].as_str().unwrap().trim())).collect();
    assert_eq!(text.stdout, lines);
    assert!(segments.iter().all(|segment| segment["words"].as_array().unwrap().is_empty()), "times were not asked for");
    let refused = flambeau(dir.path(), &["transcribe", "-m", &of_case("moonshine", "checkpoint"), &audio, "--live"]);
    assert!(refused.code == 1 && refused.stderr.contains("takes no live stream"), "{}", refused.stderr);
}
