//! One case folder.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile,
    engine::{Engine, LoadOptions},
    ir::{Graph, Node},
    pt2,
    runtime::{Method, Program, Value},
    tensor::{Bytes, DType, Tensor, Tolerance, compare, tensor_list},
    wire::pte::ExecutionPlan,
};
use serde_json::Value as Json;

use super::{
    checkpoint::CheckpointCase, classifier::ClassifierCase, embedding::EmbeddingCase, speech::SpeechCase, tagger::TaggerCase,
};
use crate::{files, inputs, kv_cache, tensors::NamedTensor};

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Passed, with remarks about the program's form.
    Passed(Vec<String>),
    Failed(String),
    /// Errors in calls of a session.
    FailedCalls(Vec<FailedCall>),
    Skipped(String),
}

/// A failed call of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedCall {
    /// Position of the call in the session, from 0.
    pub(crate) call: usize,
    pub(crate) method: String,
    pub(crate) reason: String,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} ({}): {}", self.call, self.method, self.reason)
    }
}

impl Outcome {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Outcome::Passed(_) => "passed",
            Outcome::Failed(_) | Outcome::FailedCalls(_) => "failed",
            Outcome::Skipped(_) => "skipped",
        }
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Outcome::Passed(notes) => notes.join("; "),
            Outcome::Failed(reason) | Outcome::Skipped(reason) => reason.clone(),
            Outcome::FailedCalls(calls) => calls.iter().map(FailedCall::to_string).collect::<Vec<_>>().join("; "),
        }
    }

    /// Calls of a session that failed.
    pub(crate) fn failed_calls(&self) -> &[FailedCall] {
        match self {
            Outcome::FailedCalls(calls) => calls,
            _ => &[],
        }
    }
}

/// Which program of a case to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProgramFormat {
    Pte,
    Pt2,
    Checkpoint,
}

/// A case folder's description.
pub(crate) struct Case {
    folder: PathBuf,
    /// The operator, the family of a checkpoint, or `model` where there is neither.
    pub(crate) family: String,
    tolerance: Tolerance,
    /// Whether the program only has to run: its outputs are not compared.
    skip_comparison: bool,
    kv_cache: Option<String>,
    /// Expected number of delegates.
    segments: Option<u64>,
    /// How often nodes occur in ExecuTorch's file, by name without `Node`.
    node_counts: BTreeMap<String, u64>,
    checkpoint: Option<Published>,
}

/// A published checkpoint, for cases without a program.
enum Published {
    Text(CheckpointCase),
    Embedding(EmbeddingCase),
    Classifier(ClassifierCase),
    Speech(SpeechCase),
    Tagger(TaggerCase),
}

/// Graphs of a program's delegates, of all methods or of some.
pub(crate) struct Graphs(pub(crate) Vec<Graph>);

impl Case {
    /// Reads `case.json`.
    pub(crate) fn read(folder: &Path) -> Result<Case> {
        let path = folder.join("case.json");
        let json: Json = serde_json::from_slice(&files::read(&path)?).with_context(|| path.display().to_string())?;
        let number = |key: &str| json[key].as_f64().unwrap_or(1e-5);
        let tolerance = Tolerance { relative: number("rtol"), absolute: number("atol") };
        let checkpoint = match json["kind"].as_str() {
            Some("checkpoint") => Some(Published::Text(CheckpointCase::read(&json, tolerance)?)),
            Some("embedding") => Some(Published::Embedding(EmbeddingCase::read(&json, tolerance)?)),
            Some("classifier") => Some(Published::Classifier(ClassifierCase::read(&json, tolerance)?)),
            Some("speech") => Some(Published::Speech(SpeechCase::read(&json, tolerance)?)),
            Some("tagger") => Some(Published::Tagger(TaggerCase::read(&json, tolerance)?)),
            _ => None,
        };
        let family = json["op"].as_str().or_else(|| json["family"].as_str()).unwrap_or("model");
        Ok(Case {
            folder: folder.to_owned(),
            family: family.to_owned(),
            checkpoint,
            tolerance,
            skip_comparison: json["skip_comparison"].as_bool().unwrap_or(false),
            kv_cache: json["kv_cache"].as_str().map(str::to_owned),
            segments: json["mlx_segments"].as_u64(),
            node_counts: json["node_counts"].as_object().map(node_counts).unwrap_or_default(),
        })
    }

