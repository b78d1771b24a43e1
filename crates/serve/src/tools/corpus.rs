//! Tests every format with calls as its models write them: the writer, the parser for text in
//! pieces of several sizes, and the grammar.

use flambeau::text::{GrammarCompiler, Tokenizer};
use serde_json::{Map, Value as Json, json};

use super::{
    ControlTokens, Parser, Tools,
    format::{Format, Head},
    table::FORMATS,
    tests::folded,
    write::Call,
};

fn tools() -> Tools {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "days": { "type": "integer" },
            "options": { "type": "object" },
            "strict": { "type": "boolean" },
            "unit": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            "mode": { "$ref": "#/$defs/mode" },
        },
        "$defs": { "mode": { "enum": ["slow", "fast"] } },
    });
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    Tools::read(&[tool("get_weather"), tool("get"), tool("now")]).unwrap()
}

fn call(name: &str, arguments: Json) -> Call {
    let Json::Object(arguments) = arguments else { panic!("arguments are an object") };
    Call { name: name.to_owned(), id: "012345678".to_owned(), arguments }
}

/// Text and calls of an answer that arrives in these pieces, and whether it ends inside a call.
fn read<'a>(row: &'static Format, pieces: impl Iterator<Item = &'a str>) -> (String, Vec<(String, String)>, bool) {
    let (mut parser, mut out) = (Parser::new(row, tools(), 0, false), Vec::new());
    pieces.for_each(|piece| parser.push(piece, &mut out));
    let cut = parser.is_in_call();
    parser.finish(&mut out);
    let (text, calls) = folded(out);
    (text, calls, cut)
}

/// Parses a text as a whole, by characters, and in pieces of three. All results must be equal.
fn read_each_way(row: &'static Format, text: &str) -> (String, Vec<(String, String)>, bool) {
    let whole = read(row, std::iter::once(text));
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    for step in [1, 3] {
        let cuts: Vec<usize> = ends.iter().copied().step_by(step).chain([text.len()]).collect();
        let found = read(row, cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]));
        assert_eq!(found, whole, "{} in pieces of {step}: {text}", row.name);
    }
    whole
}

fn parsed(calls: &[(String, String)]) -> Vec<(&str, Json)> {
    let json = |text: &String| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    calls.iter().map(|(name, arguments)| (name.as_str(), json(arguments))).collect()
}

fn check(row: &'static Format, before: &str, calls: &[Call]) {
    let text = format!("{before}{}", row.write(calls));
    let (found, read, cut) = read_each_way(row, &text);
    let expected: Vec<(&str, Json)> = calls.iter().map(|call| (call.name.as_str(), call.arguments.clone().into())).collect();
    assert_eq!((found.as_str(), parsed(&read), cut), (before.trim_end(), expected, false), "{}: {text}", row.name);
}

#[test]
fn one_call_is_read() {
    for row in FORMATS {
        check(row, "", &[call("get_weather", json!({ "city": "Ulm", "days": 3, "strict": true }))]);
        check(row, "", &[call("get", json!({ "city": "Ulm" }))]);
        check(row, "", &[call("now", json!({}))]);
        check(row, "", &[call("now", json!({ "unit": null, "mode": "slow" }))]);
    }
}

#[test]
fn every_way_to_begin_a_call_is_read() {
    let one = [call("get_weather", json!({ "city": "Ulm" }))];
    for row in FORMATS {
        let usual = row.write(&one);
        let (middles, name) = match &row.head {
            Head::Name(middles, _) => (*middles, "get_weather"),
            Head::Object(_) => (&[""][..], ""),
        };
        let begun = format!("{}{}{name}{}", row.section.0, row.open[0], middles[0]).replace(super::marker::ID, "012345678");
        let rest = usual.strip_prefix(&begun).unwrap_or_else(|| panic!("{}: {usual}", row.name));
        for (open, middle) in row.open.iter().flat_map(|open| middles.iter().map(move |middle| (open, middle))) {
            let text = format!("{}{open}{name}{middle}{rest}", row.section.0).replace(super::marker::ID, "7");
            let (_, calls, _) = read_each_way(row, &text);
            assert_eq!(parsed(&calls), [("get_weather", json!({ "city": "Ulm" }))], "{}: {text}", row.name);
        }
        if row.omits_section {
            let bare = usual.strip_prefix(row.section.0).and_then(|text| text.strip_suffix(row.section.1)).unwrap();
            assert_eq!(parsed(&read_each_way(row, bare).1).len(), 1, "{}: {bare}", row.name);
        }
    }
}

