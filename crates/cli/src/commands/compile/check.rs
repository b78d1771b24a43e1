//! `flambeau compile --check`: the compiled program and PyTorch on the same random inputs.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile::{self, Options},
    engine::{Engine, LoadOptions},
    pt2::{Argument, Exported, OutputSpec},
    runtime::{Method, Program, Value},
    tensor::{Bytes, DType, Tensor, Tolerance, compare},
};

use crate::{
    count::positive,
    failure::usage,
    inputs, progress,
    tensors::{self, NamedTensor},
};

/// The script that runs the archive in PyTorch.
const REFERENCE: &str = include_str!("reference.py");

/// How the compiled program is compared with PyTorch.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// Compare the compiled program with PyTorch on random inputs; name the first source line whose
    /// result differs
    ///
    /// The sizes obey the bounds that the export states. Needs a Python with PyTorch. Floats pass
    /// within rounding of their type, relative to the size of the result; integers must be equal.
    #[arg(help_heading = "Check", long, conflicts_with_all = ["qlinear", "qembedding", "recipe", "dry_run"])]
    check: bool,

    /// Number of inputs to compare; the first is the export's example, where the archive holds it
    #[arg(help_heading = "Check", long, value_name = "N", default_value = "5", requires = "check", value_parser = positive)]
    check_runs: usize,

    /// Seed of the random inputs
    #[arg(help_heading = "Check", long, value_name = "N", default_value = "0", requires = "check")]
    check_seed: u32,

    /// Python that has PyTorch
    #[arg(help_heading = "Check", long, value_name = "PROGRAM", default_value = "python3", requires = "check")]
    python: PathBuf,
}

/// Inputs and results of one run of PyTorch.
struct Run {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Results of calls by name.
    values: Vec<NamedTensor>,
}

impl CheckArgs {
    /// Whether a comparison is asked for.
    pub(super) fn wanted(&self) -> bool {
        self.check
    }

    /// Compares every method with PyTorch.
    ///
    /// # Errors
    /// PyTorch cannot run the archive, the program fails, or a result differs.
    pub(super) fn compare(&self, methods: &[(&str, &Path, &Exported)], options: &Options, engine: &Arc<dyn Engine>) -> Result<()> {
        for (name, path, exported) in methods {
            let (version, runs) = self.reference(path)?;
            let check = || compare_runs(name, exported, &runs, options, engine);
            check().with_context(|| format!("method `{name}` differs from PyTorch {version} (seed {})", self.check_seed))?;
            eprintln!("method {name}: {} runs agree with PyTorch {version}", runs.len());
        }
        Ok(())
    }

    /// The version of PyTorch, and its runs of an archive.
    fn reference(&self, archive: &Path) -> Result<(String, Vec<Run>)> {
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("reference.py");
        std::fs::write(&script, REFERENCE)?;
        let mut command = Command::new(&self.python);
        command.arg(&script).arg(archive).arg(folder.path());
        command.args([self.check_runs.to_string(), self.check_seed.to_string()]).stdin(Stdio::null());
        let spinner = progress::spinner("running the archive in PyTorch");
        let output = command.output();
        spinner.finish_and_clear();
        let output = output
            .map_err(|e| usage(format!("--check runs {}: {e}; name a Python with PyTorch by --python", self.python.display())))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            if text.contains("No module named 'torch'") {
                return Err(usage(format!("{} has no PyTorch; name a Python that has it by --python", self.python.display())));
            }
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            bail!("PyTorch cannot run {}: {last}", archive.display());
        }
        let version = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
        let runs = (0..self.check_runs).map(|i| Run::read(&folder.path().join(format!("run{i}.safetensors"))));
        Ok((version, runs.collect::<Result<_>>()?))
    }
}

