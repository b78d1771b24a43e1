//! Tests of GGUF files: the fixture written by the gguf package, and damaged copies.

use flambeau_pt2::Exported;
use flambeau_tensor::{Bytes, DType, Tensor, cast};
use flambeau_zoo::{Checkpoint, Logits, MethodConstant, Options, ScalePrecision, TokenizerSource, build, gguf::Gguf};
use proptest::prelude::*;

const TINY: &[u8] = include_bytes!("data/tiny.gguf");

fn tiny() -> Checkpoint {
    Checkpoint::from_gguf(Bytes::from_static(TINY)).unwrap()
}

fn values(t: &Tensor) -> Vec<f32> {
    cast(t, DType::F32).unwrap().aligned().as_slice::<f32>().unwrap().to_vec()
}

/// Reads every weight once and returns the total size in bytes.
fn read_all(exported: &Exported) -> Result<usize, flambeau_pt2::Error> {
    exported.weights.values().chain(exported.constants.values()).map(|w| w.tensor().map(|t| t.bytes().len())).sum()
}

#[test]
fn the_fixture_becomes_a_program_with_its_state_and_methods() {
    let model = build(&tiny(), &Options { prefill_chunk: Some(16), ..Options::default() }).unwrap();
    let exported = &model.methods["forward"];
    exported.graph.check().unwrap();
    let count = |op: &str| exported.graph.nodes.iter().filter(|n| n.target == format!("torch.ops.{op}")).count();
    let ops = [
        "aten.linear.default",
        "aten.embedding.default",
        "mlx.rope.default",
        "mlx.kv_cache_update.default",
        "mlx.custom_sdpa.default",
        "aten.rms_norm.default",
    ];
    assert_eq!(ops.map(count), [15, 1, 4, 4, 2, 5]);
    assert_eq!(
        count("flambeau.dequantize_packed.default"),
        1 + 14 - 2 + 1,
        "embedding and head, and all but one f16 and one bf16 matrix"
    );
    let logits = exported.graph.tensor(exported.graph.outputs[0].as_tensor().unwrap()).unwrap();
    assert_eq!((logits.dtype, format!("{:?}", logits.sizes)), (DType::BF16, "[1, 1, 32]".into()));
    assert_eq!(exported.constants["key_cache_1"].shape(), [1, 2, 128, 16]);
    assert_eq!(exported.ranges.values().copied().collect::<Vec<_>>(), [(Some(1), Some(16)), (Some(0), Some(127))]);
    let meta = |name: &str| model.metadata.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    assert_eq!(meta("get_max_seq_len"), Some(MethodConstant::Int(128)));
    assert_eq!(meta("get_prefill_chunk_size"), Some(MethodConstant::Int(16)));
    assert_eq!(meta("get_eos_ids"), Some(MethodConstant::Ints(vec![1])));
    read_all(exported).unwrap();
}

#[test]
fn all_positions_get_logits_where_asked() {
    let model = build(&tiny(), &Options { logits: Logits::All, dtype: Some(DType::F32), ..Options::default() }).unwrap();
    let logits = model.methods["forward"].graph.tensor(model.methods["forward"].graph.outputs[0].as_tensor().unwrap()).unwrap();
    assert_eq!((logits.dtype, format!("{:?}", logits.sizes)), (DType::F32, "[1, s0, 32]".into()));
}

#[test]
fn rotary_rows_come_back_in_their_own_order() {
    let model = build(&tiny(), &Options { dtype: Some(DType::F32), ..Options::default() }).unwrap();
    let weight =
        |name: &str| values(&model.methods["forward"].weights[&format!("model.layers.0.self_attn.{name}")].tensor().unwrap());
    let q = weight("q_proj.weight");
    assert!(q.chunks_exact(64).enumerate().all(|(r, row)| row.iter().all(|&v| v == r as f32)));
    // Each row of the k fixture holds one value, encoded by the largest code. Its scale therefore
    // identifies the value.
    let scales = weight("k_proj.weight.scales");
    assert!(scales.chunks_exact(2).enumerate().all(|(r, s)| (s[0] * 127.0 - r as f32).abs() < 0.05), "{scales:?}");
}

