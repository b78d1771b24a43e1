//! `flambeau rerank` on tiny classifiers.

use std::{fs, io::Write, process::Stdio};

use serde_json::Value as Json;

use crate::{command, finished, flambeau};

/// The folder of a case.
fn case(name: &str) -> String {
    format!("{}/../testcases/checkpoints/classifier-{name}", env!("CARGO_MANIFEST_DIR"))
}

fn model(name: &str) -> String {
    format!("{}/checkpoint", case(name))
}

/// Numbers of 32 bits in a file of a case.
fn floats(text: &Json) -> Vec<f64> {
    text.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn documents_come_by_falling_relevance_with_the_scores_of_the_case() {
    let dir = tempfile::tempdir().unwrap();
    let described: Json = serde_json::from_slice(&fs::read(format!("{}/case.json", case("xlm-roberta"))).unwrap()).unwrap();
    let pair = &described["pairs"][0];
    fs::write(dir.path().join("a.txt"), pair[1].as_str().unwrap()).unwrap();
    fs::write(dir.path().join("b.txt"), "Fox").unwrap();
    let model = model("xlm-roberta");
    let args = ["rerank", &model, "--query", pair[0].as_str().unwrap(), "a.txt", "b.txt"];
    let json = flambeau(dir.path(), &[&args[..], &["--json"]].concat());
    assert_eq!(json.code, 0, "{}", json.stderr);
    let found: Json = serde_json::from_str(&json.stdout).unwrap();
    let results = found["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 2 && scores[0] >= scores[1], "{found}");
    // The first score of the case is the logit 1.2623.
    let first = results.iter().find(|result| result["index"] == 0).unwrap();
    let expected = 1.0 / (1.0 + (-1.2623f64).exp());
    assert!((first["relevance_score"].as_f64().unwrap() - expected).abs() < 1e-4, "{found}");
    assert_eq!(first["document"]["text"], pair[1]);
    let text = flambeau(dir.path(), &[&args[..], &["-n", "1"]].concat());
    let best = if results[0]["index"] == 0 { "a.txt" } else { "b.txt" };
    assert_eq!(text.stdout, format!("{:.4}\t{best}\n", scores[0]), "{}", text.stderr);
}

#[test]
fn lines_of_stdin_are_documents_and_programs_give_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = model("bert");
    let exported = flambeau(dir.path(), &["export", &model, "-o", "ranker.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let run = |model: &str| {
        let mut child = command(dir.path(), &["rerank", model, "-q", "Fox", "-", "--json"]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let long = "a man ".repeat(40);
        child.stdin.take().unwrap().write_all(format!("The fox\n{long}\n").as_bytes()).unwrap();
        let done = finished(child.wait_with_output().unwrap());
        assert_eq!(done.code, 0, "{}", done.stderr);
        serde_json::from_str::<Json>(&done.stdout).unwrap()
    };
    let (folder, program) = (run(&model), run("ranker.pte"));
    assert_eq!(folder["results"], program["results"]);
    // The long document is cut to the model's 40 tokens.
    assert!(folder["usage"]["prompt_tokens"].as_u64().unwrap() < 50, "{folder}");
}

#[test]
fn language_models_judge_by_an_instruction() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lines.txt"), "The fox\nA man\n").unwrap();
    let model = model("answers");
    let scores = |more: &[&str]| {
        let done = flambeau(dir.path(), &[&["rerank", &model, "-q", "Fox", "--lines", "lines.txt", "--json"], more].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        let json: Json = serde_json::from_str(&done.stdout).unwrap();
        json["results"].as_array().unwrap().iter().map(|result| result["relevance_score"].clone()).collect::<Json>()
    };
    let (plain, told) = (scores(&[]), scores(&["--instruction", "the dog"]));
    assert!(floats(&plain).iter().all(|score| (0.0..=1.0).contains(score)) && plain != told, "{plain} {told}");
}

#[test]
fn what_cannot_be_ranked_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "Fox").unwrap();
    let refused = |model: &str, more: &[&str]| flambeau(dir.path(), &[&["rerank", model, "-q", "Fox", "a.txt"], more].concat());
    let many = refused(&model("distilbert"), &[]);
    assert!(many.code == 1 && many.stderr.contains("3 labels"), "{}", many.stderr);
    let told = refused(&model("bert"), &["--instruction", "x"]);
    assert!(told.code == 2 && told.stderr.contains("--instruction"), "{}", told.stderr);
    let encoder = format!("{}/../testcases/checkpoints/embedding-bert/checkpoint", env!("CARGO_MANIFEST_DIR"));
    let other = refused(&encoder, &[]);
    assert!(other.code == 1 && other.stderr.contains("flambeau embed"), "{}", other.stderr);
    let other = flambeau(dir.path(), &["embed", &model("bert"), "Fox"]);
    assert!(other.code == 1 && other.stderr.contains("flambeau rerank"), "{}", other.stderr);
    let missing = refused(&model("bert"), &["nothing.txt"]);
    assert!(missing.code == 1 && missing.stderr.contains("nothing.txt"), "{}", missing.stderr);
}