    /// Runs the case.
    pub(crate) fn run(&self, from: ProgramFormat, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        let file = match from {
            ProgramFormat::Pte => "model.pte",
            ProgramFormat::Pt2 => "model.pt2",
            ProgramFormat::Checkpoint => {
                return match &self.checkpoint {
                    Some(Published::Text(case)) => case.run(&self.folder, engine),
                    Some(Published::Embedding(case)) => case.run(&self.folder, engine),
                    Some(Published::Classifier(case)) => case.run(&self.folder, engine),
                    Some(Published::Speech(case)) => case.run(&self.folder, engine),
                    Some(Published::Tagger(case)) => case.run(&self.folder, engine),
                    None => Ok(Outcome::Skipped("case.json does not describe a checkpoint".into())),
                };
            }
        };
        let file = self.folder.join(file);
        if !file.is_file() {
            return Ok(Outcome::Skipped(format!("there is no {}", file.display())));
        }
        let program =
            if from == ProgramFormat::Pte { Program::open(&file)? } else { Program::from_bytes(compiled(&file, engine)?)? };
        let graphs = Graphs::of(&program)?;
        if let Some(segments) = self.segments
            && segments != graphs.0.len() as u64
        {
            bail!("{} delegates, expected {segments}", graphs.0.len());
        }
        let notes = if from == ProgramFormat::Pt2 { self.compare_counts(&graphs)? } else { Vec::new() };
        let options =
            LoadOptions { kv_cache: self.kv_cache.as_deref().map(kv_cache::parse).transpose()?, ..LoadOptions::default() };
        let mut method = program.method("forward", engine, &options)?;
        let outputs = call(&mut method, tensors(&self.folder.join("input.bin"))?)?;
        if !self.skip_comparison {
            self.compare(&outputs)?;
        }
        Ok(Outcome::Passed(notes))
    }

    /// Node kinds whose counts differ from the stated ones, in a program with fewer nodes than
    /// ExecuTorch's.
    fn compare_counts(&self, graphs: &Graphs) -> Result<Vec<String>> {
        let differ = self.node_counts.iter().filter(|&(name, &count)| graphs.count(name) != count);
        let differ: Vec<String> = differ.map(|(name, count)| format!("{} {name}, stated {count}", graphs.count(name))).collect();
        if !differ.is_empty() {
            let (ours, peers) = (graphs.total(), Graphs::of(&Program::open(self.folder.join("model.pte"))?)?.total());
            if ours >= peers {
                bail!("{} in {ours} nodes, ExecuTorch's file has {peers}", differ.join("; "));
            }
        }
        Ok(differ)
    }

    fn compare(&self, outputs: &[Tensor]) -> Result<()> {
        let expected = tensors(&self.folder.join("expected_output.bin"))?;
        if outputs.len() != expected.len() {
            bail!("{} outputs, expected {}", outputs.len(), expected.len());
        }
        for (i, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            compare(output, expected, self.tolerance).with_context(|| format!("output {i}"))?;
        }
        Ok(())
    }
}

/// The tensors of a list file.
pub(super) fn tensors(path: &Path) -> Result<Vec<Tensor>> {
    tensor_list::read(&files::read(path)?).with_context(|| path.display().to_string())
}

/// Runs a method. Numbers become tensors; results that a list file cannot hold are dropped.
pub(super) fn call(method: &mut Method, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let inputs = inputs.into_iter().map(|tensor| NamedTensor { name: None, tensor }).collect();
    let inputs = inputs::arguments(method.inputs(), inputs)?;
    let outputs = method.run(&inputs)?;
    let tensor = |(i, output): (usize, &Value)| match output {
        Value::Tensor(t) => Ok(t.clone()),
        Value::Int(v) => Ok(Tensor::scalar(*v)),
        Value::Bool(b) => Ok(Tensor::new(DType::Bool, &[], vec![u8::from(*b)].into())?.aligned()),
        Value::Double(v) => Ok(Tensor::scalar(*v as f32)),
        other => bail!("output {i} is {}, expected a tensor", other.describe()),
    };
    outputs.iter().filter(|o| !matches!(o, Value::None)).enumerate().map(tensor).collect()
}

impl Graphs {
    pub(crate) fn of(program: &Program) -> Result<Graphs> {
        Graphs::of_methods(program, &program.file().plans)
    }

    /// Graphs of the delegates of these methods.
    pub(super) fn of_methods(program: &Program, plans: &[ExecutionPlan]) -> Result<Graphs> {
        let delegates = plans.iter().flat_map(|plan| plan.delegates.iter().enumerate().map(move |(i, d)| (plan, i, d)));
        Ok(Graphs(delegates.map(|(plan, i, delegate)| program.graph(plan, i, delegate)).collect::<Result<_, _>>()?))
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.0.iter().flat_map(|graph| graph.chains.iter().flatten())
    }

    fn count(&self, name: &str) -> u64 {
        self.nodes().filter(|node| node.name() == name).count() as u64
    }

    fn total(&self) -> usize {
        self.0.iter().map(Graph::node_count).sum()
    }
}

fn node_counts(json: &serde_json::Map<String, Json>) -> BTreeMap<String, u64> {
    json.iter().filter_map(|(name, count)| Some((name.trim_end_matches("Node").to_owned(), count.as_u64()?))).collect()
}

/// Compiles an archive to the bytes of a program.
fn compiled(file: &Path, engine: &Arc<dyn Engine>) -> Result<Bytes> {
    let exported = pt2::Archive::open(files::read(file)?)?.only_program()?;
    let output = compile::compile(&[("forward", &exported)], &compile::Options::default(), &**engine)?;
    let mut bytes = Vec::new();
    output.write(&mut bytes)?;
    Ok(Bytes::from(bytes))
}