#[test]
fn several_calls_are_read() {
    for row in FORMATS {
        let three = [call("get_weather", json!({ "city": "Ulm" })), call("now", json!({})), call("get", json!({ "days": 2 }))];
        check(row, "", &three);
    }
}

#[test]
fn nested_arguments_are_read() {
    for row in FORMATS {
        let options = json!({ "units": ["C", "F"], "range": { "from": 1, "to": [2, { "deep": null }] }, "text": "a, b" });
        check(row, "", &[call("get_weather", json!({ "options": options, "days": -4 }))]);
    }
}

#[test]
fn quotes_and_line_breaks_are_read() {
    for row in FORMATS {
        let city = "say \"hi\",\n'it' \\ {is} [so] <b>é🦀</b> a=b: c";
        check(row, "", &[call("get_weather", json!({ "city": city, "days": 1 })), call("get", json!({ "city": "\n\"\n" }))]);
    }
}

#[test]
fn text_before_calls_stays_text() {
    for row in FORMATS.iter().filter(|row| !row.is_whole) {
        check(row, "Let me see: a < b [1] {x}.\n\n", &[call("get_weather", json!({ "city": "Ulm" }))]);
    }
}

#[test]
fn calls_of_unknown_functions_stay_text() {
    for row in FORMATS {
        let text = row.write(&[call("rm", json!({ "city": "Ulm" }))]);
        let (found, calls, _) = read_each_way(row, &text);
        assert_eq!((found.trim(), calls.len()), (text.trim(), 0), "{}", row.name);
    }
}

#[test]
fn calls_that_are_cut_off_lose_nothing_but_their_end() {
    for row in FORMATS {
        let arguments = json!({ "city": "a \"b\"\nc", "days": 17 });
        let whole = row.write(&[call("get_weather", arguments.clone())]);
        for (end, _) in whole.char_indices() {
            let (text, calls, cut) = read_each_way(row, &whole[..end]);
            match &calls[..] {
                [] => assert_eq!((text.trim(), cut), (whole[..end].trim(), false), "{}", row.name),
                [(name, found)] => {
                    let begins = |whole: String| whole.replace(' ', "").starts_with(&found.replace(' ', ""));
                    assert!(text.is_empty() && name == "get_weather", "{}: {text}", row.name);
                    // The parser reports arguments that are not whole.
                    let is_whole = serde_json::from_str::<Json>(found).is_ok_and(|found| found == arguments);
                    let is_begun = begins(arguments.to_string()) || found.ends_with('}');
                    assert!(is_whole || (cut && is_begun), "{} at {end}: {found}", row.name);
                }
                more => panic!("{more:?}"),
            }
        }
    }
}

#[test]
fn any_text_reads_the_same_in_any_pieces() {
    let mut random = fastrand::Rng::with_seed(7);
    for row in FORMATS {
        let mut parts = row.texts();
        parts.extend([
            "get",
            "get_weather",
            "{",
            "}",
            "\"name\"",
            "\"get\"",
            ": ",
            "\"arguments\"",
            "city",
            "=",
            "'",
            "(",
            ")",
            "\n",
            " ",
            "é",
            "</",
            ",",
        ]);
        for _ in 0..60 {
            let text: String = (0..random.usize(1..14)).map(|_| parts[random.usize(..parts.len())]).collect();
            read_each_way(row, &text);
        }
        // A call with pieces left out.
        let whole = row.write(&[call("get_weather", json!({ "city": "a\nb", "days": 3 })), call("now", json!({}))]);
        for _ in 0..40 {
            let kept: String = whole.split_inclusive(['>', '|', '"', '\n']).filter(|_| random.u8(..) > 25).collect();
            read_each_way(row, &kept);
        }
    }
}

#[test]
fn every_format_reads_its_own_calls_best() {
    let text = |row: &Format| row.write(&[call("get_weather", json!({ "city": "Ulm", "days": 3 }))]);
    for row in FORMATS {
        let (left, ..) = read_each_way(row, &text(row));
        assert!(left.is_empty(), "{} leaves {left:?}", row.name);
    }
    let names: std::collections::BTreeSet<&str> = FORMATS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), FORMATS.len());
}

