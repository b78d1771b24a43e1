//! Sound that is transcribed while it comes.

use std::process::Command;

use flambeau::runners::speech::Settings;
use flambeau_serve::{Config, Keys};
use serde_json::json;

use crate::{
    audio,
    client::{Client, get},
    clients::{REALTIME_CALLS, client, python, worked},
    server::{Running, config},
};

pub(crate) fn has_clients() -> Result<(), String> {
    python("openai").and_then(|_| python("websockets")).map(drop)
}

pub(crate) fn openai_transcribes_live() {
    let model = audio::model("parakeet-tdt");
    let transcript = audio::offline(&model, Settings { live: Some(1.0), ..Settings::default() }).text();
    assert!(!transcript.is_empty());
    let config = Config { keys: Keys::new(vec!["sk-test".into()]), metrics: true, public_metrics: true, ..config() };
    let server = Running::with(Vec::new(), vec![model], config);
    let mut command = Command::new(python("websockets").unwrap());
    command.arg(client("realtime_client.py")).arg(format!("http://{}", server.address));
    command.arg(audio::recording("parakeet-tdt")).arg(transcript.trim());
    assert_eq!(worked(&mut command), json!(REALTIME_CALLS));
    // Sessions that ended leave no work behind.
    server.await_metric("running", 0);
    assert_eq!(get(server.address, "/v1/realtime").status, 401);
    let mut plain = Client::new(server.address);
    plain.send_request("GET", "/v1/realtime", &[("authorization", "Bearer sk-test")], "");
    let reply = plain.reply().unwrap();
    assert!(reply.status == 400 && reply.body.contains("WebSocket"), "{}", reply.body);
}

pub(crate) fn sessions_are_closed_when_the_server_stops() {
    let mut server = Running::with(Vec::new(), vec![audio::model("parakeet-tdt")], config());
    let mut client = Client::new(server.address);
    let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let headers = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"), key];
    client.send_request("GET", "/v1/realtime", &headers, "");
    assert_eq!(client.head().expect("a session").status, 101);
    let (kind, event) = client.frame().expect("an event");
    assert!(kind == 1 && String::from_utf8_lossy(&event).contains("session.created"));
    server.stop();
    let (kind, reason) = client.frame().expect("a close frame");
    assert_eq!((kind, &reason[..2]), (8, &1001_u16.to_be_bytes()[..]));
    server.wait();
}
