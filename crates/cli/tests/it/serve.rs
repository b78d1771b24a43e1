//! A server as people run it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value as Json, json};

use crate::{command, flambeau};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

/// A server and its address.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
    /// The server's stderr. The server fails if this end of the pipe is closed.
    log: BufReader<std::process::ChildStderr>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn serve(folder: &Path, flags: &[&str]) -> Serving {
    let mut serving = command(folder, &[&["serve", TINY, "--port", "0"], flags].concat());
    let mut child = serving.stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let mut serving = Serving { child, address: String::new(), log };
    let mut told = String::new();
    while serving.address.is_empty() {
        let mut line = String::new();
        assert_ne!(serving.log.read_line(&mut line).unwrap(), 0, "the server did not start: {told}");
        serving.address = line.trim().strip_prefix("listening on http://").unwrap_or_default().to_owned();
        told.push_str(&line);
    }
    serving
}

pub(crate) fn ask(address: &str, method: &str, path: &str, header: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{header}");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").expect("a response");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_served_model_says_what_the_command_line_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut serving = serve(folder.path(), &["--alias", "other", "--threads", "1"]);
    let body = json!({ "messages": [{ "role": "user", "content": "the cat sat" }], "temperature": 0, "max_tokens": 8 });
    let (status, reply) = ask(&serving.address, "POST", "/v1/chat/completions", "", &body.to_string());
    let reply: Json = serde_json::from_str(&reply).unwrap();
    assert_eq!((status, reply["model"].as_str()), (200, Some("tiny-llama")));
    let generated = flambeau(folder.path(), &["generate", TINY, "-p", "the cat sat", "-n", "8", "-q", "--threads", "1"]);
    assert_eq!(reply["choices"][0]["message"]["content"].as_str(), Some(generated.stdout.trim_end_matches('\n')));
    let (_, models) = ask(&serving.address, "GET", "/v1/models", "", "");
    assert!(models.contains("\"aliases\":[\"other\"]"), "{models}");

    if cfg!(unix) {
        signal(&serving, "-TERM");
        assert_eq!(serving.child.wait().unwrap().code(), Some(0));
        let mut log = String::new();
        serving.log.read_to_string(&mut log).unwrap();
        assert!(log.contains("/v1/chat/completions") && !log.contains("cat"), "requests are logged, and prompts are not: {log}");
    }
}

#[cfg(unix)]
#[test]
fn logs_of_json_name_requests_and_their_traces() {
    let folder = tempfile::tempdir().unwrap();
    let mut serving = serve(folder.path(), &["--threads", "1", "--log-format", "json"]);
    let body = json!({ "messages": [{ "role": "user", "content": "the cat sat" }], "max_tokens": 2 }).to_string();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    assert_eq!(ask(&serving.address, "POST", "/v1/chat/completions", &header, &body).0, 200);
    assert_eq!(ask(&serving.address, "GET", "/none", "", "").0, 404);
    signal(&serving, "-TERM");
    let mut log = String::new();
    serving.log.read_to_string(&mut log).unwrap();
    let lines: Vec<Json> = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let requests: Vec<&Json> = lines.iter().filter(|line| line["message"] == "request").collect();
    let [chat, unknown] = requests[..] else { panic!("{log}") };
    for (field, value) in [("method", "POST"), ("level", "INFO"), ("trace_id", trace)] {
        assert_eq!(chat[field], value, "{chat}");
    }
    assert_eq!((&chat["status"], &unknown["status"]), (&json!(200), &json!(404)));
    assert!(chat["path"].as_str().unwrap().contains("/v1/chat/completions") && chat["duration_ms"].is_u64(), "{chat}");
    assert!(chat["request_id"].as_str().unwrap().starts_with("req_") && chat["timestamp"].is_string(), "{chat}");
    assert!(unknown.get("trace_id").is_none() && !log.contains("cat"), "{log}");
}

/// A copy of the tiny model whose template has no end.
fn with_bad_template(folder: &Path) -> String {
    let copy = folder.join("bad");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(TINY).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    std::fs::write(copy.join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}").unwrap();
    copy.to_str().unwrap().to_owned()
}

#[test]
fn a_model_with_a_bad_template_does_not_keep_others_from_being_served() {
    let folder = tempfile::tempdir().unwrap();
    let bad = with_bad_template(folder.path());
    let serving = serve(folder.path(), &[&bad, "--threads", "1"]);
    let body = |model: &str| {
        let messages = json!([{ "role": "user", "content": "the cat sat" }]);
        json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 8 }).to_string()
    };
    let (status, reply) = ask(&serving.address, "POST", "/v1/chat/completions", "", &body("bad"));
    assert!(status == 400 && reply.contains("template"), "{reply}");
    let (status, _) = ask(&serving.address, "POST", "/v1/chat/completions", "", &body("tiny-llama"));
    assert_eq!(status, 200);
    let raw = flambeau(folder.path(), &["generate", &bad, "-p", "the cat sat", "-n", "2", "-q", "--raw"]);
    assert_eq!(raw.code, 0, "{}", raw.stderr);
    let refused = flambeau(folder.path(), &["generate", &bad, "-p", "the cat sat", "-n", "2", "-q"]);
    assert!(refused.code != 0 && refused.stderr.contains("--raw"), "{}", refused.stderr);
}

/// Sends a signal to the server.
fn signal(serving: &Serving, name: &str) {
    assert!(Command::new("kill").args([name, &serving.child.id().to_string()]).status().unwrap().success());
}

