//! OpenAI's own client.

use std::{path::PathBuf, process::Command};

use serde_json::json;

use crate::server::{Running, config, script, tiny};

/// A Python that has the package: the one of `scripts/install-openai.sh`, or the system's.
fn python() -> Option<PathBuf> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/openai/bin/python");
    let has_package =
        |python: &PathBuf| Command::new(python).args(["-c", "import openai"]).output().is_ok_and(|out| out.status.success());
    [own, "python3".into()].into_iter().find(has_package)
}

pub(crate) fn requirement() -> Result<(), String> {
    python()
        .map(drop)
        .ok_or_else(|| "no Python with the package openai; scripts/install-openai.sh installs it for this test".into())
}

/// Its template knows tools.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}{% if tools %}<tool_call> calls{% endif %}";

pub(crate) fn openai_python_runs_unmodified() {
    let mut caller =
        script(&["<tool_call>", "{\"name\": \"weather\", ", "\"arguments\": {\"city\": ", "\"Ulm\"}}", "</tool_call>"], TEMPLATE);
    caller.name = "caller".into();
    let mut former = script(&["no ", "{\"ok\": ", "true", "}"], TEMPLATE);
    former.name = "former".into();
    let server = Running::new(vec![tiny(), caller, former], config());
    let client = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let base = format!("http://{}/v1", server.address);
    let out = Command::new(python().unwrap()).arg(client).arg(&base).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {error}"));
    assert_eq!(
        told,
        json!({ "chat": true, "stream": true, "tools": true, "parse": true, "completions": true, "models": true, "errors": true })
    );
}
