//! `list`, `show`, `rm` and `cache` on a cache that `pull` filled.

use std::{fs, io::Write, path::Path, process::Stdio};

use serde_json::{Value as Json, json};

use crate::{
    Finished, command, finished, flambeau,
    hub::{COMMIT, Hub},
    pull::{names, on, repository},
};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");
const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/gguf-llama-biases/checkpoint.gguf");

/// A hub with a folder, `org/tiny`, and a model of two GGUF files, `org/m`.
fn filled(folder: &Path) -> Hub {
    let hub = Hub::new();
    let read = |name: &str| fs::read(Path::new(TINY).join(name)).unwrap();
    let (config, weights, tokenizer) = (read("config.json"), read("model.safetensors"), read("tokenizer.json"));
    let readme = b"---\nlicense: mit\n---\n";
    hub.publish(
        "org/tiny",
        &[("README.md", readme), ("config.json", &config), ("model.safetensors", &weights), ("tokenizer.json", &tokenizer)],
    );
    let gguf = fs::read(CHECKPOINT).unwrap();
    hub.publish("org/m", &[("m-F16.gguf", &gguf), ("m-Q8_0.gguf", b"GGUF")]);
    for name in ["org/tiny", "org/m:F16", "org/m:Q8_0"] {
        assert_eq!(on(&hub, folder, &["pull", name]).code, 0);
    }
    hub
}

