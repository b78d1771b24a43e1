//! Conversations over a pipe, on a tiny model of sixteen words, whose context holds 64 tokens.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value as Json, json};

use crate::{Finished, command, finished, flambeau};

/// The model's folder.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

/// Talks with a model: the lines go to stdin.
pub(crate) fn talk(folder: &Path, model: &str, flags: &[&str], lines: &[&str]) -> Finished {
    let mut child = command(folder, &[&["chat", model, "-n", "4"], flags].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // In some tests the program ends before it has read all input.
    let _ = input.write_all(lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes());
    drop(input);
    finished(child.wait_with_output().unwrap())
}

/// Answers to lines. Asserts that the command succeeds.
fn answers(folder: &Path, lines: &[&str]) -> Vec<String> {
    let done = talk(folder, TINY, &[], lines);
    assert_eq!(done.code, 0, "{}", done.stderr);
    done.stdout.lines().map(str::to_owned).collect()
}

fn generated(folder: &Path, prompt: &str) -> String {
    let done = flambeau(folder, &["generate", TINY, "-p", prompt, "-n", "4", "-q"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    done.stdout.trim_end().to_owned()
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder.join("cache/flambeau/models")).unwrap();
    list.map(|entry| entry.unwrap().path()).collect()
}

fn messages(path: &Path) -> Vec<Json> {
    let saved: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    saved["messages"].as_array().unwrap().clone()
}

#[test]
fn a_context_is_as_long_as_asked_and_says_when_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| flambeau(dir.path(), &[&["generate", TINY, "--raw", "--ignore-eos"], flags].concat());
    let full = run(&["-p", "the cat", "-c", "6", "-n", "-1", "--seed", "-1"]);
    assert!(full.code == 0 && full.stderr.contains("the context is full") && full.stderr.contains("-c N"), "{}", full.stderr);
    let long = run(&["-p", "the cat the cat the cat the cat", "-c", "6"]);
    assert!(long.code == 1 && long.stderr.contains("context holds 6") && long.stderr.contains("hint: -c N"), "{}", long.stderr);
}

#[test]
fn a_text_outgrows_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let ids = |prompt: &str, flags: &[&str]| -> Vec<u64> {
        let fixed = ["generate", TINY, "--raw", "--ignore-eos", "--json", "-q", "-c", "8", "-p", prompt, "--threads", "1"];
        let done = flambeau(dir.path(), &[&fixed, flags].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        let json: Json = serde_json::from_str(&done.stdout).unwrap();
        json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let full = ids("the cat sat", &["-n", "-1"]);
    let shifted = ids("the cat sat", &["-n", "20", "--context-shift"]);
    assert!(full.len() < 8 && shifted.len() == 20 && shifted.starts_with(&full), "{full:?} {shifted:?}");
    assert_ne!(shifted, ids("the cat sat", &["-n", "20", "--context-shift", "--keep", "-1"]));
    let alone = flambeau(dir.path(), &["generate", TINY, "-p", "the cat", "--keep", "2"]);
    assert!(alone.code == 2 && alone.stderr.contains("--context-shift"), "{}", alone.stderr);
}

#[test]
fn a_folder_without_a_tokenizer_is_refused_before_it_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bare")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(TINY).join(name), dir.path().join("bare").join(name)).unwrap();
    }
    let bare = flambeau(dir.path(), &["generate", "bare", "-p", "the cat", "--raw", "-n", "3"]);
    assert!(
        bare.code == 1 && bare.stderr.contains("bare has no tokenizer.json") && bare.stderr.contains("hint: "),
        "{}",
        bare.stderr
    );
    assert!(!dir.path().join("cache").exists());
    let given = flambeau(dir.path(), &["generate", "bare", "-p", "the cat", "--raw", "-n", "3", "-q", "--tokenizer", TINY]);
    let own = flambeau(dir.path(), &["generate", TINY, "-p", "the cat", "--raw", "-n", "3", "-q"]);
    assert_eq!((given.code, given.stdout), (0, own.stdout), "{}", given.stderr);
    let exported = flambeau(dir.path(), &["export", "bare", "-o", "bare.pte", "--tokenizer", TINY]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let carried = flambeau(dir.path(), &["generate", "bare.pte", "-p", "the cat", "--raw", "-n", "3", "-q"]);
    assert_eq!(carried.code, 0, "{}", carried.stderr);
}

#[test]
fn a_multimodal_folder_says_what_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("eyes");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(TINY).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let text: Json = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let config = json!({ "model_type": "a_model_with_eyes", "text_config": text, "vision_config": { "depth": 3 } });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    // Also where the program is in the cache already.
    for _ in 0..2 {
        let done = flambeau(dir.path(), &["generate", "eyes", "-p", "the cat", "-n", "2"]);
        assert!(done.code == 0 && done.stderr.contains("images cannot be given to it"), "{}", done.stderr);
    }
    let exported = flambeau(dir.path(), &["export", "eyes", "-o", "eyes.pte"]);
    assert!(exported.stderr.contains("images cannot be given to it"), "{}", exported.stderr);
    assert!(!flambeau(dir.path(), &["export", TINY, "-o", "plain.pte"]).stderr.contains("cannot be given"));
}

