//! Conversations.

use std::{sync::atomic::AtomicBool, time::Duration};

use flambeau::{
    runners::llm::{Limits, Request, generate},
    text::SamplingParams,
};
use flambeau_serve::NewModel;
use serde_json::{Value as Json, json};

use crate::{
    client::{Reply, get, post},
    server::{LIMITS, PLAIN, Running, WORDS, config, script, script_with_control, tiny},
};

pub(crate) const PATH: &str = "/v1/chat/completions";

pub(crate) fn ask(content: &str, more: Json) -> Json {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": content }], "max_tokens": 12 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A sentence of words that the model knows.
pub(crate) fn sentence(seed: u64, words: usize) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..words).map(|_| WORDS[random.usize(..WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Answer of the model to one prompt alone.
fn alone(content: &str, sampling: SamplingParams, count: usize) -> String {
    let new = tiny();
    let prompt = new.tokenizer.encode(&format!("user : {content} assistant :"), false).unwrap();
    let request = Request { prompt, sampling, max_new_tokens: count, ..Request::default() };
    let mut sequence = new.model.sequence().unwrap();
    let none = AtomicBool::new(false);
    generate(&mut sequence, &new.tokenizer, &request, &|| Duration::ZERO, &none, &mut |_| ()).unwrap().text
}

pub(crate) fn content(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The texts of a stream put together.
fn streamed(events: &[Json], key: &str) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"][key].as_str()).collect()
}

pub(crate) fn answers_are_those_of_the_model() {
    let server = Running::new(vec![tiny()], config());
    let reply = post(server.address, PATH, &ask("the cat sat", json!({})));
    assert_eq!(content(&reply), alone("the cat sat", SamplingParams::default(), 12));
    let json = reply.json();
    assert_eq!((json["object"].as_str(), json["model"].as_str()), (Some("chat.completion"), Some("tiny")));
    assert_eq!(json["choices"][0]["message"]["role"], "assistant");
    let usage = &json["usage"];
    // user : the cat sat assistant :
    assert_eq!((usage["prompt_tokens"].as_u64(), usage["prompt_tokens_details"]["cached_tokens"].as_u64()), (Some(7), Some(0)));
    assert_eq!(usage["total_tokens"].as_u64(), Some(7 + usage["completion_tokens"].as_u64().unwrap()));
    assert!(reply.header("x-request-id").is_some_and(|id| id.starts_with("req_")));
}

pub(crate) fn streams_carry_the_same_text() {
    let server = Running::new(vec![tiny()], config());
    let more = json!({ "stream": true, "stream_options": { "include_usage": true }, "temperature": 0.8, "seed": 7 });
    let whole = post(server.address, PATH, &ask("where is the dog", json!({ "temperature": 0.8, "seed": 7 })));
    let reply = post(server.address, PATH, &ask("where is the dog", more));
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(streamed(&events, "content"), content(&whole));
    let (usage, rest) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole.json()["usage"]["completion_tokens"]);
    assert!(rest.iter().all(|event| event["usage"].is_null() && event["object"] == "chat.completion.chunk"));
    let finishes: Vec<&Json> = rest.iter().map(|event| &event["choices"][0]["finish_reason"]).filter(|f| !f.is_null()).collect();
    assert_eq!(finishes, [&whole.json()["choices"][0]["finish_reason"]]);
}

pub(crate) fn neighbours_change_no_text() {
    let server = Running::new(vec![tiny()], config());
    let address = server.address;
    let threads: Vec<_> = (0..12u64)
        .map(|i| {
            std::thread::spawn(move || {
                let said = sentence(i, 5 + 7 * (i as usize % 5));
                let drawn = SamplingParams { temperature: 0.9, seed: i, ..SamplingParams::default() };
                let sampling = if i % 3 == 0 { drawn } else { SamplingParams::default() };
                let more = json!({
                    "temperature": sampling.temperature, "seed": i, "max_tokens": 30, "stream": i % 2 == 0, "cache_prompt": false,
                });
                let reply = post(address, PATH, &ask(&said, more));
                let found = if i % 2 == 0 { streamed(&reply.events(), "content") } else { content(&reply) };
                assert_eq!(found, alone(&said, sampling, 30), "request {i}");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(server.metric("requests_total"), 12);
    // A request leaves the scheduler after its client has the whole answer.
    server.await_metric("running", 0);
}

pub(crate) fn prompts_that_begin_alike_are_computed_once() {
    let server = Running::new(vec![tiny()], config());
    let cached = |body: &Json| {
        let reply = post(server.address, PATH, body);
        let usage = &reply.json()["usage"];
        (
            content(&reply),
            usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
            usage["prompt_tokens"].as_u64().unwrap(),
        )
    };
    let first = sentence(3, 40);
    let (answer, none, length) = cached(&ask(&first, json!({})));
    assert_eq!((none, length), (0, 44));
    assert_eq!(cached(&ask(&first, json!({}))), (answer.clone(), 43, 44));
    // The next turn of the conversation.
    let mut turn = ask(&first, json!({}));
    let messages = turn["messages"].as_array_mut().unwrap();
    messages.extend([json!({ "role": "assistant", "content": answer }), json!({ "role": "user", "content": "is it ?" })]);
    assert!(cached(&turn).1 >= 43);
    assert_eq!(cached(&ask(&first, json!({ "cache_prompt": false }))).1, 0);
}

/// The tokens of a prompt that were not computed.
pub(crate) fn cached(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

pub(crate) fn texts_that_lost_their_sequence_are_kept() {
    let limits = Limits { running: 1, sequences: 1, ..LIMITS };
    let texts = [sentence(3, 40), sentence(4, 50)];
    for (kept_bytes, expected) in [(LIMITS.kept_bytes, [43, 53]), (0, [0, 0])] {
        let server = Running::new(vec![NewModel { limits: Limits { kept_bytes, ..limits.clone() }, ..tiny() }], config());
        let ask = |text: &str| post(server.address, PATH, &ask(text, json!({ "temperature": 0 })));
        let first = texts.each_ref().map(|text| ask(text));
        assert!(first.iter().all(|reply| cached(reply) < 32));
        let again = texts.each_ref().map(|text| ask(text));
        assert_eq!(again.each_ref().map(|reply| if cached(reply) < 32 { 0 } else { cached(reply) }), expected);
        assert_eq!(again.map(|reply| content(&reply)), first.map(|reply| content(&reply)));
        assert_eq!(server.metric("kept_bytes") > 0, kept_bytes > 0);
    }
}

pub(crate) fn requests_at_the_same_time_read_a_shared_beginning_once() {
    let server = Running::new(vec![tiny()], config());
    let text = sentence(3, 60);
    let reply = post(server.address, PATH, &ask(&text, json!({ "n": 3, "temperature": 0 })));
    // Whole chunks of eight tokens.
    assert_eq!(cached(&reply), 56);
    let contents: Vec<Json> = (0..3).map(|i| reply.json()["choices"][i]["message"]["content"].clone()).collect();
    assert!(
        contents
            .iter()
            .all(|content| *content == alone(&text, SamplingParams { temperature: 0.0, ..SamplingParams::default() }, 12)),
        "{contents:?}"
    );
    // 64 tokens of the prompt, and 8 of it twice more.
    assert_eq!(server.metric("prompt_tokens_total") - server.metric("cached_tokens_total"), 64 + 2 * 8);
}

pub(crate) fn several_answers_differ_by_their_seeds() {
    let server = Running::new(vec![tiny()], config());
    let more = json!({ "n": 3, "temperature": 1.5, "seed": 11 });
    let json = post(server.address, PATH, &ask("a dog", more.clone())).json();
    let texts: Vec<&str> = (0..3).map(|i| json["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    for (i, text) in texts.iter().enumerate() {
        let sampling = SamplingParams { temperature: 1.5, seed: 11 + i as u64, ..SamplingParams::default() };
        assert_eq!(*text, alone("a dog", sampling, 12), "answer {i}");
    }
    assert!(texts[0] != texts[1] || texts[1] != texts[2]);
    let mut streamed = vec![String::new(); 3];
    let mut body = ask("a dog", more);
    body["stream"] = true.into();
    for event in post(server.address, PATH, &body).events() {
        let choice = &event["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(streamed, texts);
}

pub(crate) fn likelihoods_are_listed() {
    let server = Running::new(vec![tiny()], config());
    let more = json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 5 });
    let json = post(server.address, PATH, &ask("the mat", more.clone())).json();
    let listed = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(listed.len() as u64, json["usage"]["completion_tokens"].as_u64().unwrap());
    for token in listed {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (3, &token["token"], &token["logprob"]));
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values[0] <= 0.0 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
        let bytes: Vec<u8> = token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), token["token"].as_str().unwrap());
    }
    let mut body = ask("the mat", more);
    body["stream"] = true.into();
    let events = post(server.address, PATH, &body).events();
    let told = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(told.collect::<Vec<_>>(), listed.iter().collect::<Vec<_>>());
}

const WITH_TOOLS: &str = "{% for m in messages %}{{ m.content }} {% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
    {% if tools %}{{ tools | length }} tools <tool_call>{% endif %}";

fn weather() -> Json {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }])
}

/// A model that thinks, says something and calls a tool.
const THOUGHTFUL: [&str; 10] = [
    "<think>",
    "so ",
    "be it",
    "</think>",
    "I look.",
    "\n<tool",
    "_call>{\"name\": \"wea",
    "ther\", \"arguments\": {\"city\"",
    ": \"Ulm\"}",
    "}</tool_call>",
];

pub(crate) fn thoughts_and_calls_are_told_from_the_answer() {
    let server = Running::new(vec![script(&THOUGHTFUL, WITH_TOOLS)], config());
    let body = json!({ "messages": [{ "role": "user", "content": "weather?" }], "tools": weather() });
    let json = post(server.address, PATH, &body).json();
    let choice = &json["choices"][0];
    let message = &choice["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("so be it"), &json!("I look.")), "{json}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &message["tool_calls"][0];
    assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")) && call["type"] == "function");
    assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));
    assert_eq!(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 3, "the end of thoughts is one of their tokens");

    // A call that is cut off is not a call.
    let mut body = body;
    body["max_tokens"] = 8.into();
    assert_eq!(post(server.address, PATH, &body).json()["choices"][0]["finish_reason"], "length");
    body["max_tokens"] = Json::Null;

    body["stream"] = true.into();
    let events = post(server.address, PATH, &body).events();
    assert_eq!((streamed(&events, "reasoning_content"), streamed(&events, "content")), ("so be it".into(), "I look.".into()));
    let calls: Vec<&Json> =
        events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]).filter(|c| !c.is_null()).collect();
    assert_eq!((&calls[0]["function"]["name"], &calls[0]["index"]), (&json!("weather"), &json!(0)));
    assert!(calls.len() > 2 && calls[1..].iter().all(|call| call["id"].is_null() && call["index"] == 0));
    let arguments: String = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"city\": \"Ulm\"}");
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

