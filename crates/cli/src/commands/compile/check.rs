//! `flambeau compile --check`: the compiled program and PyTorch on the same random inputs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile::{self, Options},
    engine::{Engine, LoadOptions},
    pt2::{Argument, Exported, OutputSpec},
    runtime::{Method, Program, Value, verify::rounding},
    tensor::{Bytes, DType, Tensor, compare},
};

use crate::{
    count::positive,
    inputs,
    pytorch::{self, Reference, Run},
    tensors::NamedTensor,
};

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
            let Reference { version, runs } = pytorch::run(&self.python, "--check", path, (self.check_runs, self.check_seed))?;
            let check = || compare_runs(name, exported, &runs, options, engine);
            check().with_context(|| format!("method `{name}` differs from PyTorch {version} (seed {})", self.check_seed))?;
            eprintln!("method {name}: {} runs agree with PyTorch {version}", runs.len());
        }
        Ok(())
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
            if let Err(mismatch) = compare(output, expected, rounding(expected)) {
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
        if let Err(mismatch) = compare(output, expected, rounding(expected)) {
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

fn shapes(tensors: &[Tensor]) -> String {
    tensors.iter().map(|t| format!("{}{:?}", t.dtype(), t.shape())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
