use serde_json::json;

use flambeau::text::{ChatTemplate, SpecialTokens};

use super::*;

fn tools() -> Tools {
    let tool = |name: &str, properties: Json| json!({"type": "function", "function": {"name": name, "parameters": {"properties": properties}}});
    Tools::read(&[tool("weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})), tool("now", json!({}))])
        .unwrap()
}

fn row(name: &str) -> &'static format::Format {
    table::FORMATS.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no format {name}"))
}

/// The text and the calls of an answer that comes in pieces of every size.
fn check_with(form: &str, single: bool, answer: &str, text: &str, calls: &[(&str, &str)]) {
    for size in 1..=answer.len() {
        let (mut parser, mut out) = (Parser::new(row(form), tools(), 0, single), Vec::new());
        let chars: Vec<char> = answer.chars().collect();
        for piece in chars.chunks(size) {
            parser.push(&piece.iter().collect::<String>(), &mut out);
        }
        parser.finish(&mut out);
        let (mut found, mut called): (String, Vec<(String, String)>) = Default::default();
        for piece in out {
            match piece {
                Piece::Text(text) => found.push_str(&text),
                Piece::Call { number, name, .. } => {
                    assert_eq!(number, called.len());
                    called.push((name, String::new()));
                }
                Piece::Arguments { number, text } => called[number].1.push_str(&text),
            }
        }
        let expected: Vec<(String, String)> = calls.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        assert_eq!((found.as_str(), &called), (text, &expected), "pieces of {size} of {answer}");
        assert_eq!(parser.calls(), calls.len());
    }
}

fn check(form: &str, answer: &str, text: &str, calls: &[(&str, &str)]) {
    check_with(form, false, answer, text, calls);
}

#[test]
fn tagged_calls_are_told_from_text() {
    let form = "hermes";
    check(form, "a < b <tool", "a < b <tool", &[]);
    check(
        form,
        "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris }\\\"\", \"days\": [1]}}\n</tool_call>",
        "Let me see.",
        &[("weather", "{\"city\": \"Paris }\\\"\", \"days\": [1]}")],
    );
    let two = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"days\":2},\"name\":\"weather\"}</tool_call> done";
    check(form, two, "done", &[("now", "{}"), ("weather", "{\"days\":2}")]);
    check_with(form, true, two, "", &[("now", "{}")]);
}

#[test]
fn arguments_may_be_written_as_a_text() {
    check(
        "hermes",
        r#"<tool_call>{"name":"weather","arguments":"{\"days\": 2}"}</tool_call>"#,
        "",
        &[("weather", "{\"days\": 2}")],
    );
}

#[test]
fn calls_in_markup_get_the_types_of_their_schema() {
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\n007\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check("qwen3-coder", call, "", &[("weather", r#"{"city":"007","days":3}"#)]);
    check("qwen3-coder", "<tool_call><function=now></function></tool_call>", "", &[("now", "{}")]);
    // The stop token may stand for the end of the tag.
    check("qwen3-coder", "<tool_call><function=now></function>", "", &[("now", "{}")]);
}

#[test]
fn bare_calls_begin_the_answer() {
    let form = "llama3";
    check(form, " {\"name\": \"weather\", \"parameters\": {\"days\": 2}}", "", &[("weather", "{\"days\": 2}")]);
    check(
        form,
        "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
        "",
        &[("now", "{}"), ("now", "{}")],
    );
    check(form, "It is {\"name\": \"now\", \"parameters\": {}}", "It is {\"name\": \"now\", \"parameters\": {}}", &[]);
}

#[test]
fn what_is_no_call_of_a_known_tool_stays_text() {
    for answer in ["{\"name\": \"rm\", \"parameters\": {}}", "{\"a\": 1}", "{}", "{\"name\": 3, \"parameters\": {}}", "{\"name\""] {
        check("llama3", answer, answer, &[]);
    }
    for answer in [
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call> x",
        "<tool_call>nothing</tool_call>",
        "<tool_call><function=rm></function></tool_call>",
        "a <tool_call>{\"name\": \"wea",
    ] {
        check("hermes", answer, answer, &[]);
    }
}

#[test]
fn arguments_that_stop_early_are_handed_on_as_far_as_they_got() {
    check("hermes", "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Par", "", &[("weather", "{\"city\": \"Par")]);
}

/// The format of a template that writes messages plainly, and calls as this.
fn detected(call: &str) -> Result<ToolFormat, &'static str> {
    let source = format!(
        "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{call}\
         {{% endfor %}}<|end|>{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
    );
    ToolFormat::of(&ChatTemplate::new(&source, &SpecialTokens::default()).unwrap())
}

#[test]
fn formats_are_found_by_rendering() {
    let name = |call: &str| detected(call).map(|found| found.format.name);
    let pairs = |open: &str, middle: &str, close: &str| {
        format!("{{% for k, v in f.arguments | items %}}{open}{{{{ k }}}}{middle}{{{{ v }}}}{close}{{% endfor %}}")
    };
    assert_eq!(name("<tool_call>\n{{ f | tojson }}\n</tool_call>"), Ok("hermes"));
    assert_eq!(name("{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}"), Ok("llama3"));
    let xml = pairs("<parameter=", ">\n", "\n</parameter>\n");
    assert_eq!(name(&format!("<tool_call>\n<function={{{{ f.name }}}}>\n{xml}</function>\n</tool_call>")), Ok("qwen3-coder"));
    let tags = pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n");
    assert_eq!(name(&format!("<tool_call>{{{{ f.name }}}}\n{tags}</tool_call>")), Ok("glm"));
    assert_eq!(name("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"), Ok("mistral-id"));
    assert_eq!(name("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), Ok("mistral"));
    let text = detected("<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ '' + f.arguments }}}\n</tool_call>").unwrap();
    assert!((text.format.name, text.text_arguments, text.several) == ("hermes", true, true));
}

#[test]
fn templates_without_a_known_format_are_refused() {
    assert_eq!(detected("").unwrap_err(), "knows no tools");
    // A prompt may describe calls without showing one.
    assert_eq!(detected("{# <tool_call> #}").unwrap_err(), "knows no tools");
    assert_eq!(
        detected("CALL {{ f.name }} WITH {{ f.arguments | tojson }}").unwrap_err(),
        "writes calls of tools in no known format"
    );
}
