//! Tokenizers in other forms than `tokenizer.json`, held against the packages of these forms, and
//! damaged ones.

use flambeau_text::Tokenizer;
use proptest::prelude::*;
use serde_json::Value;

const FILES: [(&str, &[u8]); 4] = [
    ("prefix.model", include_bytes!("data/prefix.model")),
    ("plain.model", include_bytes!("data/plain.model")),
    ("llama3.model", include_bytes!("data/llama3.model")),
    ("tekken.json", include_bytes!("data/tekken.json")),
];

fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|(found, _)| *found == name).unwrap().1
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_model_file(file(name)).unwrap()
}

#[test]
fn every_form_gives_the_ids_of_its_package() {
    let expected: Value = serde_json::from_str(include_str!("data/expected.json")).unwrap();
    for (name, _) in FILES {
        let tokenizer = tokenizer(name);
        let texts = expected["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        for (text, want) in texts.zip(expected["ids"][name].as_array().unwrap()) {
            let want: Vec<u32> = want.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let found = tokenizer.encode(text, false).unwrap();
            assert_eq!(found, want, "{name}, {text:?}");
            assert_eq!(tokenizer.decode(&found, true).unwrap(), text, "{name}");
        }
    }
}

#[test]
fn the_tokenizer_json_that_is_written_is_the_same_tokenizer() {
    for (name, _) in FILES {
        let first = tokenizer(name);
        let again = Tokenizer::from_json(&first.to_json().unwrap()).unwrap();
        let text = "The old river <s> [INST] 42 世界";
        assert_eq!(first.encode(text, true).unwrap(), again.encode(text, true).unwrap(), "{name}");
    }
}

#[test]
fn special_tokens_have_their_roles() {
    let llama = tokenizer("llama3.model");
    let first = llama.token_to_id("<|begin_of_text|>").unwrap();
    assert_eq!((llama.bos_id(), llama.eos_ids()), (Some(first), &[first + 1, first + 8, first + 9][..]));
    assert_eq!(llama.token_to_id("<|reserved_special_token_247|>"), Some(first + 255));
    assert_eq!(llama.encode("<|eot_id|>", true).unwrap(), [first, first + 9]);
    let tekken = tokenizer("tekken.json");
    assert_eq!((tekken.bos_id(), tekken.eos_ids(), tekken.token_to_id("[INST]")), (Some(1), &[2][..], Some(3)));
    assert_eq!(tekken.encode("[/INST]", true).unwrap(), [1, 4]);
    let plain = tokenizer("plain.model");
    assert_eq!((plain.bos_id(), plain.eos_ids()), (Some(1), &[2][..]));
    assert_eq!(plain.encode("<start_of_turn>", false).unwrap().len(), 1);
}

/// The file with `from` replaced once.
fn replaced(name: &str, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(file(name).to_vec()).unwrap();
    assert!(text.contains(from), "{name} has no {from}");
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn complaints_name_form_and_place() {
    let check = |bytes: &[u8], want: &str| {
        let found = Tokenizer::from_model_file(bytes).unwrap_err().to_string();
        assert!(found.contains(want), "{found:?} does not say {want:?}");
    };
    check(b"", "tiktoken tokenizer: expected a token for each byte, found none for 0x0");
    check(b"IQ== 0\nIQ== 1\n", "tiktoken tokenizer: token 1: it is listed twice");
    check(b"IQ== 0\nIg== 2\n", "tiktoken tokenizer: token 1: expected ranks in order");
    check(b"IQ== 0\nnothing\n", "tiktoken tokenizer: line 2");
    check(b"{}", "tekken tokenizer: missing field");
    check(
        &replaced("tekken.json", "\"default_num_special_tokens\": 30", "\"default_num_special_tokens\": 3"),
        "as many ranks as there are",
    );
    check(&replaced("tekken.json", "\"rank\": 7,", "\"rank\": 8,"), "token 7: expected ranks in order");
    check(&replaced("tekken.json", "\"AA==\"", "\"AA=\""), "token 0: expected base64");
    let whole = file("plain.model");
    check(&whole[..whole.len() - 1], "SentencePiece tokenizer: byte");
    check(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the field passes the end");
    // A piece alone: the default settings mean unigrams.
    check(b"\x0a\x03\x0a\x01a", "SentencePiece tokenizer: expected BPE");
}

#[test]
fn no_prefix_panics() {
    for (_, bytes) in FILES {
        for end in (0..bytes.len()).step_by(61) {
            let _any = Tokenizer::from_model_file(&bytes[..end]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_mutation_panics(which in 0..FILES.len(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = FILES[which].1.to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(tokenizer) = Tokenizer::from_model_file(&bytes) {
            let _any = tokenizer.encode("The river.", true);
        }
    }
}