#[test]
fn control_tokens_mark_thoughts() {
    let dir = tempfile::tempdir().unwrap();
    let (program, tokenizer) = flambeau_testcases::script(&["[THINK]", "hm", "[/THINK]", "yes"], 64, true);
    let mut tokenizer: Json = serde_json::from_slice(&tokenizer).unwrap();
    for word in ["[THINK]", "[/THINK]"] {
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["content"], token["id"]) = (word.into(), tokenizer["model"]["vocab"][word].clone());
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    let config = json!({ "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}" });
    let (tokenizer, config) = (tokenizer.to_string().into(), config.to_string().into());
    for (name, file) in [("model.pte", program), ("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        std::fs::write(dir.path().join(name), file).unwrap();
    }
    let done = talk(dir.path(), "model.pte", &[], &["well?"]);
    assert_eq!(done.stdout, "yes\n", "{}", done.stderr);
    assert!(done.stderr.contains("hm"), "{}", done.stderr);
}

#[test]
fn generation_follows_what_the_makers_advise() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("model")).unwrap();
    for entry in std::fs::read_dir(TINY).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join("model").join(path.file_name().unwrap())).unwrap();
    }
    let ids = |advice: &str, flags: &[&str]| {
        std::fs::write(dir.path().join("model/generation_config.json"), advice).unwrap();
        let args = [&["generate", "model", "-p", "the cat", "--raw", "-n", "6", "--ignore-eos", "--json", "-q"], flags].concat();
        let done = flambeau(dir.path(), &args);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let json: Json = serde_json::from_str(&done.stdout).unwrap();
        json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>()
    };
    let greedy = ids("{}", &[]);
    let without = ids(&json!({"suppress_tokens": [greedy[0]]}).to_string(), &[]);
    assert!(!without.contains(&greedy[0]), "{without:?}");
    let advice = json!({"do_sample": true, "temperature": 50.0}).to_string();
    let seeds: std::collections::BTreeSet<_> = (0..4).map(|seed| ids(&advice, &["--seed", &seed.to_string()])).collect();
    assert!(seeds.len() > 1, "{seeds:?}");
    assert_eq!(ids(&advice, &["--temperature", "0"]), greedy);
}

#[test]
fn a_checkpoint_is_exported_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = talk(dir.path(), TINY, &[], &["the cat"]);
    assert!(first.code == 0 && first.stderr.contains("exporting ") && first.stderr.contains("4 bits"), "{}", first.stderr);
    let [program] = &programs(dir.path())[..] else { panic!("one program") };
    assert!(first.stderr.contains(program.to_str().unwrap()), "{}", first.stderr);
    let second = talk(dir.path(), TINY, &[], &["the cat"]);
    assert_eq!(second.stdout, first.stdout);
    // Every run quantizes the weights by default, and says so.
    assert!(second.stderr.lines().count() == 1 && second.stderr.contains("(--qlinear none keeps floats)"), "{}", second.stderr);
    let direct = talk(dir.path(), program.to_str().unwrap(), &[], &["the cat"]);
    assert_eq!((direct.stdout, direct.stderr.as_str()), (first.stdout, ""));
    let floats = talk(dir.path(), TINY, &["--qlinear", "none", "--cache-dir", "other"], &["the cat"]);
    assert!(floats.stderr.contains("as asked") && dir.path().join("other").read_dir().unwrap().count() == 1, "{}", floats.stderr);
    assert_eq!(programs(dir.path()).len(), 1);
}

