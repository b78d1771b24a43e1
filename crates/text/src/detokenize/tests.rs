use proptest::prelude::*;

use crate::{Tokenizer, TokenizerFiles};

fn load(json: &[u8]) -> Tokenizer {
    Tokenizer::from_files(&TokenizerFiles { tokenizer: json, ..TokenizerFiles::default() }).unwrap()
}

fn byte_level() -> Tokenizer {
    load(include_bytes!("../../fixtures/byte_level.json"))
}

fn sentence_piece() -> Tokenizer {
    load(include_bytes!("../../fixtures/sentence_piece.json"))
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream(false);
    let mut out: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    out.push(stream.finish().unwrap());
    out
}

/// The tokenizer library's own result for the same file.
fn library(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let inner = tokenizers::Tokenizer::from_bytes(tokenizer.to_json().unwrap()).unwrap();
    inner.decode(ids, false).unwrap()
}

#[test]
fn kept_special_tokens_are_text() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let special: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let [kept, dropped, ..] = special[..] else { panic!("two special tokens") };
        let mut stream = tokenizer.stream(true).including(&[kept]);
        let text = [dropped, kept, dropped].map(|id| stream.push(id).unwrap()).concat();
        assert_eq!(text + &stream.finish().unwrap(), tokenizer.id_to_token(kept).unwrap());
    }
}

#[test]
fn no_half_character_is_shown() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let text = "x 🦀∑ y";
        let ids = tokenizer.encode(text, false).unwrap();
        let got = pieces(&tokenizer, &ids);
        assert!(got.iter().all(|piece| !piece.contains('\u{FFFD}')), "{got:?}");
        assert!(got.iter().filter(|piece| piece.is_empty()).count() >= 3, "{got:?}");
        assert_eq!(got.concat(), text);
    }
}

#[test]
fn only_the_first_space_of_a_text_is_dropped() {
    let tokenizer = sentence_piece();
    let ids = tokenizer.encode("the the", false).unwrap();
    let twice: Vec<u32> = ids.iter().chain(&ids).copied().collect();
    assert_eq!(pieces(&tokenizer, &twice).concat(), "the the the the");
}

#[test]
fn an_unfinished_character_comes_out_at_the_end() {
    let check = |tokenizer: &Tokenizer, first: &str, want: &str| {
        let id = tokenizer.token_to_id(first).unwrap();
        assert_eq!(pieces(tokenizer, &[id]), ["", want]);
    };
    check(&byte_level(), "ð", "\u{FFFD}");
    check(&sentence_piece(), "<0xF0>", "\u{FFFD}");
}

#[test]
fn other_decoders_stream_too() {
    let tokenizer = load(include_bytes!("../../fixtures/word_piece.json"));
    let check = |text: &str| {
        let ids = tokenizer.encode(text, false).unwrap();
        let got = pieces(&tokenizer, &ids);
        assert_eq!(got.concat(), tokenizer.decode(&ids, false).unwrap(), "{got:?}");
        assert!(got.iter().filter(|piece| !piece.is_empty()).count() > ids.len() / 2, "{got:?}");
    };
    check("the quick brown fox");
    check("hello tokens in the world");
}

#[test]
fn unknown_ids_give_no_text() {
    assert_eq!(byte_level().decode(&[9999, u32::MAX], false).unwrap(), "");
    assert_eq!(pieces(&byte_level(), &[9999, u32::MAX]), ["", "", ""]);
}

proptest! {
    #[test]
    fn byte_level_stream_equals_the_library(ids in prop::collection::vec(0u32..380, 0..40)) {
        let tokenizer = byte_level();
        let joined = pieces(&tokenizer, &ids).concat();
        prop_assert_eq!(&joined, &library(&tokenizer, &ids));
        prop_assert_eq!(joined, tokenizer.decode(&ids, false).unwrap());
    }

    #[test]
    fn sentence_piece_stream_equals_the_library_where_bytes_are_text(
        parts in prop::collection::vec(prop_oneof![any::<char>().prop_map(Ok), (259u32..400).prop_map(Err)], 0..30),
    ) {
        let tokenizer = sentence_piece();
        let mut ids = Vec::new();
        for part in parts {
            match part {
                Ok(c) => {
                    let mut bytes = [0; 4];
                    ids.extend(c.encode_utf8(&mut bytes).bytes().map(|b| 3 + u32::from(b)));
                }
                Err(id) => ids.push(id),
            }
        }
        prop_assert_eq!(pieces(&tokenizer, &ids).concat(), library(&tokenizer, &ids));
    }
}
