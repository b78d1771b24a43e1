//! `flambeau embed` on a tiny text encoder.

use std::{fs, io::Write, path::Path, process::Stdio};

use serde_json::Value as Json;

use crate::{command, finished, flambeau};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/embedding-bert/checkpoint");

fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn folders_and_programs_give_the_same_vectors() {
    let dir = tempfile::tempdir().unwrap();
    let folder = flambeau(dir.path(), &["embed", MODEL, "Fox", "A man is eating food."]);
    assert_eq!(folder.code, 0, "{}", folder.stderr);
    let found = json(&folder.stdout);
    assert_eq!((found["data"].as_array().unwrap().len(), &found["usage"]["prompt_tokens"]), (2, &16.into()));
    let vector = found["data"][1]["embedding"].as_array().unwrap();
    let length: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!(vector.len() == 16 && (length - 1.0).abs() < 1e-6, "{vector:?}");
    let exported = flambeau(dir.path(), &["export", MODEL, "-o", "encoder.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let mut program = command(dir.path(), &["embed", "encoder.pte", "-"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(b"Fox\nA man is eating food.\n").unwrap();
    let program = finished(program.wait_with_output().unwrap());
    assert_eq!(json(&program.stdout)["data"], found["data"], "{}", program.stderr);
}

#[test]
fn what_cannot_be_embedded_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let long = "a ".repeat(60);
    let refused = flambeau(dir.path(), &["embed", MODEL, "Fox", &long]);
    assert!(refused.code == 1 && refused.stderr.contains("text 2") && refused.stderr.contains("--truncate"), "{}", refused.stderr);
    let cut = flambeau(dir.path(), &["embed", MODEL, "--truncate", &long]);
    assert_eq!(json(&cut.stdout)["usage"]["prompt_tokens"], 40, "{}", cut.stderr);
    let twice = flambeau(dir.path(), &["embed", MODEL, "-", "-"]);
    assert!(twice.code == 2 && twice.stderr.contains("only once"), "{}", twice.stderr);
    let other = flambeau(dir.path(), &["generate", MODEL, "-p", "Fox"]);
    assert!(other.code == 1 && other.stderr.contains("flambeau embed"), "{}", other.stderr);
    let speech = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/speech-moonshine/checkpoint");
    let other = flambeau(dir.path(), &["embed", speech, "Fox"]);
    assert!(other.code == 1 && other.stderr.contains("flambeau transcribe"), "{}", other.stderr);
}

#[test]
fn prompts_stand_before_texts_and_vectors_are_shortened() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy(MODEL.as_ref(), &model);
    let prompts = r#"{"prompts": {"query": "the fox ", "document": ""}, "default_prompt_name": "query"}"#;
    fs::write(model.join("config_sentence_transformers.json"), prompts).unwrap();
    let vectors = |args: &[&str]| {
        let done = flambeau(dir.path(), &[&["embed", "model"], args].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        json(&done.stdout)["data"].clone()
    };
    let prompted = vectors(&["--prompt-name", "document", "the fox Fox"]);
    assert_eq!(vectors(&["Fox"]), prompted);
    assert_eq!(vectors(&["--prompt", "the fox ", "Fox"]), prompted);
    let whole = vectors(&["--prompt-name", "document", "Fox"]);
    let short = vectors(&["--prompt-name", "document", "--dimensions", "4", "Fox"]);
    let numbers = |vector: &Json| vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let (short, whole) = (numbers(&short[0]["embedding"]), numbers(&whole[0]["embedding"]));
    let length = whole[..4].iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!(short.len() == 4 && short.iter().zip(&whole).all(|(a, b)| (a - b / length).abs() < 1e-6), "{short:?} {whole:?}");
    let unknown = flambeau(dir.path(), &["embed", "model", "--prompt-name", "passage", "Fox"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("document, query"), "{}", unknown.stderr);
    let wide = flambeau(dir.path(), &["embed", "model", "--dimensions", "17", "Fox"]);
    assert!(wide.code == 2 && wide.stderr.contains("16 elements"), "{}", wide.stderr);
}

#[test]
fn prompts_apply_the_adapters_of_their_name() {
    const TASKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testcases/checkpoints/embedding-jina-tasks/checkpoint");
    let dir = tempfile::tempdir().unwrap();
    let vectors = |args: &[&str]| {
        let done = flambeau(dir.path(), &[&["embed", TASKS], args].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        json(&done.stdout)["data"].clone()
    };
    let (plain, separated) = (vectors(&["the fox Fox"]), vectors(&["--prompt-name", "separation", "the fox Fox"]));
    let (query, prefixed) = (vectors(&["--prompt-name", "retrieval.query", "Fox"]), vectors(&["--prompt", "the fox ", "Fox"]));
    assert_eq!(plain, prefixed);
    assert!(plain != separated && plain != query && query != separated, "{plain} {separated} {query}");
    let unknown = flambeau(dir.path(), &["embed", TASKS, "--prompt-name", "retrieval", "Fox"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("retrieval.passage, retrieval.query, separation"), "{}", unknown.stderr);
}

#[test]
fn folders_with_a_vocabulary_need_no_other_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy(MODEL.as_ref(), &model);
    let tokenizer = model.join("tokenizer.json");
    let json = json(&fs::read_to_string(&tokenizer).unwrap());
    let mut pieces: Vec<_> = json["model"]["vocab"].as_object().unwrap().iter().map(|(piece, id)| (id.as_u64(), piece)).collect();
    pieces.sort();
    let lines: String = pieces.into_iter().map(|(_, piece)| format!("{piece}\n")).collect();
    fs::write(model.join("vocab.txt"), lines).unwrap();
    fs::remove_file(tokenizer).unwrap();
    let config = r#"{"tokenizer_class": "MPNetTokenizer", "unk_token": "<unk>", "model_max_length": 40}"#;
    fs::write(model.join("tokenizer_config.json"), config).unwrap();
    let texts = ["embed", "model", "Fox", "A man is eating food.", "gr\u{fc}\u{df}e"];
    let (found, expected) = (flambeau(dir.path(), &texts), flambeau(dir.path(), &[&["embed", MODEL], &texts[2..]].concat()));
    assert_eq!((found.code, expected.code), (0, 0), "{} {}", found.stderr, expected.stderr);
    let data = |text: &str| serde_json::from_str::<Json>(text).unwrap()["data"].clone();
    assert_eq!(data(&found.stdout), data(&expected.stdout));
    let shown = flambeau(dir.path(), &["tokenize", "model", "Fox"]);
    assert!(shown.code == 0 && shown.stdout.contains("66"), "{} {}", shown.stdout, shown.stderr);
}

/// Copies a folder with its folders.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}
