//! Clients that mean harm, or have bad luck.

use std::{sync::Arc, thread::sleep, time::Duration};

use flambeau::{
    cpu::CpuEngine,
    engine::{Constants, Engine, EngineError, LoadOptions, Session, Value},
    ir::Checked,
    runners::llm::Limits,
};
use flambeau_serve::{Config, Keys};
use serde_json::{Value as Json, json};

use crate::{
    client::{Client, get, post},
    server::{PLAIN, Running, config, cpu, endless, script, scripted, tiny},
};

const CHAT: &str = "/v1/chat/completions";

fn long() -> String {
    json!({ "messages": [{ "role": "user", "content": "go" }], "stream": true }).to_string()
}

/// A client whose answer has begun.
fn begun(server: &Running) -> Client {
    let mut client = Client::new(server.address);
    client.send_request("POST", CHAT, &[], &long());
    assert_eq!(client.head().expect("an answer").status, 200);
    for _ in 0..3 {
        client.chunk().expect("the answer goes on");
    }
    client
}

pub(crate) fn clients_that_go_away_end_their_jobs() {
    let server = Running::new(vec![endless(&["a ", "b "], &cpu())], config());
    let clients: Vec<Client> = (0..3).map(|_| begun(&server)).collect();
    // A fourth one waits for its turn, and one waits for a whole answer.
    let mut waiting = Client::new(server.address);
    waiting.send_request("POST", CHAT, &[], &long());
    server.await_metric("waiting", 1);
    let mut whole = Client::new(server.address);
    whole.send_request("POST", CHAT, &[], &long().replace("true", "false"));
    server.await_metric("waiting", 2);
    // By themselves none of them would end.
    drop((waiting, whole));
    server.await_metric("waiting", 0);
    drop(clients);
    server.await_metric("running", 0);
    server.await_metric("cancelled_total", 5);
}

pub(crate) fn readers_that_stop_lose_their_own_answer_alone() {
    let server =
        Running::new(vec![endless(&["a long piece of text that soon fills what lies between us ", "b "], &cpu())], config());
    // This one never reads.
    let mut deaf = Client::new(server.address);
    deaf.send_request("POST", CHAT, &[], &long());
    server.await_metric("running", 1);
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 20 }));
    assert_eq!(reply.json()["usage"]["completion_tokens"], 20);
    server.await_metric("running", 0);
    assert_eq!(server.metric("cancelled_total"), 1);
}

pub(crate) fn more_than_can_wait_is_told_to_come_back() {
    // Slow enough that the running request is not dropped for unread events.
    let mut model = endless(&["a ", "b "], &hooked(|_| sleep(Duration::from_millis(1))));
    model.limits = Limits { running: 1, sequences: 1, waiting: 1, tokens: usize::MAX, kept_bytes: 0 };
    let server = Running::new(vec![model], config());
    let running = begun(&server);
    let mut waiting = Client::new(server.address);
    waiting.send_request("POST", CHAT, &[], &long());
    server.await_metric("waiting", 1);
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }] }));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")), "{}", reply.body);
    assert_eq!(reply.json()["error"]["code"], "capacity_exhausted");
    let many = json!({ "messages": [{ "role": "user", "content": "go" }], "n": 3 });
    let reply = post(server.address, CHAT, &many);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("n")), "{}", reply.body);
    // Who waited gets its turn.
    drop(running);
    assert_eq!(waiting.head().expect("a turn").status, 200);
}

pub(crate) fn what_may_be_too_long_is_refused_ahead() {
    let mut model = endless(&["a "], &cpu());
    model.limits.tokens = 100;
    let server = Running::new(vec![model], config());
    let ask = |tokens: u64| {
        post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": tokens }))
    };
    let reply = ask(100);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("max_tokens")));
    assert_eq!(ask(99).status, 200);
    // A request without a limit may fill the context.
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }] }));
    assert_eq!((reply.status, &reply.json()["usage"]["total_tokens"]), (200, &json!(100)), "{}", reply.body);
}