#[test]
fn scales_take_the_type_that_is_asked_for() {
    let check = |scales, want| {
        let model = build(&tiny(), &Options { scales, ..Options::default() }).unwrap();
        assert_eq!(model.methods["forward"].weights["model.embed_tokens.weight.scales"].dtype().dtype(), Some(want));
    };
    check(ScalePrecision::Exact, DType::F16);
    check(ScalePrecision::Activations, DType::BF16);
    check(ScalePrecision::F32, DType::F32);
}

#[test]
fn the_vocabulary_is_plain_data() {
    let checkpoint = tiny();
    let TokenizerSource::Gguf(vocab) = checkpoint.tokenizer() else { panic!("no vocabulary") };
    assert_eq!(
        (vocab.model.as_str(), vocab.pre.as_deref(), vocab.tokens.len(), vocab.token_types[0]),
        ("gpt2", Some("smollm"), 32, 3)
    );
    assert_eq!((&vocab.merges[1], vocab.bos, vocab.eos, vocab.add_bos), (&"t 2".to_owned(), Some(0), Some(1), Some(false)));
    assert_eq!(vocab.chat_template.as_deref(), Some("{{ messages }}"));
}

/// The fixture with `from` replaced by `to` of the same length.
fn replaced(from: &[u8], to: &[u8]) -> Bytes {
    assert_eq!(from.len(), to.len());
    let mut bytes = TINY.to_vec();
    let mut found = 0;
    for at in 0..bytes.len() - from.len() {
        if &bytes[at..at + from.len()] == from {
            bytes[at..at + to.len()].copy_from_slice(to);
            found += 1;
        }
    }
    assert!(found > 0);
    bytes.into()
}

