//! Vectors of texts.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use flambeau::{
    compile,
    runners::embed::{Embedder, Tokens},
    runtime::{Program, map_file},
    text::Tokenizer,
    zoo::{self, Checkpoint},
};
use flambeau_serve::NewEncoder;
use serde_json::{Value as Json, json};

use crate::{
    client::{Reply, get, post},
    hardening::hooked,
    server::{Running, config, cpu, tiny},
};

const PATH: &str = "/v1/embeddings";
const TEXTS: [&str; 3] = ["A man is eating food.", "Fox", "The quick brown fox jumps over the dog."];

/// A small text encoder of the cases.
pub(crate) fn encoder() -> NewEncoder {
    let names = ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer_config.json"];
    let new = of_case("embedding-bert", &names);
    NewEncoder { name: "encoder".into(), aliases: vec!["text-embedding-3-small".into()], ..new }
}

/// The model of a case, from these files.
pub(crate) fn of_case(case: &str, names: &[&str]) -> NewEncoder {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case).join("checkpoint");
    let files: Vec<_> = names.iter().map(|name| ((*name).to_owned(), map_file(folder.join(name)).unwrap())).collect();
    let model = zoo::build(&Checkpoint::from_folder(files).unwrap(), &zoo::Options::default()).unwrap();
    let mut file = Vec::new();
    zoo::compile(&model, compile::Options::default(), &*cpu()).unwrap().write(&mut file).unwrap();
    NewEncoder {
        name: case.into(),
        aliases: Vec::new(),
        program: Program::from_bytes(file).unwrap(),
        engine: cpu(),
        tokenizer: Tokenizer::from_json(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap(),
        requests: 8,
    }
}

/// Vectors of the model without a server.
fn offline(texts: &[&str]) -> Vec<Vec<f32>> {
    let new = encoder();
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| new.tokenizer.encode(text, true).unwrap()).collect();
    let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    Embedder::load(&new.program, &new.engine).unwrap().embed(&ids).unwrap()
}

fn server() -> Running {
    Running::of(vec![tiny().into(), encoder().into()], config())
}

fn vectors(reply: &Reply) -> Vec<Vec<f32>> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let json = reply.json();
    let entry = |(at, entry): (usize, &Json)| {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(at)));
        entry["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
    };
    json["data"].as_array().unwrap().iter().enumerate().map(entry).collect()
}

/// The largest difference of two lists of vectors.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.concat().iter().zip(b.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub(crate) fn vectors_are_those_of_the_model() {
    let server = server();
    let reply = post(server.address, PATH, &json!({ "model": "encoder", "input": TEXTS, "user": "me" }));
    assert_eq!(vectors(&reply), offline(&TEXTS));
    let json = reply.json();
    assert_eq!((&json["object"], &json["model"]), (&json!("list"), &json!("encoder")));
    assert_eq!(json["usage"], json!({ "prompt_tokens": 44, "total_tokens": 44 }));
    // One text, under another name; its tokens; and both.
    let one = post(server.address, PATH, &json!({ "model": "text-embedding-3-small", "input": TEXTS[1], "dimensions": 16 }));
    assert_eq!(vectors(&one), offline(&TEXTS[1..2]));
    let ids = encoder().tokenizer.encode(TEXTS[1], true).unwrap();
    for input in [json!(ids), json!([ids])] {
        assert_eq!(vectors(&post(server.address, PATH, &json!({ "input": input }))), offline(&TEXTS[1..2]));
    }
    let mixed = post(server.address, PATH, &json!({ "input": [TEXTS[0], ids] }));
    assert!(distance(&vectors(&mixed), &offline(&TEXTS[..2])) < 1e-6);
    assert_eq!(server.metric_of("encoder", "requests_total"), 5);
    assert_eq!((server.metric_of("encoder", "failed_total"), server.metric_of("encoder", "waiting")), (0, 0));
}

pub(crate) fn prompts_apply_the_adapters_of_their_name() {
    let names = ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"];
    let new = of_case("embedding-jina-tasks", &names);
    let mut embedder = Embedder::load(&new.program, &new.engine).unwrap();
    let mut expected = |name: &str| {
        let prompt = embedder.prompts().named(name).unwrap();
        let ids = new.tokenizer.encode(&[&prompt.text, "Fox"].concat(), true).unwrap();
        embedder.embed_tasks(&[&Tokens { task: prompt.task, ..Tokens::from(ids) }]).unwrap()
    };
    let tasks = ["separation", "retrieval.query"];
    let expected = tasks.map(&mut expected);
    let server = Running::of(vec![new.into()], config());
    let plain = vectors(&post(server.address, PATH, &json!({ "input": "Fox" })));
    for (name, expected) in tasks.iter().zip(&expected) {
        let found = vectors(&post(server.address, PATH, &json!({ "input": "Fox", "prompt_name": name })));
        assert!(distance(&found, expected) < 1e-6 && distance(&found, &plain) > 1e-3, "{name}");
    }
}