pub(crate) fn heads_and_bodies_have_bounds() {
    let seconds = Duration::from_secs;
    let config = Config { body_bytes: 1000, head_time: seconds(1), body_time: seconds(1), ..config() };
    let server = Running::new(vec![tiny()], config);
    let say = |text: &str| {
        let mut client = Client::new(server.address);
        client.send(text.as_bytes());
        let reply = client.reply();
        (reply.as_ref().map_or(0, |reply| reply.status), client)
    };
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    // Nothing of such a body is read.
    assert_eq!(say(&format!("{head}content-length: 10000000000\r\n\r\n")).0, 413);
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    assert_eq!(say(&format!("{head}transfer-encoding: chunked\r\n\r\n{}", chunk.repeat(3))).0, 413);
    // An incomplete body, and an incomplete head.
    let (status, mut client) = say(&format!("{head}content-length: 10\r\n\r\n{{"));
    assert!(status == 408 && client.is_closed());
    let (status, mut client) = say("POST /v1/chat");
    assert!([0, 408].contains(&status) && client.is_closed(), "{status}");
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    assert_eq!(say(&format!("{head}{many}\r\n")).0, 431);
    assert!([400, 431].contains(&say(&format!("{head}x: {}\r\n\r\n", "y".repeat(100_000))).0));
    for bad in
        ["content-length: 2\r\ncontent-length: 3\r\n\r\n{}", "x\0: y\r\n\r\n", "x: a\r\n b\r\n\r\n", "content-length: -1\r\n\r\n"]
    {
        assert_eq!(say(&format!("{head}{bad}")).0, 400, "{bad:?}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 1 }).to_string();
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    assert_eq!(say(&format!("{head}transfer-encoding: chunked\r\n\r\n{chunked}")).0, 200);
    for lengths in ["content-length: 2\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 2"] {
        let (status, mut client) = say(&format!("{head}{lengths}\r\n\r\n{chunked}"));
        assert!(status == 400 && client.is_closed(), "{lengths}");
    }
    let kind = head.replace("application/json", "text/plain");
    assert_eq!(say(&format!("{kind}content-length: 2\r\n\r\n{{}}")).0, 415);
    assert_eq!(get(server.address, "/health").status, 200);
}

pub(crate) fn times_and_tokens_have_the_names_of_vllm() {
    let mut model = endless(&["a ", "b "], &cpu());
    model.limits.tokens = 3200;
    let server = Running::new(vec![model], config());
    let ask = json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 5 });
    assert_eq!(post(server.address, CHAT, &ask).status, 200);
    let engine = "engine=\"0\"";
    assert_eq!(server.vllm_metric("generation_tokens_total", engine), 5);
    assert_eq!(server.vllm_metric("request_success_total", "finished_reason=\"length\""), 1);
    for (name, count) in [
        ("time_to_first_token_seconds_count", 1),
        ("inter_token_latency_seconds_count", 4),
        ("e2e_request_latency_seconds_count", 1),
        ("request_queue_time_seconds_count", 1),
        ("request_prefill_time_seconds_count", 1),
        ("request_decode_time_seconds_count", 1),
        ("request_inference_time_seconds_count", 1),
        ("request_time_per_output_token_seconds_count", 1),
        ("request_prompt_tokens_count", 1),
        ("request_generation_tokens_sum", 5),
        ("request_max_num_generation_tokens_count", 1),
        ("request_params_n_sum", 1),
    ] {
        assert_eq!(server.vllm_metric(name, engine), count, "{name}");
    }
    let prompt = server.vllm_metric("prompt_tokens_total", engine);
    assert_eq!(server.vllm_metric("request_prompt_tokens_sum", engine), prompt);
    assert_eq!(server.vllm_metric("cache_config_info", "block_size=\"16\",num_gpu_blocks=\"200\""), 1);
    assert_eq!(post(server.address, CHAT, &json!({ "messages": ask["messages"], "max_tokens": 3, "n": 2 })).status, 200);
    assert_eq!(server.vllm_metric("request_params_n_sum", engine), 3);
    assert_eq!(server.vllm_metric("request_max_num_generation_tokens_count", engine), 2);
    assert_eq!(server.vllm_metric("request_max_num_generation_tokens_sum", engine), 5 + 3);
    assert_eq!(server.vllm_metric("request_success_total", "finished_reason=\"error\""), 0);
}

pub(crate) fn schemas_beyond_the_limits_are_refused() {
    let server = Running::new(vec![endless(&["a ", "b "], &cpu())], config());
    let ask = |schema: Json| {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
        let messages = json!([{ "role": "user", "content": "go" }]);
        let reply = post(server.address, CHAT, &json!({ "messages": messages, "response_format": format }));
        (reply.status, reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let many: Vec<String> = (0..100_000).map(|i| format!("value {i}")).collect();
    let (status, message) = ask(json!({ "enum": many }));
    assert!(status == 400 && message.contains("more than 5000 enum values"), "{status} {message}");
    let more: Vec<u32> = (0..1_000_000).collect();
    let (status, message) = ask(json!({ "enum": more }));
    assert!(status == 400 && message.contains("`response_format` has more than 131072 values"), "{status} {message}");
    let cycle = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } });
    let (status, message) = ask(cycle.clone());
    assert!(status == 400 && message.contains("leads back to itself"), "{status} {message}");
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": cycle } }]);
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }], "tools": tools }));
    let message = reply.json()["error"]["message"].to_string();
    assert!(reply.status == 400 && message.contains("leads back to itself"), "{} {message}", reply.status);
}

pub(crate) fn connections_beyond_the_bound_wait() {
    let server = Running::new(vec![tiny()], Config { connections: 2, head_time: Duration::from_secs(2), ..config() });
    // Two that say nothing hold both places until their time is over.
    let mut silent = [Client::new(server.address), Client::new(server.address)];
    assert_eq!(get(server.address, "/health").status, 200);
    assert!(!silent.iter_mut().all(Client::is_waited_for), "the third connection was served beside them");
}

