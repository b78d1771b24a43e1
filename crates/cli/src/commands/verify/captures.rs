//! Folders with recorded tensors: `inputs.safetensors`, `outputs.safetensors` and
//! `nodes.safetensors`.
//!
//! A node's tensor has the name `DELEGATE.NODE.SLOT`, such as `0.17.t5`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flambeau::{
    ir::{Slot, Tid},
    runtime::{
        Value,
        verify::{Recording, ResultPlace},
    },
    tensor::Tensor,
};

use crate::{
    failure::usage,
    tensors::{self, NamedTensor},
};

/// Names of the files without extension. The second name is for operator tests.
const INPUTS: [&str; 2] = ["inputs", "input"];
const OUTPUTS: [&str; 2] = ["outputs", "expected_output"];
const NODES: &str = "nodes.safetensors";
const EXTENSIONS: [&str; 4] = ["safetensors", "npz", "npy", "bin"];

/// The tensors of a folder.
pub(super) struct Captures {
    pub(super) inputs: Vec<NamedTensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) nodes: BTreeMap<ResultPlace, Tensor>,
}

/// Reads a folder. It needs inputs, and outputs or results of nodes.
pub(super) fn read(folder: &Path) -> Result<Captures> {
    let find = |names: [&str; 2]| {
        let paths = names.iter().flat_map(|name| EXTENSIONS.map(|extension| folder.join(format!("{name}.{extension}"))));
        paths.into_iter().find(|path: &PathBuf| path.is_file())
    };
    let inputs = find(INPUTS).map_or(Ok(Vec::new()), |path| tensors::read(&path))?;
    let outputs = find(OUTPUTS).map_or(Ok(Vec::new()), |path| tensors::read(&path))?;
    let nodes = folder.join(NODES);
    let nodes = if nodes.is_file() { tensors::read(&nodes)? } else { Vec::new() };
    if outputs.is_empty() && nodes.is_empty() {
        return Err(usage(format!("{} has neither outputs nor {NODES}", folder.display())));
    }
    let place = |named: NamedTensor| {
        let name = named.name.unwrap_or_default();
        let place = place_of(&name).with_context(|| format!("{NODES}: `{}` is no place of a node", name.escape_debug()))?;
        Ok((place, named.tensor))
    };
    Ok(Captures {
        inputs,
        outputs: outputs.into_iter().map(|named| named.tensor).collect(),
        nodes: nodes.into_iter().map(place).collect::<Result<_>>()?,
    })
}

fn place_of(name: &str) -> Option<ResultPlace> {
    let mut parts = name.split('.');
    let (delegate, node) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let slot = parts.next()?.strip_prefix('t')?.parse().ok()?;
    parts.next().is_none().then_some((delegate, node, Slot::Tensor(Tid(slot))))
}

/// Writes the last run to a folder.
pub(super) fn write(folder: &Path, runs: &[Vec<Value>], recording: &Recording) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let numbered = |what: &str, values: &[Value]| -> Vec<(String, Tensor)> {
        let tensor = |value: &Value| match value {
            Value::Tensor(tensor) => Some(tensor.clone()),
            other => other.as_int().map(Tensor::scalar),
        };
        values.iter().enumerate().filter_map(|(i, value)| Some((format!("{what}.{i:05}"), tensor(value)?))).collect()
    };
    let (inputs, outputs) = (runs.last().map(Vec::as_slice), recording.outputs.last().map(Vec::as_slice));
    tensors::write(&folder.join("inputs.safetensors"), &numbered("input", inputs.unwrap_or_default()))?;
    tensors::write(&folder.join("outputs.safetensors"), &numbered("output", outputs.unwrap_or_default()))?;
    let nodes =
        recording.tensors().into_iter().map(|((delegate, node, slot), tensor)| (format!("{delegate}.{node}.{slot}"), tensor));
    let mut nodes: Vec<(String, Tensor)> = nodes.collect();
    nodes.sort_by(|a, b| a.0.cmp(&b.0));
    tensors::write(&folder.join(NODES), &nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_from_names() {
        assert_eq!(place_of("0.17.t5"), Some((0, 17, Slot::Tensor(Tid(5)))));
        for wrong in ["0.17", "0.17.v5", "0.17.t5.1", "a.17.t5"] {
            assert_eq!(place_of(wrong), None, "{wrong}");
        }
    }
}
