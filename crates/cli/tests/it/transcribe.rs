//! `flambeau transcribe` on a tiny random Whisper: what it says means nothing, and is the same every time.

use std::{fs, path::Path};

use crate::{command, finished, flambeau};

/// The committed checkpoint and its recording.
fn case() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints/speech-whisper")
}

fn model() -> String {
    case().join("checkpoint").to_string_lossy().into_owned()
}

fn audio() -> String {
    case().join("audio.wav").to_string_lossy().into_owned()
}

#[test]
fn a_recording_becomes_json_with_times_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = || flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "--json", "--word-timestamps", "-l", "fr"]);
    let first = run();
    assert_eq!(first.code, 0, "{}", first.stderr);
    let json: serde_json::Value = serde_json::from_str(&first.stdout).unwrap();
    assert_eq!((json["language"].as_str(), json["task"].as_str()), (Some("fr"), Some("transcribe")));
    assert!((json["duration"].as_f64().unwrap() - 0.5).abs() < 1e-6);
    for segment in json["segments"].as_array().unwrap() {
        let (start, end) = (segment["start"].as_f64().unwrap(), segment["end"].as_f64().unwrap());
        assert!(0.0 <= start && start < end && end <= 0.5, "{segment}");
        for word in segment["words"].as_array().unwrap() {
            assert!(word["start"].as_f64() <= word["end"].as_f64(), "{word}");
        }
    }
    // The second run finds the program in the cache.
    let second = run();
    assert_eq!((first.stdout, second.stderr.contains("exporting")), (second.stdout, false));
}

#[test]
fn one_program_takes_several_recordings_and_stdin() {
    let dir = tempfile::tempdir().unwrap();
    let exported = flambeau(dir.path(), &["export", &model(), "-o", "whisper.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    fs::write(dir.path().join("no.wav"), "this is a text\n".repeat(200)).unwrap();
    let args = ["transcribe", "-m", "whisper.pte", &audio(), "no.wav", "-f", "srt,vtt,txt", "--output-dir", "out"];
    let done = flambeau(dir.path(), &args);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("no.wav") && done.stderr.contains("no recording"), "{}", done.stderr);
    for extension in ["srt", "vtt", "txt"] {
        assert!(dir.path().join("out/audio").with_extension(extension).is_file(), "{extension}");
    }
    let mut piped = command(dir.path(), &["transcribe", "-m", "whisper.pte", "-", "-q"]);
    let done = finished(piped.stdin(fs::File::open(audio()).unwrap()).output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(done.stdout, fs::read_to_string(dir.path().join("out/audio.txt")).unwrap());
}

#[test]
fn mistakes_are_told_before_work_begins() {
    let dir = tempfile::tempdir().unwrap();
    let usage = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "-f", "srt,txt"]);
    assert_eq!(usage.code, 2, "{}", usage.stderr);
    assert!(usage.stderr.contains("--output-dir"));
    let language = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "-l", "xx"]);
    assert_eq!(language.code, 1);
    assert!(language.stderr.contains("expected one of en, fr, de"), "{}", language.stderr);
    let missing = flambeau(dir.path(), &["transcribe", "-m", &model(), "nothing.mp3"]);
    assert!(missing.code == 1 && missing.stderr.contains("nothing.mp3"), "{}", missing.stderr);
}