pub(crate) fn keys_hosts_and_origins_are_asked_for() {
    let server = Running::new(vec![tiny()], Config { keys: Keys::new(vec!["sk-1".into()]), ..config() });
    let ask = |headers: &[(&str, &str)]| {
        let mut client = Client::new(server.address);
        client.send_request("GET", "/v1/models", headers, "");
        client.reply().unwrap()
    };
    let key = ("authorization", "Bearer sk-1");
    assert_eq!(ask(&[key]).status, 200);
    let reply = ask(&[]);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
    let refused = post(server.address, "/v1/messages", &json!({})).json();
    assert_eq!((&refused["type"], &refused["error"]["type"]), (&json!("error"), &json!("authentication_error")), "{refused}");
    assert_eq!(ask(&[key, ("host", "evil.example")]).status, 403);
    assert_eq!(ask(&[key, ("origin", "https://evil.example")]).status, 403);
    assert_eq!(ask(&[key, ("origin", "http://localhost")]).status, 200);
    assert_eq!(get(server.address, "/health").status, 200);
}

pub(crate) fn a_server_that_stops_lets_answers_end() {
    let mut server = Running::new(vec![endless(&["a ", "b "], &cpu())], config());
    let mut client = Client::new(server.address);
    client.send_request(
        "POST",
        CHAT,
        &[],
        &json!({ "messages": [{ "role": "user", "content": "go" }], "stream": true, "max_tokens": 2000 }).to_string(),
    );
    let mut reply = client.head().unwrap();
    client.chunk().unwrap();
    server.stop();
    while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
        reply.body.push_str(&chunk);
    }
    assert_eq!(reply.events().last().unwrap()["choices"][0]["finish_reason"], "length");
    server.wait();
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

pub(crate) fn answers_that_take_too_long_are_told_why() {
    let told = |client: &mut Client| {
        let mut reply = String::new();
        while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
            reply.push_str(&chunk);
        }
        assert!(reply.ends_with("data: [DONE]\n\n"));
        reply
    };
    let mut server = Running::new(vec![endless(&["a ", "b "], &cpu())], Config { grace: Duration::ZERO, ..config() });
    let mut client = begun(&server);
    server.stop();
    assert!(told(&mut client).contains("\"code\":\"shutting_down\""));
    server.wait();
    // No faster than any client reads: who falls behind is dropped without a word.
    let model = endless(&["a ", "b "], &hooked(|_| sleep(Duration::from_millis(2))));
    let server = Running::new(vec![model], Config { request_time: Duration::from_secs(1), ..config() });
    assert!(told(&mut begun(&server)).contains("\"code\":\"timeout\""));
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }] }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("timeout")));
    server.await_metric("running", 0);
    // A time that ends never.
    let server = Running::new(vec![script(&["hello"], PLAIN)], Config { request_time: Duration::MAX, ..config() });
    let reply = post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": "go" }] }));
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// The CPU engine, with something that happens ahead of each step.
struct Hooked(CpuEngine, Hook);

pub(crate) type Hook = fn(&[Value]);

struct HookedSession(Box<dyn Session>, Hook);

impl Engine for Hooked {
    fn name(&self) -> &'static str {
        "hooked"
    }

    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
        Ok(Box::new(HookedSession(self.0.load(graph, constants, options)?, self.1)))
    }
}

impl Session for HookedSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.1(inputs);
        self.0.run(inputs)
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

pub(crate) fn hooked(hook: Hook) -> Arc<dyn Engine> {
    Arc::new(Hooked(CpuEngine::new(Some(1)), hook))
}

pub(crate) fn a_panic_costs_one_request() {
    let engine = hooked(|inputs| {
        let Value::Tensor(tokens) = &inputs[0] else { panic!("tokens are a tensor") };
        assert_ne!(tokens.numel(), 3, "three are too many");
    });
    let model = scripted(flambeau_testcases::script(&["hello"], 100, true), PLAIN, &engine);
    let server = Running::new(vec![model], config());
    let ask = |content: &str| {
        post(server.address, CHAT, &json!({ "messages": [{ "role": "user", "content": content }], "cache_prompt": false }))
    };
    for _ in 0..2 {
        let reply = ask("one two three");
        assert_eq!((reply.status, reply.header("x-should-retry")), (500, Some("false")), "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
        assert_eq!(ask("one two").json()["choices"][0]["message"]["content"], "hello");
    }
    assert_eq!(server.metric("panics_total"), 2);
}

pub(crate) fn characters_are_not_cut_in_streams() {
    let server = Running::new(vec![script(&["gr", "ü", "ß ", "日", "本 ", "🙂"], PLAIN)], config());
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "stream": true });
    let mut client = Client::new(server.address);
    client.send_request("POST", CHAT, &[], &body.to_string());
    client.head().unwrap();
    let mut text = String::new();
    // Each chunk is UTF-8 by itself.
    while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
        text.push_str(&chunk);
    }
    assert!(text.contains("日") && text.contains("🙂"));
}
