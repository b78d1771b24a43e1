use serde_json::Value;

use super::GgufVocab;
use crate::{Error, Tokenizer};

fn fixture(name: &str) -> (Value, Tokenizer) {
    let bytes: &[u8] = match name {
        "gpt2" => include_bytes!("../../fixtures/byte_level.json"),
        _ => include_bytes!("../../fixtures/sentence_piece.json"),
    };
    (serde_json::from_slice(bytes).unwrap(), Tokenizer::from_json(bytes).unwrap())
}

/// The metadata that a converter writes for the fixture.
fn metadata(model: &str) -> (GgufVocab, Tokenizer) {
    let (json, tokenizer) = fixture(model);
    let n = tokenizer.vocab_size() as u32;
    let tokens: Vec<String> = (0..n).map(|id| tokenizer.id_to_token(id).unwrap()).collect();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<String> = merges.map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap())).collect();
    let kind = |id: u32, token: &str| match (tokenizer.is_special(id), token.starts_with("<0x")) {
        (true, _) => 3,
        (_, true) => 6,
        _ => 1,
    };
    let token_types = (0..n).zip(&tokens).map(|(id, token)| kind(id, token)).collect();
    let pre = Some("smollm".to_owned());
    (
        GgufVocab { model: model.into(), pre, tokens, token_types, merges, bos: Some(1), eos: Some(2), ..GgufVocab::default() },
        tokenizer,
    )
}

const TEXTS: [&str; 5] = ["Hello world 2024", " the  lazy dog\n\tx", "你好 🙂 Ωμ", "<s>a</s>", "<|im_start|>it's<|im_end|>"];

#[test]
fn byte_level_metadata_gives_the_same_tokenizer() {
    let (vocab, original) = metadata("gpt2");
    let rebuilt = Tokenizer::from_gguf(&vocab).unwrap();
    for text in TEXTS {
        let ids = original.encode(text, false).unwrap();
        assert_eq!(rebuilt.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(rebuilt.decode(&ids, false).unwrap(), text);
    }
    assert_eq!((rebuilt.bos_id(), rebuilt.eos_ids(), rebuilt.vocab_size()), (Some(1), [2, 0].as_slice(), original.vocab_size()));
}

#[test]
fn sentence_piece_metadata_works_with_merges_and_with_scores() {
    let (mut vocab, original) = metadata("llama");
    vocab.unk = Some(0);
    let check = |vocab: &GgufVocab| {
        let rebuilt = Tokenizer::from_gguf(vocab).unwrap();
        for text in TEXTS {
            let ids = original.encode(text, true).unwrap();
            assert_eq!(rebuilt.encode(text, true).unwrap(), ids, "{text:?}");
            assert_eq!(rebuilt.decode(&ids, true).unwrap(), original.decode(&ids, true).unwrap(), "{text:?}");
        }
    };
    check(&vocab);
    let made: Vec<String> = vocab.merges.iter().map(|m| m.replace(' ', "")).collect();
    let rank = |token: &String| made.iter().position(|m| m == token).map_or(0.0, |rank| -(rank as f32) - 1.0);
    vocab.scores = vocab.tokens.iter().map(rank).collect();
    vocab.merges.clear();
    check(&vocab);
}

#[test]
fn user_defined_tokens_are_whole_but_not_skipped() {
    let (mut vocab, _) = metadata("gpt2");
    vocab.tokens.push("<tool>".into());
    vocab.token_types.push(4);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let ids = tokenizer.encode("<tool><|im_end|>", false).unwrap();
    assert_eq!(ids, [vocab.tokens.len() as u32 - 1, 2]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "<tool>");
}

#[test]
fn every_pre_tokenizer_builds_and_round_trips() {
    let (mut vocab, _) = metadata("gpt2");
    for kind in super::PRE_TOKENIZERS {
        for name in kind.names {
            vocab.pre = Some((*name).to_owned());
            let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
            for text in TEXTS {
                let ids = tokenizer.encode(text, false).unwrap();
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}");
            }
        }
    }
}

