//! `flambeau template` on templates of our own.

use serde_json::{Value as Json, json};

use crate::flambeau;

const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}\
    [TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}\
    {% if tools %}{{ tools | length }} tools{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "weather", "parameters": {}}}]"#;

fn run(template: &str, args: &[&str]) -> crate::Finished {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat.jinja"), template).unwrap();
    std::fs::write(dir.path().join("tools.json"), TOOLS).unwrap();
    flambeau(dir.path(), &[&["template", "chat.jinja"], args].concat())
}

#[test]
fn the_format_of_calls_is_shown() {
    let done = run(TEMPLATE, &[]);
    assert_eq!((done.code, done.stdout.lines().next()), (0, Some("tool calls: mistral")), "{}", done.stderr);
    let unknown = TEMPLATE.replace("[ARGS]", "[WITH]");
    let json: Json = serde_json::from_str(&run(&unknown, &["--json"]).stdout).unwrap();
    let reason = "the chat template writes calls of tools in no known format";
    assert_eq!((&json["tool_format"], &json["reason"]), (&Json::Null, &json!(reason)));
}

#[test]
fn prompts_and_answers_are_those_of_the_server() {
    let messages = r#"[{"role": "developer", "content": "be brief"}, {"role": "user", "content": "Hi"}]"#;
    let done = run(TEMPLATE, &["--messages", messages, "--tools", "tools.json"]);
    assert_eq!(done.stdout.trim_end(), "<|system|>be brief<|user|>Hi1 tools<|assistant|>", "{}", done.stderr);
    let answer = "I look.[TOOL_CALLS]weather[ARGS]{\"city\": \"Ulm\"}";
    let done = run(TEMPLATE, &["--tools", TOOLS, "--parse", answer]);
    let message: Json = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(message["content"], "I look.");
    assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Ulm\"}" }));
}

#[test]
fn wrong_input_is_named() {
    for (args, code, part) in [
        (&["--tools", "[1"][..], 2, "--tools is no JSON"),
        (&["--messages", "{}"], 2, "--messages takes a JSON list"),
        (&["--messages", "none.json"], 1, "--messages"),
        (&["--messages", "[{}]"], 1, "messages[0].role"),
    ] {
        let done = run(TEMPLATE, args);
        assert!(done.code == code && done.stderr.contains(part), "{args:?}: {} {}", done.code, done.stderr);
    }
}
