//! OpenAI's, Anthropic's and LangChain's own clients.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use flambeau_serve::{Config, NewModel};
use serde_json::{Value as Json, json};

use crate::{
    audio,
    batches::batches,
    embeddings::encoder,
    hardening::hooked,
    rerank::ranker,
    server::{Running, config, endless, script, tiny},
};

/// Where `scripts/install-clients.sh` puts them.
fn installed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

/// A Python that has a package: the one of `scripts/install-clients.sh`, or the system's.
pub(crate) fn python(package: &str) -> Result<PathBuf, String> {
    let own = installed().join("bin/python");
    let import = format!("import {package}");
    let has_package = |python: &PathBuf| Command::new(python).args(["-c", &import]).output().is_ok_and(|out| out.status.success());
    let missing = || format!("no Python with the package {package}; scripts/install-clients.sh installs it for this test");
    [own, "python3".into()].into_iter().find(has_package).ok_or_else(missing)
}

/// The folder in which Node.js finds these packages.
pub(crate) fn node(packages: &[&str]) -> Result<PathBuf, String> {
    if !Command::new("node").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return Err("there is no Node.js".into());
    }
    let folder = installed().join("node");
    match packages.iter().find(|package| !folder.join("node_modules").join(package).is_dir()) {
        Some(package) => Err(format!("no package {package} for Node.js; scripts/install-clients.sh installs it for this test")),
        None => Ok(folder),
    }
}

pub(crate) fn chromium() -> Result<PathBuf, String> {
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file());
    found.ok_or_else(|| "there is no Chromium, which Debian has in the package chromium".into())
}

pub(crate) fn has_openai() -> Result<(), String> {
    python("openai").map(drop)
}

pub(crate) fn has_anthropic() -> Result<(), String> {
    python("anthropic").map(drop)
}

pub(crate) fn has_ollama() -> Result<(), String> {
    python("ollama").map(drop)
}

pub(crate) fn has_cohere() -> Result<(), String> {
    python("cohere").map(drop)
}

pub(crate) fn has_openapi_validator() -> Result<(), String> {
    python("openapi_spec_validator").map(drop)
}

pub(crate) fn has_langchain() -> Result<(), String> {
    python("langchain_openai").map(drop)
}

pub(crate) fn has_openai_for_node() -> Result<(), String> {
    node(&["openai"]).map(drop)
}

pub(crate) fn has_ai_sdk() -> Result<(), String> {
    node(&["ai", "@ai-sdk/openai-compatible"]).map(drop)
}

pub(crate) fn has_browser() -> Result<(), String> {
    node(&["playwright-core", "axe-core"]).and_then(|_| chromium()).map(drop)
}

/// Its template knows tools.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}{% if tools %}<tool_call> calls{% endif %}";

/// A server of models of every kind, and of more language models.
fn server_with(folder: &Path, more: Vec<NewModel>) -> Running {
    let mut caller =
        script(&["<tool_call>", "{\"name\": \"weather\", ", "\"arguments\": {\"city\": ", "\"Ulm\"}}", "</tool_call>"], TEMPLATE);
    caller.name = "caller".into();
    let mut former = script(&["no ", "{\"ok\": ", "true", "}"], TEMPLATE);
    former.name = "former".into();
    let mut endless = endless(&["on ", "and "], &hooked(|_| sleep(Duration::from_millis(2))));
    endless.name = "endless".into();
    let language = [tiny(), caller, former, endless].into_iter().chain(more).map(Into::into);
    let others = [encoder().into(), ranker().into(), audio::model("parakeet-tdt").into()];
    let config = Config { drop_hosted_tools: true, ..config() };
    Running::batching(batches(folder), language.chain(others).collect(), config)
}

fn server(folder: &Path) -> Running {
    server_with(folder, Vec::new())
}

/// A model with thoughts, and a model that calls a free-text tool.
fn agents() -> Vec<NewModel> {
    let mut thinker = script(&["<think>", "so ", "be it", "</think>", "yes"], TEMPLATE);
    thinker.name = "thinker".into();
    let call = ["<tool_call>", "{\"name\": \"patch\", ", "\"arguments\": {\"input\": ", "\"x = 1\"}}", "</tool_call>"];
    let mut patcher = script(&call, TEMPLATE);
    patcher.name = "patcher".into();
    vec![thinker, patcher]
}

