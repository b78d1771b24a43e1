//! Adapters that requests choose.

use serde_json::{Value as Json, json};

use crate::{
    chat::{PATH, ask, content, sentence},
    client::{get, post},
    server::{Running, adapted, config},
};

const ADAPTERS: [(&str, u64, f32); 2] = [("calm", 1, 0.5), ("loud", 2, 1.0)];

/// Answers to a text, for each of these models.
fn answers(server: &Running, text: &str, models: &[&str]) -> Vec<String> {
    let one = |model: &&str| content(&post(server.address, PATH, &ask(text, json!({ "model": model }))));
    models.iter().map(one).collect()
}

/// The answer of the base model with these fields.
fn answer(server: &Running, fields: Json) -> String {
    content(&post(server.address, PATH, &ask("the cat sat", fields)))
}

pub(crate) fn names_choose_adapters() {
    let server = Running::new(vec![adapted(&ADAPTERS)], config());
    let plain = Running::new(vec![adapted(&[])], config());
    let text = "the cat sat";
    let alone = answers(&server, text, &["tiny", "calm", "loud"]);
    assert_eq!(alone[0], answers(&plain, text, &["tiny"])[0], "without an adapter, the text is the base model's");
    assert!(alone[1] != alone[0] && alone[2] != alone[0] && alone[1] != alone[2], "{alone:?}");
    // At the same time, in one step of the model.
    std::thread::scope(|scope| {
        let threads: Vec<_> = ["calm", "loud", "tiny"]
            .into_iter()
            .cycle()
            .take(9)
            .map(|model| (model, scope.spawn(|| answers(&server, text, &[model]).remove(0))))
            .collect();
        for (model, thread) in threads {
            let at = ["tiny", "calm", "loud"].iter().position(|known| *known == model).unwrap();
            assert_eq!(thread.join().unwrap(), alone[at], "{model}");
        }
    });
    let reply = post(server.address, PATH, &ask(text, json!({ "model": "calm" }))).json();
    assert_eq!(reply["model"], "calm");

    let models = get(server.address, "/v1/models").json();
    let list: Vec<(&Json, &Json)> =
        models["data"].as_array().unwrap().iter().map(|entry| (&entry["id"], &entry["parent"])).collect();
    assert_eq!(list, [(&json!("tiny"), &Json::Null), (&json!("calm"), &json!("tiny")), (&json!("loud"), &json!("tiny"))]);
    assert_eq!(get(server.address, "/v1/models/loud").json()["parent"], "tiny");
    assert_eq!(post(server.address, PATH, &ask(text, json!({ "model": "shy" }))).status, 404);
    let metrics = get(server.address, "/metrics").body;
    let info = metrics.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).expect("the gauge");
    let labels = "model_name=\"tiny\",engine=\"0\",max_lora=\"2\",waiting_lora_adapters=\"\",running_lora_adapters=\"\"";
    assert!(info.contains(labels), "{info}");
    assert!(!get(plain.address, "/metrics").body.contains("lora"), "models without adapters have no such gauge");
}

pub(crate) fn requests_scale_adapters() {
    let server = Running::new(vec![adapted(&ADAPTERS)], config());
    let [base, calm, loud] = answers(&server, "the cat sat", &["tiny", "calm", "loud"]).try_into().unwrap();
    let listed = |scales: [f64; 2]| json!([{ "id": 0, "path": "calm", "scale": scales[0] }, { "id": 1, "path": "loud", "scale": scales[1] }]);
    assert_eq!(get(server.address, "/lora-adapters").json(), listed([0.0, 0.0]));
    assert_eq!(answer(&server, json!({ "lora": [{ "id": 0, "scale": 0.5 }] })), calm);
    assert_eq!(answer(&server, json!({ "model": "calm", "lora": [{ "id": 1, "scale": 1 }] })), loud, "the list decides");
    assert_eq!(answer(&server, json!({ "model": "calm", "lora": [] })), base);
    let both = answer(&server, json!({ "lora": [{ "id": 0, "scale": 1.5 }, { "id": 1, "scale": 1.0 }] }));
    assert!(![&base, &calm, &loud].contains(&&both), "{both}");

    let set = |list: Json| post(server.address, "/lora-adapters", &list);
    assert_eq!(set(json!([{ "id": 1, "scale": 1.0 }])).json(), json!({ "success": true }));
    assert_eq!(get(server.address, "/lora-adapters").json(), listed([0.0, 1.0]));
    assert_eq!(answers(&server, "the cat sat", &["tiny", "calm"]), [loud, calm]);
    set(json!([]));
    assert_eq!(answer(&server, json!({})), base);
    for (list, message) in [
        (json!([{ "id": 2, "scale": 1.0 }]), "there is no adapter 2"),
        (json!([{ "id": 0 }]), "`lora` must be a list of objects"),
        (json!({ "id": 0, "scale": 1.0 }), "no list of adapters"),
    ] {
        let reply = set(list);
        assert!(reply.status == 400 && reply.body.contains(message), "{}", reply.body);
    }
    let refused = post(server.address, PATH, &ask("the cat", json!({ "lora": [{ "id": 7, "scale": 1.0 }] })));
    assert!(refused.status == 400 && refused.json()["error"]["param"] == "lora", "{}", refused.body);
}

pub(crate) fn adapters_stay_with_their_model() {
    let server = Running::new(vec![adapted(&ADAPTERS)], config());
    let ask = |path: &str, name: &str| {
        let reply = post(server.address, path, &json!({ "lora_name": name, "lora_path": "/adapters/x" }));
        (reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned(), reply.body)
    };
    for (path, name, status, code) in [
        ("/v1/load_lora_adapter", "calm", 400, "adapter_loaded"),
        ("/v1/load_lora_adapter", "new", 400, "unsupported_parameter"),
        ("/v1/unload_lora_adapter", "calm", 400, "unsupported_parameter"),
        ("/v1/unload_lora_adapter", "tiny", 404, "model_not_found"),
    ] {
        let (found, reason, body) = ask(path, name);
        assert_eq!((found, reason.as_str()), (status, code), "{path} {name}: {body}");
    }
    assert!(ask("/v1/load_lora_adapter", "new").2.contains("--lora new=PATH"));
}

pub(crate) fn texts_of_adapters_share_no_caches() {
    let text = sentence(3, 60);
    let cached = |server: &Running, model: &str| {
        let reply = post(server.address, PATH, &ask(&text, json!({ "model": model }))).json();
        let usage = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
        (usage.as_u64().unwrap() > 0, reply["choices"][0]["message"]["content"].clone())
    };
    let fresh = |model: &str| cached(&Running::new(vec![adapted(&ADAPTERS)], config()), model).1;
    let server = Running::new(vec![adapted(&ADAPTERS)], config());
    for model in ["tiny", "calm", "loud"] {
        assert_eq!(cached(&server, model), (false, fresh(model)), "{model}");
    }
    for model in ["loud", "tiny", "calm"] {
        assert_eq!(cached(&server, model), (true, fresh(model)), "{model}");
    }
}

pub(crate) fn adapters_need_names_of_their_own() {
    let error = |models: Vec<flambeau_serve::NewModel>| {
        let server = flambeau_serve::Server::bind("127.0.0.1:0".parse().unwrap(), config()).unwrap();
        server.run(models.into_iter().map(Into::into).collect(), async {}).unwrap_err().to_string()
    };
    let taken = error(vec![adapted(&[("tiny", 1, 1.0)])]);
    assert!(taken.contains("the adapter \"tiny\" of \"tiny\" has the name of another model or adapter"), "{taken}");
}
