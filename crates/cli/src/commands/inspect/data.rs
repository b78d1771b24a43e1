//! `.ptd` and GGUF files.

use anyhow::Result;
use flambeau::{
    tensor::Bytes,
    wire::ptd,
    zoo::gguf::{Gguf, MetadataValue},
};
use serde_json::{Value as Json, json};

use super::{Description, histogram, histogram_json};
use crate::memory::human;

fn dims(sizes: impl IntoIterator<Item = impl ToString>) -> String {
    sizes.into_iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", ")
}

/// Describes a data file.
pub(crate) fn describe_data(bytes: &Bytes) -> Result<Description> {
    let file = ptd::read_data_file(bytes)?;
    let mut lines = vec![format!("ExecuTorch data file, {}, {} keys", human(bytes.len() as u64), file.entries.len())];
    let mut entries = Vec::new();
    for (key, entry) in &file.entries {
        let size = file.get(key).map_or(0, |b| b.len());
        let layout = entry.layout.as_ref().map(|l| format!("{}[{}]", l.dtype, dims(&l.sizes)));
        lines.push(format!("  {key}: {}, {}", layout.as_deref().unwrap_or("blob"), human(size as u64)));
        entries.push(json!({ "key": key, "layout": layout, "bytes": size }));
    }
    Ok(Description { lines, json: json!({ "kind": "ptd", "bytes": bytes.len(), "entries": entries }) })
}

/// Describes a GGUF file.
pub(crate) fn describe_gguf(bytes: Bytes) -> Result<Description> {
    let size = bytes.len();
    let file = Gguf::parse(bytes)?;
    let mut lines = vec![format!("GGUF file of version {}, {}, {} tensors", file.version, human(size as u64), file.tensors.len())];
    let mut metadata = serde_json::Map::new();
    for (key, value) in &file.metadata {
        let value = value_json(value);
        lines.push(format!("  {key} = {value}"));
        metadata.insert(key.clone(), value);
    }
    let kinds: Vec<String> = file.tensors.values().map(|t| t.kind.name()).collect();
    let kinds = histogram(kinds.iter().map(String::as_str));
    kinds.iter().for_each(|(kind, count)| lines.push(format!("  {count:>6}  {kind}")));
    let mut tensors = Vec::new();
    for (name, tensor) in &file.tensors {
        lines.push(format!("  {name}: {}[{}], {}", tensor.kind.name(), dims(&tensor.shape), human(tensor.bytes.len() as u64)));
        tensors.push(json!({ "name": name, "kind": tensor.kind.name(), "shape": tensor.shape, "bytes": tensor.bytes.len() }));
    }
    let json = json!({ "kind": "gguf", "version": file.version, "bytes": size, "metadata": metadata,
                       "kinds": histogram_json(&kinds), "tensors": tensors });
    Ok(Description { lines, json })
}

/// A value; long texts and arrays are only described.
fn value_json(value: &MetadataValue) -> Json {
    const LONGEST: usize = 200;
    match value {
        MetadataValue::Int(v) => json!(v),
        MetadataValue::Float(v) => json!(v),
        MetadataValue::Bool(v) => json!(v),
        MetadataValue::Text(v) if v.len() <= LONGEST => json!(v),
        MetadataValue::Text(v) => json!(format!("text of {} bytes", v.len())),
        MetadataValue::Array(list) => json!(format!("array of {}", list.len())),
    }
}
