use serde_json::json;

use super::*;

fn tools() -> Tools {
    let tool = |name: &str, properties: Json| json!({"type": "function", "function": {"name": name, "parameters": {"properties": properties}}});
    Tools::read(&[tool("weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})), tool("now", json!({}))])
        .unwrap()
}

/// The text and the calls of an answer that comes in pieces of every size.
fn check_with(form: Form, single: bool, answer: &str, text: &str, calls: &[(&str, &str)]) {
    for size in 1..=answer.len() {
        let (mut parser, mut out) = (Parser::new(form, tools(), single), Vec::new());
        let chars: Vec<char> = answer.chars().collect();
        for piece in chars.chunks(size) {
            parser.push(&piece.iter().collect::<String>(), &mut out);
        }
        parser.finish(&mut out);
        let (mut found, mut called): (String, Vec<(String, String)>) = Default::default();
        for piece in out {
            match piece {
                Piece::Text(text) => found.push_str(&text),
                Piece::Call { number, name } => {
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

fn check(form: Form, answer: &str, text: &str, calls: &[(&str, &str)]) {
    check_with(form, false, answer, text, calls);
}

#[test]
fn tagged_calls_are_told_from_text() {
    let form = Form::Tagged;
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
        Form::Tagged,
        r#"<tool_call>{"name":"weather","arguments":"{\"days\": 2}"}</tool_call>"#,
        "",
        &[("weather", "{\"days\": 2}")],
    );
}

#[test]
fn calls_in_markup_get_the_types_of_their_schema() {
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\n007\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check(Form::Tagged, call, "", &[("weather", r#"{"city":"007","days":3}"#)]);
    check(Form::Tagged, "<tool_call><function=now></function></tool_call>", "", &[("now", "{}")]);
    // The stop token may stand for the end of the tag.
    check(Form::Tagged, "<tool_call><function=now></function>", "", &[("now", "{}")]);
}

#[test]
fn bare_calls_begin_the_answer() {
    let form = Form::Bare;
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
        check(Form::Bare, answer, answer, &[]);
    }
    for answer in [
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call> x",
        "<tool_call>nothing</tool_call>",
        "<tool_call><function=rm></function></tool_call>",
        "a <tool_call>{\"name\": \"wea",
    ] {
        check(Form::Tagged, answer, answer, &[]);
    }
}

#[test]
fn arguments_that_stop_early_are_handed_on_as_far_as_they_got() {
    check(
        Form::Tagged,
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Par",
        "",
        &[("weather", "{\"city\": \"Par")],
    );
}

#[test]
fn templates_tell_how_their_models_call() {
    assert_eq!(Form::of("{% for m in messages %}"), None);
    assert_eq!(Form::of("{% if tools %}<tool_call>"), Some(Form::Tagged));
    assert_eq!(Form::of("{% if tools %}{\"name\": x, \"parameters\": y}"), Some(Form::Bare));
}