pub(crate) fn tools_that_are_not_to_be_called_are_not_told_of() {
    let server = Running::new(vec![script(&["<tool_call>{}", "x"], WITH_TOOLS)], config());
    let mut body = json!({ "messages": [{ "role": "user", "content": "weather?" }], "tools": weather() });
    let prompt = |body: &Json| post(server.address, "/apply-template", body).json()["prompt"].as_str().unwrap().to_owned();
    assert_eq!(prompt(&body), "weather? 1 tools <tool_call>");
    body["tool_choice"] = "none".into();
    assert_eq!(prompt(&body), "weather? ");
    assert_eq!(post(server.address, PATH, &body).json()["choices"][0]["message"]["content"], "<tool_call>{}x");
}

/// Tokens of the model's unconstrained answer.
const SAYING: [&str; 10] = [
    "well ",
    "<tool_call>\n",
    "{\"name\": \"",
    "weather",
    "now",
    "\", \"arguments\": {\"city\": \"",
    "Ulm",
    "\"}}",
    "\n</tool_call>",
    "{}",
];

fn calls_of(more: Json) -> (Json, String) {
    let server = Running::new(vec![script(&SAYING, WITH_TOOLS)], config());
    let mut body = json!({ "messages": [{ "role": "user", "content": "weather?" }], "tools": weather() });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = post(server.address, PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let message = &reply.json()["choices"][0]["message"];
    (message["tool_calls"].clone(), message["content"].as_str().unwrap_or_default().to_owned())
}

pub(crate) fn calls_that_are_asked_for_are_enforced() {
    // Left alone, it says something before a call of what is no tool.
    let (calls, text) = calls_of(json!({}));
    assert!(calls.is_null() && text.starts_with("well <tool_call>") && text.contains("weathernow"), "{text}");
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [json!("required"), named] {
        let (calls, text) = calls_of(json!({ "tool_choice": choice, "parallel_tool_calls": false }));
        assert_eq!((calls.as_array().map(Vec::len), text.as_str()), (Some(1), ""));
        assert_eq!(calls[0]["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));
    }
    // A template that teaches calls as bare JSON.
    let call = "{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}";
    let bare = WITH_TOOLS.replace("<tool_call>{{ c.function | tojson }}</tool_call>", call).replace(" tools <tool_call>", "");
    let pieces = ["well ", "{\"name\": \"", "weather", "\", \"parameters\": {\"city\": \"", "Ulm", "\"}}", "{}"];
    let server = Running::new(vec![script(&pieces, &bare)], config());
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": weather(), "tool_choice": "required", "parallel_tool_calls": false });
    let call = &post(server.address, PATH, &body).json()["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));

    // A template without tools, and one with calls in an unknown format.
    let ask = |template: &str| {
        let server = Running::new(vec![script(&SAYING, template)], config());
        let body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": weather(), "tool_choice": "required", "parallel_tool_calls": false });
        post(server.address, PATH, &body)
    };
    let call = &ask(PLAIN).json()["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));
    let refused = ask(&WITH_TOOLS.replace("<tool_call>{{", "CALL {{"));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools")), "{}", refused.body);

    // Thoughts that the prompt has begun come first.
    let begun = format!("{WITH_TOOLS}{{% if add_generation_prompt %}}<think>{{% endif %}}");
    let pieces = [&["hm ", "so ", "</think>", "\n"], &SAYING[..]].concat();
    let server = Running::new(vec![script(&pieces, &begun)], config());
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": weather(), "tool_choice": "required", "parallel_tool_calls": false });
    let message = post(server.address, PATH, &body).json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm so "), &Json::Null), "{message}");
    assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));
    body["tool_choice"] = "none".into();
    body["response_format"] = json!({ "type": "json_object" });
    let message = post(server.address, PATH, &body).json()["choices"][0]["message"].clone();
    let content: Json = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(content.is_object() && message["reasoning_content"] == "hm so ", "{message}");

    let server = Running::new(vec![script(&SAYING, WITH_TOOLS)], config());
    for (choice, tools) in [
        (json!({ "type": "function", "function": { "name": "rm" } }), weather()),
        (json!("required"), Json::Null),
        (json!("often"), weather()),
    ] {
        let body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": tools, "tool_choice": choice });
        let reply = post(server.address, PATH, &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tool_choice")), "{}", reply.body);
    }
}

pub(crate) fn control_tokens_mark_thoughts_and_calls() {
    let pieces =
        ["[THINK]", "hm", "[/THINK]", "I look.", "[OTHER]", "[TOOL_CALLS]", "weather", "[ARGS]", "{\"city\": \"Ulm\"}", "[END]"];
    let control = ["[THINK]", "[/THINK]", "[OTHER]", "[TOOL_CALLS]", "[ARGS]", "[END]"];
    let call = "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}";
    let template = WITH_TOOLS.replace("<tool_call>{{ c.function | tojson }}</tool_call>", call).replace(" tools <tool_call>", "");
    let server = Running::new(vec![script_with_control(&pieces, &control, &template)], config());
    let facts = get(server.address, "/v1/models").json();
    assert_eq!(facts["data"][0]["capabilities"]["tool_format"], "mistral", "{facts}");
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": weather(), "parallel_tool_calls": false });
    let expected = json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" });
    let message = post(server.address, PATH, &body).json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("I look.")), "{message}");
    assert_eq!(message["tool_calls"][0]["function"], expected);
    assert_eq!(message["tool_calls"][0]["id"].as_str().map(str::len), Some(9));
    body["tool_choice"] = "required".into();
    let message = post(server.address, PATH, &body).json()["choices"][0]["message"].clone();
    assert_eq!((&message["content"], &message["tool_calls"][0]["function"]), (&Json::Null, &expected));
    // Without tools, markers of calls are no text.
    let plain = json!({ "messages": [{ "role": "user", "content": "x" }] });
    assert_eq!(content(&post(server.address, PATH, &plain)), "I look.weather{\"city\": \"Ulm\"}");
}

pub(crate) fn answers_have_the_form_that_is_asked_for() {
    let pieces = ["no ", "{", "\"ok\": ", "false", "true", "}", "\"n\": ", "7", ", ", "x"];
    let server = Running::new(vec![script(&pieces, PLAIN)], config());
    let ask = |format: Json| {
        let body = json!({ "messages": [{ "role": "user", "content": "go" }], "response_format": format });
        post(server.address, PATH, &body)
    };
    assert_eq!(content(&ask(json!({ "type": "text" }))), pieces.concat());
    let schema = |schema: Json| json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    let object = json!({ "type": "object", "properties": { "ok": { "type": "boolean" }, "n": { "type": "integer" } }, "required": ["ok", "n"], "additionalProperties": false });
    let reply = ask(schema(object));
    assert_eq!(content(&reply), "{\"ok\": false, \"n\": 7}");
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
    // Inside a constrained answer, a marker of thoughts is plain text.
    let pieces = ["{\"a\": \"", "<think>", "x\"}"];
    let thinking = Running::new(vec![script(&pieces, PLAIN)], config());
    let text =
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"], "additionalProperties": false });
    let body = json!({ "messages": [{ "role": "user", "content": "go" }], "response_format": schema(text) });
    assert_eq!(content(&post(thinking.address, PATH, &body)), pieces.concat());
    let found: Json = serde_json::from_str(&content(&ask(json!({ "type": "json_object" })))).unwrap();
    assert!(found.is_object());
    for (field, form, expected) in [
        ("grammar", json!("root ::= \"no \" \"x\""), "no x"),
        ("structured_outputs", json!({ "choice": ["true"] }), "true"),
        ("structured_outputs", json!({ "regex": "(7, ){2}x" }), "7, 7, x"),
        ("json_schema", json!({ "const": 7 }), "7"),
    ] {
        let body = json!({ "messages": [{ "role": "user", "content": "go" }], field: form });
        assert_eq!(content(&post(server.address, PATH, &body)), expected, "{field}");
    }
    for wrong in [
        schema(json!({ "type": "nothing" })),
        schema(json!(3)),
        schema(json!({ "$ref": "#" })),
        json!({ "type": "xml" }),
        json!("json"),
    ] {
        let reply = ask(wrong.clone());
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("response_format")), "{wrong}: {}", reply.body);
    }
}

