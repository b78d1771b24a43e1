//! Files and batches.

use std::{collections::BTreeMap, fs, path::Path, thread::sleep, time::Duration};

use flambeau_serve::{BatchConfig, Config, Keys, ModelSource, NewModel};
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, Reply, get, post},
    embeddings::encoder,
    hardening::hooked,
    server::{LIMITS, Running, config, endless, tiny},
};

const CHAT: &str = "/v1/chat/completions";

/// Files and batches in a folder.
pub(crate) fn batches(folder: &Path) -> BatchConfig {
    BatchConfig { folder: folder.to_owned(), bytes: 1 << 20, file_bytes: 100_000, at_once: 4 }
}

fn models() -> Vec<ModelSource> {
    vec![tiny().into(), encoder().into()]
}

fn line(name: &str, url: &str, body: &Json) -> String {
    json!({ "custom_id": name, "method": "POST", "url": url, "body": body }).to_string() + "\n"
}

/// A conversation with the Llama, each with an answer of its own.
fn chat(number: usize, tokens: usize) -> Json {
    let content = ["the cat", "where is the mat ?", "a dog sat", "the dog is"][number % 4];
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": content }], "max_tokens": tokens, "seed": number, "temperature": 1 })
}

fn upload_with(server: &Running, headers: &[(&str, &str)], contents: &str, purpose: &str) -> Reply {
    let part = |name: &str, value: &str| format!("--x\r\ncontent-disposition: form-data; {name}\r\n\r\n{value}\r\n");
    let body = part("name=\"purpose\"", purpose) + &part("name=\"file\"; filename=\"in.jsonl\"", contents) + "--x--\r\n";
    let mut client = Client::new(server.address);
    let headers = [headers, &[("content-type", "multipart/form-data; boundary=x")]].concat();
    client.send_request("POST", "/v1/files", &headers, &body);
    client.reply().unwrap()
}

fn upload(server: &Running, contents: &str) -> String {
    let reply = upload_with(server, &[], contents, "batch");
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

fn begin(server: &Running, contents: &str, endpoint: &str) -> String {
    let body = json!({ "input_file_id": upload(server, contents), "endpoint": endpoint, "completion_window": "24h" });
    let reply = post(server.address, "/v1/batches", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// Waits until a batch fulfils a condition.
fn wait(server: &Running, id: &str, is_met: impl Fn(&Json) -> bool) -> Json {
    for _ in 0..10_000 {
        let batch = get(server.address, &format!("/v1/batches/{id}")).json();
        if is_met(&batch) {
            return batch;
        }
        sleep(Duration::from_millis(5));
    }
    panic!("the batch never gets there: {}", get(server.address, &format!("/v1/batches/{id}")).body);
}

fn end(server: &Running, id: &str) -> Json {
    wait(server, id, |batch| ["completed", "failed", "expired", "cancelled"].iter().any(|status| batch["status"] == *status))
}

/// The lines of a file by their names.
fn lines(server: &Running, file: &Json) -> Vec<(String, Json)> {
    let text = get(server.address, &format!("/v1/files/{}/content", file.as_str().expect("a file"))).body;
    let read = |line: &str| serde_json::from_str::<Json>(line).unwrap();
    let mut lines: Vec<_> = text.lines().map(read).map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line)).collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn content(answer: &Json) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

pub(crate) fn answers_are_those_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::batching(batches(folder.path()), models(), config());
    let input: String = (0..9).map(|i| line(&i.to_string(), CHAT, &chat(i, 12))).collect();
    let done = end(&server, &begin(&server, &input, CHAT));
    assert_eq!(done["request_counts"], json!({ "total": 9, "completed": 9, "failed": 0 }), "{done}");
    assert!(done["error_file_id"].is_null() && done["errors"].is_null(), "{done}");
    for (number, (name, answer)) in lines(&server, &done["output_file_id"]).iter().enumerate() {
        assert_eq!(*name, number.to_string());
        let direct = post(server.address, CHAT, &chat(number, 12)).json();
        assert_eq!(content(&answer["response"]["body"]), content(&direct), "the same seed draws the same answer");
    }
    let embed = |text: &str| json!({ "model": "encoder", "input": text });
    let input: String = ["a", "b"].map(|name| line(name, "/v1/embeddings", &embed(name))).concat();
    let done = end(&server, &begin(&server, &input, "/v1/embeddings"));
    for (name, answer) in lines(&server, &done["output_file_id"]) {
        let direct = post(server.address, "/v1/embeddings", &embed(&name)).json();
        assert_eq!(answer["response"]["body"]["data"], direct["data"]);
    }
}

pub(crate) fn wrong_inputs_and_fields_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::batching(batches(folder.path()), models(), config());
    let input = line("a", CHAT, &chat(0, 1)) + "{\n" + &line("a", CHAT, &chat(0, 1)) + &line("b", "/v1/embeddings", &json!({}));
    let done = end(&server, &begin(&server, &input, CHAT));
    let found = done["errors"]["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| (error["line"].as_u64().unwrap(), error["code"].as_str().unwrap()));
    let expected = [(2, "invalid_line"), (3, "duplicate_custom_id"), (4, "mismatched_url")];
    assert_eq!((done["status"].as_str(), found.collect::<Vec<_>>()), (Some("failed"), expected.to_vec()));
    let file = upload(&server, &line("a", CHAT, &chat(0, 1)));
    let good = json!({ "input_file_id": file, "endpoint": CHAT, "completion_window": "24h" });
    for (field, value) in [
        ("input_file_id", json!("file-none")),
        ("input_file_id", Json::Null),
        ("endpoint", json!("/v1/files")),
        ("completion_window", json!("1h")),
        ("metadata", json!({ "a": 1 })),
        ("output_expires_after", json!({ "anchor": "created_at", "seconds": 1 })),
        ("priority", json!(1)),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let reply = post(server.address, "/v1/batches", &body);
        let param = reply.json()["error"]["param"].clone();
        let is_named = param.as_str().is_some_and(|param| param.starts_with(field));
        assert!(reply.status == 400 && is_named || reply.status == 404, "{field}: {}", reply.body);
    }
    assert_eq!(upload_with(&server, &[], "x", "fine-tune").json()["error"]["param"], "purpose");
    for path in ["/v1/files/file-none", "/v1/batches/batch_none", "/v1/files/..%2Flock/content"] {
        assert_eq!(get(server.address, path).status, 404, "{path}");
    }
    let without = Running::new(vec![tiny()], config());
    let reply = get(without.address, "/v1/files");
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("no_files")));
}

