//! OpenAI's and Anthropic's own clients.

use std::{path::PathBuf, process::Command};

use serde_json::json;

use crate::{
    audio,
    embeddings::encoder,
    server::{Running, config, script, tiny},
};

/// A Python that has a package: the one of `scripts/install-clients.sh`, or the system's.
fn python(package: &str) -> Result<PathBuf, String> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/bin/python");
    let import = format!("import {package}");
    let has_package = |python: &PathBuf| Command::new(python).args(["-c", &import]).output().is_ok_and(|out| out.status.success());
    let missing = || format!("no Python with the package {package}; scripts/install-clients.sh installs it for this test");
    [own, "python3".into()].into_iter().find(has_package).ok_or_else(missing)
}

pub(crate) fn has_openai() -> Result<(), String> {
    python("openai").map(drop)
}

pub(crate) fn has_anthropic() -> Result<(), String> {
    python("anthropic").map(drop)
}

/// Its template knows tools.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}{% if tools %}<tool_call> calls{% endif %}";

/// What a script of the client says that worked, with a server's address.
fn worked(package: &str) -> serde_json::Value {
    let mut caller =
        script(&["<tool_call>", "{\"name\": \"weather\", ", "\"arguments\": {\"city\": ", "\"Ulm\"}}", "</tool_call>"], TEMPLATE);
    caller.name = "caller".into();
    let mut former = script(&["no ", "{\"ok\": ", "true", "}"], TEMPLATE);
    former.name = "former".into();
    let models = [tiny().into(), caller.into(), former.into(), encoder().into(), audio::model("parakeet-tdt").into()];
    let server = Running::of(models.into(), config());
    let client = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{package}_client.py"));
    let out = Command::new(python(package).unwrap())
        .arg(client)
        .arg(format!("http://{}", server.address))
        .arg(audio::recording("parakeet-tdt"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

pub(crate) fn openai_runs_unmodified() {
    assert_eq!(
        worked("openai"),
        json!(["chat", "stream", "tools", "parse", "responses", "completions", "embeddings", "transcribe", "models", "errors"])
    );
}

pub(crate) fn anthropic_runs_unmodified() {
    assert_eq!(worked("anthropic"), json!(["chat", "stream", "tools", "errors"]));
}
