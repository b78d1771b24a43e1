//! Requests of coding agents, probes and desktop clients.

use flambeau_serve::{Config, Keys};
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, Reply, get, post},
    server::{PLAIN, Running, config, script, tiny},
};

fn ask(server: &Running, method: &str, path: &str, headers: &[(&str, &str)], body: &Json) -> Reply {
    let mut client = Client::new(server.address);
    let body = if method == "POST" { body.to_string() } else { String::new() };
    client.send_request(method, path, headers, &body);
    client.reply().expect("a response")
}

pub(crate) fn probes_are_answered_and_requests_keep_their_names() {
    let server = Running::new(vec![tiny()], Config { keys: Keys::new(vec!["k".into()]), ..config() });
    for path in ["/livez", "/ready", "/readyz", "/health"] {
        assert_eq!(get(server.address, path).status, 200, "{path}");
    }
    let version = |headers: &[(&str, &str)]| ask(&server, "GET", "/version", headers, &Json::Null);
    assert_eq!(version(&[]).status, 401);
    let reply = version(&[("authorization", "Bearer k"), ("x-request-id", "trace-7")]);
    assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("trace-7")));
    assert_eq!(reply.json()["version"], env!("CARGO_PKG_VERSION"));
    let long = "x".repeat(129);
    for unfit in ["", "a b", "ü", long.as_str()] {
        let reply = version(&[("authorization", "Bearer k"), ("x-request-id", unfit)]);
        assert!(reply.header("x-request-id").is_some_and(|id| id.starts_with("req_")), "{unfit:?}");
    }
}

/// Messages that a template refuses in their place, and tools that nothing here runs.
pub(crate) fn agents_are_answered_or_told_why() {
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}{{ m.content }} {% endfor %}";
    let server = Running::new(vec![script(&["yes"], strict)], config());
    let late = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }], "betas": ["x"] });
    let reply = ask(&server, "POST", "/v1/messages?beta=true", &[("anthropic-beta", "unknown-2030-01-01")], &late);
    assert_eq!((reply.status, &reply.json()["content"][0]["text"]), (200, &json!("yes")), "{}", reply.body);
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }] });
    assert_eq!(post(server.address, "/apply-template", &chat).json()["prompt"], "a\n\nb ");
    let begun = json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }], "continue_final_message": true });
    assert_eq!(post(server.address, "/apply-template", &begun).json()["prompt"], "a b");
    let mut wrong = chat;
    wrong["continue_final_message"] = true.into();
    assert_eq!(post(server.address, "/apply-template", &wrong).json()["error"]["param"], "continue_final_message");

    for (path, body) in [
        (
            "/v1/messages",
            json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "a" }], "tools": [{ "type": "web_search_20250305", "name": "w" }] }),
        ),
        ("/v1/responses", json!({ "input": "a", "tools": [{ "type": "web_search" }] })),
    ] {
        let reply = post(server.address, path, &body);
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.body.contains("tools[0].type") && reply.body.contains("--drop-hosted-tools"), "{}", reply.body);
        let drops = Running::new(vec![script(&["yes"], PLAIN)], Config { drop_hosted_tools: true, ..config() });
        let reply = post(drops.address, path, &body);
        assert!(reply.status == 200 && reply.header("x-flambeau-dropped-tools").is_some(), "{}", reply.body);
    }
    let counted = post(server.address, "/v1/messages/count_tokens", &json!({ "messages": [], "max_tokens": 5 }));
    assert_eq!((counted.status, &counted.json()["type"]), (400, &json!("error")));
}

pub(crate) fn kept_responses_belong_to_their_key() {
    let server = Running::new(vec![script(&["yes"], PLAIN)], Config { keys: Keys::new(vec!["a".into(), "b".into()]), ..config() });
    let ask = |key: &str, method: &str, path: &str, body: &Json| {
        ask(&server, method, path, &[("authorization", &format!("Bearer {key}"))], body)
    };
    let first = ask("a", "POST", "/v1/responses", &json!({ "input": "x" })).json();
    let id = first["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    assert_eq!((ask("a", "GET", &path, &Json::Null).json(), ask("b", "GET", &path, &Json::Null).status), (first.clone(), 404));
    let next = json!({ "input": "y", "previous_response_id": id, "stream": true });
    let streamed = ask("a", "POST", "/v1/responses", &next);
    assert!(streamed.body.contains("response.completed") && streamed.body.contains(&format!("\"previous_response_id\":\"{id}\"")));
    let reply = ask("b", "POST", "/v1/responses", &next);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(ask("a", "POST", &format!("{path}/cancel"), &json!({})).status, 400);
    assert_eq!((ask("b", "DELETE", &path, &Json::Null).status, ask("a", "DELETE", &path, &Json::Null).status), (404, 200));
    assert_eq!(ask("a", "GET", &path, &Json::Null).status, 404);

    let forgets = Running::new(vec![script(&["yes"], PLAIN)], Config { response_bytes: 0, ..config() });
    let response = post(forgets.address, "/v1/responses", &json!({ "input": "x" })).json();
    assert_eq!(response["store"], false);
    let next = json!({ "input": "y", "previous_response_id": response["id"] });
    assert_eq!(post(forgets.address, "/v1/responses", &next).json()["error"]["code"], "previous_response_not_found");
}

/// Errors of Ollama's protocol are texts, also those of keys and paths.
pub(crate) fn ollamas_errors_are_texts() {
    let server = Running::new(vec![tiny()], Config { keys: Keys::new(vec!["k".into()]), ..config() });
    let key = ("authorization", "Bearer k");
    for (status, method, path, headers) in [
        (401, "GET", "/api/tags", &[][..]),
        (404, "GET", "/api/nothing", &[key]),
        (405, "GET", "/api/chat", &[key]),
        (501, "POST", "/api/create", &[key]),
    ] {
        let reply = ask(&server, method, path, headers, &json!({}));
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.json()["error"].is_string(), "{}", reply.body);
    }
    assert!(ask(&server, "GET", "/api/version", &[key], &Json::Null).json()["version"].is_string());
}