pub(crate) fn files_belong_to_their_key_and_have_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(vec!["one".into(), "other".into()]);
    let bounds = BatchConfig { bytes: 300, file_bytes: 200, ..batches(folder.path()) };
    let mut server = Running::batching(bounds.clone(), models(), Config { keys: keys.clone(), ..config() });
    let [one, other] = ["Bearer one", "Bearer other"].map(|key| [("authorization", key)]);
    let file = upload_with(&server, &one, &"x".repeat(200), "batch").json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/files/{file}");
    let status = |server: &Running, method: &str, path: &str, key: &[(&str, &str)]| {
        let mut client = Client::new(server.address);
        client.send_request(method, path, key, "");
        client.reply().unwrap().status
    };
    assert_eq!(status(&server, "GET", &path, &one), 200);
    assert_eq!((status(&server, "GET", &path, &other), status(&server, "DELETE", &path, &other)), (404, 404));
    assert_eq!(upload_with(&server, &other, &"x".repeat(201), "batch").json()["error"]["code"], "body_too_large");
    assert_eq!(upload_with(&server, &other, &"x".repeat(101), "batch").json()["error"]["code"], "storage_full");
    assert_eq!(upload_with(&server, &other, &"x".repeat(100), "batch").status, 200);
    server.wait();
    // The key finds its file after a restart, and its room is free when it is gone.
    let server = Running::batching(bounds, models(), Config { keys, ..config() });
    assert_eq!((status(&server, "GET", &path, &one), status(&server, "GET", &path, &other)), (200, 404));
    assert_eq!(status(&server, "DELETE", &path, &one), 200);
    assert_eq!(upload_with(&server, &other, &"x".repeat(200), "batch").status, 200);
    let left = fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "data"));
    assert_eq!(left.count(), 2);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        for entry in fs::read_dir(folder.path()).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != "lock") {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?} is its owner's alone", entry.path());
        }
    }
}