fn parsed(done: &Finished) -> Json {
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

/// Exports a model by using it.
fn export(folder: &Path, model: &str) {
    let done = flambeau(folder, &["generate", model, "--tokenizer", TINY, "-p", "the", "-n", "1", "--raw", "-q"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn models_of_the_cache_are_listed_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let _hub = filled(dir.path());
    export(dir.path(), "org/m:f16");
    let list = parsed(&flambeau(dir.path(), &["list", "--json"]));
    let list = list.as_array().unwrap();
    assert_eq!(
        list.iter().map(|model| model["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["org/m:F16", "org/m:Q8_0", "org/tiny"]
    );
    assert!(list[0]["program_bytes"].as_u64() > Some(1000) && list[1]["program_bytes"] == 0, "{list:?}");
    assert_eq!((&list[0]["family"], &list[2]["family"], &list[2]["is_complete"]), (&json!("llama"), &json!("llama"), &json!(true)));
    assert_eq!(list[0]["bytes"], fs::metadata(CHECKPOINT).unwrap().len());
    let lines = flambeau(dir.path(), &["list", "TINY"]).stdout;
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("NAME") && lines[1].starts_with("org/tiny  llama"), "{lines:?}");
    let shown = flambeau(dir.path(), &["show", "org/m:f16"]).stdout;
    assert!(shown.contains("org/m:F16") && shown.contains("parameters") && shown.contains("m-F16.gguf"), "{shown}");
    assert_eq!(parsed(&flambeau(dir.path(), &["show", "org/tiny", "--json"]))["revision"], "main");
    assert_eq!(parsed(&flambeau(dir.path(), &["show", "org/tiny", "--json"]))["licence"], "mit");
    assert_eq!(parsed(&flambeau(dir.path(), &["show", TINY, "--json"]))["family"], "llama");
    assert_eq!(flambeau(dir.path(), &["ls", "tiny"]).stdout, flambeau(dir.path(), &["list", "tiny"]).stdout);
    let none = flambeau(dir.path(), &["list", "zebra"]);
    assert!(none.code == 0 && none.stderr.contains("no model in the cache has a name with \"zebra\""), "{}", none.stderr);
    let missing = flambeau(dir.path(), &["show", "org/m:Q2_K"]);
    assert!(missing.code == 1 && missing.stderr.contains("flambeau pull org/m:Q2_K"), "{}", missing.stderr);
    // A folder of weights without a config is incomplete.
    fs::remove_file(dir.path().join("no-hub/hub/models--org--tiny/snapshots").join(COMMIT).join("config.json")).unwrap();
    assert_eq!(parsed(&flambeau(dir.path(), &["list", "tiny", "--json"]))[0]["is_complete"], false);
    let known = parsed(&flambeau(dir.path(), &["list", "--known", "qwen3:0.6b", "--json"]));
    assert_eq!(known, json!([{ "name": "qwen3:0.6b", "repository": "Qwen/Qwen3-0.6B" }]));
}

#[test]
fn models_are_removed_with_their_programs() {
    let dir = tempfile::tempdir().unwrap();
    let hub = filled(dir.path());
    let programs = || names(&dir.path().join("cache/flambeau/models"));
    for model in ["org/m:F16", "org/tiny"] {
        export(dir.path(), model);
    }
    // Without an answer nothing happens.
    let done = flambeau(dir.path(), &["rm", "org/m"]);
    assert!(done.code == 1 && done.stderr.contains("nothing was removed") && done.stderr.contains("1 program"), "{}", done.stderr);
    let exports = flambeau(dir.path(), &["rm", "org/m:f16", "--exports", "--yes"]);
    assert_eq!((exports.code, programs().len()), (0, 1), "{}", exports.stderr);
    assert_eq!(flambeau(dir.path(), &["rm", "org/m:f16", "--exports", "--yes"]).code, 1);
    export(dir.path(), "org/m:F16");
    let mut asked = command(dir.path(), &["rm", "org/m:f16"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    asked.stdin.take().unwrap().write_all(b"y\n").unwrap();
    assert_eq!(finished(asked.wait_with_output().unwrap()).code, 0);
    assert_eq!(names(&repository(dir.path()).join("snapshots").join(COMMIT)), ["m-Q8_0.gguf"]);
    assert_eq!((programs().len(), names(&repository(dir.path()).join("blobs")).len()), (1, 1));
    assert_eq!(flambeau(dir.path(), &["rm", "org/m", "org/tiny", "--yes"]).code, 0);
    assert!(!repository(dir.path()).exists() && programs().is_empty());
    assert_eq!(parsed(&flambeau(dir.path(), &["list", "--json"])), json!([]));
    assert!(flambeau(dir.path(), &["list"]).stderr.contains("flambeau pull"));
    let again = flambeau(dir.path(), &["rm", "org/m", "--yes"]);
    assert!(again.code == 1 && again.stderr.contains("no files in the cache"), "{}", again.stderr);
    drop(hub);
}

#[test]
fn the_cache_of_programs_is_shown_limited_and_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let cache = |args: &[&str]| flambeau(dir.path(), &[&["cache"], args].concat());
    assert_eq!(parsed(&cache(&["--json"]))["programs"], json!([]));
    export(dir.path(), TINY);
    let shown = parsed(&cache(&["--json"]));
    assert_eq!((&shown["programs"][0]["name"], &shown["limit"]), (&json!("tiny-llama"), &json!(64_u64 << 30)));
    assert!(cache(&[]).stdout.lines().nth(1).unwrap().starts_with("tiny-llama"));
    // The oldest goes when another one passes the limit.
    let old = dir.path().join("cache/flambeau/models/old-0123456789abcdef-0123456789abcdef.pte");
    let file = fs::File::create(&old).unwrap();
    file.set_len(2 << 30).unwrap();
    let times = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH).set_modified(std::time::UNIX_EPOCH);
    file.set_times(times).unwrap();
    let other = dir.path().join("cache/flambeau/models/mine.pte");
    fs::write(&other, "of the user").unwrap();
    let mut limited = command(dir.path(), &["generate", TINY, "-p", "the", "-n", "1", "--raw", "-q", "--dtype", "f32"]);
    let done = finished(limited.env("FLAMBEAU_CACHE_SIZE", "1").output().unwrap());
    assert!(done.code == 0 && done.stderr.contains("removing the oldest program"), "{}", done.stderr);
    assert!(!old.exists());
    assert_eq!(parsed(&cache(&["--json"]))["programs"].as_array().unwrap().len(), 2);
    let wrong = finished(command(dir.path(), &["cache"]).env("FLAMBEAU_CACHE_SIZE", "much").output().unwrap());
    assert!(wrong.code == 2 && wrong.stderr.contains("GiB"), "{}", wrong.stderr);
    assert_eq!(cache(&["clear"]).code, 1);
    assert_eq!(flambeau(dir.path(), &["rm", "tiny-llama", "--yes"]).code, 0);
    assert_eq!(cache(&["clear", "--yes"]).code, 0);
    assert_eq!(names(&dir.path().join("cache/flambeau/models")), ["mine.pte"]);
}