#[test]
fn begin_and_end_tokens_are_added_where_the_file_asks() {
    let (mut vocab, _) = metadata("gpt2");
    let check = |vocab: &GgufVocab, first: bool, last: bool| {
        let ids = Tokenizer::from_gguf(vocab).unwrap().encode("x", true).unwrap();
        assert_eq!((ids[0] == 1, ids[ids.len() - 1] == 2), (first, last));
    };
    check(&vocab, false, false);
    vocab.add_bos = Some(true);
    check(&vocab, true, false);
    vocab.add_eos = Some(true);
    check(&vocab, true, true);
}

#[test]
fn tokens_that_end_a_turn_end_answers() {
    let (mut vocab, _) = metadata("gpt2");
    vocab.tokens.extend(["<|eot_id|>".to_owned(), "<end_of_turn>".to_owned()]);
    // Some converters state them as ordinary text.
    vocab.token_types.extend([3, 1]);
    vocab.eos = Some(0);
    let n = vocab.tokens.len() as u32;
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.eos_ids(), [0, 2, n - 2, n - 1]);
    assert_eq!(tokenizer.encode("<end_of_turn>", false).unwrap(), [n - 1]);
    let files = crate::TokenizerFiles {
        tokenizer: &tokenizer.to_json().unwrap(),
        generation_config: Some(br#"{"eos_token_id": 0}"#),
        ..crate::TokenizerFiles::default()
    };
    assert_eq!(Tokenizer::from_files(&files).unwrap().eos_ids(), [0, 2, n - 2, n - 1]);
}

#[test]
fn names_of_pre_tokenizers_say_what_begins_a_sequence() {
    let (mut vocab, _) = metadata("gpt2");
    let mut begins = |pre: Option<&str>, stated: Option<bool>| {
        vocab.pre = pre.map(str::to_owned);
        vocab.add_bos = stated;
        Tokenizer::from_gguf(&vocab).unwrap().encode("x", true).unwrap()[0] == 1
    };
    assert!(begins(Some("tekken"), None) && begins(Some("lfm2"), None) && begins(Some("llama-bpe"), None));
    assert!(!begins(Some("lfm2"), Some(false)) && !begins(Some("qwen2"), None) && !begins(None, None));
}

