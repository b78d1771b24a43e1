//! The flags of `generate` on a tiny model.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};

use crate::{Finished, command, finished, flambeau};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

/// Generates eight tokens, greedily.
fn generate(folder: &Path, model: &str, flags: &[&str]) -> Json {
    let args = [&["generate", model, "-n", "8", "--ignore-eos", "--json", "-q"], flags].concat();
    let done = flambeau(folder, &args);
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

fn ids(json: &Json) -> Vec<u64> {
    json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn prompts_come_in_three_ways() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("prompt.txt"), "the cat\n").unwrap();
    let flag = ids(&generate(dir.path(), TINY, &["--raw", "-p", "the cat"]));
    assert_eq!(ids(&generate(dir.path(), TINY, &["the cat", "--raw"])), flag);
    assert_eq!(ids(&generate(dir.path(), TINY, &["--raw", "--prompt-file", "prompt.txt"])), flag);
    assert_eq!(ids(&generate(dir.path(), TINY, &["--raw", "-f", "prompt.txt"])), flag);
    for model in ["-m", "--model", "-hf"] {
        let done = flambeau(
            dir.path(),
            &["generate", "the cat", "--raw", "-q", "--n-predict", "8", "--ignore-eos", model, TINY, "--json"],
        );
        assert_eq!(ids(&serde_json::from_str(&done.stdout).unwrap()), flag, "{}", done.stderr);
    }
    let refused = |flags: &[&str]| flambeau(dir.path(), &[&["generate", TINY, "--raw"], flags].concat()).code;
    assert_eq!((refused(&[]), refused(&["the cat", "-p", "the dog"])), (2, 2));
    assert_eq!(refused(&["--prompt-file", "missing.txt"]), 1);
}

#[test]
fn penalties_and_biases_change_the_choice() {
    let dir = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| ids(&generate(dir.path(), TINY, &[&["the cat", "--raw"], flags].concat()));
    let greedy = run(&[]);
    let is_varied = |ids: &[u64]| (1..ids.len()).all(|at| !ids[..at].contains(&ids[at]));
    assert!(!is_varied(&greedy), "{greedy:?}");
    for penalty in ["--frequency-penalty", "--presence-penalty"] {
        let varied = run(&[penalty, "100"]);
        assert!(is_varied(&varied) && !varied.contains(&6), "{varied:?}");
    }
    // The penalties see the last token alone.
    let last = run(&["--presence-penalty", "100", "--repeat-last-n", "1"]);
    assert!(!is_varied(&last) && last.windows(2).all(|pair| pair[0] != pair[1]), "{last:?}");
    let forbidden = run(&["--logit-bias", &format!("{}-inf", greedy[0])]);
    assert!(!forbidden.contains(&greedy[0]), "{forbidden:?}");
    assert_eq!(run(&["--logit-bias", "15+100"]), [15; 8]);
    assert_eq!(flambeau(dir.path(), &["generate", TINY, "x", "--logit-bias", "dog"]).code, 2);
    let beyond = flambeau(dir.path(), &["generate", TINY, "x", "--logit-bias", "99999+1"]);
    assert!(beyond.code == 2 && beyond.stderr.contains("no such token; its ids are below"), "{}", beyond.stderr);
}

#[test]
fn log_probabilities_are_told_by_token() {
    let dir = tempfile::tempdir().unwrap();
    let json = generate(dir.path(), TINY, &["the cat", "--raw", "--logprobs", "3"]);
    let list = json["logprobs"].as_array().unwrap();
    assert_eq!(list.iter().map(|entry| entry["id"].as_u64().unwrap()).collect::<Vec<_>>(), ids(&json));
    for entry in list {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert!(top.len() == 3 && top[0]["id"] == entry["id"] && top[0]["logprob"] == entry["logprob"], "{entry}");
        assert!(entry["logprob"].as_f64() < Some(0.0) && top[1]["logprob"].as_f64() <= top[0]["logprob"].as_f64());
    }
    assert_eq!(flambeau(dir.path(), &["generate", TINY, "x", "--logprobs", "3"]).code, 2);
}

#[test]
fn stop_strings_have_escapes() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        |flags: &[&str]| generate(dir.path(), TINY, &[&["the cat", "--raw"], flags].concat())["text"].as_str().unwrap().to_owned();
    let (first, _) = text(&[]).split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(text(&["--stop", "\\x20"]), first);
}

#[test]
fn another_template_replaces_the_models() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.jinja"), "{{ messages[0].content }} sat").unwrap();
    let raw = ids(&generate(dir.path(), TINY, &["the cat sat", "--raw"]));
    assert_eq!(ids(&generate(dir.path(), TINY, &["the cat", "--chat-template", "{{ messages[0].content }} sat"])), raw);
    assert_eq!(ids(&generate(dir.path(), TINY, &["the cat", "--chat-template-file", "t.jinja"])), raw);
    assert_eq!(ids(&generate(dir.path(), TINY, &["the cat", "--chat-template", "t.jinja"])), raw);
    let framed = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n";
    let framed = ids(&generate(dir.path(), TINY, &[framed, "--raw"]));
    assert_eq!(ids(&generate(dir.path(), TINY, &["the cat", "--chat-template", "chatml"])), framed);
    let unknown = flambeau(dir.path(), &["generate", TINY, "the cat", "--chat-template", "chatmm"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("hint: give a template in Jinja"), "{}", unknown.stderr);
    let wrong = flambeau(dir.path(), &["generate", TINY, "the cat", "--chat-template", "{% if %}"]);
    assert!(wrong.code == 1 && wrong.stderr.contains("--chat-template"), "{}", wrong.stderr);
}