impl Run {
    /// Reads what the script wrote.
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

/// Runs a method on PyTorch's inputs, one run after the other so that buffers change alike, and
/// compares.
fn compare_runs(name: &str, exported: &Exported, runs: &[Run], options: &Options, engine: &Arc<dyn Engine>) -> Result<()> {
    let mut method = load(name, exported, options, engine)?;
    for (i, run) in runs.iter().enumerate() {
        let outputs = call(&mut method, run).with_context(|| format!("run {i}"))?;
        if outputs.len() != run.outputs.len() {
            bail!("run {i}: {} outputs, PyTorch has {}", outputs.len(), run.outputs.len());
        }
        for (o, (output, expected)) in outputs.iter().zip(&run.outputs).enumerate() {
            if let Err(mismatch) = compare(output, expected, tolerance(expected)) {
                let place = first_difference(name, exported, &runs[..=i], options, engine);
                let place = place.unwrap_or_else(|e| format!("the call is not known: {e:#}"));
                bail!("run {i}, inputs {}: output {o}: {mismatch}\n  {place}", shapes(&run.inputs));
            }
        }
    }
    Ok(())
}

/// The first call whose result differs in the last run. A program that returns the results of all
/// calls is compiled for it.
fn first_difference(name: &str, exported: &Exported, runs: &[Run], options: &Options, engine: &Arc<dyn Engine>) -> Result<String> {
    let last = runs.last().context("there is no run")?;
    let value = |name: &str| last.values.iter().find(|v| v.name.as_deref() == Some(name)).map(|v| &v.tensor);
    let mut probed = exported.clone();
    let mut expected = Vec::new();
    for node in &exported.graph.nodes {
        for output in &node.outputs {
            let Some((result, tensor)) = output.as_tensor().and_then(|result| Some((result, value(result)?))) else { continue };
            let argument = Argument::Tensor(result.to_owned());
            probed.graph.outputs.push(argument.clone());
            probed.signature.outputs.push(OutputSpec::UserOutput(argument));
            expected.push((node, tensor));
        }
    }
    let mut method = load(name, &probed, options, engine)?;
    let mut outputs = Vec::new();
    for run in runs {
        outputs = call(&mut method, run)?;
    }
    let probes = outputs.split_off(outputs.len().saturating_sub(expected.len()));
    for ((node, expected), output) in expected.into_iter().zip(&probes) {
        if let Err(mismatch) = compare(output, expected, tolerance(expected)) {
            let label = node.name.as_deref().unwrap_or_default();
            return Ok(format!("first at {} (`{label}`) {}: {mismatch}", node.target, node.source()));
        }
    }
    Ok("every call agrees when all results are returned, so the difference comes from how calls are fused".into())
}

/// The method of a compiled program.
fn load(name: &str, exported: &Exported, options: &Options, engine: &Arc<dyn Engine>) -> Result<Method> {
    let mut bytes = Vec::new();
    compile::compile(&[(name, exported)], options, &**engine)?.write(&mut bytes)?;
    let program = Program::from_bytes(Bytes::from(bytes))?;
    Ok(program.method(name, engine, &LoadOptions::default())?)
}

/// Outputs as tensors; `None` is left out, as the script does it.
fn call(method: &mut Method, run: &Run) -> Result<Vec<Tensor>> {
    let inputs = run.inputs.iter().map(|tensor| NamedTensor { name: None, tensor: tensor.clone() }).collect();
    let outputs = method.run(&inputs::arguments(method.inputs(), inputs)?)?;
    outputs.iter().filter(|value| !matches!(value, Value::None)).map(as_tensor).collect()
}

fn as_tensor(value: &Value) -> Result<Tensor> {
    Ok(match value {
        Value::Tensor(tensor) => tensor.clone(),
        Value::Int(number) => Tensor::scalar(*number),
        Value::Double(number) => Tensor::scalar(*number as f32),
        Value::Bool(truth) => Tensor::new(DType::Bool, &[], Bytes::from(vec![u8::from(*truth)]))?,
        other => bail!("an output is {}", other.describe()),
    })
}

/// Rounding of the type, relative to each element and to the largest finite one.
fn tolerance(expected: &Tensor) -> Tolerance {
    let unit = match expected.dtype() {
        DType::F64 | DType::F32 => 1e-4,
        DType::F16 => 5e-3,
        DType::BF16 => 3e-2,
        _ => return Tolerance { relative: 0.0, absolute: 0.0 },
    };
    let wide = flambeau::tensor::cast(expected, DType::F64).ok();
    let values = wide.as_ref().and_then(|t| t.as_slice::<f64>().ok()).unwrap_or_default();
    let largest = values.iter().filter(|v| v.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
    Tolerance { relative: unit, absolute: unit * largest.max(f64::MIN_POSITIVE) }
}

fn shapes(tensors: &[Tensor]) -> String {
    tensors.iter().map(|t| format!("{}{:?}", t.dtype(), t.shape())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