#[test]
fn a_changed_checkpoint_is_exported_again_and_the_old_program_goes() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(TINY).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    talk(dir.path(), "model", &[], &["the cat"]);
    let before = programs(dir.path());
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    std::fs::write(model.join("config.json"), config.replace("64,\n", "64 ,\n")).unwrap();
    assert!(talk(dir.path(), "model", &[], &["the cat"]).stderr.contains("exporting model once"));
    let after = programs(dir.path());
    assert!(before.len() == 1 && after.len() == 1 && before != after);
}

#[test]
fn answers_are_those_of_generate() {
    let dir = tempfile::tempdir().unwrap();
    let first = generated(dir.path(), "where is the cat ?");
    // The template renders three messages as one text of these words.
    let second = generated(dir.path(), &format!("where is the cat ? assistant : {first} user : a dog"));
    assert_eq!(answers(dir.path(), &["where is the cat ?", "a dog"]), [first, second]);
}

#[test]
fn guesses_change_no_answer_and_need_all_logits() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |model: &str, flags: &[&str]| {
        let request =
            ["generate", model, "-p", "the cat sat on the mat the cat sat on", "-n", "40", "--raw", "--ignore-eos", "--json"];
        flambeau(dir.path(), &[&request[..], flags].concat())
    };
    let floats = ["--qlinear", "none", "--dtype", "f32"];
    let plain: Json = serde_json::from_str(&ask(TINY, &floats).stdout).unwrap();
    let guessed = ask(TINY, &[&floats[..], &["--draft", "ngram"]].concat());
    assert_eq!(guessed.code, 0, "{}", guessed.stderr);
    let guessed: Json = serde_json::from_str(&guessed.stdout).unwrap();
    assert_eq!(guessed["ids"], plain["ids"]);
    assert!(guessed["speculation_rounds"].as_u64() > Some(0) && plain["speculation_rounds"] == 0, "{guessed}");
    assert_eq!(flambeau(dir.path(), &["export", TINY, "-o", "last.pte"]).code, 0);
    // The same model guesses, in fewer bits than the one that judges.
    let drafted = ask(TINY, &[&floats[..], &["--draft", "last.pte"]].concat());
    assert_eq!(drafted.code, 0, "{}", drafted.stderr);
    let drafted: Json = serde_json::from_str(&drafted.stdout).unwrap();
    assert_eq!(drafted["ids"], plain["ids"]);
    assert!(drafted["speculation_rounds"].as_u64() > Some(0), "{drafted}");
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/gguf-qwen3/checkpoint.gguf");
    for (draft, expected) in [(gguf, "--draft"), ("missing.pte", "missing.pte"), ("last.pte", "")] {
        let refused = ask(TINY, &[&floats[..], &["--draft", draft]].concat());
        assert!((refused.code != 0) != expected.is_empty() && refused.stderr.contains(expected), "{draft}: {}", refused.stderr);
    }
    for command in ["chat", "generate", "serve"] {
        let prompt = if command == "generate" { &["-p", "the cat"][..] } else { &[] };
        let refused = flambeau(dir.path(), &[&[command, "last.pte", "--draft", "ngram"], prompt].concat());
        assert!(refused.code != 0 && refused.stderr.contains("--all-logits"), "{command}: {}", refused.stderr);
    }
}

#[test]
fn what_is_taken_back_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let plain = answers(dir.path(), &["the cat", "a dog"]);
    assert_eq!(plain.len(), 2);
    let undone = answers(dir.path(), &["the cat", "on the mat ?", "/undo", "a dog", "/retry"]);
    assert_eq!((&undone[0], &undone[2], &undone[3]), (&plain[0], &plain[1], &plain[1]));
    let reset = answers(dir.path(), &["the cat", "a dog", "/reset", "the cat", "a dog"]);
    assert_eq!(reset, [plain.clone(), plain].concat());
}

#[test]
fn conversations_are_saved_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    let plain = answers(dir.path(), &["/system sat", "the cat", "/save talk.json", "a dog"]);
    let saved = messages(&dir.path().join("talk.json"));
    let expected = [("system", "sat"), ("user", "the cat"), ("assistant", &plain[0])];
    assert_eq!(saved, expected.map(|(role, content)| json!({"role": role, "content": content})));
    assert_eq!(answers(dir.path(), &["where ?", "/load talk.json", "a dog"])[1], plain[1]);
    std::fs::write(dir.path().join("bad.json"), r#"[{"role": "cat"}]"#).unwrap();
    let bad = talk(dir.path(), TINY, &[], &["/load bad.json", "/load none.json"]);
    assert_eq!(bad.code, 1);
    assert!(bad.stderr.contains("bad.json: message 0") && bad.stderr.contains("cannot read none.json"), "{}", bad.stderr);
}

