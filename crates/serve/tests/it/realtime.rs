//! Sound that is transcribed while it comes.

use std::{fs, process::Command, thread::sleep, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flambeau::runners::speech::Settings;
use flambeau_serve::{Config, Keys};
use serde_json::{Value as Json, json};

use crate::{
    audio,
    client::{Client, get},
    clients::{REALTIME_CALLS, client, python, worked},
    hardening::hooked,
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

/// A new session.
fn session(server: &Running) -> Client {
    let (client, created) = session_with(server, &[]);
    assert_eq!(created["type"], "session.created");
    client
}

/// A new session with more headers, and its first event.
fn session_with(server: &Running, more: &[(&str, &str)]) -> (Client, Json) {
    let mut client = Client::new(server.address);
    let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let headers = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"), key];
    client.send_request("GET", "/v1/realtime", &[&headers[..], more].concat(), "");
    assert_eq!(client.head().expect("a session").status, 101);
    let created = event(&mut client);
    (client, created)
}

/// The next event of a session.
fn event(client: &mut Client) -> Json {
    let (kind, event) = client.frame().expect("an event");
    assert_eq!(kind, 1, "{}", String::from_utf8_lossy(&event));
    serde_json::from_slice(&event).unwrap()
}

/// Reads the close frame of a stopping server.
fn is_closed(client: &mut Client) {
    let (kind, reason) = client.frame().expect("a close frame");
    assert_eq!((kind, &reason[..2]), (8, &1001_u16.to_be_bytes()[..]));
}

pub(crate) fn sessions_are_closed_when_the_server_stops() {
    let mut server = Running::with(Vec::new(), vec![audio::model("parakeet-tdt")], config());
    let mut client = session(&server);
    server.stop();
    is_closed(&mut client);
    server.wait();
}

pub(crate) fn the_beta_has_names_of_its_own() {
    let server = Running::with(Vec::new(), vec![audio::model("parakeet-tdt")], config());
    let (mut client, created) = session_with(&server, &[("openai-beta", "realtime=v1")]);
    assert_eq!(created["type"], "transcription_session.created");
    let update = json!({ "input_audio_format": "pcm16", "turn_detection": null });
    client.send_text(&json!({ "type": "transcription_session.update", "session": update }).to_string());
    let updated = event(&mut client);
    assert_eq!(
        (&updated["type"], &updated["session"]["input_audio_format"]),
        (&json!("transcription_session.updated"), &json!("pcm16"))
    );
    let sound = STANDARD.encode(vec![0; 2 * 24_000]);
    client.send_text(&json!({ "type": "input_audio_buffer.append", "audio": sound }).to_string());
    client.send_text(&json!({ "type": "input_audio_buffer.commit" }).to_string());
    let (committed, item) = (event(&mut client), event(&mut client));
    assert_eq!((&committed["type"], &item["type"]), (&json!("input_audio_buffer.committed"), &json!("conversation.item.created")));
    let done = event(&mut client);
    assert_eq!(done["type"], "conversation.item.input_audio_transcription.completed", "{done}");
    // An update in the other form changes the names.
    client.send_text(&json!({ "type": "session.update", "session": {} }).to_string());
    assert_eq!(event(&mut client)["type"], "session.updated");
}

pub(crate) fn committed_turns_are_told_before_the_server_stops() {
    let mut model = audio::model("parakeet-tdt");
    let transcript = audio::offline(&model, Settings { live: Some(1.0), ..Settings::default() }).text();
    // Each run takes a while, so that the server stops in the midst of the turn.
    model.engine = hooked(|_| sleep(Duration::from_millis(20)));
    let mut server = Running::with(Vec::new(), vec![model], config());
    let mut client = session(&server);
    let input = json!({ "format": { "type": "audio/pcm", "rate": 16_000 }, "turn_detection": null });
    client.send_text(&json!({ "type": "session.update", "session": { "audio": { "input": input } } }).to_string());
    assert_eq!(event(&mut client)["type"], "session.updated");
    let file = fs::read(audio::recording("parakeet-tdt")).unwrap();
    let sound = STANDARD.encode(&file[44..]);
    client.send_text(&json!({ "type": "input_audio_buffer.append", "audio": sound }).to_string());
    client.send_text(&json!({ "type": "input_audio_buffer.commit" }).to_string());
    while event(&mut client)["type"] != "input_audio_buffer.committed" {}
    server.stop();
    let told = loop {
        let event = event(&mut client);
        if event["type"] == "conversation.item.input_audio_transcription.completed" {
            break event;
        }
    };
    assert_eq!(told["transcript"], transcript.trim());
    is_closed(&mut client);
    server.wait();
}
