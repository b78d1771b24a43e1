//! Long recordings in windows: a CTC Parakeet transcribes the windows as it does the whole.

use std::{fs, path::Path};

use ::flambeau::{
    audio::Recording,
    runners::speech::{Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber, parakeet::Parakeet},
    runtime::Program,
    text::Tokenizer,
};

use crate::flambeau;

fn file(name: &str) -> Vec<u8> {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints");
    fs::read(cases.join("speech-parakeet-ctc").join(name)).unwrap()
}

/// The weights without what attention adds: positions only hear those around them.
fn local(mut weights: Vec<u8>) -> Vec<u8> {
    let length = u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    for (_, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| name.contains("self_attn.o_proj")) {
        let [from, to] = [0, 1].map(|i| 8 + length + tensor["data_offsets"][i].as_u64().unwrap() as usize);
        weights[from..to].fill(0);
    }
    weights
}

/// The program of the folder with such weights.
fn program(dir: &Path) -> Program {
    fs::write(dir.join("config.json"), file("checkpoint/config.json")).unwrap();
    fs::write(dir.join("model.safetensors"), local(file("checkpoint/model.safetensors"))).unwrap();
    let done = flambeau(dir, &["export", ".", "-o", "local.pte"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    Program::open(dir.join("local.pte")).unwrap()
}

/// Two minutes that do not repeat themselves: the recording at slowly changing loudness, in blocks
/// of changing length.
fn samples() -> Vec<f32> {
    let once = Recording::from_bytes(file("audio.wav"), SAMPLE_RATE).unwrap().read_to_end().unwrap();
    let block = |i: usize| {
        let (loudness, length) = (0.2 + 0.8 * ((i * 37 % 101) as f32 / 101.0), 3000 + i * 1237 % 5000);
        once.iter().take(length).map(move |sample| sample * loudness)
    };
    (0..400).flat_map(block).take(120 * SAMPLE_RATE as usize).collect()
}

fn segments(model: &mut SpeechModel, tokenizer: &Tokenizer, samples: &[f32], live: Option<f64>) -> Vec<Segment> {
    let mut transcriber = Transcriber::new(model, tokenizer, Settings { words: true, live, ..Settings::default() }).unwrap();
    let (mut blocks, mut all) = (samples.chunks(4000), Vec::new());
    loop {
        match transcriber.step().unwrap() {
            Progress::NeedsSamples => transcriber.feed(blocks.next()),
            Progress::Segments(segments) => all.extend(segments),
            Progress::Finished => return all,
        }
    }
}

/// The least number of ids that are put in, left out or changed.
fn edits(a: &[u32], b: &[u32]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (before + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}

#[test]
fn windows_neither_lose_nor_repeat_words() {
    let engine = ::flambeau::engines(Some(2), false).get("cpu").unwrap();
    let samples = samples();
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    let tokenizer = Tokenizer::from_json(&file("checkpoint/tokenizer.json")).unwrap();
    let mut whole = Parakeet::load(&program, &engine).unwrap();
    let features = whole.features(&samples).unwrap();
    let [_, made] = whole.encode(features).unwrap();
    let at_once: Vec<u32> = whole.decode(&made, &mut |_, _| {}).unwrap().iter().map(|token| token.id).collect();
    let mut model = SpeechModel::load(&program, &engine).unwrap();
    // A window's features have their own means and deviations, so that a near thing may end another
    // way.
    for (live, most_percent) in [(None, 4), (Some(1.0), 8)] {
        let segments = segments(&mut model, &tokenizer, &samples, live);
        let in_windows: Vec<u32> = segments.iter().flat_map(|segment| segment.tokens.clone()).collect();
        let edits = edits(&at_once, &in_windows);
        assert!(
            at_once.len() > 1000 && edits * 100 <= at_once.len() * most_percent,
            "{edits} edits of {}, live: {live:?}",
            at_once.len()
        );
    }
}