pub(crate) fn batches_go_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    // Each step takes a while, so that the server stops in the midst of the batch.
    let slow = || {
        let mut model = endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(1))));
        model.name = "slow".into();
        vec![model.into()]
    };
    let settings = || Config { grace: Duration::ZERO, ..config() };
    let body = |i: usize| json!({ "model": "slow", "messages": [{ "role": "user", "content": "x" }], "max_tokens": 10 + i });
    let input: String = (0..40).map(|i| line(&format!("{i:02}"), CHAT, &body(i))).collect();
    let mut server = Running::batching(batches(folder.path()), slow(), settings());
    let id = begin(&server, &input, CHAT);
    let before = wait(&server, &id, |batch| batch["request_counts"]["completed"].as_u64() >= Some(5));
    assert_eq!(before["status"], "in_progress", "the server stops before the batch ends");
    server.wait();
    // A crash in the midst of a write leaves part of a line.
    let record: Json = serde_json::from_slice(&fs::read(folder.path().join(format!("{id}.json"))).unwrap()).unwrap();
    let output = folder.path().join(format!("{}.data", record["output_id"].as_str().unwrap()));
    let kept = fs::read_to_string(&output).unwrap();
    let torn = kept.lines().next().unwrap();
    fs::write(&output, format!("{kept}{}", &torn[..torn.len() / 2])).unwrap();

    let server = Running::batching(batches(folder.path()), slow(), settings());
    let done = end(&server, &id);
    assert_eq!(done["request_counts"], json!({ "total": 40, "completed": 40, "failed": 0 }), "{done}");
    assert_eq!(done["in_progress_at"], record["times"]["in_progress_at"]);
    let lines = lines(&server, &done["output_file_id"]);
    for (number, (name, answer)) in lines.iter().enumerate() {
        assert_eq!(*name, format!("{number:02}"), "each request has one answer");
        assert_eq!(answer["response"]["body"]["usage"]["completion_tokens"], 10 + number);
    }
    let text = get(server.address, &format!("/v1/files/{}/content", done["output_file_id"].as_str().unwrap())).body;
    assert!(lines.len() == 40 && text.starts_with(&kept), "what was done stays");
    let total: u64 = lines.iter().map(|(_, answer)| answer["response"]["body"]["usage"]["total_tokens"].as_u64().unwrap()).sum();
    assert_eq!(done["usage"]["total_tokens"], total);
}

pub(crate) fn other_requests_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(1))));
    model.limits = flambeau::runners::llm::Limits { running: 1, waiting: 1, tokens: usize::MAX, ..LIMITS };
    let server = Running::batching(batches(folder.path()), vec![model.into()], config());
    let body = |tokens: usize| json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": tokens });
    let input: String = (0..8).map(|i| line(&i.to_string(), CHAT, &body(100_000))).collect();
    let id = begin(&server, &input, CHAT);
    server.await_metric("running", 1);
    // The batch's answers take minutes; more of them wait than the queue holds.
    for tokens in [3, 5, 7] {
        let reply = post(server.address, CHAT, &body(tokens));
        assert_eq!((reply.status, &reply.json()["usage"]["completion_tokens"]), (200, &json!(tokens)));
    }
    let batch = get(server.address, &format!("/v1/batches/{id}")).json();
    assert_eq!((&batch["status"], &batch["request_counts"]["completed"]), (&json!("in_progress"), &json!(0)));
    assert_eq!(post(server.address, &format!("/v1/batches/{id}/cancel"), &json!({})).status, 200);
    assert_eq!(end(&server, &id)["status"], "cancelled");
    server.await_metric("running", 0);
}

pub(crate) fn batches_end_early_when_they_are_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let model = endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(1))));
    let server = Running::batching(batches(folder.path()), vec![model.into()], config());
    let body = |tokens: usize| json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": tokens });
    let input = line("short", CHAT, &body(2)) + &line("long", CHAT, &body(100_000));
    let id = begin(&server, &input, CHAT);
    wait(&server, &id, |batch| batch["request_counts"]["completed"] == 1);
    let file = get(server.address, &format!("/v1/batches/{id}")).json()["input_file_id"].as_str().unwrap().to_owned();
    let delete = |path: &str| {
        let mut client = Client::new(server.address);
        client.send_request("DELETE", path, &[], "");
        client.reply().unwrap().status
    };
    assert_eq!(delete(&format!("/v1/files/{file}")), 400, "a batch reads it");
    let cancel = format!("/v1/batches/{id}/cancel");
    assert_eq!(post(server.address, &cancel, &json!({})).json()["status"], "cancelling");
    let done = end(&server, &id);
    assert!(done["cancelled_at"].is_u64() && done["request_counts"]["completed"] == 1, "{done}");
    let names: Vec<String> = lines(&server, &done["output_file_id"]).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["short"], "what is done stays");
    assert_eq!(post(server.address, &cancel, &json!({})).status, 400);
    assert_eq!(delete(&format!("/v1/files/{file}")), 200);
}

