//! `.pt2` files.

use anyhow::Result;
use flambeau::{
    pt2::{Archive, Exported, InputSpec, OutputSpec, Weight},
    tensor::Bytes,
};
use serde_json::{Value as Json, json};

use super::{Description, histogram, histogram_json};
use crate::memory::human;

/// Describes an archive; with `calls`, every call of its programs.
pub(crate) fn describe(bytes: Bytes, calls: bool) -> Result<Description> {
    let size = bytes.len();
    let archive = Archive::open(bytes)?;
    let mut lines = vec![format!("torch.export archive, {}", human(size as u64))];
    let mut programs = Vec::new();
    for name in archive.program_names() {
        programs.push(program(&name, &archive.program(&name)?, calls, &mut lines));
    }
    Ok(Description { lines, json: json!({ "kind": "pt2", "bytes": size, "programs": programs }) })
}

fn program(name: &str, exported: &Exported, calls: bool, lines: &mut Vec<String>) -> Json {
    lines.push(format!("program {name} (torch {}, {} calls)", exported.torch_version, exported.graph.nodes.len()));
    let tensor = |value: &str| {
        exported.graph.tensor(value).map_or_else(
            |e| e.to_string(),
            |meta| format!("{}[{}]", meta.dtype, meta.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        )
    };
    let mut inputs = Vec::new();
    let (mut parameters, mut buffers, mut constants) = (0, 0, 0);
    for spec in &exported.signature.inputs {
        match spec {
            InputSpec::UserInput(arg) => inputs.extend(arg.names().iter().map(|n| format!("{n}: {}", tensor(n)))),
            InputSpec::Parameter { .. } => parameters += 1,
            InputSpec::Buffer { .. } => buffers += 1,
            InputSpec::TensorConstant { .. } => constants += 1,
            _ => {}
        }
    }
    let outputs: Vec<String> = exported
        .signature
        .outputs
        .iter()
        .flat_map(|spec| match spec {
            OutputSpec::UserOutput(arg) => arg.names().iter().map(|n| format!("{n}: {}", tensor(n))).collect(),
            _ => Vec::new(),
        })
        .collect();
    inputs.iter().for_each(|v| lines.push(format!("  input {v}")));
    outputs.iter().for_each(|v| lines.push(format!("  output {v}")));
    let ranges: Vec<String> = exported
        .ranges
        .iter()
        .map(|(symbol, range)| {
            let end = |v: Option<i64>| v.map_or_else(String::new, |v| v.to_string());
            format!("{}: {}..{}", symbol.name(), end(range.0), end(range.1))
        })
        .collect();
    ranges.iter().for_each(|v| lines.push(format!("  size {v}")));
    let bytes: u64 = exported.weights.values().chain(exported.constants.values()).map(weight_bytes).sum();
    lines.push(format!("  {parameters} parameters, {buffers} buffers, {constants} constants, {} at most", human(bytes)));
    let counts = histogram(exported.graph.nodes.iter().map(|node| node.target.as_str()));
    counts.iter().for_each(|(target, count)| lines.push(format!("  {count:>6}  {target}")));
    if calls {
        lines.extend(exported.to_string().lines().map(str::to_owned));
    }
    json!({ "name": name, "torch": exported.torch_version, "inputs": inputs, "outputs": outputs, "sizes": ranges,
            "parameters": parameters, "buffers": buffers, "constants": constants, "weight_bytes": bytes,
            "calls": histogram_json(&counts) })
}

/// Size in bytes of the storages behind a weight. Each view of a shared storage counts in full.
fn weight_bytes(weight: &Weight) -> u64 {
    match weight {
        Weight::Strided(view) => view.storage.len() as u64,
        Weight::Subclass(subclass) => subclass.tensors.values().map(|view| view.storage.len() as u64).sum(),
        Weight::Foreign { .. } => 0,
    }
}
