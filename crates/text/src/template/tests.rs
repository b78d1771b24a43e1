use serde_json::json;

use super::*;

const CHATML: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn special() -> SpecialTokens {
    SpecialTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..SpecialTokens::default() }
}

fn input() -> ChatInput {
    ChatInput {
        messages: vec![message("user", "Hi"), message("assistant", " Hello. ")],
        tools: Some(vec![json!({"name": "f", "parameters": {"b": [1, 2.5, true, null], "a": "<é'>\n"}})]),
        add_generation_prompt: true,
        now: Some(Clock::utc(1_700_000_000)),
        ..ChatInput::default()
    }
}

fn render(source: &str) -> Result<String> {
    ChatTemplate::new(source, &special())?.render(&input())
}

#[test]
fn chatml_puts_every_message_into_its_frame() {
    let want = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Hello. <|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(CHATML).unwrap(), want);
}

#[test]
fn operators_work_as_in_python() {
    let check = |source: &str, want: &str| assert_eq!(render(source).unwrap(), want, "{source}");
    check("{{ '%s' % 'x' }} {{ '%d of %s' % (1, 'y') }} {{ 'n: %s' % messages[0].role }} {{ 7 % 4 }}", "x 1 of y n: user 3");
    check("{{ [1] * 3 }} {{ 2 * [1, 2] }} {{ 2 ** -1 }} {{ 2 ** 3 }}", "[1, 1, 1] [1, 2, 1, 2] 0.5 8");
    check("{{ 1e20 | tojson }} {{ 1.5e-7 | tojson }} {{ [1e20, 0.5] | tojson }} {{ 1e16 }}", "1e+20 1.5e-07 [1e+20, 0.5] 1e+16");
    check("{{ \"they're bill's\".title() }} {{ 'aB cD'.title() }}", "They'Re Bill'S Ab Cd");
    check(
        "{% autoescape false %}{{ '<b>' }}{% endautoescape %}{% autoescape true %}{{ '<b>' }}{% endautoescape %}",
        "<b>&lt;b&gt;",
    );
    let error = render("a\n{{ missing_thing.name }}").unwrap_err().to_string();
    assert!(error.contains("missing_thing") && error.contains("line 2"), "{error}");
}