#[test]
fn files_without_a_name_cut_marks_and_digits_off() {
    let (mut vocab, _) = metadata("gpt2");
    let mut words = |pre: Option<&str>, text: &str| {
        vocab.pre = pre.map(str::to_owned);
        let json: Value = serde_json::from_slice(&vocab.to_tokenizer_json().unwrap()).unwrap();
        let steps = json["pre_tokenizer"].to_string();
        let pre: tokenizers::PreTokenizerWrapper = serde_json::from_str(&steps).unwrap();
        let mut cut = tokenizers::PreTokenizedString::from(text);
        tokenizers::PreTokenizer::pre_tokenize(&pre, &mut cut).unwrap();
        let original = (tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        cut.get_splits(original.0, original.1).into_iter().map(|(_, (from, to), _)| text[from..to].to_owned()).collect::<Vec<_>>()
    };
    for pre in [None, Some(""), Some("default")] {
        assert_eq!(words(pre, "I'm 12345 you're"), ["I", "'", "m", " ", "123", "45", " you", "'", "re"]);
    }
    assert_eq!(words(Some("gpt-2"), "I'm 12345"), ["I", "'m", " 12345"]);
    assert_eq!(words(Some("superbpe"), "a 12345"), ["a ", "12", "345"]);
    assert_eq!(words(Some("afmoe"), "12345 x"), ["12", "345", " x"]);
    assert_eq!(
        words(Some("kimi-k2"), "don't 12345 \u{4f60}\u{597d}ab"),
        ["don't", " ", "123", "45", " ", "\u{4f60}\u{597d}", "ab"]
    );
    assert_eq!(words(Some("deepseek-llm"), "Gr\u{fc}n  12"), ["Gr", "\u{fc}", "n", "  ", "12"]);
    assert_eq!(words(Some("seed-coder"), "it's 12"), ["it", "'s", " ", "1", "2"]);
}

#[test]
fn prompts_do_not_end_in_what_ends_a_text() {
    let (mut vocab, _) = metadata("gpt2");
    (vocab.add_bos, vocab.add_eos) = (Some(true), Some(true));
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let whole = tokenizer.encode("Hello", true).unwrap();
    assert_eq!(tokenizer.encode_prompt("Hello").unwrap(), whole[..whole.len() - 1]);
    // An end that is spelled out stays.
    let spelled = tokenizer.encode("Hello<|im_end|>", false).unwrap();
    assert_eq!(tokenizer.encode_prompt("Hello<|im_end|>").unwrap()[1..], spelled);
}

#[test]
fn inconsistent_metadata_is_refused() {
    let check = |change: &dyn Fn(&mut GgufVocab), want: &str| {
        let mut vocab = metadata("gpt2").0;
        change(&mut vocab);
        let message = Tokenizer::from_gguf(&vocab).unwrap_err().to_string();
        assert!(message.contains(want), "{message}");
    };
    check(&|v| v.tokens.clear(), "expected 1 to 2^32 - 1 tokens, found 0");
    check(&|v| v.token_types.truncate(3), "as many entries in token_type");
    check(&|v| v.model = "rwkv".into(), "expected model gpt2, llama, gemma4, bert or t5, found \"rwkv\"");
    check(&|v| v.eos = Some(360), "eos token id is 360, expected less than 360");
    check(&|v| v.merges[1] = "ab".into(), "merge 1 is \"ab\", expected two pieces");
    check(&|v| v.merges[1] = "qq zz".into(), "is no token");
    check(&|v| (v.model, v.merges) = ("llama".into(), vec![]), "expected scores or merges");
    let mut vocab = metadata("gpt2").0;
    vocab.pre = Some("martian".into());
    assert!(matches!(Tokenizer::from_gguf(&vocab), Err(Error::UnknownPreTokenizer { found, .. }) if found == "martian"));
}

/// The vocabulary of a text encoder.
fn encoder(model: &str, tokens: &[&str], control: usize) -> GgufVocab {
    GgufVocab {
        model: model.into(),
        tokens: tokens.iter().map(|&token| token.into()).collect(),
        token_types: (0..tokens.len()).map(|id| if id < control { 3 } else { 1 }).collect(),
        cls: Some(0),
        sep: Some(1),
        unk: Some(2),
        ..GgufVocab::default()
    }
}

#[test]
fn word_pieces_are_marked_where_words_begin() {
    let vocab = encoder("bert", &["[CLS]", "[SEP]", "[UNK]", "\u{2581}the", "\u{2581}fox", "es", "\u{2581}."], 3);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.encode("The foxes.", true).unwrap(), [0, 3, 4, 5, 6, 1]);
    assert_eq!(tokenizer.encode("die", true).unwrap(), [0, 2, 1]);
    assert_eq!(tokenizer.encode_pair("the", "fox").unwrap(), (vec![0, 3, 1, 4, 1], vec![0, 0, 0, 1, 1]));
    assert_eq!(tokenizer.decode(&[3, 4, 5], true).unwrap(), "the foxes");
}

#[test]
fn unigrams_are_chosen_by_their_scores() {
    let tokens = ["<s>", "</s>", "<unk>", "\u{2581}the", "\u{2581}", "fox", "f", "ox", "es"];
    let scores = vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -1.0, -1.0, -1.0];
    let vocab = GgufVocab { scores, ..encoder("t5", &tokens, 3) };
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    // "f" and "ox" together score more than "fox".
    assert_eq!(tokenizer.encode("the  foxes", true).unwrap(), [0, 3, 4, 6, 7, 8, 1]);
    assert_eq!(tokenizer.encode_pair("the", "the").unwrap(), (vec![0, 3, 1, 1, 3, 1], vec![0; 6]));
    let unranked = GgufVocab { scores: Vec::new(), ..vocab };
    assert!(matches!(Tokenizer::from_gguf(&unranked), Err(Error::Gguf(crate::GgufFault::Unranked))));
}
