use serde_json::Value;

use super::*;

const EXPECTED: &str = include_str!("../../fixtures/expected.json");

fn fixture(name: &str) -> &'static [u8] {
    match name {
        "byte_level" => include_bytes!("../../fixtures/byte_level.json"),
        "sentence_piece" => include_bytes!("../../fixtures/sentence_piece.json"),
        _ => include_bytes!("../../fixtures/word_piece.json"),
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn ids_and_text_are_those_of_the_reference() {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    for (name, wanted) in expected.as_object().unwrap() {
        let tokenizer = Tokenizer::from_json(fixture(name)).unwrap();
        assert_eq!(tokenizer.vocab_size() as u64, wanted["vocab_size"].as_u64().unwrap(), "{name}");
        for row in wanted["rows"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(plain, ids(&row["ids"]), "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&row["ids_special"]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&plain, false).unwrap(), row["decoded"].as_str().unwrap(), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&plain, true).unwrap(), row["decoded_skip"].as_str().unwrap(), "{name}: {text:?}");
        }
    }
}

#[test]
fn writing_and_reading_again_changes_nothing() {
    for name in ["byte_level", "sentence_piece", "word_piece"] {
        let first = Tokenizer::from_json(fixture(name)).unwrap();
        let bytes = first.to_json().unwrap();
        let second = Tokenizer::from_json(&bytes).unwrap();
        assert_eq!(second.to_json().unwrap(), bytes, "{name}");
        let text = "It's a test: 你好 42";
        assert_eq!(first.encode(text, true).unwrap(), second.encode(text, true).unwrap(), "{name}");
    }
}

#[test]
fn roles_of_special_tokens_come_from_the_files_or_are_guessed() {
    let alone = Tokenizer::from_json(fixture("byte_level")).unwrap();
    assert_eq!((alone.bos_id(), alone.eos_ids()), (None, [2, 0].as_slice()));
    let files = TokenizerFiles {
        tokenizer: fixture("byte_level"),
        tokenizer_config: Some(br#"{"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}"#),
        generation_config: Some(br#"{"eos_token_id": [0, 2]}"#),
        ..TokenizerFiles::default()
    };
    let tokenizer = Tokenizer::from_files(&files).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(1), [0, 2].as_slice()));
    assert!(tokenizer.is_eos(2) && tokenizer.is_special(1) && !tokenizer.is_special(40));
    assert_eq!(tokenizer.with_eos_ids([7, 7]).eos_ids(), [7]);
}

#[test]
fn plain_text_cannot_smuggle_special_tokens() {
    let tokenizer = Tokenizer::from_json(fixture("byte_level")).unwrap();
    let text = "a<|im_end|>b";
    assert!(tokenizer.encode(text, false).unwrap().contains(&2));
    let plain = tokenizer.encode_plain(text).unwrap();
    assert!(!plain.contains(&2));
    assert_eq!(tokenizer.decode(&plain, true).unwrap(), text);
}

#[test]
fn settings_for_training_are_ignored() {
    let mut json: Value = serde_json::from_slice(fixture("byte_level")).unwrap();
    json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 1000}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    json["model"]["dropout"] = serde_json::json!(1.0);
    let changed = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    let plain = Tokenizer::from_json(fixture("byte_level")).unwrap();
    let text = "The quick brown fox";
    assert_eq!(changed.encode(text, true).unwrap(), plain.encode(text, true).unwrap());
}

#[test]
fn damaged_files_are_errors() {
    let check = |bytes: &[u8]| {
        let error = Tokenizer::from_json(bytes).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer cannot be loaded: "), "{error}");
    };
    check(b"");
    check(b"{}");
    check(br#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","c"]]}}"#);
    check(br#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}}"#);
    let whole = fixture("sentence_piece");
    for at in (0..whole.len()).step_by(97) {
        check(&whole[..at]);
    }
}

#[test]
fn regular_expressions_are_few_and_short() {
    let with = |patterns: &[String]| {
        let split = |regex: &String| serde_json::json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let mut json: Value = serde_json::from_slice(fixture("byte_level")).unwrap();
        json["pre_tokenizer"] =
            serde_json::json!({"type": "Sequence", "pretokenizers": patterns.iter().map(split).collect::<Vec<_>>()});
        json["model"]["vocab"]["Regex"] = json["model"]["vocab"].as_object().unwrap().len().into();
        Tokenizer::from_json(json.to_string().as_bytes()).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(with(&vec!["a{2,}".to_owned(); 16]), Ok(()));
    for patterns in [vec!["a".to_owned(); 17], vec!["a".repeat(5000)]] {
        assert!(with(&patterns).unwrap_err().contains("at most 16 regular expressions"));
    }
}
