//! Requests for unknown or impossible things.

use flambeau_serve::Config;
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, get, post, post_text},
    server::{Running, config, tiny},
};

pub(crate) fn texts_are_continued() {
    let server = Running::new(vec![tiny()], config());
    let post = |body: Json| {
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply
    };
    let text = |json: &Json, i: usize| json["choices"][i]["text"].as_str().unwrap().to_owned();
    let one = post(json!({ "prompt": "the cat sat", "temperature": 0 })).json();
    assert_eq!((&one["object"], &one["usage"]["prompt_tokens"]), (&json!("text_completion"), &json!(3)));
    assert!(one["usage"]["completion_tokens"].as_u64().unwrap() <= 16);
    let ids = post(json!({ "prompt": [6, 7, 8], "temperature": 0 })).json();
    assert_eq!(text(&ids, 0), text(&one, 0));
    let many = post(json!({ "prompt": ["a dog", "the cat sat", [13, 14]], "n": 2, "temperature": 0, "echo": true })).json();
    assert_eq!(many["choices"].as_array().unwrap().len(), 6);
    assert_eq!((text(&many, 2), text(&many, 3)), (format!("the cat sat{}", text(&one, 0)), text(&many, 2)));
    let events = post(json!({ "prompt": "the cat sat", "temperature": 0, "stream": true, "echo": true })).events();
    let streamed: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text(&many, 2));
    let told = post(json!({ "prompt": "the cat sat", "temperature": 0, "logprobs": 2, "max_tokens": 3 })).json();
    let logprobs = &told["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len() as u64, told["usage"]["completion_tokens"].as_u64().unwrap(), "{list}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}

