//! Vocabulary files of early releases give the tokens that transformers gives.

use flambeau_text::{Tokenizer, TokenizerFiles, tokenizer_files};
use serde_json::{Map, Value};

fn cases() -> Value {
    serde_json::from_slice(include_bytes!("data/vocabulary.json")).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The tokenizer of a folder with these files.
fn converted(files: &Map<String, Value>) -> Tokenizer {
    let made = tokenizer_files(&|name| files.get(name).and_then(Value::as_str).map(str::as_bytes)).unwrap().unwrap();
    let files =
        TokenizerFiles { tokenizer: &made.tokenizer, tokenizer_config: Some(&made.tokenizer_config), ..TokenizerFiles::default() };
    Tokenizer::from_files(&files).unwrap()
}

#[test]
fn tokens_are_those_of_transformers() {
    let all = cases();
    let texts: Vec<&str> = all["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for case in all["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let tokenizer = converted(case["files"].as_object().unwrap());
        for (text, expected) in texts.iter().zip(case["ids"].as_array().unwrap()) {
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids(expected), "{name}: {text:?}");
        }
        assert_eq!(tokenizer.encode_pair("the", "fox").unwrap().0, ids(&case["pair"]), "{name}");
        assert_eq!(tokenizer.special().eos.as_deref(), case["eos"].as_str(), "{name}");
    }
}

#[test]
fn damaged_and_unknown_vocabularies_are_refused() {
    let refusal = |files: &[(&str, &str)]| {
        let made = tokenizer_files(&|name| files.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_bytes()));
        made.map(|made| made.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(refusal(&[]), Ok(false));
    assert_eq!(refusal(&[("vocab.json", "{}"), ("config.json", r#"{"model_type": "gpt2"}"#)]), Ok(false));
    let merges = [("vocab.json", r#"{"a": 0}"#), ("merges.txt", "")];
    for (more, expected) in [
        (("config.json", r#"{"model_type": "whisper"}"#), "whisper"),
        (("tokenizer_config.json", r#"{"tokenizer_class": "CLIPTokenizer"}"#), "CLIPTokenizer"),
        (
            ("tokenizer_config.json", r#"{"tokenizer_class": "BertTokenizerFast"}"#),
            "vocab.json and merges.txt of BertTokenizerFast",
        ),
        (("vocab.json", "[]"), "vocab.json"),
    ] {
        let error = refusal(&[more, merges[0], merges[1]]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // Tokens around texts must exist.
    let bert = [("vocab.txt", "[UNK]\na"), ("config.json", r#"{"model_type": "bert"}"#)];
    assert_eq!(refusal(&bert), Ok(true));
    let nothing = [bert[0], bert[1], ("tokenizer_config.json", r#"{"cls_token": null}"#)];
    assert!(refusal(&nothing).unwrap_err().contains("cls_token"));
}
