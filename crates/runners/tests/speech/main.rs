//! Speech models exported by ExecuTorch, compared with ExecuTorch's results call by call.

#[path = "../../../mlx/tests/support/mod.rs"]
mod installed;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use flambeau_cpu::CpuEngine;
use flambeau_runners::speech::{
    SpeechModel,
    parakeet::Parakeet,
    voxtral::Voxtral,
    voxtral_realtime::VoxtralRealtime,
    whisper::{Request, Whisper, decode},
};
use flambeau_runtime::{Engine, Program};
use flambeau_tensor::{DType, Tensor, cast, tensor_list};
use flambeau_testcases::{Case, Outcome, per_case, sessions};
use flambeau_text::Tokenizer;
use serde_json::{Value as Json, json};

/// Recorded calls of a program, each with its inputs and outputs.
struct Session {
    folder: PathBuf,
    json: Json,
}

impl Session {
    fn open(folder: &Path) -> Session {
        let json = fs::read(folder.join("session.json")).expect("the session is there");
        Session { folder: folder.to_owned(), json: serde_json::from_slice(&json).expect("the session is JSON") }
    }

    fn program(&self) -> Program {
        Program::open(self.folder.join("model.pte")).expect("the program opens")
    }

    fn tensors(&self, call: usize, key: &str) -> Vec<Tensor> {
        let name = self.json["calls"][call][key].as_str().expect("a file");
        let bytes = fs::read(self.folder.join(name)).expect("the file is there");
        tensor_list::read(&bytes.into()).expect("a list of tensors")
    }

    fn input(&self, call: usize) -> Tensor {
        self.tensors(call, "inputs").swap_remove(0)
    }

    fn output(&self, call: usize) -> Vec<f32> {
        floats(&self.tensors(call, "expected").swap_remove(0))
    }

    /// The token ids of a call.
    fn ids(&self, call: usize) -> Vec<u32> {
        let ids = self.input(call).aligned();
        ids.as_slice::<i64>().expect("ids").iter().map(|&id| id as u32).collect()
    }

    /// Compares the last values of an output with the recorded ones.
    fn compare(&self, call: usize, found: &[f32]) {
        let expected = self.output(call);
        let expected = &expected[expected.len() - found.len()..];
        let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let number = |key: &str| self.json[key].as_f64().expect("a tolerance") as f32;
        let allowed = number("atol") + number("rtol") * most;
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0, f32::max);
        assert!(difference <= allowed, "call {call}: {difference}, at most {allowed}");
    }

    /// Indices of a method's calls with a note that begins with `note`.
    fn calls(&self, method: &str, note: &str) -> Vec<usize> {
        let calls = self.json["calls"].as_array().expect("calls");
        let is_one = |call: &Json| call["method"] == method && call["note"].as_str().unwrap_or_default().starts_with(note);
        (0..calls.len()).filter(|&number| is_one(&calls[number])).collect()
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    cast(tensor, DType::F32).expect("floats").aligned().as_slice::<f32>().expect("floats").to_vec()
}

/// A second and a half of two tones.
fn sound() -> Vec<f32> {
    (0..24_000).map(|i| 0.1 * (i as f32 * 0.1).sin() + 0.05 * (i as f32 * 0.37).sin()).collect()
}

