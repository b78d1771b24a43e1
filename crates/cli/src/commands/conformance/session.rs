//! A session case: calls of one program, one after the other, with the state that stays between
//! them.

mod description;
mod judge;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::{Engine, LoadOptions, SharedState},
    ir::{Graph, MetaDim, Slot, Tid},
    runtime::{Method, Program},
    tensor::{DType, Tensor},
};

use self::description::{Call, Compare, MethodFacts, Session};
use super::{
    Outcome,
    case::{FailedCall, Graphs, ProgramFormat, call, tensors},
};
use crate::failure;

/// The last inputs of programs that sample tokens: temperature, `top_k`, `top_p` and seed.
const DRAWN: [DType; 4] = [DType::F32, DType::I64, DType::F32, DType::I64];

/// File that describes a session.
pub(super) const FILE: &str = "session.json";

/// A folder with a program and the calls of a session.
pub(super) struct SessionCase {
    folder: PathBuf,
    session: Session,
}

impl SessionCase {
    /// Reads `session.json`.
    pub(super) fn read(folder: &Path) -> Result<SessionCase> {
        let path = folder.join(FILE);
        let session = Session::read(&path).with_context(|| path.display().to_string())?;
        Ok(SessionCase { folder: folder.to_owned(), session })
    }

    /// Group of the case in the text report.
    pub(super) fn family(&self) -> &str {
        &self.session.flow
    }

    /// Loads the program once and makes all calls. One that fails to run ends its method's part in
    /// the session; one with wrong results
    /// does not.
    pub(super) fn run(&self, from: ProgramFormat, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        if from != ProgramFormat::Pte {
            return Ok(Outcome::Skipped("a session has no program but ExecuTorch's".into()));
        }
        let program = Program::open(self.folder.join("model.pte"))?;
        for (name, facts) in &self.session.methods {
            compare_form(&program, name, facts).with_context(|| format!("method {name}"))?;
        }
        let kv_cache = self.session.kv_cache.as_ref().map(|cache| cache.config()).transpose()?;
        let options = LoadOptions { kv_cache, shared: Some(SharedState::default()) };
        let mut methods: HashMap<&str, Option<Method>> = HashMap::new();
        let mut failed = Vec::new();
        for (number, step) in self.session.calls.iter().enumerate() {
            let mut fail = |error| {
                failed.push(FailedCall { call: number, method: step.method.clone(), reason: failure::text(&error) });
            };
            let method = methods.entry(&step.method).or_insert_with(|| {
                let method = program.method(&step.method, engine, &options);
                method.map_err(|error| fail(error.into())).ok()
            });
            let Some(loaded) = method else { continue };
            match self.compare(loaded, step) {
                Ok(verdict) => verdict.unwrap_or_else(fail),
                Err(error) => {
                    fail(error);
                    *method = None;
                }
            }
        }
        Ok(if failed.is_empty() { Outcome::Passed(Vec::new()) } else { Outcome::FailedCalls(failed) })
    }

    /// Makes a call and judges its results.
    ///
    /// # Errors
    /// It cannot be made.
    fn compare(&self, method: &mut Method, step: &Call) -> Result<Result<()>> {
        let inputs = tensors(&self.folder.join(&step.inputs))?;
        let verdict = self.judge(step, &call(method, inputs.clone())?);
        if verdict.is_err() && self.is_drawn_at_the_border(method, step, inputs)? { Ok(Ok(())) } else { Ok(verdict) }
    }

    /// Whether the expected token is drawn with one candidate more or one less. In 16-bit floats,
    /// rounding often swaps the last of `top_k` candidates with the first one after them, however
    /// certain the draw is.
    fn is_drawn_at_the_border(&self, method: &mut Method, step: &Call, inputs: Vec<Tensor>) -> Result<bool> {
        let Some(at) = inputs.len().checked_sub(DRAWN.len()).filter(|_| step.compare == Compare::Token) else { return Ok(false) };
        if !inputs[at..].iter().zip(DRAWN).all(|(input, dtype)| input.dtype() == dtype && input.numel() == 1) {
            return Ok(false);
        }
        let candidates = inputs[at + 1].as_slice::<i64>()?[0];
        for candidates in [candidates - 1, candidates + 1].into_iter().filter(|_| candidates > 1) {
            let mut inputs = inputs.clone();
            inputs[at + 1] = Tensor::from_slice(&[candidates], inputs[at + 1].shape())?;
            if self.judge(step, &call(method, inputs)?).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Holds the results of a call against the expected ones; all that is wrong in one error.
    fn judge(&self, call: &Call, outputs: &[Tensor]) -> Result<()> {
        let expected = tensors(&self.folder.join(&call.expected))?;
        if outputs.len() != expected.len() || call.outputs.len() != expected.len() {
            bail!("{} outputs, {} described, expected {}", outputs.len(), call.outputs.len(), expected.len());
        }
        let wrong: Vec<String> = (0..expected.len())
            .filter_map(|i| {
                let bounds = judge::Bounds { relative: self.session.rtol, absolute: call.atol[i], rms: call.rms_tol[i] };
                let error = judge::output(&outputs[i], &expected[i], &call.outputs[i], call.compare, bounds).err()?;
                Some(format!("output {i}: {}", failure::text(&error)))
            })
            .collect();
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join(", ")) }
    }
}

/// Holds a method's nodes and mutable buffers against the stated ones.
fn compare_form(program: &Program, name: &str, facts: &MethodFacts) -> Result<()> {
    let plan = program.file().plan(name).context("the program has no such method")?;
    let graphs = Graphs::of_methods(program, std::slice::from_ref(plan))?;
    let nodes = graphs.0.iter().map(main_nodes).sum::<usize>();
    if nodes != facts.nodes {
        bail!("{nodes} nodes, expected {}", facts.nodes);
    }
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    graphs.nodes().for_each(|node| *found.entry(node.name()).or_default() += 1);
    let expected: BTreeMap<&str, usize> = facts.ops.iter().map(|(name, &n)| (name.trim_end_matches("Node"), n)).collect();
    if found != expected {
        bail!("the nodes {found:?}, expected {expected:?}");
    }
    let buffers: BTreeSet<String> = graphs.0.iter().flat_map(buffers).collect();
    if buffers != facts.buffers {
        bail!("the mutable buffers {buffers:?}, expected {:?}", facts.buffers);
    }
    Ok(())
}

/// Number of nodes in the chain that a run begins with.
fn main_nodes(graph: &Graph) -> usize {
    graph.chains.get(graph.main as usize).map_or(0, Vec::len)
}

/// `name [sizes] dtype` of each mutable buffer.
fn buffers(graph: &Graph) -> Vec<String> {
    let describe = |&tid: &Tid| {
        let meta = &graph.meta[tid.0 as usize];
        let size = |dim: &MetaDim| match dim {
            MetaDim::Static(n) => n.to_string(),
            MetaDim::Dynamic { .. } => "?".to_owned(),
        };
        let sizes: Vec<String> = meta.shape.iter().map(size).collect();
        let name = graph.name_of(Slot::Tensor(tid)).unwrap_or_default();
        format!("{name} [{}] {}", sizes.join(", "), meta.dtype.code())
    };
    graph.buffers.iter().map(describe).collect()
}
