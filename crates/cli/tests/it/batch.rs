//! Batches without a server.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value as Json, json};

use crate::flambeau;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

fn line(name: &str, body: &Json) -> String {
    json!({ "custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body }).to_string() + "\n"
}

fn chat(number: usize, tokens: usize) -> Json {
    let content = ["the cat", "where is the mat ?", "a dog sat"][number % 3];
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": tokens, "seed": number })
}

fn requests(count: usize, tokens: usize) -> String {
    (0..count).map(|i| line(&format!("{i:03}"), &chat(i, tokens))).collect()
}

fn run(folder: &Path, more: &[&str]) -> crate::Finished {
    flambeau(folder, &[&["batch", "in.jsonl", "out.jsonl", "--model", TINY, "--threads", "1"], more].concat())
}

/// The lines of the output by their names; each is there once.
fn answers(folder: &Path) -> BTreeMap<String, Json> {
    let mut answers = BTreeMap::new();
    for line in fs::read_to_string(folder.join("out.jsonl")).unwrap().lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        assert!(answers.insert(line["custom_id"].as_str().unwrap().to_owned(), line).is_none(), "two lines of a name");
    }
    answers
}

fn text(answer: &Json) -> &str {
    answer["response"]["body"]["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn requests_are_answered_and_failures_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let greedy = json!({ "messages": [{ "role": "user", "content": "the cat sat" }], "max_tokens": 8, "temperature": 0 });
    let wrong = json!({ "messages": [{ "role": "user", "content": "the cat" }], "temperature": 9 });
    fs::write(folder.path().join("in.jsonl"), requests(5, 6) + &line("greedy", &greedy) + &line("wrong", &wrong)).unwrap();
    let done = run(folder.path(), &[]);
    assert!(done.code == 1 && done.stderr.contains("7 requests: 6 answered, 1 failed"), "{}: {}", done.code, done.stderr);
    assert_eq!(done.stdout, "");
    let found = answers(folder.path());
    let generated = flambeau(folder.path(), &["generate", TINY, "-p", "the cat sat", "-n", "8", "-q", "--threads", "1"]);
    assert_eq!(text(&found["greedy"]), generated.stdout.trim_end_matches('\n'));
    assert_eq!((&found["wrong"]["response"]["status_code"], &found["wrong"]["error"]), (&json!(400), &Json::Null));
    assert_eq!(found["wrong"]["response"]["body"]["error"]["param"], "temperature");
    assert_eq!(found.len(), 7);

    // A second run changes nothing, unless it is to run failures again.
    let before = fs::read(folder.path().join("out.jsonl")).unwrap();
    assert_eq!(run(folder.path(), &[]).code, 1);
    assert_eq!(fs::read(folder.path().join("out.jsonl")).unwrap(), before);
    fs::write(folder.path().join("in.jsonl"), requests(5, 6) + &line("greedy", &greedy) + &line("wrong", &greedy)).unwrap();
    let done = run(folder.path(), &["--retry-failed"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let again = answers(folder.path());
    assert!(again.len() == 7 && again["greedy"] == found["greedy"] && text(&again["wrong"]) == text(&again["greedy"]));
}

#[test]
fn a_batch_that_was_interrupted_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), requests(12, 6)).unwrap();
    assert_eq!(run(folder.path(), &[]).code, 0);
    let whole = answers(folder.path());
    // Five answers and a part of the sixth, as a crash leaves them.
    let output = folder.path().join("out.jsonl");
    let kept = fs::read_to_string(&output).unwrap();
    let cut = kept.match_indices('\n').nth(4).unwrap().0 + 40;
    fs::write(&output, &kept[..cut]).unwrap();
    let done = run(folder.path(), &[]);
    assert!(done.code == 0 && done.stderr.contains("5 of 12 requests are done already"), "{}", done.stderr);
    let again = answers(folder.path());
    assert_eq!(again.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
    for (name, answer) in &whole {
        assert_eq!(text(answer), text(&again[name]), "the same seed draws the same answer");
    }
}

#[cfg(unix)]
#[test]
fn an_interruption_loses_no_answer_that_is_done() {
    use std::{process::Stdio, thread::sleep, time::Duration};

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), requests(400, 100)).unwrap();
    let args = ["batch", "in.jsonl", "out.jsonl", "--model", TINY, "--threads", "1", "--parallel", "1"];
    let mut running = crate::command(folder.path(), &args).stderr(Stdio::piped()).spawn().unwrap();
    let lines = || fs::read_to_string(folder.path().join("out.jsonl")).unwrap_or_default().lines().count();
    while lines() < 3 {
        assert!(running.try_wait().unwrap().is_none(), "the batch runs");
        sleep(Duration::from_millis(5));
    }
    assert!(std::process::Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
    let done = crate::finished(running.wait_with_output().unwrap());
    assert_eq!(done.code, 130, "{}", done.stderr);
    let kept = answers(folder.path());
    assert!(
        (3..400).contains(&kept.len()) && done.stderr.contains(&format!("{} of 400 requests are done", kept.len())),
        "{}",
        done.stderr
    );
}

#[test]
fn files_that_are_wrong_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |input: &str, code: i32, expected: &[&str]| {
        fs::write(folder.path().join("in.jsonl"), input).unwrap();
        let done = run(folder.path(), &[]);
        assert!(done.code == code && expected.iter().all(|part| done.stderr.contains(part)), "{}: {}", done.code, done.stderr);
    };
    let twice = requests(1, 1) + "nonsense\n" + &requests(1, 1);
    refused(&twice, 2, &["line 2: the line is no valid JSON", "line 3: the `custom_id` \"000\" stands twice"]);
    refused("", 2, &["the file has no requests"]);
    assert!(!folder.path().join("out.jsonl").exists(), "nothing is written");
    // An output that holds something else stays as it is.
    for notes in ["my notes", "{\"custom_id\": \"x\"}\n{}\n"] {
        fs::write(folder.path().join("out.jsonl"), notes).unwrap();
        refused(&requests(1, 1), 1, &["out.jsonl"]);
        assert_eq!(fs::read_to_string(folder.path().join("out.jsonl")).unwrap(), notes);
    }
    fs::remove_file(folder.path().join("out.jsonl")).unwrap();
    fs::write(folder.path().join("in.jsonl"), requests(2, 1)).unwrap();
    assert_eq!(run(folder.path(), &[]).code, 0);
    refused(&requests(1, 1), 1, &["\"001\"", "does not ask"]);
    let missing = flambeau(folder.path(), &["batch", "none.jsonl", "out.jsonl", "--model", TINY]);
    assert!(missing.code == 1 && missing.stderr.contains("none.jsonl"), "{}", missing.stderr);
}
