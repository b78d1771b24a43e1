//! llama.cpp's importance matrices: mean squares of the inputs of each weight's columns.
//!
//! Newer files are GGUF files of the type `imatrix` (`in_sum2` and `counts` of each weight). Older
//! files, called `.dat`, hold entries of name, count and values.

use flambeau_tensor::{Bytes, DType, Tensor};

use super::{Gguf, TensorType, names, reader::GgufReader};
use crate::{Checkpoint, Error, Result, architecture::Architecture, limits::MAX_GGUF_TENSORS};

/// Start of a GGUF file.
const MAGIC: &[u8] = b"GGUF";

/// Maximum length of a name in an older file, in bytes.
const MOST_NAME_BYTES: usize = 4096;

/// Mean squares [K], or [E, K] for a stack of experts, by the file's name of a weight.
type Entries = Vec<(String, Vec<f32>)>;

/// Reads an importance matrix for a checkpoint. The result has mean squares of the inputs, `[K]` or
/// [E, K], by the names of weights in the checkpoint's program. Weights that the checkpoint lacks
/// are left out. Other kinds of models have none.
///
/// # Errors
/// [`Error::Gguf`], [`Error::Limit`] and [`Error::Tensor`] for a damaged file.
pub fn importance(bytes: Bytes, checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<f32>)>> {
    let entries = if bytes.starts_with(MAGIC) { of_gguf(bytes)? } else { of_older(bytes)? };
    let Architecture::Decoder(config) = checkpoint.architecture() else { return Ok(Vec::new()) };
    let programs = names::of_weights(config);
    let named = entries.into_iter().flat_map(|(stored, squares)| {
        let names = programs.iter().filter(move |(known, _)| *known == stored);
        names.map(|(_, name)| (name.clone(), squares.clone())).collect::<Vec<_>>()
    });
    Ok(named.collect())
}

fn of_gguf(bytes: Bytes) -> Result<Entries> {
    let file = Gguf::parse(bytes)?;
    if file.text("general.type")? != Some("imatrix") {
        return Err(Error::key("general.type", "imatrix", format!("{:?}", file.text("general.type")?)));
    }
    let floats = |name: &str| -> Result<Vec<f32>> {
        let Some(info) = file.tensors.get(name) else { return Err(Error::MissingTensor(name.into())) };
        if !matches!(info.kind, TensorType::Plain(DType::F32)) {
            return Err(Error::tensor(name, "f32", info.kind.name()));
        }
        let tensor = Tensor::new(DType::F32, &info.shape, info.bytes.clone()).map(|tensor| tensor.aligned());
        let values = tensor.and_then(|tensor| Ok(tensor.as_slice::<f32>()?.to_vec()));
        values.map_err(|error| Error::tensor(name, "f32 numbers", error.to_string()))
    };
    let mut entries = Vec::new();
    for stored in file.tensors.keys().filter_map(|name| name.strip_suffix(".in_sum2")) {
        let (mut sums, counts) = (floats(&format!("{stored}.in_sum2"))?, floats(&format!("{stored}.counts"))?);
        let columns = sums.len() / counts.len().max(1);
        for (row, &count) in sums.chunks_exact_mut(columns.max(1)).zip(&counts) {
            row.iter_mut().for_each(|sum| *sum = if count > 0.0 { *sum / count } else { 0.0 });
        }
        entries.push((stored.to_owned(), sums));
    }
    Ok(entries)
}

fn of_older(bytes: Bytes) -> Result<Entries> {
    let mut r = GgufReader::new(bytes);
    let count = r.u32("the number of entries")?;
    if u64::from(count) > MAX_GGUF_TENSORS {
        return Err(Error::limit("entries", count.into(), MAX_GGUF_TENSORS));
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let length = r.u32("the length of a name")? as usize;
        if length > MOST_NAME_BYTES {
            return Err(r.error(format!("a name of {length} bytes; this is no importance matrix")));
        }
        let name = String::from_utf8_lossy(&r.take(length, "a name")?).into_owned();
        let calls = r.u32("the number of calls")?.max(1) as f32;
        let bytes = (r.u32("the number of values")? as usize).saturating_mul(4);
        let values = r.take(bytes, "values")?;
        let mean = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) / calls;
        entries.push((name, values.chunks_exact(4).map(mean).collect()));
    }
    Ok(entries)
}