pub(crate) fn bias_and_penalties_change_what_is_chosen() {
    let server = Running::new(vec![tiny()], config());
    let ids = |more: Json| {
        let mut body = json!({ "prompt": "the cat", "temperature": 0, "max_tokens": 12, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let text = post(server.address, "/v1/completions", &body).json()["choices"][0]["text"].as_str().unwrap().to_owned();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(ids(json!({ "logit_bias": { "14": 100 } })).iter().all(|word| word == "dog" || word == "a"));
    let distinct = |words: &[String]| words.iter().collect::<std::collections::BTreeSet<_>>().len();
    let (plain, penalized) = (ids(json!({})), ids(json!({ "frequency_penalty": 2, "presence_penalty": 2 })));
    assert!(distinct(&penalized) > distinct(&plain), "{plain:?} {penalized:?}");
}

/// Each of these fields is wrong, and the answer names it.
pub(crate) fn wrong_fields_are_named() {
    let server = Running::new(vec![tiny()], config());
    let check = |path: &str, mut body: Json, field: &str, value: Json, param: &str| {
        body[field] = value.clone();
        let reply = post(server.address, path, &body);
        let error = &reply.json()["error"];
        assert_eq!((reply.status, error["param"].as_str()), (400, Some(param)), "{field} = {value}: {}", reply.body);
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    };
    let chat = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a" }] });
    let numbers = [json!(-1.5), json!(1e308), json!("1"), json!([]), json!({}), json!(true)];
    for field in [
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "repeat_last_n",
        "repetition_penalty",
        "top_logprobs",
    ] {
        for value in &numbers {
            check("/v1/chat/completions", chat.clone(), field, value.clone(), field);
        }
    }
    let big: Json = serde_json::from_str("9223372036854775808").unwrap();
    let many: Vec<String> = (0..10_000).map(|i| i.to_string()).collect();
    let biases: serde_json::Map<String, Json> = (0..100_000).map(|i| (i.to_string(), json!(1))).collect();
    for (field, value) in [
        ("temperature", json!(2.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("frequency_penalty", json!(-3)),
        ("presence_penalty", json!("0")),
        ("max_tokens", big),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("top_logprobs", json!(1_000_000_000)),
        ("top_logprobs", json!(2)),
        ("seed", json!(1.5)),
        ("stop", json!(many)),
        ("stop", json!([""])),
        ("stop", json!(5)),
        ("logit_bias", json!([1])),
        ("logit_bias", json!({ "x": 1 })),
        ("logit_bias", json!({ "16": 1 })),
        ("logit_bias", json!({ "3": 101 })),
        ("logit_bias", Json::Object(biases)),
        ("stream", json!("yes")),
        ("logprobs", json!(3)),
        ("tool_choice", json!("required")),
        ("response_format", json!({ "type": "json_object" })),
        ("reasoning_effort", json!("high")),
        ("messages", json!([])),
        ("messages", json!("hello")),
        ("modalities", json!(["audio"])),
        ("best_of", json!(3)),
        ("mirostat", json!(2)),
        ("grammar", json!("root ::= x")),
    ] {
        check("/v1/chat/completions", chat.clone(), field, value, field);
    }
    check(
        "/v1/chat/completions",
        chat,
        "messages",
        json!([{ "role": "user", "content": [{ "type": "image_url" }] }]),
        "messages[0].content[0].type",
    );
    let text = json!({ "model": "tiny", "prompt": "a" });
    for (field, value) in [
        ("prompt", json!([])),
        ("prompt", json!([1, "a"])),
        ("prompt", json!([99])),
        ("prompt", json!(3)),
        ("suffix", json!("z")),
        ("logprobs", json!(true)),
    ] {
        check("/v1/completions", text.clone(), field, value, field);
    }
}

pub(crate) fn fields_that_change_nothing_are_taken() {
    let server = Running::new(vec![tiny()], config());
    let body = json!({
        "model": "tiny", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 2, "user": "u", "metadata": { "a": "b" }, "store": true,
        "n": null, "stop": null, "response_format": { "type": "text" }, "tool_choice": "none", "logit_bias": {}, "service_tier": "auto",
    });
    let reply = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

pub(crate) fn bodies_that_are_no_requests_are_refused() {
    let server = Running::new(vec![tiny()], config());
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    let twice = r#"{"model": "tiny", "model": "tiny"}"#;
    for body in ["", "null", "[]", "{", "\u{0}", &deep, twice, r#"{"prompt": "\ud800"}"#] {
        let reply = post_text(server.address, "/v1/completions", body);
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")), "{:.40}", body);
    }
}

pub(crate) fn the_page_talks_to_this_server_alone() {
    let mut server = Running::new(vec![tiny()], Config { keys: flambeau_serve::Keys::new(vec!["k".into()]), ..config() });
    for (path, kind, part) in [
        ("/", "text/html", "src=\"app.js\""),
        ("/app.js", "text/javascript", "v1/chat/completions"),
        ("/worklet.js", "text/javascript", "registerProcessor"),
        ("/style.css", "text/css", "--accent"),
        ("/licenses.txt", "text/plain", "markdown-it"),
    ] {
        let reply = get(server.address, path);
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.header("content-type").is_some_and(|found| found.starts_with(kind)) && reply.body.contains(part), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("http") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("require-trusted-types-for 'script'"), "{policy}");
    }
    let head = |path: &str, headers: &[(&str, &str)]| {
        let mut client = Client::new(server.address);
        client.send_request("GET", path, headers, "");
        client.head().expect("a response")
    };
    for (accepted, encoding) in
        [("gzip, deflate, br", Some("gzip")), ("br;q=1.0, gzip;q=0.5", Some("gzip")), ("gzip;q=0", None), ("br", None)]
    {
        let reply = head("/app.js", &[("accept-encoding", accepted)]);
        assert_eq!((reply.status, reply.header("content-encoding")), (200, encoding), "{accepted}");
    }
    for path in ["/app.js", "/KaTeX_Main-Regular.woff2"] {
        let tag = head(path, &[]).header("etag").unwrap().to_owned();
        assert_eq!(head(path, &[("if-none-match", &format!("\"other\", W/{tag}"))]).status, 304, "{path}");
        assert_eq!(head(path, &[("if-none-match", "\"other\"")]).status, 200, "{path}");
    }
    server.wait();
    let server = Running::new(vec![tiny()], Config { page: false, ..config() });
    assert_eq!(get(server.address, "/").status, 404);
}

pub(crate) fn prompts_beyond_the_context_have_their_code() {
    let server = Running::new(vec![tiny()], config());
    let long = "cat ".repeat(600);
    let reply = post(server.address, "/v1/completions", &json!({ "prompt": long }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let reply = post(server.address, "/v1/completions", &json!({ "prompt": "x".repeat(512 * 256 + 1) }));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.body);
    // A text without a bound ends where the context does.
    let reply =
        post(server.address, "/v1/completions", &json!({ "prompt": "cat ".repeat(508), "max_tokens": 4000, "ignore_eos": true }));
    let json = reply.json();
    assert_eq!((&json["choices"][0]["finish_reason"], &json["usage"]["completion_tokens"]), (&json!("length"), &json!(5)));
}

pub(crate) fn tokens_and_prompts_can_be_looked_at() {
    let server = Running::new(vec![tiny()], config());
    let tokens = post(server.address, "/tokenize", &json!({ "content": "the cat" })).json();
    assert_eq!(tokens, json!({ "tokens": [6, 7] }));
    let pieces = post(server.address, "/tokenize", &json!({ "content": "the", "with_pieces": true })).json();
    assert_eq!(pieces["tokens"][0], json!({ "id": 6, "piece": "the" }));
    assert_eq!(post(server.address, "/detokenize", &json!({ "tokens": [6, 7] })).json(), json!({ "content": "the cat" }));
    let messages = json!({ "messages": [{ "role": "developer", "content": "sat" }, { "role": "user", "content": "on" }] });
    let prompt = post(server.address, "/apply-template", &messages).json();
    assert_eq!(prompt["prompt"], "system : sat user : on assistant :");
    let props = get(server.address, "/props").json();
    assert_eq!((&props["default_generation_settings"]["n_ctx"], &props["total_slots"]), (&json!(512), &json!(3)));
    assert_eq!(get(server.address, "/health").json(), json!({ "status": "ok" }));
    assert_eq!(get(server.address, "/slots").json()[0]["limits"]["waiting"], 32);
    let reply = post(server.address, "/detokenize", &json!({ "tokens": [6, 16] }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tokens")));
    for (status, path) in [(404, "/v1/nothing"), (405, "/tokenize"), (400, "/v1/models/%ff")] {
        let reply = get(server.address, path);
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (status, &json!("invalid_request_error")), "{path}");
    }
}