#[test]
fn keys_come_from_files_and_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keys"), "# ours\nsk-file\n").unwrap();
    let serving = serve(folder.path(), &["--api-key-file", "keys", "--host", "0.0.0.0", "--log-level", "error"]);
    let address = serving.address.replace("0.0.0.0", "127.0.0.1");
    let status = |header: &str| ask(&address, "GET", "/v1/models", header, "").0;
    assert_eq!((status(""), status("authorization: Bearer sk-file\r\n"), status("x-api-key: sk\r\n")), (401, 200, 401));

    // The server reads the file again on a signal, which Windows does not have.
    if cfg!(unix) {
        std::fs::write(folder.path().join("keys"), "sk-new\n").unwrap();
        assert_eq!(status("x-api-key: sk-new\r\n"), 401);
        signal(&serving, "-HUP");
        let was_read = (0..1000).any(|_| status("x-api-key: sk-new\r\n") == 200);
        assert!(was_read && status("x-api-key: sk-file\r\n") == 401);
    }
}

#[test]
fn what_would_be_unsafe_or_cannot_be_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty"), "# none\n").unwrap();
    for (flags, code, expected) in [
        (&["--host", "0.0.0.0"][..], 2, "--insecure"),
        (&["--otlp-endpoint", "nowhere"], 1, "cannot send traces to nowhere: expected a URL"),
        (&["--api-key", "a b"], 2, "printable ASCII"),
        (&["--api-key-file", "empty"], 2, "holds no key"),
        (&["--api-key-file", "missing"], 1, "cannot read missing"),
        (&["--cache-memory", "1", "--max-seq-len", "100000"], 1, "--cache-memory N"),
        (&[TINY], 2, "NAME=MODEL"),
        (&["b=tiny", "--chat-template", "x"], 2, "--chat-template-file are for a single model"),
    ] {
        let done = flambeau(folder.path(), &[&["serve", TINY, "--port", "0"], flags].concat());
        assert!(done.code == code && done.stderr.contains(expected), "{flags:?}: {} {}", done.code, done.stderr);
    }
}

#[test]
fn a_servers_models_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("keys.txt"), "# for tests\nsk-1\n").unwrap();
    let serving = serve(folder.path(), &["--alias", "tiny", "--api-key-file", "keys.txt"]);
    let url = format!("http://{}", serving.address);
    let refused = flambeau(folder.path(), &["ps", "--url", &url]);
    assert!(refused.code == 1 && refused.stderr.contains("FLAMBEAU_API_KEY"), "{}", refused.stderr);
    let listed = flambeau(folder.path(), &["ps", "--url", &url, "--api-key-file", "keys.txt"]);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("tiny-llama  loaded"), "{} {}", listed.stdout, listed.stderr);
    let json = flambeau(folder.path(), &["ps", "--url", &url, "--api-key-file", "keys.txt", "--json"]);
    let json: Json = serde_json::from_str(&json.stdout).unwrap();
    assert!(json[0]["size"].as_u64() > Some(1000) && json[0]["idle_seconds"].is_u64() && json[0]["requests"] == 0, "{json}");
    drop(serving);
    let gone = flambeau(folder.path(), &["ps", "--url", &url]);
    assert!(gone.code == 1 && gone.stderr.contains("there is no server"), "{}", gone.stderr);
}

#[test]
fn answers_outgrow_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let body = json!({ "prompt": "the cat sat", "temperature": 0, "max_tokens": 90, "ignore_eos": true }).to_string();
    let answer = |flags: &[&str]| -> Json {
        let serving = serve(folder.path(), &[&["--threads", "1"], flags].concat());
        let (status, reply) = ask(&serving.address, "POST", "/v1/completions", "", &body);
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str(&reply).unwrap()
    };
    let (full, shifted) = (answer(&[]), answer(&["--context-shift", "--keep", "2"]));
    let text = |answer: &Json| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(shifted["usage"]["completion_tokens"], 90);
    assert!(full["usage"]["completion_tokens"].as_u64() < Some(64) && text(&shifted).starts_with(&text(&full)), "{shifted}");
}

#[test]
fn batches_have_a_folder_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = |serving: &Serving| ask(&serving.address, "GET", "/v1/files", "", "").0;
    let one = serve(folder.path(), &["--threads", "1"]);
    assert!(folder.path().join("cache/flambeau/batches").is_dir() && files(&one) == 200);
    // Another server needs no default folder, but refuses to start without the folder of the flag.
    let other = serve(folder.path(), &["--threads", "1", "--batch-disk", "10"]);
    assert_eq!(files(&other), 503);
    let taken = flambeau(folder.path(), &["serve", TINY, "--port", "0", "--batch-dir", "cache/flambeau/batches"]);
    assert!(taken.code == 1 && taken.stderr.contains("another process uses the folder"), "{}", taken.stderr);
    assert_eq!(files(&serve(folder.path(), &["--threads", "1", "--batch-dir", "mine"])), 200);
    assert_eq!(files(&serve(folder.path(), &["--threads", "1", "--batch-disk", "0"])), 503);
}

#[test]
fn a_template_given_by_flag_replaces_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    fs::write(folder.path().join("own.jinja"), template).unwrap();
    for flags in [["--chat-template", template], ["--chat-template-file", "own.jinja"]] {
        let serving = serve(folder.path(), &flags);
        let body = json!({ "messages": [{ "role": "user", "content": "hi" }] }).to_string();
        let (status, text) = ask(&serving.address, "POST", "/apply-template", "", &body);
        assert_eq!((status, serde_json::from_str::<Json>(&text).unwrap()), (200, json!({ "prompt": "<user>hi" })));
    }
}
