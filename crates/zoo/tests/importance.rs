//! Importance matrices in both forms that llama.cpp writes.

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Error, gguf::importance};

fn tiny() -> Checkpoint {
    Checkpoint::from_gguf(Bytes::from_static(include_bytes!("data/tiny.gguf"))).unwrap()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A GGUF file of this type with tensors of one axis or two, in PyTorch's order.
fn gguf(kind: &str, tensors: &[(&str, [u64; 2], &[f32])]) -> Bytes {
    let mut out = [b"GGUF", &3u32.to_le_bytes()[..], &(tensors.len() as u64).to_le_bytes(), &1u64.to_le_bytes()].concat();
    out.extend([text("general.type"), 8u32.to_le_bytes().to_vec(), text(kind)].concat());
    let mut data = Vec::new();
    for (name, [rows, columns], values) in tensors {
        out.extend(text(name));
        out.extend(2u32.to_le_bytes());
        out.extend([columns.to_le_bytes(), rows.to_le_bytes()].concat());
        out.extend([&0u32.to_le_bytes()[..], &(data.len() as u64).to_le_bytes()].concat());
        data.extend(floats(values));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out.into()
}

/// An older file with one entry.
fn older(name: &str, calls: u32, values: &[f32]) -> Vec<u8> {
    let numbers = [1, name.len() as u32].map(u32::to_le_bytes).concat();
    let counts = [calls, values.len() as u32].map(u32::to_le_bytes).concat();
    [numbers, name.as_bytes().to_vec(), counts, floats(values), 7u32.to_le_bytes().to_vec()].concat()
}

#[test]
fn sums_become_means_under_the_names_of_the_program() {
    let file = gguf(
        "imatrix",
        &[
            ("blk.1.attn_v.weight.in_sum2", [1, 3], &[8.0, 2.0, 0.0]),
            ("blk.1.attn_v.weight.counts", [1, 1], &[4.0]),
            ("blk.0.ffn_down.weight.in_sum2", [2, 2], &[9.0, 6.0, 5.0, 5.0]),
            ("blk.0.ffn_down.weight.counts", [2, 1], &[3.0, 0.0]),
            ("blk.99.ffn_down.weight.in_sum2", [1, 1], &[1.0]),
            ("blk.99.ffn_down.weight.counts", [1, 1], &[1.0]),
        ],
    );
    let expected = [
        ("model.layers.1.self_attn.v_proj.weight".to_owned(), vec![2.0, 0.5, 0.0]),
        ("model.layers.0.mlp.down_proj.weight".to_owned(), vec![3.0, 2.0, 0.0, 0.0]),
    ];
    assert_eq!(importance(file, &tiny()).unwrap(), expected);
    let file = older("blk.1.attn_v.weight", 4, &[8.0, 2.0, 0.0]);
    assert_eq!(importance(file.into(), &tiny()).unwrap(), expected[..1]);
}

#[test]
fn other_files_are_refused() {
    let model = gguf("model", &[]);
    assert!(matches!(importance(model, &tiny()), Err(Error::Key { .. })));
    let lacking = gguf("imatrix", &[("blk.0.attn_q.weight.in_sum2", [1, 1], &[1.0])]);
    assert!(matches!(importance(lacking, &tiny()), Err(Error::MissingTensor(_))));
    let whole = older("blk.1.attn_v.weight", 4, &[8.0, 2.0, 0.0]);
    for length in 0..whole.len() - 4 {
        assert!(importance(whole[..length].to_vec().into(), &tiny()).is_err(), "{length}");
    }
    assert!(importance(b"a text of some other kind".to_vec().into(), &tiny()).is_err());
}