#[test]
fn templates_run_as_in_python() {
    let check = |source: &str, want: &str| assert_eq!(render(source).unwrap(), want, "{source}");
    check("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}", "<s>Hi</s>");
    check("{{ messages[1]['content'].strip() + '!' }}|{{ messages[1].content | trim }}", "Hello.!|Hello.");
    check("{{ messages[-1].role.upper() }} {{ 'a,b'.split(',')[1] }} {{ 'x'.startswith('x') }}", "ASSISTANT b True");
    check("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "user");
    check("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n", "x\nx\n");
    check("{{ tools[0].parameters | tojson }}", r#"{"b": [1, 2.5, true, null], "a": "<é'>\n"}"#);
    check("{{ {'b': [], 'a': {'k': 1}} | tojson(indent=2) }}", "{\n  \"b\": [],\n  \"a\": {\n    \"k\": 1\n  }\n}");
    check("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}", r#"{"a":"\u00e9","b":1}"#);
    check("{{ strftime_now('%d %b %Y') }}", "14 Nov 2023");
    check("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 2 * 3 %}{% endfor %}{{ ns.n }}", "12");
    check("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') ~ f(1) }}{{ [1] + [2] }}{{ '-' * 3 }}", "[a][1][1, 2]---");
    check("{%- if documents %}d{% elif x is defined %}x{% else %}{{ none }}{{ missing }}{% endif %}", "None");
    check("{% generation %}a{% endgeneration %} {%- generation -%} b {%- endgeneration %}", "ab");
    check("{{ ['a', 'b'] | join(', ') }} {{ messages | map(attribute='role') | join('/') }}", "a, b user/assistant");
    check("{{ 'a\nb\n\nc' | indent(2) }} {{ 'aXb'|replace('X', '--') }} {{ '%s=%d' | format('n', 3) }}", "a\n  b\n\n  c a--b n=3");
    check("{{ 'aXb'.replace('X', '') }} {{ ', '.join(['p', 'q']) }} {{ '{}:{}'.format(1, 'z') }}", "ab p, q 1:z");
    check(&format!("{{{{ 1{} }}}}", " + 1".repeat(399)), "400");
    check("{{ bos_token is defined }} {{ pad_token is defined }}", "True False");
    check("{{ (messages|length) * 2 * 3 }} {{ ('ab' ~ 1) * messages|length }}", "12 ab1ab1");
    check(
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }} {{ 1 is lt 2 }} {{ 1 is in [1] }}",
        "Hi True True",
    );
    check(
        "{{ [3, 1, 2] | sort(reverse=true) }} {{ [1] == [1] }} {{ messages[1:] | length }} {{ dict(a=[1]).a }}",
        "[3, 2, 1] True 1 [1]",
    );
    check("{% set x %}in{{ 1 }}{% endset %}{{ x }}{% if 'user' in messages[0].values() %}!{% endif %}", "in1!");
}

#[test]
fn extra_variables_reach_the_template() {
    let template = ChatTemplate::new("{{ enable_thinking }} {{ bos_token }} {{ messages|length }}", &special()).unwrap();
    let extra = json!({"enable_thinking": false, "bos_token": "B", "messages": "no"}).as_object().cloned().unwrap();
    assert_eq!(template.render(&ChatInput { extra, ..input() }).unwrap(), "False B 2");
}

#[test]
fn refusals_say_why() {
    let check = |source: &str, want: &str| {
        let message = render(source).unwrap_err().to_string();
        assert!(message.contains(want), "{message}");
    };
    check("\n{{ raise_exception('roles must alternate') }}", "chat template failed: roles must alternate (line 2)");
    check("{% for %}", "chat template does not compile: ");
    check("{{ messages.foo.bar }}", "chat template failed: ");
    check("{{ messages|frobnicate }}", "filter frobnicate is unknown");
    check(&" ".repeat((256 << 10) + 1), "limit of 262144 bytes of source");
}

#[test]
fn hostile_templates_meet_a_limit() {
    let check = |source: &str| {
        let error = render(source).expect_err(source);
        let reasons = ["exceeds the limit of", "recursion limit", "a width in the format string is too large"];
        assert!(reasons.iter().any(|reason| error.to_string().contains(reason)), "{error}");
    };
    let looped = |setup: &str, step: &str| {
        format!("{{% set ns = namespace(x={setup}) %}}{{% for i in range(99) %}}{{% set ns.x = {step} %}}{{% endfor %}}")
    };
    let nested = |steps: u32, step: &str| {
        format!("{{% set ns = namespace(x=[1], y=[1]) %}}{{% for i in range({steps}) %}}{step}{{% endfor %}}")
    };
    check(&nested(99_999, "{% set ns.x = [ns.x] %}"));
    check(&nested(99_999, "{% set ns.x = {'a': ns.x} %}"));
    check(&nested(99_999, "{% set ns.x = namespace(a=ns.x) %}"));
    check(&(nested(99, "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}") + "{{ ns.x == ns.y }}"));
    check("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
    check("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == [] }}");
    check(
        "{% set ns = namespace(x='ab' * 9) %}{% for i in range(22) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% set l = ns.x | list %}",
    );
    check("{% set l = range(99999) | list %}{% for i in range(99999) %}{% set m = l | sort %}{% endfor %}");
    check("{% set l = range(99999) | list %}{% for i in range(99999) %}{% set m = l == l[1:] %}{% endfor %}");
    check("{% set l = range(99999) | list %}{% for i in range(99999) %}{% set m = -1 in l %}{% endfor %}");
    check(
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% set m = [l, l] | select('eq', l[1:]) | list %}{% endfor %}",
    );
    check("{% set l = range(99999) | list %}{% for i in range(99999) %}{% set m = [l, l] | map('sort') | list %}{% endfor %}");
    let constant = format!("[{}]", "1,".repeat(20_000));
    check(&format!("{{% do [].append(1) %}}{{% for i in range(999) %}}{{% set l = {constant} %}}{{% endfor %}}"));
    check("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
    check("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    check(&looped("'ab'", "ns.x ~ ns.x"));
    check(&looped("'ab'", "ns.x + ns.x"));
    check(&looped("[1, 2]", "ns.x + ns.x"));
    check(&looped("'ab'", "ns.x * 9"));
    check(&looped("'aa'", "ns.x.replace('a', ns.x)"));
    check(&looped("'aa'", "ns.x | replace('a', ns.x)"));
    check(&looped("'aa'", "ns.x.join([ns.x, ns.x, ns.x])"));
    check(&looped("'aa'", "[ns.x, ns.x] | join(ns.x)"));
    check(&looped("'aa'", "[ns.x, ns.x] | tojson"));
    check(&looped("'aa'", "ns.x | indent(99999999999)"));
    check("{{ '%99999999d' | format(1) }}");
    check("{{ '{:99999999}'.format(1) }}");
    check("{{ 'a' * 99999999 }}");
    check("{{ ('a' * 1000) * 1000 }}");
    check("{{ 'a' * 1000 * 1000 }}");
    check("{{ 1000 * 1000 * ('a') }}");
    check("{{ [[1] * 99999] * 99999 }}");
    check("{{ (messages ~ 'x') * 99999999 }}");
    check(&format!("{{{{ 1{} }}}}", " + 1".repeat(20_000)));
    check(&format!("{{{{ x{} }}}}", "|string".repeat(20_000)));
    check(&format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)));
    check(&format!("{{{{ {}1 }}}}", "not ".repeat(20_000)));
    check(&format!("{}{}", "{% if a %}".repeat(9_000), "{% endif %}".repeat(9_000)));
    check(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(9_000)));
    check(&format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "raw text ".repeat(20_000)));
}

