//! Scores of texts and of pairs of texts.

use std::{fs, path::PathBuf};

use flambeau::runners::embed::{Classifier, INSTRUCTION, Tokens, probabilities};
use flambeau_serve::NewEncoder;
use serde_json::{Value as Json, json};

use crate::{
    client::{get, post},
    embeddings::of_case,
    server::{Running, config, tiny},
};

const PATH: &str = "/v1/rerank";
const QUERY: &str = "eating food";
const DOCUMENTS: [&str; 3] = ["Fox", "A man is eating food.", "The quick brown fox jumps over the dog."];

/// A small reranker of the cases.
pub(crate) fn ranker() -> NewEncoder {
    let new = of_case("classifier-bert", &["config.json", "model.safetensors", "tokenizer_config.json"]);
    NewEncoder { name: "ranker".into(), aliases: vec!["rerank-v3.5".into()], ..new }
}

fn sorter() -> NewEncoder {
    let new = of_case("classifier-distilbert", &["config.json", "model.safetensors", "tokenizer_config.json"]);
    NewEncoder { name: "sorter".into(), ..new }
}

/// A small classifier of tokens.
fn tagger() -> NewEncoder {
    let new = of_case("tagger-xlm-roberta", &["config.json", "model.safetensors", "tokenizer_config.json"]);
    NewEncoder { name: "tagger".into(), ..new }
}

fn server() -> Running {
    Running::of(vec![tiny().into(), ranker().into(), sorter().into(), tagger().into()], config())
}

/// Scores of pairs without a server.
fn offline(pairs: &[[&str; 2]]) -> Vec<f32> {
    let new = ranker();
    let mut model = Classifier::load(&new.program, &new.engine).unwrap();
    let scoring = model.scoring().clone();
    let tokens: Vec<Tokens> =
        pairs.iter().map(|pair| scoring.pair(&new.tokenizer, *pair, INSTRUCTION, scoring.max_tokens()).unwrap()).collect();
    model.scores(&tokens.iter().collect::<Vec<_>>()).unwrap().concat()
}

fn close(found: &Json, expected: f32) -> bool {
    (found.as_f64().unwrap() - f64::from(expected)).abs() < 1e-6
}