pub(crate) fn vectors_are_shortened_and_prompts_stand_before_texts() {
    let server = server();
    let short = vectors(&post(server.address, PATH, &json!({ "input": "Fox", "dimensions": 4 })));
    let whole = offline(&["Fox"]).remove(0);
    let length = whole[..4].iter().map(|x| x * x).sum::<f32>().sqrt();
    let expected: Vec<f32> = whole[..4].iter().map(|x| x / length).collect();
    assert!(distance(&short, &[expected]) < 1e-6, "{short:?}");
    let prompted = post(server.address, PATH, &json!({ "input": "Fox", "prompt": "the " }));
    assert_eq!(vectors(&prompted), offline(&["the Fox"]));
}

pub(crate) fn vectors_come_as_bytes_too() {
    let server = server();
    let ask = |form| post(server.address, PATH, &json!({ "input": "Fox", "encoding_format": form }));
    let text = ask("base64").json()["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), (16 * 4usize).div_ceil(3) * 4);
    assert_eq!(vectors(&ask("float")), offline(&["Fox"]));
}

pub(crate) fn what_an_encoder_cannot_do_is_refused() {
    let server = server();
    let refused = |body: Json| {
        let reply = post(server.address, PATH, &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = reply.json()["error"].clone();
        (error["param"].as_str().unwrap_or_default().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    let long = "a ".repeat(60);
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": ["a", ""] }), "input"),
        (json!({ "input": [[]] }), "input"),
        (json!({ "input": [3, "a"] }), "input"),
        (json!({ "input": [3, -1] }), "input"),
        (json!({ "input": [3, 70] }), "input"),
        (json!({ "input": [3, 1.5] }), "input"),
        (json!({ "input": { "text": "a" } }), "input"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
        (json!({ "input": long }), "input"),
        (json!({ "input": "x".repeat(100_000) }), "input"),
        (json!({ "input": "a", "dimensions": 17 }), "dimensions"),
        (json!({ "input": "a", "prompt_name": "query" }), "prompt_name"),
        (json!({ "input": "a", "prompt_name": "query", "prompt": "" }), "prompt_name"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format"),
        (json!({ "input": "a", "truncate": "yes" }), "truncate"),
        (json!({ "input": "a", "input_type": "query" }), "input_type"),
        (json!({ "input": "a", "model": "tiny" }), "model"),
    ] {
        assert_eq!(refused(body.clone()).0, param, "{body}");
    }
    let (_, message) = refused(json!({ "input": long }));
    assert!(message.contains("at most 40 tokens") && message.contains("truncate"), "{message}");
    let cut = post(server.address, PATH, &json!({ "input": [long, "x".repeat(100_000)], "truncate": true }));
    assert_eq!((vectors(&cut).len(), &cut.json()["usage"]["prompt_tokens"]), (2, &json!(43)));
    let chat = json!({ "model": "encoder", "messages": [{ "role": "user", "content": "go" }] });
    let reply = post(server.address, "/v1/chat/completions", &chat);
    assert!(reply.status == 400 && reply.body.contains(PATH), "{}", reply.body);
    assert_eq!(post(server.address, PATH, &json!({ "model": "nobody", "input": "a" })).status, 404);
    let listed = get(server.address, "/v1/models/encoder").json();
    assert_eq!(listed["capabilities"], json!({ "embedding": true }));
    assert_eq!(listed["prompts"], json!([]));
    assert_eq!((&listed["embedding_length"], &listed["context_length"]), (&json!(16), &json!(40)));
}

pub(crate) fn requests_at_the_same_time_share_runs() {
    let server = Arc::new(server());
    let expected = offline(&TEXTS);
    let ask = |server: Arc<Running>| move || vectors(&post(server.address, PATH, &json!({ "model": "encoder", "input": TEXTS })));
    let threads: Vec<_> = (0..6).map(|_| std::thread::spawn(ask(Arc::clone(&server)))).collect();
    for thread in threads {
        assert!(distance(&thread.join().unwrap(), &expected) < 1e-6);
    }
}

pub(crate) fn a_panic_costs_the_requests_of_its_run() {
    static IS_GOOD: AtomicBool = AtomicBool::new(false);
    let engine = hooked(|_| assert!(IS_GOOD.swap(true, Ordering::Relaxed), "the first run fails"));
    let server = Running::of(vec![NewEncoder { engine, ..encoder() }.into()], config());
    let ask = || post(server.address, PATH, &json!({ "input": "Fox" }));
    let reply = ask();
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (500, &json!("server_error")), "{}", reply.body);
    assert_eq!(ask().status, 200);
    assert_eq!((server.metric("panics_total"), server.metric("failed_total")), (1, 1));
}