#[test]
fn the_template_of_a_folder_is_found() {
    let check = |config: &str, file: Option<&str>, name: Option<&str>, want: std::result::Result<Option<&str>, &str>| {
        let files = TokenizerFiles { tokenizer_config: Some(config.as_bytes()), chat_template: file, ..TokenizerFiles::default() };
        let got = ChatTemplate::from_files(&files, &special(), name).map_err(|e| e.to_string());
        let got = got.as_ref().map(|t| t.as_ref().map(ChatTemplate::source)).map_err(String::as_str);
        assert_eq!(got, want, "{config} {name:?}");
    };
    let several = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}"#;
    check("{}", None, None, Ok(None));
    check(r#"{"chat_template": "A"}"#, None, None, Ok(Some("A")));
    check(r#"{"chat_template": "A"}"#, Some("J"), None, Ok(Some("J")));
    check(several, None, None, Ok(Some("D")));
    check(several, None, Some("tool_use"), Ok(Some("T")));
    check(several, None, Some("rag"), Err("no chat template is named \"rag\" (found: default, tool_use)"));
    check("3", None, None, Err("tokenizer_config.json: expected a JSON object"));
}

#[test]
fn templates_change_the_lists_that_they_make() {
    let check = |source: &str, want: &str| assert_eq!(render(source).unwrap(), want, "{source}");
    check(
        "{% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.role) %}{% endfor %}\
         {{ ns.ids }} {{ ns.ids | length }} {{ ns.ids[-1] }} {{ ns.ids.pop(0) }} {{ ns.ids }} {{ 'user' in ns.ids }}",
        "['user', 'assistant'] 2 assistant user ['assistant'] False",
    );
    // Each evaluation of a literal makes a new list.
    check(
        "{% for m in messages %}{% set l = ['a'] %}{% do l.append(m.role) %}{{ l | tojson }}{% endfor %}",
        r#"["a", "user"]["a", "assistant"]"#,
    );
    check(
        "{% set l = [3] %}{% do l.extend([1, 2]) %}{% do l.insert(0, 9) %}{% do l.reverse() %}{% do l.remove(3) %}{{ l }}{{ l.pop() }}",
        "[2, 1, 9]9",
    );
    check(
        "{% set l = messages[1:] + [] %}{% do l.append({'role': 'x'}) %}{% for m in l %}{{ m.role }} {% endfor %}",
        "assistant x ",
    );
    check("{% set l = messages | list %}{% if l %}{% do l.clear() %}{% endif %}{{ l == [] and not l }}", "True");
    // A list that becomes an item is copied.
    check(
        "{% set a = [] %}{% set b = [a] %}{% do a.append({'b': b}) %}{% do b.append(a) %}{{ a }} {{ b }}",
        "[{'b': [[]]}] [[{'b': [[]]}], [{'b': [[]]}]]",
    );
    for source in [
        "{% do messages.append(1) %}",
        "{% set l = [] %}{% do l.pop() %}",
        "{% set l = [[]] %}{% set _ = [].append(1) %}{% do l.append() %}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
    let grows = "{% set l = [1] %}{% for _ in range(40) %}{% do l.extend(l + l) %}{% endfor %}";
    assert!(matches!(render(grows), Err(Error::TemplateLimit { .. })));
    let deep = "{% set ns = namespace(l=[]) %}{% for _ in range(1000) %}{% set n = [] %}{% do n.append(ns.l) %}{% set ns.l = n %}{% endfor %}";
    assert!(matches!(render(deep), Err(Error::TemplateLimit { .. })));
}

#[test]
fn tools_reach_templates_under_other_names() {
    let chat = |source: &str, tools: Option<Vec<Json>>| {
        let template = ChatTemplate::new(source, &special()).unwrap();
        template.render(&ChatInput { tools, ..input() }).unwrap()
    };
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let source = "{{ 'F:' + functions }} {{ 'T:' + datetime }}";
    assert_eq!(chat(source, Some(vec![tool.clone()])), "F:[\n    {\n        \"name\": \"f\"\n    }\n] T:2023-11-14 22:13:20");
    assert_eq!(chat(source, None), "F: T:2023-11-14 22:13:20");
    assert_eq!(chat("{% if xml_tools %}{{ xml_tools[0].function.name }}{% endif %}", Some(vec![tool.clone()])), "f");
    // A template that reads `tools` gets nothing else.
    assert_eq!(chat("{{ tools[0].function.name }}{{ functions is defined }}", Some(vec![tool])), "fFalse");
}
