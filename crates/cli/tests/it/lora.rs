//! Adapters on the command line, merged and at run time.

use std::{fs, path::Path};

use flambeau_testcases::low_rank_adapter;
use serde_json::{Value as Json, json};

use crate::{
    chat::talk,
    flambeau,
    serve::{ask, serve},
};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");
const FLOATS: [&str; 4] = ["--qlinear", "none", "--dtype", "f32"];

/// Writes two adapters of the tiny Llama: `calm` of all its linear layers, `loud` of two.
fn adapters(folder: &Path) {
    let sizes = [
        ("self_attn.q_proj", [32, 32]),
        ("mlp.down_proj", [32, 64]),
        ("self_attn.k_proj", [16, 32]),
        ("self_attn.v_proj", [16, 32]),
        ("self_attn.o_proj", [32, 32]),
        ("mlp.gate_proj", [64, 32]),
        ("mlp.up_proj", [64, 32]),
    ];
    let names = sizes.map(|(name, _)| format!("model.layers.0.{name}"));
    let modules: Vec<(&str, [usize; 2])> = names.iter().map(String::as_str).zip(sizes.map(|(_, size)| size)).collect();
    for (name, modules, seed) in [("calm", &modules[..], 1), ("loud", &modules[..2], 2)] {
        fs::create_dir(folder.join(name)).unwrap();
        low_rank_adapter(modules, seed)
            .into_iter()
            .for_each(|(file, bytes)| fs::write(folder.join(name).join(file), bytes).unwrap());
    }
}

fn generated(folder: &Path, flags: &[&str]) -> Json {
    let prompt = ["generate", TINY, "-p", "the cat sat", "-n", "16", "--ignore-eos", "--json", "-q", "--threads", "1"];
    let done = flambeau(folder, &[&prompt[..], flags].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str::<Json>(&done.stdout).unwrap()["ids"].clone()
}

#[test]
fn merged_adapters_and_those_at_run_time_give_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    adapters(dir.path());
    let ids = |flags: &[&str]| generated(dir.path(), &[&FLOATS[..], flags].concat());
    let base = ids(&[]);
    let mut texts = vec![base.clone()];
    for flags in [&["--lora", "calm:0.5"][..], &["--lora", "loud"], &["--lora", "calm:0.5", "--lora", "loud"]] {
        let merged = ids(flags);
        assert_eq!(ids(&[flags, &["--lora-mode", "run"]].concat()), merged, "{flags:?}");
        assert!(!texts.contains(&merged), "{flags:?} changes the text: {texts:?}");
        texts.push(merged);
    }
    assert_eq!(ids(&["--lora", "one=calm:0.5"]), texts[1], "a name chooses the mode");
    // Quantized weights stay as they are without adapters.
    assert_eq!(generated(dir.path(), &["--lora", "one=calm:0"]), generated(dir.path(), &[]));
}

#[test]
fn exported_programs_keep_their_adapters() {
    let dir = tempfile::tempdir().unwrap();
    adapters(dir.path());
    let flags =
        ["export", TINY, "-o", "a.pte", "--dtype", "f32", "--lora", "calm:0.5", "--lora", "shout=loud:2", "--lora-mode", "run"];
    let done = flambeau(dir.path(), &flags);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let lines = ["the cat", "/lora", "/reset", "/lora shout", "the cat", "/reset", "/lora none", "the cat", "/lora silent"];
    let done = talk(dir.path(), "a.pte", &[], &lines);
    for text in ["(calm:0.5 shout:2)", "(calm:0 shout:1)", "(calm:0 shout:0)", "names of adapters, which are calm, shout, or none"]
    {
        assert!(done.stderr.contains(text), "{}", done.stderr);
    }
    let answers: Vec<&str> = done.stdout.lines().collect();
    let plain = talk(dir.path(), TINY, &FLOATS, &["the cat"]);
    assert_eq!(answers.len(), 3);
    assert_eq!(Some(answers[2]), plain.stdout.lines().next());
    assert!(answers[0] != answers[1] && answers[1] != answers[2], "{answers:?}");
    let none = talk(dir.path(), TINY, &FLOATS, &["/lora calm"]);
    assert!(none.stderr.contains("the model has no adapters"), "{}", none.stderr);
}

#[test]
fn the_base_of_adapters_at_run_time_is_calibrated_without_them() {
    let dir = tempfile::tempdir().unwrap();
    adapters(dir.path());
    let flags = ["export", TINY, "-o", "a.pte", "--qlinear", "4w", "--group-size", "32", "--lora", "calm=calm"];
    let done = flambeau(dir.path(), &[&flags[..], &["--calibration", "default"]].concat());
    assert!(done.code == 0 && done.stderr.contains("calibrated 8 weights"), "{}", done.stderr);
}

#[test]
fn a_server_names_its_adapters() {
    let dir = tempfile::tempdir().unwrap();
    adapters(dir.path());
    let adapters = ["--lora", "calm=calm:0.5", "--lora", "loud=loud"];
    let serving = serve(dir.path(), &[&adapters[..], &FLOATS, &["--threads", "1"]].concat());
    let answer = |model: &str| {
        let messages = [json!({ "role": "user", "content": "the cat sat" })];
        let body = json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 16, "ignore_eos": true });
        let (status, reply) = ask(&serving.address, "POST", "/v1/chat/completions", "", &body.to_string());
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str::<Json>(&reply).unwrap()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let command = |flags: &[&str]| {
        let prompt = ["generate", TINY, "-p", "the cat sat", "-n", "16", "--ignore-eos", "-q", "--threads", "1"];
        flambeau(dir.path(), &[&prompt[..], &FLOATS, flags].concat()).stdout.trim_end_matches('\n').to_owned()
    };
    assert_eq!(answer("tiny-llama"), command(&[]));
    assert_eq!(answer("calm"), command(&["--lora", "calm:0.5"]));
    assert_eq!(answer("loud"), command(&["--lora", "loud"]));
    let (_, models) = ask(&serving.address, "GET", "/v1/models", "", "");
    assert!(models.contains("\"parent\":\"tiny-llama\""), "{models}");
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    adapters(dir.path());
    let refused = |code: i32, text: &str, flags: &[&str]| {
        let done = flambeau(dir.path(), &[&["generate", TINY, "-p", "a"], flags].concat());
        assert!(done.code == code && done.stderr.contains(text), "{}", done.stderr);
    };
    refused(2, "merged adapters have no names", &["--lora", "one=calm", "--lora-mode", "merge"]);
    refused(1, "a new name for each adapter", &["--lora", "one=calm", "--lora", "one=loud"]);
    refused(2, "--lora", &["--lora-mode", "run"]);
    fs::create_dir(dir.path().join("other")).unwrap();
    for (module, sizes, text) in [
        ("model.layers.0.self_attn.q_proj", [32, 48], "q_proj.weight`: expected shape [32, 48] for the adapter, found [32, 32]"),
        ("model.layers.7.self_attn.q_proj", [32, 32], "`model.layers.7.self_attn.q_proj.weight` is missing in the checkpoint"),
    ] {
        for (file, bytes) in low_rank_adapter(&[(module, sizes)], 1) {
            fs::write(dir.path().join("other").join(file), bytes).unwrap();
        }
        refused(1, text, &["--lora", "other", "--lora-mode", "run"]);
        refused(1, text, &["--lora", "other"]);
    }
}
