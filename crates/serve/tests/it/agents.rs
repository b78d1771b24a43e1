//! Requests of coding agents, probes and desktop clients.

use flambeau_serve::{Config, Keys};
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, Reply, get, post},
    server::{PLAIN, Running, config, cpu, endless, script, script_with_control, tiny},
};

const CHAT: &str = "/v1/chat/completions";

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

/// Requests of agents with a late system message, which the template refuses, and with hosted
/// tools.
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
    // Its clients need not state the type of their bodies; pages in browsers must.
    let typed = ("content-type", "application/x-www-form-urlencoded");
    let load = json!({ "model": "tiny" });
    assert_eq!(ask(&server, "POST", "/api/generate", &[key, typed], &load).status, 200);
    assert_eq!(ask(&server, "POST", "/api/generate", &[key, typed, ("origin", "http://localhost")], &load).status, 415);
    assert_eq!(ask(&server, "POST", "/v1/completions", &[key, typed], &load).status, 415);
    let unload = json!({ "model": "tiny", "keep_alive": 0 });
    assert_eq!(ask(&server, "POST", "/api/generate", &[key], &unload).status, 400, "the model is not loaded on demand");
}

pub(crate) fn keys_have_allowances_and_turns_of_their_own() {
    let keys = || Keys::new(vec!["a".into(), "b".into()]);
    let limited = Config { keys: keys(), requests_per_minute: Some(2), tokens_per_minute: Some(60), ..config() };
    let server = Running::new(vec![tiny()], limited);
    let chat = json!({ "messages": [{ "role": "user", "content": "the cat" }], "max_tokens": 2, "ignore_eos": true });
    let ask = |key: &str, path: &str, body: &Json| ask(&server, "POST", path, &[("authorization", &format!("Bearer {key}"))], body);
    assert_eq!(ask("a", CHAT, &chat).status, 200);
    let second = ask("a", CHAT, &chat);
    let header = |name: &str| second.header(name).unwrap_or_else(|| panic!("no {name} in {:?}", second.headers)).to_owned();
    assert_eq!((header("x-ratelimit-limit-requests"), header("x-ratelimit-remaining-requests")), ("2".into(), "0".into()));
    assert!(header("x-ratelimit-remaining-tokens").parse::<u64>().unwrap() < 60);
    assert!(header("x-ratelimit-reset-requests").ends_with('s'));
    let third = ask("a", CHAT, &chat);
    assert_eq!((third.status, &third.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(third.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let other = ask("b", "/v1/messages", &json!({ "messages": chat["messages"], "max_tokens": 2 }));
    assert_eq!((other.status, other.header("anthropic-ratelimit-requests-remaining")), (200, Some("1")));
    assert_eq!(get(server.address, "/health").header("x-ratelimit-limit-requests"), None);

    // A key with many requests leaves places in the queue, and takes turns.
    let mut model = endless(&["a ", "b "], &cpu());
    (model.limits.running, model.limits.waiting) = (1, 4);
    let server = Running::new(vec![model], Config { keys: keys(), ..config() });
    let begin = |key: &str, tokens: usize| {
        let mut client = Client::new(server.address);
        let body = json!({ "messages": [{ "role": "user", "content": "go" }], "stream": true, "max_tokens": tokens });
        client.send_request("POST", CHAT, &[("authorization", &format!("Bearer {key}"))], &body.to_string());
        let status = client.head().unwrap().status;
        (status, client)
    };
    let metric = |name: &str, value: u64| {
        let read = || {
            let reply = self::ask(&server, "GET", "/metrics", &[("authorization", "Bearer a")], &Json::Null);
            let line = reply.body.lines().find(|line| line.starts_with(&format!("flambeau_{name}{{"))).map(str::to_owned);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        };
        (0..10_000).any(|_| {
            read() == Some(value) || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                false
            }
        })
    };
    let first = begin("a", 1_000_000);
    assert!(first.0 == 200 && metric("running", 1));
    let greedy = [begin("a", 1_000_000), begin("a", 1_000_000)];
    assert_eq!(greedy.each_ref().map(|(status, _)| *status), [200, 200]);
    assert_eq!(begin("a", 5).0, 429, "half of the queue is left to others");
    let (status, mut modest) = begin("b", 5);
    assert!(status == 200 && metric("waiting", 3));
    drop(first);
    // The other key's request runs before those that came earlier.
    let mut text = String::new();
    while let Some(chunk) = modest.chunk().filter(|_| !text.contains("[DONE]")) {
        text.push_str(&chunk);
    }
    assert!(text.contains("[DONE]"), "{text}");
    drop(greedy);
}

/// A model of code, whose tokenizer has the tokens for gaps.
pub(crate) fn gaps_are_filled() {
    let fim = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"];
    let pieces = [&fim[..3], &["a + ", "b", fim[3], "never"]].concat();
    let server = Running::new(vec![script_with_control(&pieces, &fim, PLAIN)], config());
    assert_eq!(get(server.address, "/v1/models").json()["data"][0]["capabilities"]["insert"], true);
    let files = json!([{ "filename": "x.py", "text": "import y" }]);
    let body = json!({ "input_prefix": "sum = ", "input_suffix": "print", "input_extra": files, "n_predict": 9, "samplers": ["top_k"], "t_max_predict_ms": 500 });
    let whole = post(server.address, "/infill", &body).json();
    assert_eq!((&whole["content"], &whole["stop_type"], &whole["stop"]), (&json!("a + b"), &json!("eos"), &json!(true)), "{whole}");
    assert!(whole["timings"]["predicted_n"].is_u64() && whole["tokens_evaluated"].as_u64() > Some(4));
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = post(server.address, "/infill", &streamed).body;
    let events: Vec<Json> = events.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let text: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!((text.as_str(), &events.last().unwrap()["stop"]), ("a + b", &json!(true)));
    let completed = post(server.address, "/v1/completions", &json!({ "prompt": "sum = ", "suffix": "print" })).json();
    assert_eq!(completed["choices"][0]["text"], "a + b");
    let generated = post(
        server.address,
        "/api/generate",
        &json!({ "model": "script", "prompt": "sum = ", "suffix": "print", "stream": false }),
    )
    .json();
    assert_eq!(generated["response"], "a + b", "{generated}");
    let ids = post(server.address, "/v1/completions", &json!({ "prompt": [1], "suffix": "print" }));
    assert_eq!((ids.status, &ids.json()["error"]["param"]), (400, &json!("suffix")));

    let plain = Running::new(vec![tiny()], config());
    assert_eq!(post(plain.address, "/infill", &body).json()["error"]["param"], "input_suffix");
}
