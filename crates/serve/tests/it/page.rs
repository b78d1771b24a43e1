//! The chat page in a browser.

use std::{collections::HashSet, env, path::PathBuf, process::Command, thread::sleep, time::Duration};

use flambeau_serve::ModelSource;
use serde_json::json;

use crate::{
    audio,
    clients::{chromium, node, worked},
    hardening::hooked,
    server::{PLAIN, Running, config, endless, script, tiny},
};

/// A text as pieces that differ, because each is a token of a scripted model.
fn pieces(text: &'static str) -> Vec<&'static str> {
    const SHORTEST: usize = 5;
    let (mut seen, mut made, mut start) = (HashSet::new(), Vec::new(), 0);
    for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
        if end - start >= SHORTEST && seen.insert(&text[start..end]) {
            made.push(&text[start..end]);
            start = end;
        }
    }
    made.push(&text[start..]);
    made.retain(|piece| !piece.is_empty());
    made
}

/// Models for the page: one with random weights, and others that say given texts.
fn server() -> Running {
    let thoughts = ["<think>", "first ", "second ", "</think>", "The ", "answer."];
    let scripted = [
        ("rich", script(&pieces(include_str!("../page/rich.md")), PLAIN)),
        ("hostile", script(&pieces(include_str!("../page/hostile.md")), PLAIN)),
        ("thinker", script(&thoughts, "{% for m in messages %}{{ m.content }} {% endfor %}{# <think> #}")),
        ("endless", endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(2))))),
    ];
    let mut models: Vec<ModelSource> = vec![tiny().into()];
    for (name, mut model) in scripted {
        model.name = name.into();
        models.push(model.into());
    }
    models.push(audio::model("parakeet-tdt").into());
    Running::of(models, config())
}

pub(crate) fn works_in_a_browser() {
    let server = server();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/page/client.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg(format!("http://{}/", server.address)).arg(node(&[]).unwrap()).arg(chromium().unwrap());
    command.arg(audio::recording("parakeet-tdt"));
    // Where pictures of the page are wanted.
    command.args(env::var_os("FLAMBEAU_SCREENSHOTS"));
    let expected = [
        "models",
        "conversation",
        "rich",
        "hostile",
        "thoughts",
        "branches",
        "stopped",
        "cut",
        "lost",
        "list",
        "settings",
        "files",
        "speech",
        "keyboard",
        "dark",
        "narrow",
        "accessible",
        "alone",
    ];
    assert_eq!(worked(&mut command), json!(expected));
}