/// The tiny model with a tokenizer of single characters, whose bytes are known. It spells booleans.
fn spelling(folder: &Path, template: &str) -> String {
    let model = folder.join("spelling");
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(TINY).join(name), model.join(name)).unwrap();
    }
    let tokens = ["<unk>", "<s>", "</s>", "t", "r", "u", "e", "f", "a", "l", "s", "{", "}", "\"", ":", "\u{120}"];
    let vocab: serde_json::Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let special = |id: usize| json!({ "id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false });
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(1), special(2)], "pre_tokenizer": level, "decoder": level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [], "unk_token": null },
    });
    fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "chat_template": template });
    fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    "spelling".to_owned()
}

fn answer(folder: &Path, flags: &[&str]) -> Finished {
    finished(command(folder, &[&["generate", "spelling", "true", "-n", "30", "-q"], flags].concat()).output().unwrap())
}

#[test]
fn answers_have_the_form_of_a_schema_or_grammar() {
    let dir = tempfile::tempdir().unwrap();
    spelling(dir.path(), "{{ messages[0].content }}");
    fs::write(dir.path().join("schema.json"), r#"{"type": "boolean"}"#).unwrap();
    fs::write(dir.path().join("grammar.lark"), "start: \"fat\" | \"rat\"\n").unwrap();
    for (flags, expected) in [
        (["--json-schema", r#"{"enum": ["true", "false"]}"#], ["\"true\"", "\"false\""]),
        (["-j", "schema.json"], ["true", "false"]),
        (["--grammar", "start: tail\ntail: \"set\" | \"sat\""], ["set", "sat"]),
        (["--grammar-file", "grammar.lark"], ["fat", "rat"]),
        (["--grammar", "root ::= tail\ntail ::= [st] \"e\" \"a\""], ["sea", "tea"]),
    ] {
        let done = answer(dir.path(), &flags);
        assert!(done.code == 0 && expected.contains(&done.stdout.trim_end()), "{flags:?}: {} {}", done.stdout, done.stderr);
    }
    for (flags, expected) in [
        (["--json-schema", "{"], "--json-schema is no JSON"),
        (["--grammar", "start: ["], "--grammar"),
        (["--grammar", "root ::= tail"], "there is no rule `tail`"),
        (["--grammar-file", "missing"], "missing"),
    ] {
        let done = answer(dir.path(), &flags);
        assert!(done.code != 0 && done.stderr.contains(expected), "{}", done.stderr);
    }
    assert_eq!(answer(dir.path(), &["--grammar", "start: \"a\"", "-j", "{}"]).code, 2);
}

#[test]
fn thoughts_that_a_prompt_begins_come_before_the_form() {
    let dir = tempfile::tempdir().unwrap();
    spelling(dir.path(), "{{ messages[0].content }}<think>");
    // No token of the model closes the thought, so it never ends.
    let done = answer(dir.path(), &["--grammar", "start: \"true\""]);
    assert!(done.code == 0 && done.stdout.trim_end() != "true", "{} {}", done.stdout, done.stderr);
}

#[test]
fn bench_takes_what_generate_takes() {
    let dir = tempfile::tempdir().unwrap();
    let done = flambeau(dir.path(), &["bench", TINY, "-p", "4", "-n", "2", "-r", "1", "--qlinear", "none", "--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let rows: Json = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect::<Vec<_>>(), ["pp4", "tg2"]);
    let unknown = flambeau(dir.path(), &["bench", "nowhere"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no file or folder nowhere"), "{}", unknown.stderr);
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let dir = tempfile::tempdir().unwrap();
    let tokenize = |flags: &[&str]| {
        let done = flambeau(dir.path(), &[&["tokenize", TINY], flags].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    };
    assert_eq!(tokenize(&["the cat", "--ids"]), "6 7\n");
    assert_eq!(tokenize(&["the cat"]), "      6  \"the\"\n      7  \"cat\"\n");
    let json: Json = serde_json::from_str(&tokenize(&["-p", "the cat", "--json"])).unwrap();
    assert_eq!((&json["count"], &json["tokens"][1]), (&json!(2), &json!({ "id": 7, "text": "cat" })));
    assert_eq!(tokenize(&["--decode", "6, 7"]), "the cat\n");
    let beyond = flambeau(dir.path(), &["tokenize", TINY, "--decode", "6 99999"]);
    assert!(beyond.code == 1 && beyond.stderr.contains("no token 99999"), "{}", beyond.stderr);
    assert_eq!(flambeau(dir.path(), &["export", TINY, "-o", "t.pte"]).code, 0);
    assert_eq!(flambeau(dir.path(), &["tokenize", "t.pte", "the dog", "--ids"]).stdout, "6 15\n");
    let missing = flambeau(dir.path(), &["tokenize", "org/m", "the dog"]);
    assert!(missing.code == 1 && missing.stderr.contains("flambeau pull org/m"), "{}", missing.stderr);
}