pub(crate) fn documents_come_by_their_relevance() {
    let server = server();
    let logits = offline(&DOCUMENTS.map(|document| [QUERY, document]));
    let mut order = [0, 1, 2];
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let documents = json!([DOCUMENTS[0], { "text": DOCUMENTS[1] }, DOCUMENTS[2]]);
    for path in [PATH, "/rerank", "/v1/reranking", "/reranking", "/v2/rerank"] {
        let body = json!({ "model": "ranker", "query": QUERY, "documents": documents, "top_n": 2, "user": "me" });
        let reply = post(server.address, path, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let json = reply.json();
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for (result, &at) in results.iter().zip(&order) {
            assert_eq!(result["index"], at);
            assert!(close(&result["relevance_score"], probabilities(&[logits[at]])[0]), "{json}");
            let text = if path == "/v2/rerank" { Json::Null } else { DOCUMENTS[at].into() };
            assert_eq!(result["document"]["text"], text);
        }
        let tokens = if path == "/v2/rerank" { &json["meta"]["tokens"]["input_tokens"] } else { &json["usage"]["total_tokens"] };
        assert!(tokens.as_u64().unwrap() > 20, "{json}");
    }
    // The form of text-embeddings-inference: a bare list, with scores as they are on demand.
    let reply = post(
        server.address,
        "/rerank",
        &json!({ "query": QUERY, "texts": DOCUMENTS, "raw_scores": true, "return_text": true, "model": "rerank-v3.5" }),
    );
    let list = reply.json();
    assert_eq!((list[0]["index"].as_u64(), list[0]["text"].as_str()), (Some(order[0] as u64), Some(DOCUMENTS[order[0]])));
    assert!(close(&list[0]["score"], logits[order[0]]), "{list}");
}

pub(crate) fn pairs_are_scored_and_texts_get_labels() {
    let server = server();
    let logits = offline(&[[QUERY, DOCUMENTS[0]], [QUERY, DOCUMENTS[1]]]);
    for body in [
        json!({ "model": "ranker", "queries": QUERY, "documents": DOCUMENTS[..2] }),
        json!({ "model": "ranker", "text_1": [QUERY, QUERY], "text_2": DOCUMENTS[..2] }),
    ] {
        let json = post(server.address, "/v1/score", &body).json();
        for (at, logit) in logits.iter().enumerate() {
            assert_eq!((&json["data"][at]["index"], &json["data"][at]["object"]), (&json!(at), &json!("score")));
            assert!(close(&json["data"][at]["score"], probabilities(&[*logit])[0]), "{json}");
        }
    }
    let json = post(server.address, "/v1/classify", &json!({ "model": "sorter", "input": ["Fox", "A man"] })).json();
    let entry = &json["data"][1];
    let shares: Vec<f64> = entry["probs"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
    assert!(entry["num_classes"] == 3 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{json}");
    let best = shares.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert_eq!(entry["label"], ["no", "maybe", "yes"][best]);
}

pub(crate) fn entities_are_found_with_their_places() {
    let server = server();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints/tagger-xlm-roberta");
    let case: Json = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
    let json = post(server.address, "/v1/classify", &json!({ "model": "tagger", "input": case["texts"] })).json();
    for (at, expected) in case["entities"].as_array().unwrap().iter().enumerate() {
        let (found, expected) = (json["data"][at]["entities"].as_array().unwrap(), expected.as_array().unwrap());
        assert_eq!(found.len(), expected.len(), "{json}");
        for (found, expected) in found.iter().zip(expected) {
            for key in ["entity_group", "word", "start", "end"] {
                assert_eq!(found[key], expected[key], "{json}");
            }
            let difference = found["score"].as_f64().unwrap() - expected["score"].as_f64().unwrap();
            assert!(difference.abs() < 1e-3, "{json}");
        }
    }
    let reply = post(server.address, PATH, &json!({ "model": "tagger", "query": "a", "documents": ["b"] }));
    assert!(reply.status == 400 && reply.body.contains("/v1/classify"), "{}", reply.body);
    let listed = get(server.address, "/v1/models/tagger").json();
    assert_eq!(listed["capabilities"], json!({ "token_classification": true }));
}

pub(crate) fn what_a_classifier_cannot_do_is_refused() {
    let server = server();
    let refused = |path: &str, body: &Json| {
        let reply = post(server.address, path, body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        reply.json()["error"]["param"].as_str().unwrap_or_default().to_owned()
    };
    for (body, param) in [
        (json!({ "documents": ["a"] }), "query"),
        (json!({ "query": "", "documents": ["a"] }), "query"),
        (json!({ "query": "a" }), "documents"),
        (json!({ "query": "a", "documents": [] }), "documents"),
        (json!({ "query": "a", "documents": [1] }), "documents"),
        (json!({ "query": "a", "documents": ["a"], "texts": ["a"] }), "texts"),
        (json!({ "query": "a", "documents": ["a"], "top_n": 0 }), "top_n"),
        (json!({ "query": "a", "documents": ["a"], "instruction": "b" }), "instruction"),
        (json!({ "query": "a", "documents": ["a"], "rank_fields": ["b"] }), "rank_fields"),
        (json!({ "query": "a", "documents": ["a"], "model": "sorter" }), "model"),
        (json!({ "query": "a", "documents": ["a"], "model": "tiny" }), "model"),
    ] {
        let mut body = body;
        if body.get("model").is_none() {
            body["model"] = "ranker".into();
        }
        assert_eq!(refused(PATH, &body), param, "{body}");
    }
    assert_eq!(
        refused("/v1/score", &json!({ "model": "ranker", "queries": ["a", "b"], "documents": ["a", "b", "c"] })),
        "documents"
    );
    assert_eq!(refused("/v1/classify", &json!({ "model": "sorter" })), "input");
    assert_eq!(refused("/v1/embeddings", &json!({ "model": "ranker", "input": "a" })), "model");
    // Long documents are cut, to the model's limit or to the client's.
    let long = "a man ".repeat(5000);
    let ask = |body: Json| post(server.address, PATH, &body).json()["usage"]["total_tokens"].as_u64().unwrap();
    assert_eq!(ask(json!({ "model": "ranker", "query": "Fox", "documents": [long] })), 40);
    assert_eq!(ask(json!({ "model": "ranker", "query": "Fox", "documents": [long], "max_tokens_per_doc": 5 })), 9);
    let listed = get(server.address, "/v1/models/ranker").json();
    assert_eq!(listed["capabilities"], json!({ "rerank": true, "classification": true }));
    assert_eq!(get(server.address, "/v1/models/sorter").json()["labels"], json!(["no", "maybe", "yes"]));
}
