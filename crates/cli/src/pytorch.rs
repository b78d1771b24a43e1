//! Runs archives in PyTorch on random inputs.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};
use flambeau::tensor::Tensor;

use crate::{
    failure::usage,
    progress,
    tensors::{self, NamedTensor},
};

/// The script that runs the archive.
const SCRIPT: &str = include_str!("pytorch/reference.py");

/// Results of PyTorch.
pub(crate) struct Reference {
    /// The version of PyTorch.
    pub(crate) version: String,
    pub(crate) runs: Vec<Run>,
}

/// Inputs and results of one run of PyTorch.
pub(crate) struct Run {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<Tensor>,
    /// Results of calls by name.
    pub(crate) values: Vec<NamedTensor>,
}

/// Runs an archive `runs` times with the Python program `python`. `flag` names the requesting flag
/// in messages. The first run uses the export's example inputs, if the archive contains them.
///
/// # Errors
/// Fails if Python lacks PyTorch or PyTorch cannot run the archive.
pub(crate) fn run(python: &Path, flag: &str, archive: &Path, (runs, seed): (usize, u32)) -> Result<Reference> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("reference.py");
    std::fs::write(&script, SCRIPT)?;
    let mut command = Command::new(python);
    command.arg(&script).arg(archive).arg(folder.path());
    command.args([runs.to_string(), seed.to_string()]).stdin(Stdio::null());
    let spinner = progress::spinner("running the archive in PyTorch");
    let output = command.output();
    spinner.finish_and_clear();
    let output =
        output.map_err(|e| usage(format!("{flag} runs {}: {e}; name a Python with PyTorch by --python", python.display())))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        if text.contains("No module named 'torch'") {
            return Err(usage(format!("{} has no PyTorch; name a Python that has it by --python", python.display())));
        }
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        bail!("PyTorch cannot run {}: {last}", archive.display());
    }
    let version = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    let runs = (0..runs).map(|i| Run::read(&folder.path().join(format!("run{i}.safetensors"))));
    Ok(Reference { version, runs: runs.collect::<Result<_>>()? })
}

impl Run {
    /// Reads the script's output.
    fn read(path: &Path) -> Result<Run> {
        let mut named = tensors::read(path)?;
        named.sort_by(|a, b| a.name.cmp(&b.name));
        let mut run = Run { inputs: Vec::new(), outputs: Vec::new(), values: Vec::new() };
        for NamedTensor { name, tensor } in named {
            match name.as_deref().and_then(|n| n.split_once('.')) {
                Some(("input", _)) => run.inputs.push(tensor),
                Some(("output", _)) => run.outputs.push(tensor),
                Some((_, name)) => run.values.push(NamedTensor { name: Some(name.into()), tensor }),
                None => {}
            }
        }
        Ok(run)
    }
}