/// A tokenizer of single characters, and of some markers as control tokens.
fn tokenizer(control: &[&str], texts: &str) -> Tokenizer {
    let mut words: Vec<String> = texts.chars().map(String::from).collect();
    words.extend(('\u{20}'..'\u{7f}').map(String::from));
    words.push("\n".to_owned());
    words.sort();
    words.dedup();
    let first = words.len();
    words.extend(control.iter().chain(&["</s>"]).map(|word| (*word).to_owned()));
    let vocab: Map<String, Json> = words.iter().enumerate().map(|(id, word)| (word.clone(), id.into())).collect();
    let added = |(number, word): (usize, &String)| {
        json!({
            "id": first + number, "content": word, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": words[first..].iter().enumerate().map(added).collect::<Vec<_>>(),
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": " " },
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

/// Whether the grammar of a format takes a text, with these markers as control tokens; where it
/// stops if it does not.
fn takes(row: &'static Format, control: &[&str], only: Option<&str>, text: &str) -> Result<(), String> {
    let tokenizer = tokenizer(control, text);
    let rules = tools().grammar(row, &ControlTokens::of(&tokenizer), only, false);
    // The prompt has the marker of the first call.
    let text = text.strip_prefix(row.leads).unwrap_or(text);
    follows(&tokenizer, control, &format!("start: calls\n{rules}"), text)
}

/// Whether a grammar takes a text.
fn follows(tokenizer: &Tokenizer, control: &[&str], rules: &str, text: &str) -> Result<(), String> {
    let compiler = GrammarCompiler::new(tokenizer, tokenizer.eos_ids()).map_err(|error| error.to_string())?;
    let mut constraint = compiler.lark(rules.to_owned()).map_err(|error| format!("{error} in {rules}"))?;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let marker = control.iter().find(|marker| rest.starts_with(**marker));
        let word = marker.map_or_else(|| first.to_string(), |marker| (*marker).to_owned());
        let id = tokenizer.token_to_id(&word).unwrap();
        constraint.accept(id).map_err(|_| format!("before {rest:?}: {rules}"))?;
        rest = &rest[word.len()..];
    }
    let mut logits = vec![0.0; tokenizer.vocab_size()];
    constraint.mask(&mut logits).map_err(|error| error.to_string())?;
    let end = tokenizer.eos_ids()[0] as usize;
    if logits[end] == 0.0 { Ok(()) } else { Err(format!("does not end: {rules}")) }
}

#[test]
fn grammars_take_what_models_write() {
    for row in FORMATS {
        let calls = [
            call("get_weather", json!({ "city": "say \"hi\",\nyou", "days": 3, "options": { "a": [1, "x"] } })),
            call("get", json!({ "city": "Ulm", "unit": "degrees \"C\"", "mode": "fast" })),
        ];
        check(row, "", &calls);
        let text = row.write(&calls);
        takes(row, &[], None, &text).unwrap_or_else(|error| panic!("{}: {text}\n{error}", row.name));
        let named = row.write(&calls[1..]);
        takes(row, &[], Some("get"), &named).unwrap_or_else(|error| panic!("{}: {named}\n{error}", row.name));
        assert!(takes(row, &[], Some("get"), &text).is_err(), "{} takes another function", row.name);
    }
}

#[test]
fn grammars_name_control_tokens() {
    let by_name = |name: &str| FORMATS.iter().find(|row| row.name == name).unwrap();
    for (name, control) in [
        ("mistral", &["[TOOL_CALLS]", "[ARGS]"][..]),
        ("mistral-array", &["[TOOL_CALLS]"]),
        ("hermes", &["<tool_call>", "</tool_call>"]),
        ("kimi-k2", &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"]),
        ("gemma-4", &["<|tool_call>", "<tool_call|>", "<|\"|>"]),
        ("kimi-k3", &["<|open|>", "<|close|>", "<|sep|>"]),
        ("glm", &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]),
    ] {
        let row = by_name(name);
        let text = row.write(&[call("get", json!({ "city": "Ulm", "days": 3 }))]);
        takes(row, control, None, &text).unwrap_or_else(|error| panic!("{name}: {text}\n{error}"));
    }
}

#[test]
fn thoughts_come_before_calls() {
    let row = FORMATS.iter().find(|row| row.name == "mistral").unwrap();
    let text = format!("so [be] it</think>\n\n{}", row.write(&[call("get", json!({ "city": "Ulm" }))]));
    for control in [&[][..], &["</think>", "[TOOL_CALLS]"]] {
        let tokenizer = tokenizer(control, &text);
        let tokens = ControlTokens::of(&tokenizer);
        let rules = tools().grammar(row, &tokens, None, true);
        let rules = format!("start: thoughts calls\n{rules}{}", tokens.thoughts("</think>"));
        follows(&tokenizer, control, &rules, &text).unwrap();
        assert!(follows(&tokenizer, control, &rules, "so</think>yes").is_err());
    }
}

/// Whether the grammar of a call of one tool with this schema takes these arguments, in their
/// order.
fn takes_arguments(row: &'static Format, schema: &Json, arguments: Json) -> Result<(), String> {
    let tool = json!({ "type": "function", "function": { "name": "get", "parameters": schema } });
    let tools = Tools::read(&[tool]).unwrap();
    let text = row.write(&[call("get", arguments)]);
    let tokenizer = tokenizer(&[], &text);
    let rules = tools.grammar(row, &ControlTokens::of(&tokenizer), None, true);
    follows(&tokenizer, &[], &format!("start: calls\n{rules}"), text.strip_prefix(row.leads).unwrap_or(&text))
}

#[test]
fn grammars_take_arguments_in_any_order() {
    let text = json!({ "type": "string" });
    let few = json!({
        "type": "object", "properties": { "a": text, "b": { "type": "integer" }, "c": text }, "required": ["b", "a"],
        "additionalProperties": false,
    });
    let names: Vec<String> = (0..8).map(|number| format!("k{number}")).collect();
    let properties: Map<String, Json> = names.iter().map(|name| (name.clone(), text.clone())).collect();
    let many = json!({ "type": "object", "properties": properties, "required": ["k1", "k6"], "additionalProperties": false });
    for row in FORMATS {
        let takes = |schema: &Json, arguments: Json| takes_arguments(row, schema, arguments);
        for arguments in [
            json!({ "a": "x", "b": 1, "c": "y" }),
            json!({ "c": "y", "b": 1, "a": "x" }),
            json!({ "b": 1, "a": "x" }),
            json!({ "a": "x", "c": "y", "b": 1 }),
        ] {
            takes(&few, arguments).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
        for arguments in [json!({ "a": "x", "c": "y" }), json!({}), json!({ "c": "y" })] {
            assert!(takes(&few, arguments.clone()).is_err(), "{} takes {arguments}", row.name);
        }
        // Many arguments have the schema's order.
        for arguments in [json!({ "k1": "x", "k6": "y" }), json!({ "k0": "a", "k1": "x", "k3": "b", "k6": "y", "k7": "z" })] {
            takes(&many, arguments).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
        assert!(takes(&many, json!({ "k0": "a", "k6": "y" })).is_err(), "{}", row.name);
    }
}

#[test]
fn grammars_obey_schemas_of_texts() {
    let schema = json!({
        "type": "object",
        "properties": {
            "code": { "type": "string", "pattern": "^[A-Z]{2}-\\d+$" },
            "unit": { "anyOf": [{ "enum": ["C", "F"] }, { "type": "null" }] },
            "size": { "type": "string", "minLength": 2, "maxLength": 3 },
            // Each fixes values of one of its types alone.
            "side": { "type": ["string", "null"], "enum": ["L", "R"] },
            "none": { "type": ["string", "null"], "enum": [null] },
        },
        "required": ["code", "unit", "size"], "additionalProperties": false,
    });
    let arguments = |code: &str, unit: Json, size: &str| json!({ "code": code, "unit": unit, "size": size });
    for row in FORMATS {
        let takes = |arguments: Json| takes_arguments(row, &schema, arguments);
        for good in
            [arguments("AB-12", json!("C"), "ab"), arguments("ZZ-0", json!("F"), "<<<"), arguments("AB-1", Json::Null, "a b")]
        {
            takes(good.clone()).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            let with = |key: &str, value: Json| {
                let mut more = good.clone();
                more[key] = value;
                takes(more)
            };
            with("side", json!("R")).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            with("none", Json::Null).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
        // Values between quotes of their own have any text beside another type.
        let is_quoted = matches!(&row.head, Head::Name(_, super::format::Arguments::Quoted(_)));
        for bad in [
            arguments("AB-", json!("C"), "ab"),
            arguments("ab-1", json!("C"), "ab"),
            arguments("AB-1", json!("K"), "ab"),
            arguments("AB-1", json!("C"), "a"),
            arguments("AB-1", json!("C"), "abcd"),
        ] {
            assert!(takes(bad.clone()).is_err() || is_quoted && bad["unit"] == "K", "{} takes {bad}", row.name);
        }
    }
}