pub(crate) fn anthropics_form_is_spoken() {
    let server = Running::new(vec![script(&THOUGHTFUL, WITH_TOOLS)], config());
    let tools = json!([{ "name": "weather", "input_schema": { "type": "object" } }]);
    let mut body = json!({ "max_tokens": 50, "messages": [{ "role": "user", "content": "weather?" }], "tools": tools });
    let message = post(server.address, "/v1/messages", &body).json();
    let content = &message["content"];
    assert_eq!(
        (&message["type"], &message["stop_reason"], &content[0]["thinking"]),
        (&json!("message"), &json!("tool_use"), &json!("so be it"))
    );
    assert_eq!(
        (&content[1]["text"], &content[2]["name"], &content[2]["input"]),
        (&json!("I look."), &json!("weather"), &json!({ "city": "Ulm" }))
    );
    assert_eq!(message["usage"]["output_tokens"], 11);

    body["stream"] = true.into();
    let stream = post(server.address, "/v1/messages", &body).body;
    let events: Vec<Json> =
        stream.lines().filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap())).collect();
    let names: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert!(events.iter().zip(&names).all(|(event, name)| event["type"] == **name) && events.len() == names.len());
    assert_eq!((names[0], names[names.len() - 2], names[names.len() - 1]), ("message_start", "message_delta", "message_stop"));
    let joined = |key: &str| events.iter().filter_map(|event| event["delta"][key].as_str()).collect::<String>();
    assert_eq!(
        (joined("thinking"), joined("text"), joined("partial_json")),
        ("so be it".into(), "I look.".into(), "{\"city\": \"Ulm\"}".into())
    );
    let count = |name: &str| names.iter().filter(|found| **found == name).count();
    assert_eq!((count("content_block_start"), count("content_block_stop")), (3, 3));

    let stopped = json!({ "max_tokens": 50, "messages": [{ "role": "user", "content": "x" }], "stop_sequences": ["y", "look"] });
    let message = post(server.address, "/v1/messages", &stopped).json();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"], &message["content"][1]["text"]),
        (&json!("stop_sequence"), &json!("look"), &json!("I "))
    );
    let reply = post(server.address, "/v1/messages", &json!({ "messages": [] }));
    assert_eq!(
        (reply.status, &reply.json()["type"], &reply.json()["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
}

pub(crate) fn stop_texts_end_answers_across_tokens() {
    let server = Running::new(vec![script(&["one ", "tw", "o th", "ree ", "four"], PLAIN)], config());
    for (stop, expected, finish) in
        [(json!("two"), "one ", "stop"), (json!(["x", "o t"]), "one tw", "stop"), (json!("four!"), "one two three four", "stop")]
    {
        let body = json!({ "messages": [{ "role": "user", "content": "count" }], "stop": stop });
        let json = post(server.address, PATH, &body).json();
        let choice = &json["choices"][0];
        assert_eq!((choice["message"]["content"].as_str(), choice["finish_reason"].as_str()), (Some(expected), Some(finish)));
    }
    let body = json!({ "messages": [{ "role": "user", "content": "count" }], "max_completion_tokens": 2, "max_tokens": 9 });
    let json = post(server.address, PATH, &body).json();
    assert_eq!(
        (&json["choices"][0]["message"]["content"], &json["choices"][0]["finish_reason"]),
        (&json!("one tw"), &json!("length"))
    );
}

pub(crate) fn models_are_listed_and_found_by_name() {
    let mut other = script(&["hello"], PLAIN);
    other.aliases = vec!["alias".into()];
    let server = Running::new(vec![tiny(), other], config());
    let list = get(server.address, "/v1/models").json();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"], &list["data"][1]["id"]),
        (&json!("list"), &json!("tiny"), &json!("script"))
    );
    assert_eq!(get(server.address, "/v1/models/script").json()["object"], "model");
    let answer =
        |model: &str| post(server.address, PATH, &json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!((content(&answer("script")), content(&answer("alias"))), ("hello".into(), "hello".into()));
    for name in ["gpt", "../tiny", "/etc/passwd", "ti\u{0}ny", ""] {
        let reply = answer(name);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")), "{name}");
    }
    assert_eq!(post(server.address, PATH, &json!({ "messages": [] })).json()["error"]["param"], "model");
}