pub(crate) fn batches_of_messages_bring_their_requests() {
    const PATH: &str = "/v1/messages/batches";
    let folder = tempfile::tempdir().unwrap();
    let slow = endless(&["a ", "b "], &hooked(|_| sleep(Duration::from_millis(20))));
    let server =
        Running::batching(batches(folder.path()), vec![tiny().into(), NewModel { name: "slow".into(), ..slow }.into()], config());
    let params = |model: &str, tokens: usize| json!({ "model": model, "max_tokens": tokens, "messages": [{ "role": "user", "content": "the cat" }] });
    let request = |name: &str, params: Json| json!({ "custom_id": name, "params": params });
    let begin = |requests: Json| {
        let reply = post(server.address, PATH, &json!({ "requests": requests }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let end = |batch: &Json| {
        let path = format!("{PATH}/{}", batch["id"].as_str().unwrap());
        for _ in 0..10_000 {
            let batch = get(server.address, &path).json();
            if batch["processing_status"] == "ended" {
                return batch;
            }
            sleep(Duration::from_millis(5));
        }
        panic!("the batch never ends: {}", get(server.address, &path).body);
    };
    let results = |batch: &Json| {
        let url = batch["results_url"].as_str().expect("results");
        let body = get(server.address, url.strip_prefix("http://localhost").expect("a URL of this server")).body;
        let lines = body.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
        lines.map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line["result"].clone())).collect::<BTreeMap<_, _>>()
    };
    let wrong = json!({ "model": "tiny", "max_tokens": 5, "messages": [], "temperature": 9 });
    let done = end(&begin(json!([request("a", params("tiny", 5)), request("b", wrong)])));
    let counts = json!({ "processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0 });
    assert_eq!(done["request_counts"], counts, "{done}");
    let found = results(&done);
    assert_eq!(found["a"]["message"]["type"], "message");
    assert_eq!(
        (&found["a"]["type"], &found["b"]["type"], &found["b"]["error"]["type"]),
        (&json!("succeeded"), &json!("errored"), &json!("error"))
    );
    // Requests that did not run are cancelled.
    let many: Vec<Json> = (0..20).map(|number| request(&number.to_string(), params("slow", 200))).collect();
    let batch = begin(json!(many));
    let path = format!("{PATH}/{}", batch["id"].as_str().unwrap());
    assert_eq!(get(server.address, &format!("{path}/results")).status, 400);
    let cancelled = post(server.address, &format!("{path}/cancel"), &json!({})).json();
    assert!(!cancelled["cancel_initiated_at"].is_null(), "{cancelled}");
    let done = end(&batch);
    assert!(done["request_counts"]["canceled"].as_u64() >= Some(10), "{done}");
    assert_eq!(results(&done).len(), 20);
    // Lists have this form's batches alone, the latest first.
    let list = get(server.address, &format!("{PATH}?limit=1")).json();
    assert_eq!((&list["data"][0]["id"], &list["has_more"]), (&batch["id"], &json!(true)), "{list}");
    assert_eq!(get(server.address, "/v1/batches").json()["data"], json!([]));
    let mut client = Client::new(server.address);
    client.send_request("DELETE", &path, &[], "");
    assert_eq!(client.reply().unwrap().json()["type"], "message_batch_deleted");
    assert_eq!((get(server.address, &path).status, get(server.address, &path).json()["type"].clone()), (404, json!("error")));
    for (requests, param) in [
        (json!([]), "requests"),
        (json!([request("a b", params("tiny", 1))]), "custom_id"),
        (json!([request("a", params("tiny", 1)), request("a", params("tiny", 1))]), "custom_id"),
        (json!([{ "custom_id": "a" }]), "params"),
    ] {
        let reply = post(server.address, PATH, &json!({ "requests": requests }));
        assert!(reply.status == 400 && reply.body.contains(param), "{}", reply.body);
    }
}