/// Calls that worked, as a client's script prints them on stdout, in JSON.
pub(crate) fn worked(command: &mut Command) -> Json {
    let out = command.output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

pub(crate) fn client(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn in_python(package: &str, more: &[&Path]) -> Json {
    let folder = tempfile::tempdir().unwrap();
    let server = server_with(folder.path(), agents());
    let address = format!("http://{}", server.address);
    worked(Command::new(python(package).unwrap()).arg(client(&format!("{package}_client.py"))).arg(address).args(more))
}

/// A row of the manual's table of clients: name, package with the version of
/// `scripts/install-clients.sh`, and the calls of its test.
struct Row {
    name: &'static str,
    package: &'static str,
    calls: &'static [&'static str],
}

const OPENAI: Row = Row {
    name: "`openai` (Python)",
    package: "openai==",
    calls: &[
        "chat",
        "stream",
        "tools",
        "parse",
        "responses",
        "agent",
        "kept",
        "completions",
        "embeddings",
        "transcribe",
        "batches",
        "models",
        "errors",
    ],
};

const OPENAI_FOR_NODE: Row = Row {
    name: "`openai` (Node.js)",
    package: "openai@",
    calls: &["chat", "stream", "callTools", "parse", "responses", "embeddings", "errors", "abort"],
};

/// The AI SDK with its package for compatible servers.
const AI_SDK: Row = Row {
    name: "`ai` (Node.js)",
    package: "ai@",
    calls: &["text", "stream", "tools", "structured", "embeddings", "errors", "abort"],
};

const ANTHROPIC: Row = Row {
    name: "`anthropic`",
    package: "anthropic==",
    calls: &["chat", "stream", "tools", "agent", "count_tokens", "thoughts", "prefill", "formats", "models", "batches", "errors"],
};

const LANGCHAIN: Row = Row {
    name: "`langchain-openai`",
    package: "langchain-openai==",
    calls: &["chat", "stream", "tools", "structured_output", "embeddings", "errors"],
};

const COHERE: Row = Row { name: "`cohere`", package: "cohere==", calls: &["second", "first", "errors"] };

const OLLAMA: Row = Row {
    name: "`ollama`",
    package: "ollama==",
    calls: &["chat", "thoughts", "tools", "formats", "generate", "embed", "models", "errors"],
};

const VALIDATOR: Row =
    Row { name: "`openapi-spec-validator`", package: "openapi-spec-validator==", calls: &["valid", "chat", "others", "answered"] };

/// `openai`'s sessions over WebSockets, and `websockets` as a browser would.
const REALTIME: Row = Row { name: "`websockets`", package: "websockets==", calls: &["commits", "turns", "errors", "browsers"] };

/// The calls of sessions over WebSockets.
pub(crate) const REALTIME_CALLS: &[&str] = REALTIME.calls;

pub(crate) fn the_table_of_clients_names_what_the_tests_run() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let [manual, script] = ["docs/serve.md", "scripts/install-clients.sh"].map(|path| fs::read_to_string(root.join(path)).unwrap());
    for Row { name, package, calls } in [OPENAI, OPENAI_FOR_NODE, AI_SDK, ANTHROPIC, LANGCHAIN, COHERE, OLLAMA, REALTIME, VALIDATOR]
    {
        let words = script.split(|c: char| c.is_whitespace() || c == '"');
        let version =
            words.filter_map(|word| word.strip_prefix(package)).next().unwrap_or_else(|| panic!("no {package} is installed"));
        let row = format!("| {name} | {} | {} |", version.trim_end_matches(".*"), calls.join(", "));
        assert!(manual.contains(&row), "docs/serve.md has no row {row}");
    }
}

pub(crate) fn openai_runs_unmodified() {
    assert_eq!(in_python("openai", &[&audio::recording("parakeet-tdt")]), json!(OPENAI.calls));
}

pub(crate) fn anthropic_runs_unmodified() {
    assert_eq!(in_python("anthropic", &[]), json!(ANTHROPIC.calls));
}

pub(crate) fn ollama_runs_unmodified() {
    assert_eq!(in_python("ollama", &[]), json!(OLLAMA.calls));
}

pub(crate) fn cohere_runs_unmodified() {
    assert_eq!(in_python("cohere", &[]), json!(COHERE.calls));
}

pub(crate) fn the_description_of_the_paths_is_valid() {
    assert_eq!(in_python("openapi_spec_validator", &[]), json!(VALIDATOR.calls));
}

pub(crate) fn langchain_runs_unmodified() {
    assert_eq!(in_python("langchain_openai", &[]), json!(LANGCHAIN.calls));
}

/// Runs a client for Node.js. Its last call is one that it aborts.
fn in_node(script: &str, aborted: &str) -> Json {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let mut command = Command::new("node");
    command.arg(client(script)).arg(format!("http://{}", server.address)).arg(node(&[]).unwrap());
    let worked = worked(&mut command);
    server.await_metric_of(aborted, "running", 0);
    worked
}

pub(crate) fn openai_for_node_runs_unmodified() {
    assert_eq!(in_node("openai_client.mjs", "tiny"), json!(OPENAI_FOR_NODE.calls));
}

pub(crate) fn the_ai_sdk_runs_unmodified() {
    assert_eq!(in_node("ai_client.mjs", "endless"), json!(AI_SDK.calls));
}
