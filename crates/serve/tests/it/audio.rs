//! Recordings that are transcribed.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use flambeau::{
    audio::Recording,
    compile,
    runners::speech::{Progress, SAMPLE_RATE, Settings, SpeechModel, Transcriber, Transcript},
    runtime::{Program, map_file},
    text::{Tokenizer, TokenizerFiles},
    zoo::{self, Checkpoint},
};
use flambeau_serve::{Config, NewSpeechModel};
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, Reply, get, post},
    hardening::hooked,
    server::{Running, config, cpu, tiny},
};

const PATH: &str = "/v1/audio/transcriptions";

/// A small model of speech of the cases.
pub(crate) fn model(name: &str) -> NewSpeechModel {
    let folder = folder(name).join("checkpoint");
    let names = ["config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"];
    let files = names.map(|name| (name.to_owned(), map_file(folder.join(name)).unwrap()));
    let model = zoo::build(&Checkpoint::from_folder(files.to_vec()).unwrap(), &zoo::Options::default()).unwrap();
    let mut file = Vec::new();
    zoo::compile(&model, compile::Options::default(), &*cpu()).unwrap().write(&mut file).unwrap();
    let tokenizer = fs::read(folder.join("tokenizer.json")).unwrap();
    NewSpeechModel {
        name: name.into(),
        aliases: vec![format!("{name}-1")],
        program: Program::from_bytes(file).unwrap(),
        engine: cpu(),
        tokenizer: Tokenizer::from_files(&TokenizerFiles { tokenizer: &tokenizer, ..TokenizerFiles::default() }).unwrap(),
        running: 2,
        waiting: 4,
    }
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(format!("speech-{name}"))
}

pub(crate) fn recording(name: &str) -> PathBuf {
    folder(name).join("audio.wav")
}

/// Transcript of the model without a server.
pub(crate) fn offline(new: &NewSpeechModel, settings: Settings) -> Transcript {
    let mut model = SpeechModel::load(&new.program, &new.engine).unwrap();
    let mut recording = Recording::from_bytes(fs::read(recording(&new.name)).unwrap(), SAMPLE_RATE).unwrap();
    let task = settings.task;
    let mut transcriber = Transcriber::new(&mut model, &new.tokenizer, settings).unwrap();
    let mut segments = Vec::new();
    loop {
        match transcriber.step().unwrap() {
            Progress::NeedsSamples => transcriber.feed(recording.next_block().unwrap()),
            Progress::Segments(new) => segments.extend(new),
            Progress::Finished => break,
        }
    }
    Transcript { language: transcriber.language().map(str::to_owned), task, seconds: transcriber.seconds(), segments }
}

const BOUNDARY: &str = "the-line-between";

fn form(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
    }
    let head = "content-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav";
    body.extend(format!("--{BOUNDARY}\r\n{head}\r\n\r\n").bytes());
    body.extend(file);
    body.extend(format!("\r\n--{BOUNDARY}--\r\n").bytes());
    body
}

/// A client that has sent a form.
fn begin(server: &Running, path: &str, body: &[u8]) -> Client {
    let mut client = Client::new(server.address);
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
    client.send(head.as_bytes());
    client.send(body);
    client
}

fn send(server: &Running, path: &str, body: &[u8]) -> Reply {
    begin(server, path, body).reply().expect("a response")
}

pub(crate) fn ask(server: &Running, name: &str, fields: &[(&str, &str)]) -> Reply {
    send(server, PATH, &form(&fs::read(recording(name)).unwrap(), fields))
}