#[test]
fn complaints_name_the_place_and_the_remedy() {
    let check = |bytes: Bytes, want: &str| {
        let error = Checkpoint::from_gguf(bytes).and_then(|c| build(&c, &Options::default())).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    check(replaced(b"GGUF", b"GGML"), "byte 0: expected the magic `GGUF`");
    check(replaced(b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03"), "big-endian");
    check(replaced(b"GGUF\x03", b"GGUF\x01"), "expected version 2 or 3, found 1");
    check(
        replaced(b"llama.block_count", b"llama.block_kount"),
        "key `llama.block_count`: expected the number of layers, from 1 on, found nothing",
    );
    check(
        replaced(b"llama.block_count\x04\0\0\0\x02", b"llama.block_count\x04\0\0\0\0"),
        "key `llama.block_count`: expected the number of layers, from 1 on, found 0",
    );
    check(
        replaced(b"\x05\0\0\0\0\0\0\0llama\x11", b"\x05\0\0\0\0\0\0\0gamma\x11"),
        "`gamma` is not supported: expected one of afmoe, apertus",
    );
    check(replaced(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"), "tensor `blk.1.ffn_up.weight` is missing");
    check(replaced(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"), "tensor `blk.0.ffn_up.weight` occurs twice");
    check(Bytes::from_static(&TINY[..TINY.len() - 1]), "pass the end of the file");
    let huge = [&TINY[..8], &u64::MAX.to_le_bytes(), &TINY[16..]].concat();
    check(huge.into(), "tensors: 18446744073709551615 exceeds the limit");
}

#[test]
fn values_of_careless_writers_are_read() {
    // A boolean stored as an integer, and a token that is a part of a character.
    let key = b"tokenizer.ggml.add_bos_token\x07\0\0\0\0";
    let mut number = *key;
    (number[28], number[32]) = (0, 1);
    let with_flag = Checkpoint::from_gguf(replaced(key, &number)).unwrap();
    let with_token = Checkpoint::from_gguf(replaced(b"\x02\0\0\0\0\0\0\0t7", b"\x02\0\0\0\0\0\0\0\xe27")).unwrap();
    let vocab = |checkpoint: &Checkpoint| match checkpoint.tokenizer() {
        TokenizerSource::Gguf(vocab) => (**vocab).clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(vocab(&with_flag).add_bos, Some(true));
    assert!(vocab(&with_token).tokens.contains(&"\u{fffd}7".to_owned()));
}

/// A GGUF file with 16-bit integers under keys, and tensors of four elements.
fn part(keys: &[(&str, u16)], tensors: &[&str]) -> Bytes {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = [&b"GGUF\x03\0\0\0"[..], &(tensors.len() as u64).to_le_bytes(), &(keys.len() as u64).to_le_bytes()].concat();
    for (key, value) in keys {
        out.extend([text(key), 2u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat());
    }
    for (i, name) in tensors.iter().enumerate() {
        let facts = [1u32.to_le_bytes().to_vec(), 4u64.to_le_bytes().to_vec(), 0u32.to_le_bytes().to_vec()].concat();
        out.extend([text(name), facts, (32 * i as u64).to_le_bytes().to_vec()].concat());
    }
    out.resize(out.len().next_multiple_of(32) + 32 * tensors.len(), 0);
    out.into()
}

#[test]
fn parts_of_a_split_file_are_joined() {
    let of = |at: u16, count: u16, tensors: &[&str]| {
        let keys = [("split.no", at), ("split.count", count), ("split.tensors.count", 3)];
        Gguf::parse(part(&keys, tensors)).unwrap()
    };
    let whole = Gguf::join(vec![of(0, 2, &["a", "b"]), of(1, 2, &["c"])]).unwrap();
    assert_eq!(whole.tensors.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    let check = |parts: Vec<Gguf>, want: &str| {
        let error = Gguf::join(parts).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check(vec![of(0, 2, &["a"])], "part 1 of a split GGUF file: it says that it is number 1 of 2, expected 1 of 1");
    check(vec![of(1, 2, &["c"]), of(0, 2, &["a", "b"])], "number 2 of 2, expected 1 of 2");
    check(vec![of(0, 2, &["a", "b"]), of(1, 2, &["b"])], "part 2 of a split GGUF file: tensor `b` is in an earlier part");
    check(vec![of(0, 2, &["a"]), of(1, 2, &["b"])], "all parts hold 3 tensors, and they hold 2");
    assert!(Gguf::join(vec![Gguf::parse(part(&[], &["a"])).unwrap()]).is_ok());
}

#[test]
fn names_of_parts_follow_from_any_of_them() {
    let names = Gguf::part_names("a-b-00002-of-00003.gguf").unwrap();
    assert_eq!(names, ["a-b-00001-of-00003.gguf", "a-b-00002-of-00003.gguf", "a-b-00003-of-00003.gguf"]);
    for other in [
        "a.gguf",
        "a-00004-of-00003.gguf",
        "a-00000-of-00003.gguf",
        "a-1-of-2.gguf",
        "a-0x001-of-00002.gguf",
        "a-00001-of-00002.bin",
    ] {
        assert_eq!(Gguf::part_names(other), None, "{other}");
    }
}

#[test]
fn types_without_an_affine_form_are_named() {
    use flambeau_zoo::gguf::TensorType;
    let names = [4, 15, 33, 38, 99].map(|number| TensorType::from_number(number).name());
    assert_eq!(names, ["Q4_2", "Q8_K", "Q4_0_8_8", "IQ4_NL_8_8", "type 99"]);
}

/// Reads, builds and computes as much as possible. Errors are allowed, but panics are not.
fn exercise(bytes: Bytes) {
    let Ok(checkpoint) = Checkpoint::from_gguf(bytes) else { return };
    let options = Options { max_seq_len: Some(8), ..Options::default() };
    if let Ok(model) = build(&checkpoint, &options) {
        let _any = read_all(&model.methods["forward"]);
    }
}

#[test]
fn no_prefix_panics() {
    let header = Gguf::parse(Bytes::from_static(TINY)).unwrap().tensors.values().map(|t| t.offset).min().unwrap();
    for end in (0..header + 64).chain((header..TINY.len()).step_by(997)) {
        exercise(Bytes::from_static(&TINY[..end]));
        assert!(Checkpoint::from_gguf(Bytes::from_static(&TINY[..end])).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_mutation_panics(edits in prop::collection::vec((0usize..3400, any::<u8>()), 1..6)) {
        let mut bytes = TINY.to_vec();
        for (at, value) in edits {
            bytes[at] = value;
        }
        exercise(bytes.into());
    }
}
