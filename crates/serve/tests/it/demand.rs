//! Models that are loaded on demand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use flambeau_serve::{Config, ModelKind, ModelOnDemand, ModelSource, NewModel};
use serde_json::json;

use crate::{
    client::{Client, Reply, get, post},
    embeddings::encoder,
    hardening::hooked,
    server::{Running, config, endless, tiny},
};

const CHAT: &str = "/v1/chat/completions";

/// A model on demand, and how often it was loaded.
fn on_demand(name: &str, make: fn() -> NewModel) -> (ModelSource, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let (counted, own) = (Arc::clone(&loads), name.to_owned());
    let load = Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(NewModel { name: own.clone(), ..make() }.into())
    });
    (
        ModelOnDemand {
            name: name.into(),
            aliases: vec![format!("{name}-1")],
            kind: ModelKind::Language,
            adapters: Vec::new(),
            load,
        }
        .into(),
        loads,
    )
}

fn ask(server: &Running, model: &str) -> Reply {
    let messages = json!([{ "role": "user", "content": "where is the cat ?" }]);
    post(server.address, CHAT, &json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 8 }))
}

fn status(server: &Running, model: &str) -> String {
    let entry = get(server.address, &format!("/v1/models/{model}")).json();
    entry["status"]["value"].as_str().unwrap().to_owned()
}

pub(crate) fn models_are_loaded_when_they_are_asked_for() {
    let (a, loads) = on_demand("a", tiny);
    let server = Running::of(vec![a, tiny().into()], config());
    assert_eq!((status(&server, "a"), status(&server, "tiny")), ("unloaded".into(), "loaded".into()));
    assert_eq!(get(server.address, "/v1/models/a").json()["capabilities"], json!({ "completion": true }));
    assert_eq!(ask(&server, "tiny").status, 200);
    assert_eq!(loads.load(Ordering::Relaxed), 0);
    // Requests that come together wait for one load.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(ask(&server, "a-1").json()["choices"], ask(&server, "tiny").json()["choices"]));
        }
    });
    assert_eq!((loads.load(Ordering::Relaxed), status(&server, "a")), (1, "loaded".into()));
    assert_eq!(get(server.address, "/v1/models/a").json()["context_length"], 512);
    let wrong = post(server.address, "/v1/embeddings", &json!({ "model": "a", "input": "Fox" }));
    assert!(wrong.status == 400 && wrong.body.contains(CHAT), "{}", wrong.body);
    // Ollama's clients ask for its end. Requests that ended may hold it for a moment.
    let unload = || post(server.address, "/api/generate", &json!({ "model": "a:latest", "keep_alive": 0 }));
    let done = (0..1000)
        .map(|_| unload())
        .inspect(|reply| sleep(Duration::from_millis(u64::from(reply.status == 429))))
        .find(|reply| reply.status == 200);
    assert_eq!((done.unwrap().json()["done_reason"].as_str(), status(&server, "a").as_str()), (Some("unload"), "unloaded"));
}

pub(crate) fn the_model_that_was_not_used_for_longest_makes_room() {
    let [(a, a_loads), (b, b_loads), (c, _)] = ["a", "b", "c"].map(|name| on_demand(name, tiny));
    let server = Running::of(vec![a, b, c], Config { loaded_models: 2, ..config() });
    let texts = ["a", "b", "a", "c"].map(|name| ask(&server, name).json()["choices"].clone());
    assert!(texts.iter().all(|text| *text == texts[0]));
    assert_eq!(["a", "b", "c"].map(|name| status(&server, name)), ["loaded", "unloaded", "loaded"]);
    assert_eq!(ask(&server, "b").status, 200);
    assert_eq!(
        (a_loads.load(Ordering::Relaxed), b_loads.load(Ordering::Relaxed), status(&server, "a").as_str()),
        (1, 2, "unloaded")
    );
    // Its counters continue.
    assert_eq!(server.metric_of("b", "requests_total"), 2);
}

pub(crate) fn models_in_use_are_not_let_go() {
    let slow = || endless(&["on "], &hooked(|_| sleep(Duration::from_millis(2))));
    let [(a, _), (b, _)] = [on_demand("a", slow), on_demand("b", tiny)];
    let limits = Config { loaded_models: 1, idle_time: Some(Duration::from_millis(100)), ..config() };
    let server = Running::of(vec![a, b, encoder().into()], limits);
    let mut client = Client::new(server.address);
    let body = json!({ "model": "a", "messages": [{ "role": "user", "content": "go" }], "stream": true, "max_tokens": 100_000 });
    client.send_request("POST", CHAT, &[], &body.to_string());
    assert_eq!(client.head().unwrap().status, 200);
    sleep(Duration::from_millis(400));
    assert_eq!(status(&server, "a"), "loaded", "it is in use");
    let refused = ask(&server, "b");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("capacity_exhausted")));
    drop(client);
    let mut status_of_b = 429;
    while status_of_b == 429 {
        status_of_b = ask(&server, "b").status;
    }
    assert_eq!((status_of_b, status(&server, "a").as_str()), (200, "unloaded"));
    // The idle model is unloaded after a while; the preloaded one stays.
    while status(&server, "b") == "loaded" {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(status(&server, "encoder"), "loaded");
}

pub(crate) fn a_model_that_cannot_be_loaded_costs_its_own_requests() {
    let load = Box::new(|| Err("no such file".to_owned()));
    let broken =
        ModelOnDemand { name: "broken".into(), aliases: Vec::new(), kind: ModelKind::Language, adapters: Vec::new(), load };
    let panics = Box::new(|| panic!("while it is loaded"));
    let worse =
        ModelOnDemand { name: "worse".into(), aliases: Vec::new(), kind: ModelKind::Language, adapters: Vec::new(), load: panics };
    let server = Running::of(vec![broken.into(), worse.into(), tiny().into()], config());
    let reply = ask(&server, "broken");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("model_not_loaded")), "{}", reply.body);
    assert!(!reply.body.contains("no such file"), "where files lie is nobody's business");
    assert_eq!(ask(&server, "worse").status, 500);
    assert_eq!((ask(&server, "tiny").status, ask(&server, "broken").status), (200, 503));
}

pub(crate) fn a_template_that_cannot_be_used_costs_its_own_conversations() {
    let bad = NewModel { name: "bad".into(), template: Err("unexpected end of input".into()), ..tiny() };
    let server = Running::new(vec![bad, tiny()], config());
    let refused = ask(&server, "bad");
    assert_eq!(refused.status, 400, "{}", refused.body);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"bad\"") && message.contains("unexpected end of input"), "{message}");
    let continued = json!({ "model": "bad", "prompt": "where is the cat ?", "temperature": 0, "max_tokens": 8 });
    assert_eq!(post(server.address, "/v1/completions", &continued).status, 200);
    assert_eq!(ask(&server, "tiny").status, 200);
}