/// Special tokens like Whisper's from 200 on, then timestamps.
fn tokenizer() -> Tokenizer {
    let names = ["endoftext", "startoftranscript", "en", "translate", "transcribe", "startofprev", "nospeech", "notimestamps"];
    let special = |(id, name): (usize, &&str)| {
        json!({ "id": id + 200, "content": format!("<|{name}|>"), "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    };
    let vocab: serde_json::Map<String, Json> = (0..200).map(|id| (format!("w{id}"), json!(id))).collect();
    let json = json!({
        "version": "1.0",
        "added_tokens": names.iter().enumerate().map(special).collect::<Vec<_>>(),
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_json(json.to_string().as_bytes()).expect("a tokenizer")
}

/// The encoder's folder names the case; the other programs are beside it.
fn whisper_computes_what_its_three_programs_do(folder: &Path, engine: &Arc<dyn Engine>) {
    let beside = |part: &str| {
        let name = folder.file_name().expect("a name").to_string_lossy().replace("-encoder", part);
        Session::open(&folder.with_file_name(name))
    };
    let [encoder, cross_kv, decoder] = ["-encoder", "-cross-kv", "-decoder"].map(beside);
    let programs = [encoder.program(), cross_kv.program(), decoder.program()];
    let mut model = Whisper::load_apart(programs.each_ref(), &tokenizer(), engine).expect("the programs load");
    let hidden = model.encode(encoder.input(0)).expect("it listens");
    encoder.compare(0, &floats(&hidden));
    let mut logits = Vec::new();
    for call in decoder.calls("forward", "transcript 0") {
        model.step(&decoder.ids(call), &mut logits).expect("it reads a token");
        decoder.compare(call, &logits);
    }
    let features = model.features(&sound()).expect("it has features");
    model.encode(features).expect("it listens");
    let text = decode(&mut model, &Request { timestamps: true, max_tokens: 8, ..Request::default() }).expect("it decodes");
    assert!(text.tokens.iter().all(|id| !(200..208).contains(id)), "no special token is chosen: {:?}", text.tokens);
    // One text at a time.
    let mut several = Request { max_tokens: 4, ..Request::default() };
    several.search.beam_size = 2;
    assert!(decode(&mut model, &several).unwrap_err().to_string().contains("branches"));
}

fn parakeet_hears_what_its_program_heard(folder: &Path, engine: &Arc<dyn Engine>) {
    let session = Session::open(folder);
    let mut model = Parakeet::load(&session.program(), engine).expect("the program loads");
    let samples = floats(&session.input(session.calls("preprocessor", "audio 0")[0]));
    let features = model.features(&samples).expect("it has features");
    let [_, made] = model.encode(features).expect("it listens");
    let tokens: Vec<u32> = model.decode(&made, &mut |_, _| ()).expect("it decodes").iter().map(|token| token.id).collect();
    let next = session.calls("preprocessor", "audio 1").first().copied().unwrap_or(usize::MAX);
    let heard = session.calls("decoder_step", "token").into_iter().filter(|&call| call < next);
    let expected: Vec<u32> = heard.flat_map(|call| session.ids(call)).collect();
    assert!(expected.len() > 2);
    assert_eq!(tokens, expected);
}

fn voxtral_computes_what_its_program_does(folder: &Path, engine: &Arc<dyn Engine>) {
    let session = Session::open(folder);
    let mut model = Voxtral::load(&session.program(), engine).expect("the program loads");
    let rows = model.encode(session.input(0)).expect("it listens");
    session.compare(0, &rows);
    let mut logits = Vec::new();
    let [head, tail] = [session.ids(1), session.ids(4)];
    model.begin([&head, &tail], &rows, &mut logits).expect("it reads a prompt");
    session.compare(5, &logits);
    for embedded in [6, 8, 10] {
        model.step(session.ids(embedded)[0], &mut logits).expect("it reads a token");
        session.compare(embedded + 1, &logits);
    }
    // The model casts its own spectrogram to the encoder's input type.
    let features = model.features(&sound()).expect("it has features");
    assert_eq!(model.encode(features).expect("it listens").len(), rows.len());
}

fn a_realtime_program_chooses_a_token_for_every_80_ms(folder: &Path, engine: &Arc<dyn Engine>) {
    let session = Session::open(folder);
    let mut model = VoxtralRealtime::load(&session.program(), engine).expect("the program loads");
    model.push(&sound());
    model.finish();
    model.listen().expect("it listens");
    let prompt: Vec<u32> = std::iter::once(1).chain(std::iter::repeat(32)).take(model.prompt_len()).collect();
    let mut chosen = 0;
    while model.next_token(&prompt).expect("it chooses").is_some() {
        chosen += 1;
    }
    // 19 tokens for the sound, then some for the silence after it.
    assert!((19..40).contains(&chosen), "{chosen}");
}

/// The program's caches have no room for a text, and the error says so. The session's recorded
/// calls test its results.
fn a_realtime_program_without_room_is_refused(folder: &Path, engine: &Arc<dyn Engine>) {
    let program = Session::open(folder).program();
    assert!(VoxtralRealtime::is_in(&program));
    let error = SpeechModel::load(&program, engine).expect_err("its caches hold 32 rows");
    assert!(error.to_string().contains("no room for a text"), "{error}");
}

/// A program with the methods of no family.
fn a_spectrogram_is_no_model(folder: &Path, engine: &Arc<dyn Engine>) {
    let error = SpeechModel::load(&Session::open(folder).program(), engine).expect_err("it is none");
    assert!(error.to_string().contains("none of the methods"), "{error}");
}

/// Prefix and suffix of the sessions' names, with the test of each.
const TESTS: [(&str, &str, Test); 6] = [
    ("whisper-", "-encoder", whisper_computes_what_its_three_programs_do),
    ("parakeet-", "", parakeet_hears_what_its_program_heard),
    ("voxtral-", "", voxtral_computes_what_its_program_does),
    ("vrt-streaming-", "", a_realtime_program_chooses_a_token_for_every_80_ms),
    ("vrt-offline-", "", a_realtime_program_without_room_is_refused),
    ("mel-", "", a_spectrogram_is_no_model),
];

type Test = fn(&Path, &Arc<dyn Engine>);

fn main() -> ExitCode {
    let all = sessions(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let is_one = |case: &Case, (begins, ends, _): &(&str, &str, Test)| match case.name.split_once('/') {
        Some((_, name)) => name.starts_with(begins) && name.ends_with(ends),
        None => true,
    };
    let mut tests = Vec::new();
    for test in TESTS {
        let cases: Vec<Case> = all.iter().filter(|case| is_one(case, &test)).cloned().collect();
        tests.extend(per_case(cases.clone(), move |_, folder| test.2(folder, &(Arc::new(CpuEngine::new(Some(1))) as _))));
        let named = cases.into_iter().map(|case| Case { name: format!("mlx {}", case.name), ..case });
        tests.extend(per_case(named.collect(), move |_, folder| match installed::requirement() {
            Ok(()) => {
                test.2(folder, &(Arc::new(installed::engine()) as _));
                Outcome::Passed
            }
            Err(missing) => Outcome::Ignored(missing),
        }));
    }
    flambeau_testcases::run(tests)
}
