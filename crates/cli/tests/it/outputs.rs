//! No command writes over what it reads, or two results to one file.

use std::{fs, path::Path};

use crate::flambeau;

fn committed(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases").join(path).to_string_lossy().into_owned()
}

/// Runs a command that must be refused as wrong usage, and leave every file of the folder as it
/// was.
fn refused(dir: &Path, args: &[&str], complaint: &str) {
    let files = || {
        let list = walk(dir).into_iter().map(|path| (fs::read(&path).unwrap(), path));
        list.collect::<Vec<_>>()
    };
    let before = files();
    let done = flambeau(dir, args);
    assert!(done.code == 2 && done.stderr.contains(complaint), "{args:?}: {} {}", done.code, done.stderr);
    assert!(before == files(), "{args:?} changed a file");
}

/// The files of a folder and of those in it, the cache left out.
fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut list: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    list.retain(|path| !path.ends_with("cache") && !path.ends_with("state"));
    list.sort();
    list.into_iter().flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// A folder with a program of a Whisper, and a recording.
fn speech() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let exported = flambeau(dir.path(), &["export", &committed("checkpoints/speech-whisper/checkpoint"), "-o", "m.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    fs::copy(committed("checkpoints/speech-whisper/audio.wav"), dir.path().join("own.wav")).unwrap();
    dir
}

#[test]
fn a_transcript_takes_the_place_of_no_recording_and_no_model() {
    let dir = speech();
    let dir = dir.path();
    let lost = "it is read here";
    refused(dir, &["transcribe", "-m", "m.pte", "own.wav", "-o", "own.wav"], lost);
    fs::create_dir(dir.join("sub")).unwrap();
    refused(dir, &["transcribe", "-m", "m.pte", "own.wav", "-o", "./sub/../own.wav"], lost);
    refused(dir, &["transcribe", "-m", "m.pte", "own.wav", "-o", "m.pte"], lost);
    fs::rename(dir.join("own.wav"), dir.join("note.txt")).unwrap();
    refused(dir, &["transcribe", "-m", "m.pte", "note.txt", "--output-dir", "."], lost);
    refused(dir, &["transcribe", "-m", "m.pte", "note.txt", "-f", "json,txt", "--output-dir", "sub/.."], lost);
}

#[test]
fn recordings_of_one_name_are_not_transcribed_into_one_file() {
    let dir = speech();
    let dir = dir.path();
    for folder in ["a", "b"] {
        fs::create_dir(dir.join(folder)).unwrap();
    }
    for name in ["a/x.wav", "a/x.mp3", "b/x.flac"] {
        fs::copy(dir.join("own.wav"), dir.join(name)).unwrap();
    }
    let names = ["a/x.wav", "a/x.mp3", "b/x.flac"];
    refused(dir, &[&["transcribe", "-m", "m.pte", "--output-dir", "o"], &names[..]].concat(), "would both be written to");
    refused(dir, &["transcribe", "-m", "m.pte", "--output-dir", "o", "a/x.wav", "b/x.flac"], "b/x.flac");
    refused(dir, &["transcribe", "-m", "m.pte", "--output-dir", "o", "-f", "txt,txt", "own.wav"], "own.wav");
}

#[test]
fn a_recording_that_fails_leaves_an_older_transcript_alone() {
    let dir = speech();
    let dir = dir.path();
    fs::write(dir.join("bad.raw"), f32::NAN.to_le_bytes().repeat(16_000)).unwrap();
    for output in [&["-o", "bad.txt"][..], &["--output-dir", "."]] {
        fs::write(dir.join("bad.txt"), "what was heard before").unwrap();
        let done = flambeau(dir, &[&["transcribe", "-m", "m.pte", "bad.raw", "--pcm", "f32le"], output].concat());
        assert!(done.code == 1 && done.stderr.contains("no number"), "{}", done.stderr);
        assert_eq!(fs::read_to_string(dir.join("bad.txt")).unwrap(), "what was heard before");
    }
}

#[test]
fn a_program_takes_the_place_of_nothing_that_it_is_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let case = fs::read_dir(committed("cases")).unwrap().map(|entry| entry.unwrap().path().join("model.pt2"));
    fs::copy(case.filter(|path| path.is_file()).min().unwrap(), dir.join("in.pt2")).unwrap();
    let lost = "it is read here";
    refused(dir, &["compile", "in.pt2", "-o", "in.pt2"], lost);
    refused(dir, &["compile", "--method", "f=in.pt2", "-o", "out.pte", "--report", "in.pt2"], lost);
    refused(dir, &["compile", "in.pt2", "-o", "out.pte", "--report", "out.pte"], "two results");
    let compiled = flambeau(dir, &["compile", "in.pt2", "-o", "out.pte"]);
    assert_eq!(compiled.code, 0, "{}", compiled.stderr);
    refused(dir, &["run", "out.pte", "--trace", "out.pte"], lost);
    fs::write(dir.join("x.bin"), [0; 4]).unwrap();
    refused(dir, &["run", "out.pte", "--input", "x.bin", "-o", "x.bin"], lost);
    let folder = committed("checkpoints/speech-whisper/checkpoint");
    fs::create_dir(dir.join("model")).unwrap();
    for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, dir.join("model").join(file.file_name().unwrap())).unwrap();
    }
    refused(dir, &["export", "model", "-o", "model/model.safetensors"], lost);
    refused(dir, &["export", "model/model.safetensors", "-o", "model/model.safetensors"], lost);
    for _ in 0..2 {
        let exported = flambeau(dir, &["export", "model", "-o", "model/model.pte"]);
        assert_eq!(exported.code, 0, "{}", exported.stderr);
    }
}
