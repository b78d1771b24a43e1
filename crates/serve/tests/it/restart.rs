//! Prompt caches in a folder outlive the server.

use std::{fs, path::Path, thread::sleep, time::Duration};

use flambeau::runners::llm::Limits;
use flambeau_serve::{Config, ModelKind, ModelOnDemand, NewModel};
use serde_json::json;
use tempfile::tempdir;

use crate::{
    chat::{PATH, ask, cached, content, sentence},
    client::{get, post},
    server::{LIMITS, PLAIN, Running, config, script, tiny},
};

/// A server with room for a single text.
fn small(folder: &Path) -> Running {
    let limits = Limits { running: 1, sequences: 1, kept_bytes: 0, ..LIMITS };
    Running::keeping(folder, vec![NewModel { limits, ..tiny() }.into()], config())
}

/// How many tokens of the prompt were there, and the answer.
fn say(server: &Running, text: &str) -> (u64, String) {
    let reply = post(server.address, PATH, &ask(text, json!({ "temperature": 0 })));
    (cached(&reply), content(&reply))
}

fn texts_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "text")).collect()
}

pub(crate) fn texts_survive_a_restart() {
    let folder = tempdir().unwrap();
    let texts = [sentence(3, 40), sentence(4, 50)];
    let server = small(folder.path());
    let first = texts.each_ref().map(|text| say(&server, text));
    assert!(first.iter().all(|(cached, _)| *cached < 32));
    drop(server);
    // One lost its sequence to the other, which was there to the end.
    assert_eq!(texts_in(folder.path()).len(), 2);
    let server = small(folder.path());
    let again = texts.each_ref().map(|text| say(&server, text));
    assert_eq!(again.each_ref().map(|(cached, _)| *cached), [43, 53]);
    assert_eq!(again.map(|(_, answer)| answer), first.clone().map(|(_, answer)| answer));
    drop(server);
    assert_eq!(texts_in(folder.path()).len(), 2, "what is there is not written again");
    for file in texts_in(folder.path()) {
        let bytes = fs::read(&file).unwrap();
        fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    }
    let server = small(folder.path());
    for (text, (_, answer)) in texts.iter().zip(first) {
        let (cached, again) = say(&server, text);
        assert!(cached < 32 && again == answer, "damaged files cost their own texts");
    }
}

pub(crate) fn models_that_come_back_find_their_texts() {
    let folder = tempdir().unwrap();
    let load = Box::new(|| Ok(tiny().into()));
    let model = ModelOnDemand { name: "tiny".into(), aliases: Vec::new(), kind: ModelKind::Language, adapters: Vec::new(), load };
    let config = Config { idle_time: Some(Duration::from_millis(50)), ..config() };
    let server = Running::keeping(folder.path(), vec![model.into()], config);
    let text = sentence(5, 40);
    let first = say(&server, &text);
    while get(server.address, "/v1/models/tiny").json()["status"]["value"] == "loaded" || texts_in(folder.path()).is_empty() {
        sleep(Duration::from_millis(10));
    }
    assert_eq!((say(&server, &text), first.0), ((43, first.1), 0));
}

pub(crate) fn texts_of_others_are_not_used() {
    let folder = tempdir().unwrap();
    let text = sentence(6, 40);
    let both = |server: &Running| {
        let other = post(server.address, PATH, &json!({ "model": "script", "messages": [{ "role": "user", "content": text }] }));
        (say(server, &text), (cached(&other), content(&other)))
    };
    let models = || vec![tiny().into(), script(&["the ", "cat "], PLAIN).into()];
    let server = Running::keeping(folder.path(), models(), config());
    let (tiny, script) = both(&server);
    assert_eq!((tiny.0, script.0), (0, 0));
    drop(server);
    let server = Running::keeping(folder.path(), models().into_iter().rev().collect(), config());
    let again = both(&server);
    assert_eq!((again.0, again.1.1), ((43, tiny.1), script.1));
}
