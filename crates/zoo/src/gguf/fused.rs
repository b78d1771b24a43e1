//! Tensors of a file that the program reads in another division: joined projections, and matrices
//! with a scale beside them.

use super::{Gguf, architecture::Architecture};
use crate::{
    CheckpointTensor, Error, Result,
    codes::RowOrder,
    spec::{Attention, Gate, Joined, Layer, Mixer},
};

/// Joined queries, keys and values, under a layer's prefix.
const JOINED: &str = "attn_qkv";

/// A part of a joined matrix.
struct Part {
    name: &'static str,
    rows: usize,
    order: RowOrder,
}

/// Name in the program, name in the file and tensor of each part.
pub(super) type Parts = Vec<(String, String, CheckpointTensor)>;

/// Queries, keys and values of layer `index` out of the file's joined matrix, and out of its bias,
/// for a layer that reads them apart.
///
/// # Errors
/// [`Error::Tensor`] for a matrix of another size.
pub(super) fn projections(file: &Gguf, index: usize, layer: &Layer, a: &Architecture) -> Result<Parts> {
    let (module, parts) = match &layer.mixer {
        Mixer::Attention(attention) | Mixer::AttentionAndMamba(attention, _) if attention.joined == Joined::No => {
            (attention.names.module, of_attention(attention, a))
        }
        Mixer::KeyDecay(k) => {
            let part = |name| Part { name, rows: k.heads * k.head_dim, order: RowOrder::Plain };
            ("self_attn", ["q_proj", "k_proj", "v_proj"].map(part))
        }
        _ => return Ok(Vec::new()),
    };
    let mut out = Vec::new();
    for kind in ["weight", "bias"] {
        let stored = format!("blk.{index}.{JOINED}.{kind}");
        let Some(joined) = scaled(file, &stored)? else { continue };
        let total: usize = parts.iter().map(|part| part.rows).sum();
        if joined.shape().first() != Some(&total) {
            return Err(Error::tensor(
                &stored,
                format!("{total} rows of queries, keys and values"),
                format!("{:?}", joined.shape()),
            ));
        }
        let mut from = 0;
        for part in &parts {
            let rows = (0..part.rows).map(|row| from + part.order.source(row)).collect();
            let tensor = joined.rows(&stored, rows)?;
            out.push((format!("model.layers.{index}.{module}.{}.{kind}", part.name), stored.clone(), tensor));
            from += part.rows;
        }
    }
    Ok(out)
}

fn of_attention(attention: &Attention, a: &Architecture) -> [Part; 3] {
    let head = attention.head_dim;
    let order = if a.interleaved { RowOrder::Interleaved(head) } else { RowOrder::Plain };
    let gated = if attention.gate == Gate::Queries { 2 } else { 1 };
    [
        Part { name: "q_proj", rows: attention.heads * head * gated, order: order.clone() },
        Part { name: "k_proj", rows: attention.kv_heads * head, order },
        Part { name: "v_proj", rows: attention.kv_heads * attention.value_dim(), order: RowOrder::Plain },
    ]
}

/// The tensor under a name, times the scale that some writers put beside a matrix.
///
/// # Errors
/// [`Error::Tensor`] for a type that cannot be read, or another number of scales.
pub(super) fn scaled(file: &Gguf, name: &str) -> Result<Option<CheckpointTensor>> {
    let Some(tensor) = file.source(name)? else { return Ok(None) };
    let beside = scale_beside(name);
    match beside.as_ref().map(|beside| file.source(beside)).transpose()?.flatten().zip(beside) {
        Some((scale, beside)) => tensor.scaled(&beside, scale.values(&beside)?).map(Some),
        None => Ok(Some(tensor)),
    }
}

/// The name of the scale beside a matrix.
pub(super) fn scale_beside(name: &str) -> Option<String> {
    name.strip_suffix(".weight").map(|module| format!("{module}.scale"))
}