#[test]
fn messages_may_have_several_lines() {
    let dir = tempfile::tempdir().unwrap();
    answers(dir.path(), &["the cat \\", "sat", "\"\"\"", "/undo", "", "a dog", "\"\"\"", "/save talk.json"]);
    let said: Vec<Json> = messages(&dir.path().join("talk.json")).into_iter().filter(|m| m["role"] == "user").collect();
    assert_eq!(said, ["the cat \nsat", "/undo\n\na dog"].map(|text| json!({"role": "user", "content": text})));
}

#[test]
fn commands_that_do_not_exist_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plain = answers(dir.path(), &["the cat"]);
    let done = talk(dir.path(), TINY, &[], &["/frob", "/undo", "", "the cat", "/exit", "a dog"]);
    assert_eq!((done.code, done.stdout.trim_end()), (1, plain[0].as_str()), "{}", done.stderr);
    assert!(done.stderr.contains("there is no command /frob; there are /help") && done.stderr.contains("no message to take back"));
}

#[test]
fn a_full_context_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let long = "the cat sat on the mat ".repeat(4);
    let done = talk(dir.path(), TINY, &[], &[&long, &long, &long, "/reset", "the cat"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("the model's context holds 64") && done.stderr.contains("/undo takes back"), "{}", done.stderr);
    assert_eq!(done.stdout.lines().last(), answers(dir.path(), &["the cat"]).last().map(String::as_str));
}

#[test]
fn a_full_context_loses_its_oldest_messages() {
    let dir = tempfile::tempdir().unwrap();
    let long = "the cat sat on the mat ".repeat(3);
    let lines = [&long, &long, &long, "the cat", "/save talk.json"];
    let done = talk(dir.path(), TINY, &["--context-shift", "--system", "a dog"], &lines);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains("messages are left out of the prompt"), "{}", done.stderr);
    // The saved conversation is whole.
    let saved = messages(&dir.path().join("talk.json"));
    assert_eq!((saved.len(), &saved[0]["content"]), (9, &json!("a dog")));
    // The last answer is that to the shorter conversation.
    let rest = [&saved[..1], &saved[5..8]].concat();
    std::fs::write(dir.path().join("rest.json"), json!(rest).to_string()).unwrap();
    let again = talk(dir.path(), TINY, &[], &["/load rest.json", "/retry"]);
    assert_eq!(again.stdout.lines().last(), done.stdout.lines().last(), "{}", again.stderr);
    // A message that alone is too long is still refused.
    let done = talk(dir.path(), TINY, &["--context-shift"], &["the cat", &long.repeat(5)]);
    assert!(done.code == 1 && done.stderr.contains("context holds 64"), "{}", done.stderr);
}

#[test]
fn settings_change_and_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let plain = answers(dir.path(), &["the cat"]);
    let lines = [
        "/set max-new-tokens 1",
        "the cat",
        "/set heat 3",
        "/show",
        "/show system",
        "/set system a dog",
        "/show system",
        "/show context",
    ];
    let done = talk(dir.path(), TINY, &[], &lines);
    assert_eq!(done.code, 1);
    assert!(plain[0].starts_with(done.stdout.trim_end()) && done.stdout.trim_end().len() < plain[0].len(), "{}", done.stdout);
    for expected in ["no setting heat", "max-new-tokens    1", "(no system message)", "a dog", "a context of 64 tokens"] {
        assert!(done.stderr.contains(expected), "{expected} is not in: {}", done.stderr);
    }
    let drawn = talk(dir.path(), TINY, &[], &["/set temperature 50", "/set seed 1", "the cat", "/reset", "/set seed 1", "the cat"]);
    let drawn: Vec<&str> = drawn.stdout.lines().collect();
    assert!(drawn[0] == drawn[1] && drawn[0] != plain[0], "{drawn:?}");
}

#[test]
fn statistics_are_printed_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let done = talk(dir.path(), TINY, &["--stats"], &["the cat", "a dog"]);
    let prompts: Vec<&str> = done.stderr.lines().filter_map(|line| line.strip_prefix("prompt: ")?.split(' ').next()).collect();
    // `user : the cat assistant :`; then the last word of the answer, which no step took, and `user
    // : a dog assistant :`.
    assert_eq!(prompts, ["6", "7"], "{}", done.stderr);
}
