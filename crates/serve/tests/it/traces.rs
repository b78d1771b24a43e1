//! Traces, as a collector reads them.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value as Json, json};

use crate::{
    audio,
    client::{Client, get, post},
    clients::{client, python},
    embeddings::encoder,
    hardening::hooked,
    server::{Running, config, endless, tiny},
};

pub(crate) fn has_decoder() -> Result<(), String> {
    python("opentelemetry.proto").map(drop)
}

/// A collector, which ends when it is dropped.
struct Collector {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    port: u16,
}

impl Collector {
    fn start() -> Collector {
        let mut command = Command::new(python("opentelemetry.proto").unwrap());
        let mut child = command.arg(client("otlp_collector.py")).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        lines.read_line(&mut port).unwrap();
        Collector { child, lines, port: port.trim().parse().expect("a port") }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All spans, in the order of their ends.
    fn spans(mut self) -> Vec<Json> {
        self.child.kill().unwrap();
        std::io::Read::by_ref(&mut self.lines).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

pub(crate) fn spans_follow_the_conventions() {
    let collector = Collector::start();
    let mut slow = endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(1))));
    slow.name = "slow".into();
    let models = vec![tiny().into(), slow.into(), encoder().into(), audio::model("parakeet-tdt").into()];
    let mut server = Running::traced(&collector.url(), models, config());

    let messages = json!([{ "role": "user", "content": "where is the cat ?" }]);
    let chat = json!({ "model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0.5, "n": 2, "stop": ["dog"], "top_p": 0.25 });
    let mut traced = Client::new(server.address);
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    traced.send_request("POST", CHAT, &[("traceparent", &traceparent), ("tracestate", "a=b")], &chat.to_string());
    let answer = traced.reply().unwrap().json();
    // A stream's span ends with the stream.
    let streamed = json!({ "model": "slow", "messages": messages, "max_tokens": 20, "stream": true });
    assert_eq!(post(server.address, CHAT, &streamed).status, 200);
    // A trace that is not recorded stays so.
    let mut quiet = Client::new(server.address);
    quiet.send_request("POST", CHAT, &[("traceparent", &format!("00-{TRACE}-{PARENT}-00"))], &chat.to_string());
    assert_eq!(quiet.reply().unwrap().status, 200);
    assert_eq!(post(server.address, CHAT, &json!({ "model": "nobody", "messages": messages })).status, 404);
    assert_eq!(post(server.address, "/v1/embeddings", &json!({ "model": "encoder", "input": "a cat" })).status, 200);
    assert_eq!(audio::ask(&server, "parakeet-tdt", &[("model", "parakeet-tdt")]).status, 200);
    get(server.address, "/v1/models");
    post(server.address, "/tokenize", &json!({ "model": "tiny", "content": "the cat" }));
    // A client that leaves ends its job.
    let mut gone = Client::new(server.address);
    gone.send_request("POST", CHAT, &[], &json!({ "model": "slow", "messages": messages }).to_string());
    server.await_metric_of("slow", "running", 1);
    drop(gone);
    server.await_metric_of("slow", "running", 0);
    let port = server.address.port();
    server.wait();

    let spans = collector.spans();
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat tiny", "chat slow", "chat", "embeddings encoder", "transcription parakeet-tdt", "chat slow"]);
    let [chat, stream, wrong, vectors, transcript, cancelled] = &spans[..] else { unreachable!() };
    assert_eq!((&chat["trace"], &chat["parent"], &chat["state"]), (&json!(TRACE), &json!(PARENT), &json!("a=b")));
    for span in &spans {
        assert_eq!((&span["kind"], &span["resource"]["service.name"]), (&json!("SPAN_KIND_SERVER"), &json!("flambeau")));
        let attributes = &span["attributes"];
        let expected = json!(["flambeau", "127.0.0.1", port]);
        assert_eq!(json!([attributes["gen_ai.provider.name"], attributes["server.address"], attributes["server.port"]]), expected);
        assert!(!span.to_string().contains("where"), "no prompt is told: {span}");
    }
    let usage = &answer["usage"];
    for (name, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("tiny")),
        ("gen_ai.response.model", json!("tiny")),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.request.top_p", json!(0.25)),
        ("gen_ai.request.max_tokens", json!(6)),
        ("gen_ai.request.choice.count", json!(2)),
        ("gen_ai.request.stop_sequences", json!(["dog"])),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", usage["completion_tokens"].clone()),
        ("http.response.status_code", json!(200)),
        ("url.path", json!(CHAT)),
    ] {
        assert_eq!(chat["attributes"][name], value, "{name}: {chat} {usage}");
    }
    let finishes: Vec<&Json> = answer["choices"].as_array().unwrap().iter().map(|choice| &choice["finish_reason"]).collect();
    assert_eq!(chat["attributes"]["gen_ai.response.finish_reasons"].as_array().unwrap().len(), finishes.len());
    let attributes = &stream["attributes"];
    let time = |name: &str| attributes[format!("gen_ai.latency.{name}")].as_f64().unwrap_or_else(|| panic!("{stream}"));
    assert!(
        time("time_in_queue") <= time("time_to_first_token") && time("time_to_first_token") < stream["seconds"].as_f64().unwrap()
    );
    assert_eq!(
        (&attributes["gen_ai.usage.output_tokens"], &attributes["gen_ai.response.finish_reasons"]),
        (&json!(20), &json!(["length"]))
    );
    assert!(stream["parent"] == "" && stream["trace"] != chat["trace"] && attributes.get("error.type").is_none(), "{stream}");
    assert_eq!(wrong["attributes"]["error.type"], "404");
    assert!(vectors["attributes"]["gen_ai.usage.input_tokens"].as_i64() > Some(0), "{vectors}");
    assert_eq!(transcript["attributes"]["gen_ai.operation.name"], "transcription");
    assert_eq!(cancelled["attributes"]["error.type"], "cancelled");
}

pub(crate) fn a_collector_that_is_away_costs_no_request() {
    let mut server = Running::traced("http://127.0.0.1:9", vec![tiny().into()], config());
    let body = json!({ "messages": [{ "role": "user", "content": "the cat" }], "max_tokens": 2 });
    assert_eq!(post(server.address, CHAT, &body).status, 200);
    server.wait();
}