pub(crate) fn recordings_are_transcribed_in_every_form() {
    let new = model("parakeet-tdt");
    let expected = offline(&new, Settings { words: true, ..Settings::default() });
    assert!(!expected.segments.is_empty() && !expected.segments[0].words.is_empty());
    let server = Running::with(vec![tiny()], vec![new], config());
    let reply = ask(&server, "parakeet-tdt", &[("model", "parakeet-tdt-1")]);
    assert_eq!(reply.json(), json!({ "text": expected.text(), "usage": { "type": "duration", "seconds": 1 } }));
    for (form, text) in [("text", expected.text() + "\n"), ("srt", expected.srt()), ("vtt", expected.vtt())] {
        let reply = ask(&server, "parakeet-tdt", &[("response_format", form)]);
        assert_eq!((reply.status, reply.body.as_str()), (200, text.as_str()), "{form}");
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let words =
        [("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment"), ("response_format", "verbose_json")];
    let json = ask(&server, "parakeet-tdt", &words).json();
    assert_eq!((&json["task"], &json["duration"], &json["language"]), (&json!("transcribe"), &json!(0.5), &json!("unknown")));
    assert_eq!(json["segments"][0]["text"], expected.segments[0].text);
    let told: Vec<&Json> = json["words"].as_array().unwrap().iter().map(|word| &word["word"]).collect();
    assert_eq!(told, expected.segments.iter().flat_map(|s| &s.words).map(|word| word.text.as_str()).collect::<Vec<_>>());
    assert!(server.metric_of("parakeet-tdt", "requests_total") == 5 && server.metric_of("parakeet-tdt", "failed_total") == 0);
}

pub(crate) fn transcripts_are_streamed() {
    let new = model("parakeet-tdt");
    let expected = offline(&new, Settings::default()).text();
    let server = Running::with(Vec::new(), vec![new], config());
    let events = ask(&server, "parakeet-tdt", &[("stream", "true")]).events();
    let (done, deltas) = events.split_last().unwrap();
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert!(!deltas.is_empty() && deltas.iter().all(|event| event["type"] == "transcript.text.delta"));
    assert_eq!((text.trim_end(), &done["type"], &done["text"]), (&*expected, &json!("transcript.text.done"), &json!(expected)));
}

pub(crate) fn what_a_model_of_speech_cannot_do_is_refused() {
    let server = Running::with(vec![tiny()], vec![model("parakeet-tdt"), model("whisper")], config());
    let refused = |reply: &Reply, param: &Json| {
        let json = reply.json();
        assert_eq!((reply.status, &json["error"]["param"]), (400, param), "{}", reply.body);
        json["error"]["message"].as_str().unwrap().to_owned()
    };
    let parakeet = |field: &str, value: &str| ask(&server, "whisper", &[("model", "parakeet-tdt"), (field, value)]);
    assert!(refused(&parakeet("prompt", "names"), &Json::Null).contains("takes no prompt"));
    refused(&parakeet("language", "de"), &Json::Null);
    // Also of a stream.
    let streamed = [("model", "parakeet-tdt"), ("prompt", "names"), ("stream", "true")];
    refused(&ask(&server, "whisper", &streamed), &Json::Null);
    assert_eq!(ask(&server, "whisper", &[("model", "whisper"), ("language", "de")]).status, 200);
    refused(&ask(&server, "whisper", &[("model", "whisper"), ("language", "xx")]), &json!("language"));
    let file = fs::read(recording("whisper")).unwrap();
    let translated =
        send(&server, "/v1/audio/translations", &form(&file, &[("model", "whisper"), ("response_format", "verbose_json")]));
    assert_eq!(translated.json()["task"], "translate");
    refused(&send(&server, "/v1/audio/translations", &form(&file, &[("model", "parakeet-tdt")])), &Json::Null);
    // Who is meant has to be said, and language models do not listen.
    refused(&ask(&server, "whisper", &[]), &json!("model"));
    assert!(refused(&ask(&server, "whisper", &[("model", "tiny")]), &json!("model")).contains("/v1/chat/completions"));
    assert_eq!(ask(&server, "whisper", &[("model", "nobody")]).status, 404);
    let chat = json!({ "model": "whisper", "messages": [{ "role": "user", "content": "go" }] });
    assert!(refused(&post(server.address, "/v1/chat/completions", &chat), &json!("model")).contains(PATH));
    let listed = get(server.address, "/v1/models").json();
    let ids: Vec<&Json> = listed["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["tiny", "parakeet-tdt", "whisper"]);
    assert_eq!(get(server.address, "/v1/models/whisper").json()["capabilities"]["transcription"], true);
}

pub(crate) fn a_server_without_models_of_speech_says_so() {
    let server = Running::with(vec![tiny()], Vec::new(), config());
    let file = fs::read(recording("whisper")).unwrap();
    for path in [PATH, "/v1/audio/translations"] {
        let reply = send(&server, path, &form(&file, &[("model", "tiny")]));
        assert!(reply.status == 404 && reply.body.contains("no model that transcribes"), "{}", reply.body);
    }
}

pub(crate) fn uploads_that_are_no_recordings_cost_their_own_request() {
    let server = Running::with(Vec::new(), vec![model("parakeet-tdt")], Config { upload_bytes: 20_000, ..config() });
    let good = fs::read(recording("parakeet-tdt")).unwrap();
    for bad in [&b""[..], b"text", &good[..30], &[&good[..44], &[0xff; 100]].concat()[..43]] {
        let reply = send(&server, PATH, &form(bad, &[]));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("file")), "{}", reply.body);
    }
    let whole = form(&good, &[]);
    let cases: [(u16, &[u8]); 4] = [
        (413, &form(&[0; 30_000], &[])),
        (400, &whole[..whole.len() - 20]),
        (400, b"no form"),
        (400, &form(&good, &[("prompt", &"x".repeat(70_000))])),
    ];
    for (status, body) in cases {
        assert_eq!(send(&server, PATH, body).status, status);
    }
    let twice: Vec<u8> = [&whole[..whole.len() - BOUNDARY.len() - 6], &whole[..]].concat();
    assert_eq!(send(&server, PATH, &twice).json()["error"]["param"], "file");
    let many: Vec<String> = (0..70).map(|i| format!("f{i}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    assert!(send(&server, PATH, &form(&good, &many)).body.contains("more than 64 fields"));
    let json = post(server.address, PATH, &json!({ "model": "parakeet-tdt" }));
    assert_eq!(json.status, 415);
    assert_eq!(send(&server, PATH, &whole).status, 200, "the next request is served");
}

pub(crate) fn more_recordings_than_have_a_place_are_told_to_come_back() {
    let mut new = model("parakeet-tdt");
    (new.running, new.waiting) = (1, 0);
    let server = Running::with(Vec::new(), vec![new], config());
    // One that never comes holds the only place.
    let mut slow = Client::new(server.address);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary={BOUNDARY}\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n"
    );
    slow.send(head.as_bytes());
    // The server asks for the body once it reads it.
    assert_eq!(slow.head().expect("an answer").status, 100);
    let reply = ask(&server, "parakeet-tdt", &[]);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!("capacity_exhausted")));
    drop(slow);
    let mut status = 429;
    while status == 429 {
        status = ask(&server, "parakeet-tdt", &[]).status;
    }
    assert_eq!(status, 200);
}

