//! `flambeau classify` on tiny classifiers of texts and of tokens.

use std::fs;

use serde_json::Value as Json;

use crate::flambeau;

fn case(name: &str) -> String {
    format!("{}/../testcases/checkpoints/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn model(name: &str) -> String {
    format!("{}/checkpoint", case(name))
}

#[test]
fn entities_are_those_of_the_pipeline() {
    let dir = tempfile::tempdir().unwrap();
    let described: Json = serde_json::from_slice(&fs::read(format!("{}/case.json", case("tagger-xlm-roberta"))).unwrap()).unwrap();
    let texts: Vec<&str> = described["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let model = model("tagger-xlm-roberta");
    let json = flambeau(dir.path(), &[&["classify", &model, "--json"], &texts[..]].concat());
    assert_eq!(json.code, 0, "{}", json.stderr);
    let found: Json = serde_json::from_str(&json.stdout).unwrap();
    assert!(found["usage"]["prompt_tokens"].as_u64().unwrap() > texts.len() as u64, "{found}");
    let mut lines = String::new();
    for (index, expected) in described["entities"].as_array().unwrap().iter().enumerate() {
        let entities = found["data"][index]["entities"].as_array().unwrap();
        assert_eq!(entities.len(), expected.as_array().unwrap().len(), "{found}");
        for (entity, expected) in entities.iter().zip(expected.as_array().unwrap()) {
            for key in ["entity_group", "word", "start", "end"] {
                assert_eq!(entity[key], expected[key], "{entity} and {expected}");
            }
            let score = entity["score"].as_f64().unwrap();
            assert!((score - expected["score"].as_f64().unwrap()).abs() < 1e-3, "{entity} and {expected}");
            let text = |key: &str| entity[key].as_str().unwrap().to_owned();
            lines += &format!("{score:.4}\t{}\t{}\t{}..{}\n", text("entity_group"), text("word"), entity["start"], entity["end"]);
        }
    }
    let plain = flambeau(dir.path(), &[&["classify", &model], &texts[..]].concat());
    assert_eq!(plain.stdout, lines);
}

#[test]
fn texts_get_the_most_probable_label() {
    let dir = tempfile::tempdir().unwrap();
    let model = model("classifier-distilbert");
    let json = flambeau(dir.path(), &["classify", &model, "--json", "Fox", "A man eats a fox!"]);
    assert_eq!(json.code, 0, "{}", json.stderr);
    let found: Json = serde_json::from_str(&json.stdout).unwrap();
    let plain = flambeau(dir.path(), &["classify", &model, "Fox", "A man eats a fox!"]);
    let tokens = found["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens > 2 && found["usage"]["total_tokens"] == tokens, "{found}");
    let mut lines = plain.stdout.lines();
    for (one, text) in found["data"].as_array().unwrap().iter().zip(["Fox", "A man eats a fox!"]) {
        let shares: Vec<f64> = one["probs"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-5 && shares.len() == 3, "{one}");
        let best = (0..3).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap();
        let label = ["no", "maybe", "yes"][best];
        assert_eq!(one["label"], label);
        assert_eq!(lines.next().unwrap(), format!("{:.4}\t{label}\t{text}", shares[best]));
    }
}

#[test]
fn long_texts_and_other_models_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let (tagger, long) = (model("tagger-bert"), "man ".repeat(60));
    let refused = flambeau(dir.path(), &["classify", &tagger, &long]);
    assert!(refused.code == 1 && refused.stderr.contains("--truncate"), "{}", refused.stderr);
    assert_eq!(flambeau(dir.path(), &["classify", &tagger, "--truncate", &long]).code, 0);
    let encoder = flambeau(dir.path(), &["classify", &model("embedding-bert"), "Fox"]);
    assert!(encoder.code == 1 && encoder.stderr.contains("flambeau embed"), "{}", encoder.stderr);
    let embedded = flambeau(dir.path(), &["embed", &tagger, "Fox"]);
    assert!(embedded.code == 1 && embedded.stderr.contains("flambeau classify"), "{}", embedded.stderr);
    let flags = ["-o", "x.pte", "--qlinear", "4w", "--calibration", "default"];
    let calibrated = flambeau(dir.path(), &[&["export", &tagger], &flags[..]].concat());
    assert!(calibrated.code == 2 && calibrated.stderr.contains("are for language models"), "{}", calibrated.stderr);
}
