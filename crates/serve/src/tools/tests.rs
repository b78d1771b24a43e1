use serde_json::json;

use flambeau::text::{ChatInput, ChatTemplate, SpecialTokens};

use super::*;

fn tools() -> Tools {
    let tool = |name: &str, properties: Json| json!({"type": "function", "function": {"name": name, "parameters": {"properties": properties}}});
    Tools::read(&[tool("weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})), tool("now", json!({}))])
        .unwrap()
}

fn row(name: &str) -> &'static format::Format {
    table::FORMATS.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no format {name}"))
}

/// Text of an answer, and its calls with their arguments.
pub(super) fn folded(pieces: Vec<Piece>) -> (String, Vec<(String, String)>) {
    let (mut text, mut calls): (String, Vec<(String, String)>) = Default::default();
    for piece in pieces {
        match piece {
            Piece::Text(more) => text.push_str(&more),
            Piece::Call { number, name, .. } => {
                assert_eq!(number, calls.len());
                calls.push((name, String::new()));
            }
            Piece::Arguments { number, text } => calls[number].1.push_str(&text),
        }
    }
    (text, calls)
}

/// Text and calls of an answer that arrives in pieces of every size.
fn check_with(form: &str, single: bool, answer: &str, text: &str, calls: &[(&str, &str)]) {
    for size in 1..=answer.len() {
        let (mut parser, mut out) = (Parser::new(row(form), tools(), 0, single), Vec::new());
        let chars: Vec<char> = answer.chars().collect();
        for piece in chars.chunks(size) {
            parser.push(&piece.iter().collect::<String>(), &mut out);
        }
        parser.finish(&mut out);
        let (found, called) = folded(out);
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
fn calls_are_read_in_the_other_ways_that_models_write_them() {
    let days = [("weather", "{\"days\": 2}")];
    let object = "{\"name\": \"weather\", \"arguments\": {\"days\": 2}}";
    for fence in [
        format!("```json\n[{object}]\n```"),
        format!("```\n[\n{object}\n]```"),
        format!("[TOOL_CALLS][{object}]"),
        format!("[{object}]"),
    ] {
        check("xlam", &fence, "", &days);
    }
    check("xlam", "```json\n{\"days\": 2}\n```", "```json\n{\"days\": 2}\n```", &[]);
    let two = format!("ok <|tool_call_start|>[{object}, {object}]<|tool_call_end|> so");
    check("lfm2", &two, "okso", &[days[0], days[0]]);
    check("lfm2", "<|tool_call_start|>[weather(days=2)]<|tool_call_end|>", "", &[("weather", "{\"days\":2}")]);
    check("llama3", "<|python_tag|>weather.call(city=\"a b\", days=2)", "", &[("weather", "{\"city\":\"a b\",\"days\":2}")]);
    check("llama3", "<|python_tag|>rm.call(path=\"x\")", "<|python_tag|>rm.call(path=\"x\")", &[]);
}

#[test]
fn values_in_tags_are_objects_and_lists() {
    let ns = "]<]minimax[>[";
    let inner = format!("{ns}<item>{ns}<days>1{ns}</days>{ns}</item>{ns}<item>x{ns}</item>");
    let call = format!(
        "{ns}<tool_call>\n{ns}<invoke name=\"weather\">{ns}<days>{inner}{ns}</days>{ns}<city>007{ns}</city>{ns}</invoke>\n{ns}</tool_call>"
    );
    check("minimax-m3", &call, "", &[("weather", "{\"days\":[{\"days\":1},\"x\"],\"city\":\"007\"}")]);
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

/// Reads a text in pieces of every size behind a prompt that ends like this.
fn after(form: &str, prompt: &str, tools: &Tools, answer: &str) -> (String, Vec<(String, Json)>) {
    let chars: Vec<char> = answer.chars().collect();
    let mut first = None;
    for size in 1..=chars.len() {
        let (mut parser, mut out) = (Parser::new(row(form), tools.clone(), 0, false).after(prompt), Vec::new());
        chars.chunks(size).for_each(|piece| parser.push(&piece.iter().collect::<String>(), &mut out));
        parser.finish(&mut out);
        let (text, calls) = folded(out);
        let calls = calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect();
        let found = (text, calls);
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "pieces of {size} of {answer}");
    }
    first.unwrap_or_default()
}

#[test]
fn prompts_may_begin_the_first_call() {
    let read = |answer: &str| after("functionary-3.2", "assistant>>>", &tools(), answer);
    let weather = |days: u32| ("weather".to_owned(), json!({ "days": days }));
    assert_eq!(read("weather\n{\"days\": 2}"), (String::new(), vec![weather(2)]));
    assert_eq!(read("weather\n{\"days\": 2}>>>weather\n{\"days\": 3}"), (String::new(), vec![weather(2), weather(3)]));
    assert_eq!(read("all\nLet me see.>>>weather\n{\"days\": 2}"), ("Let me see.".to_owned(), vec![weather(2)]));
    assert_eq!(read("all\na >> b >>> c"), ("a >> b >>> c".to_owned(), vec![]));
    // Faulty beginnings stay text, without the prompt's marker.
    for text in ["Hello", "al", "all", "allow\nit", "weather", "weather\n5"] {
        assert_eq!(read(text), (text.to_owned(), vec![]));
    }
    // A prompt without the marker leaves it to the model.
    assert_eq!(after("functionary-3.2", "", &tools(), ">>>all\nHi>>>now\n{}").0, "Hi");
}

#[test]
fn messages_name_the_reader_before_calls_and_text() {
    let read = |answer: &str| after("muse", "", &tools(), answer);
    let call = "<atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"days\">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>";
    let weather = ("weather".to_owned(), json!({ "days": 2 }));
    let two = format!(" to=weather<|message|>{call} to=a.b-c<|message|>{call}");
    assert_eq!(read(&two), (String::new(), vec![weather.clone(), weather]));
    assert_eq!(read(" to=user<|message|>Hi"), ("Hi".to_owned(), vec![]));
    for text in ["go to=a and to=", "auto=x <|message|> y"] {
        assert_eq!(read(text), (text.to_owned(), vec![]));
    }
}

#[test]
fn templates_write_values_in_pythons_way() {
    let tool = json!({"type": "function", "function": {"name": "find", "parameters": {"properties": {
        "list": { "type": "array" }, "map": { "type": "object" }, "word": { "type": "string" }, "any": {}
    }}}});
    let tools = Tools::read(&[tool]).unwrap();
    let value = |key: &str, text: &str| {
        let answer = format!("<function name=\"find\"><param name=\"{key}\">{text}</param></function>");
        after("minicpm-5", "", &tools, &answer).1[0].1[key].clone()
    };
    assert_eq!(value("list", "[{'a': True, 'b': None}, \"it's\"]"), json!([{ "a": true, "b": null }, "it's"]));
    assert_eq!(value("map", "{'a': [1, 2.5]}"), json!({ "a": [1, 2.5] }));
    assert_eq!((value("list", ""), value("map", "\n"), value("any", "")), (json!([]), json!({}), json!("")));
    for text in ["{'a': 1}", "[1]", ""] {
        assert_eq!(value("word", text), json!(text));
    }
    assert_eq!(value("list", "[a, b]"), json!("[a, b]"));
}

#[test]
fn raw_code_is_a_call_of_the_tool_that_runs_it() {
    let tool = |name: &str, properties: Json| json!({"type": "function", "function": {"name": name, "parameters": {"properties": properties}}});
    let code = json!({ "source": { "type": "string" }, "seconds": { "type": "integer" } });
    let tools = Tools::read(&[tool("python", code), tool("weather", json!({ "days": { "type": "integer" } }))]).unwrap();
    let python = |argument: &str, code: &str| (String::new(), vec![("python".to_owned(), json!({ argument: code }))]);
    let source = "x = {\"a\": 1}\nprint(f'{x}')";
    for form in ["llama3", "functionary-3.1"] {
        assert_eq!(after(form, "", &tools, &format!("<|python_tag|>{source}")), python("source", source), "{form}");
    }
    assert_eq!(after("functionary-3.2", ">>>", &tools, &format!("python\n{source}")), python("source", source));
    // Calls of the usual kinds are no code.
    let weather = (String::new(), vec![("weather".to_owned(), json!({ "days": 2 }))]);
    assert_eq!(after("llama3", "", &tools, "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"days\": 2}}"), weather);
    assert_eq!(after("llama3", "", &tools, "<|python_tag|>weather.call(days=2)"), weather);
    let known = after("functionary-3.2", ">>>", &tools, "python\n{\"source\": \"1\"}");
    assert_eq!(known, python("source", "1"));
    // Without such a tool it is text.
    let text = format!("<|python_tag|>{source}");
    assert_eq!(after("llama3", "", &self::tools(), &text), (text.clone(), vec![]));
    // A schema without a single text names the argument `code`.
    let free = Tools::read(&[tool("code_interpreter", json!({}))]).unwrap();
    assert_eq!(after("llama3", "", &free, "<|python_tag|>1+1").1[0].1, json!({ "code": "1+1" }));
}

#[test]
fn templates_that_read_tools_elsewhere_take_them() {
    let name = |source: &str| {
        let template = ChatTemplate::new(source, &SpecialTokens::default()).unwrap();
        ToolFormat::of(&template).map(|found| (found.format.name, found.text_arguments, found.several))
    };
    let each = "{% for m in messages %}<{{ m.role }}>{{ m.content }}";
    let fire = format!(
        "{{{{ 'Today is ' + datetime + functions }}}}{each}{{% set n = namespace(calls=[]) %}}{{% for c in m.tool_calls or [] %}}\
         {{% set n.calls = n.calls + ['{{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments | tojson + '}}'] %}}{{% endfor %}}\
         {{% if n.calls %}} functools[{{{{ n.calls | join(', ') }}}}]{{% endif %}}{{% endfor %}}<assistant>"
    );
    assert_eq!(name(&fire), Ok(("functools", false, true)));
    let functionary = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>\
         {% if m.role == 'assistant' and m.content %}{{ '>>>all\\n' + m.content }}{% elif m.content %}{{ m.content }}{% endif %}\
         {% for c in m.tool_calls or [] %}{{ '>>>' + c.function.name + '\\n' + c.function.arguments }}{% endfor %}{% endfor %}\
         {% if add_generation_prompt %}<assistant>>>>{% endif %}";
    assert_eq!(name(functionary), Ok(("functionary-3.2", true, true)));
    let kimi = format!(
        "{{% set ns = namespace(ids=[]) %}}{each}{{% for c in m.tool_calls or [] %}}{{% set id = 'functions.' + c.function.name + ':' + ns.ids | length | string %}}\
         {{% set _ = ns.ids.append(id) %}}<|tool_calls_section_begin|><|tool_call_begin|>{{{{ id }}}}<|tool_call_argument_begin|>\
         {{{{ c.function.arguments | tojson }}}}<|tool_call_end|><|tool_calls_section_end|>{{% endfor %}}{{% endfor %}}"
    );
    assert!(matches!(name(&kimi), Ok(("kimi-k2", ..))), "{:?}", name(&kimi));
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
    let array = "[TOOL_CALLS][{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}]</s>";
    assert_eq!(name(array), Ok("mistral-array"));
    assert_eq!(name("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"), Ok("mistral-id"));
    assert_eq!(name("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), Ok("mistral"));
    let text = detected("<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ '' + f.arguments }}}\n</tool_call>").unwrap();
    assert!((text.format.name, text.text_arguments, text.several) == ("hermes", true, true));
}

#[test]
fn templates_without_a_known_format_are_refused() {
    assert_eq!(
        detected("CALL {{ f.name }} WITH {{ f.arguments | tojson }}").unwrap_err(),
        "writes calls of tools in no known format"
    );
    let describing =
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let describing = ChatTemplate::new(describing, &SpecialTokens::default()).unwrap();
    assert_eq!(ToolFormat::of(&describing).unwrap_err(), "describes tools, and shows no calls in a known format");
    let silent = ChatTemplate::new("hello", &SpecialTokens::default()).unwrap();
    assert_eq!(ToolFormat::of(&silent).unwrap_err(), "shows no messages");
}

/// The prompt of a conversation with a call and its result.
fn prompt(source: &str, messages: Json) -> String {
    let template = ChatTemplate::new(source, &SpecialTokens::default()).unwrap();
    let tools = vec![json!({"type": "function", "function": {"name": "now", "parameters": {}}})];
    let Json::Array(messages) = messages else { unreachable!() };
    let (messages, tools) = ToolFormat::of(&template).unwrap().history(messages, Some(tools));
    template.render(&ChatInput { messages, tools, ..ChatInput::default() }).unwrap()
}

fn called(ids: &[&str]) -> Json {
    let call = |id: &&str| json!({"id": id, "type": "function", "function": {"name": "now", "arguments": {"at": id}}});
    let mut messages = vec![json!({"role": "user", "content": "Q"})];
    messages.push(json!({"role": "assistant", "content": "", "tool_calls": ids.iter().map(call).collect::<Vec<_>>()}));
    messages.extend(ids.iter().map(|id| json!({"role": "tool", "tool_call_id": id, "content": format!("R{id}")})));
    messages.into()
}

#[test]
fn messages_describe_tools_to_templates_that_know_none() {
    let system = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let text = prompt(system, called(&["a", "b"]));
    let description = text.strip_prefix("<system>").and_then(|text| text.split_once("<user>Q")).expect("a description");
    assert!(description.0.contains("{\"name\":\"now\",\"parameters\":{}}"), "{text}");
    let calls = "<assistant><tool_call>\n{\"name\": \"now\", \"arguments\": {\"at\": \"a\"}}\n</tool_call>\n<tool_call>\n\
        {\"name\": \"now\", \"arguments\": {\"at\": \"b\"}}\n</tool_call>";
    let results = "<user><tool_response>\nRa\n</tool_response>\n<tool_response>\nRb\n</tool_response>";
    assert_eq!(description.1, format!("{calls}{results}"));
    let strict = format!("{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{system}");
    assert!(prompt(&strict, called(&["a"])).starts_with("<user>You can call"));
    // The system message may have a field for tools.
    let field =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}{% endfor %}";
    let text = prompt(field, called(&["a"]));
    let described = "<system><|tool|>[{\"name\":\"now\",\"parameters\":{}}]<|/tool|>";
    let call = "<user>Q<assistant>functools[{\"name\": \"now\", \"arguments\": {\"at\": \"a\"}}]<tool>Ra";
    assert_eq!(text, format!("{described}{call}"));
    // A prompt may describe calls without showing one; then texts hold earlier calls.
    let taught = format!("{{% if tools %}}Write <tool_call>.{{% endif %}}{system}");
    assert!(prompt(&taught, called(&["a"])).starts_with("Write <tool_call>.<user>Q<assistant><tool_call>\n{\"name\""));
}

#[test]
fn histories_take_the_shape_that_templates_want() {
    let each = |call: &str| {
        format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content or '' }}}}{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}{{% endfor %}}"
        )
    };
    // One call a message.
    let one = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}";
    let text = prompt(&each(one), called(&["a", "b"]));
    let call = |id: &str| format!("<assistant>{{\"name\": \"now\", \"parameters\": {{\"at\": \"{id}\"}}}}<tool>R{id}");
    assert_eq!(text, format!("<user>Q{}{}", call("a"), call("b")));
    // Ids of nine characters, and ids that count.
    let nine = format!(
        "{}{{% for m in messages %}}{{{{ m.tool_call_id }}}}{{% endfor %}}",
        each("[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}")
    );
    let text = prompt(&nine, called(&["a", "Abcdef123"]));
    assert!(text.contains("[CALL_ID]call00000[ARGS]") && text.ends_with("call00000Abcdef123"), "{text}");
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}\
        <|tool_call_end|><|tool_calls_section_end|>";
    let text = prompt(&each(kimi), called(&["a", "b"]));
    assert!(text.contains("<|tool_call_begin|>functions.now:0<") && text.contains("<|tool_call_begin|>functions.now:1<"), "{text}");
    // Arguments as text, and no content beside calls.
    let none = "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments + '' }}}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    let mut messages = called(&["a"]);
    messages[1]["content"] = "Let me see.".into();
    let expected = "QLet me see.<tool_call>{\"name\": \"now\", \"arguments\": {\"at\":\"a\"}}</tool_call>Ra";
    assert_eq!(prompt(none, messages), expected);
}