pub(crate) fn a_panic_costs_one_recording() {
    static IS_GOOD: AtomicBool = AtomicBool::new(false);
    let engine = hooked(|_| assert!(IS_GOOD.swap(true, Ordering::Relaxed), "the first run fails"));
    let server = Running::with(Vec::new(), vec![NewSpeechModel { engine, running: 1, ..model("parakeet-tdt") }], config());
    let reply = ask(&server, "parakeet-tdt", &[]);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (500, &json!("server_error")), "{}", reply.body);
    assert_eq!(ask(&server, "parakeet-tdt", &[]).status, 200);
    assert_eq!((server.metric("panics_total"), server.metric("failed_total")), (1, 1));
}

pub(crate) fn clients_that_go_away_are_not_listened_to() {
    let engine = hooked(|_| sleep(Duration::from_micros(100)));
    let new = NewSpeechModel { engine, running: 1, ..model("parakeet-tdt") };
    let server = Running::with(Vec::new(), vec![new], config());
    let body = form(&repeated(&fs::read(recording("parakeet-tdt")).unwrap(), 500), &[]);
    // One is listened to, which takes long, and one waits for its turn.
    let clients = [begin(&server, PATH, &body), begin(&server, PATH, &body)];
    server.await_metric("running", 1);
    server.await_metric("waiting", 1);
    drop(clients);
    server.await_metric("cancelled_total", 2);
    assert_eq!(server.metric("audio_seconds_total"), 0);
}

/// A WAV file whose sound comes again and again.
fn repeated(wav: &[u8], times: usize) -> Vec<u8> {
    let (head, sound) = wav.split_at(44);
    let mut all = [head, &sound.repeat(times)].concat();
    let (whole, data) = (all.len() as u32 - 8, all.len() as u32 - 44);
    all[4..8].copy_from_slice(&whole.to_le_bytes());
    all[40..44].copy_from_slice(&data.to_le_bytes());
    all
}

/// Concurrent requests get the same transcripts as single ones.
pub(crate) fn neighbours_change_no_transcript() {
    let new = model("parakeet-tdt");
    let expected = offline(&new, Settings::default()).text();
    let server = Arc::new(Running::with(Vec::new(), vec![new], config()));
    let ask = |server: Arc<Running>| move || ask(&server, "parakeet-tdt", &[]).json()["text"].as_str().unwrap().to_owned();
    let threads: Vec<_> = (0..6).map(|_| std::thread::spawn(ask(Arc::clone(&server)))).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}
