//! Comparison with a reference that has other nodes: PyTorch's calls, or another program's nodes.
//!
//! Nodes correspond to the reference by their values, because fusions and quantization change
//! nodes. A node is wrong if the reference has neither its result nor any result that depends on
//! it.

use std::collections::HashMap;

use anyhow::{Context, Result};
use flambeau::{
    engine::Value as EngineValue,
    pt2::Exported,
    runtime::{
        Program, Value,
        verify::{self, RecordedNode, Recording, Verdict, readers},
    },
    tensor::{DType, Tensor, Tolerance, cast, compare as differ},
};

use super::Subject;
use crate::{inputs, pytorch::Run, tensors::NamedTensor};

/// Elements that are compared before whole tensors are.
const SAMPLE: usize = 8;

/// Results of a run of the reference.
struct Reference {
    /// Results with what computes them, in words.
    values: Vec<(String, Tensor)>,
    outputs: Vec<Value>,
}

/// Compares with PyTorch's runs, one after another so that buffers change alike.
pub(super) fn pytorch(subject: &Subject<'_>, runs: &[Run], exported: &Exported) -> Result<Verdict> {
    let method = subject.program.method(subject.method(), &subject.cpu, &subject.options())?;
    let unnamed = |tensor: &Tensor| NamedTensor { name: None, tensor: tensor.clone() };
    let arguments = |run: &Run| inputs::arguments(method.inputs(), run.inputs.iter().map(unnamed).collect());
    let inputs = runs.iter().map(arguments).collect::<Result<Vec<_>>>()?;
    let recording = verify::record(&subject.program, subject.method(), &subject.cpu, &inputs, &subject.options())?;
    let value = |named: &NamedTensor| (place_of(exported, named.name.as_deref().unwrap_or_default()), named.tensor.clone());
    let reference = |run: &Run| Reference {
        values: run.values.iter().map(value).collect(),
        outputs: run.outputs.iter().cloned().map(Value::Tensor).collect(),
    };
    let references: Vec<Reference> = runs.iter().map(reference).collect();
    compare((&subject.program, subject.method()), &recording, &references, subject.tolerance())
}

/// Compares the recorded runs of two programs: by place if both have the same nodes, else by value.
pub(crate) fn programs(
    method: (&Program, &str),
    [recording, other]: [&Recording; 2],
    tolerance: Option<Tolerance>,
) -> Result<Verdict> {
    if recording.is_like(other) {
        return Ok(verify::compare(recording, other, tolerance));
    }
    let value = |node: &RecordedNode| match &node.value {
        EngineValue::Tensor(tensor) => Some((node.place(), tensor.clone())),
        EngineValue::Int(_) => None,
    };
    let reference =
        |run: Recording| Reference { values: run.nodes.iter().filter_map(value).collect(), outputs: run.outputs.concat() };
    compare(method, recording, &other.split_runs().into_iter().map(reference).collect::<Vec<_>>(), tolerance)
}

/// Compares outputs. Where one differs, names the first node that the reference does not confirm.
fn compare(method: (&Program, &str), recording: &Recording, runs: &[Reference], tolerance: Option<Tolerance>) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let present = |values: Vec<Value>| values.into_iter().filter(|value| !matches!(value, Value::None)).collect::<Vec<_>>();
    for (number, (recorded, run)) in recording.split_runs().into_iter().zip(runs).enumerate() {
        let outputs = [recorded.outputs.concat(), run.outputs.clone()].map(present);
        let wrong = verify::compare_outputs(&outputs[0], &outputs[1], recorded.nodes.len(), tolerance);
        let confirmed = Confirmed::find(&recorded, run, tolerance);
        verdict.nodes += confirmed.by.len();
        if !wrong.is_empty() && verdict.differences.is_empty() {
            verdict.differences.extend(first_wrong(method, &recorded, &confirmed)?);
        }
        verdict.outputs.extend(wrong.into_iter().map(|(output, what)| (number, output, what)));
    }
    Ok(verdict)
}

/// A result of the reference: what computes it, the tensor, and a sample of its elements.
type Candidate<'a> = (&'a str, &'a Tensor, Vec<f64>);

/// Nodes with a result of the reference, by graph and position. The text names the reference's node
/// or call.
struct Confirmed<'a> {
    by: HashMap<(usize, usize), &'a str>,
}

impl<'a> Confirmed<'a> {
    fn find(recording: &Recording, run: &'a Reference, tolerance: Option<Tolerance>) -> Confirmed<'a> {
        let mut by_shape: HashMap<&[usize], Vec<Candidate<'a>>> = HashMap::new();
        for (name, tensor) in &run.values {
            by_shape.entry(tensor.shape()).or_default().push((name, tensor, sample(tensor)));
        }
        let mut by = HashMap::new();
        for node in &recording.nodes {
            let EngineValue::Tensor(tensor) = &node.value else { continue };
            let own = sample(tensor);
            let mut candidates = by_shape.get(tensor.shape()).into_iter().flatten();
            let is_same = |(_, other, few): &&Candidate<'_>| is_near(&own, few) && is_equal(tensor, other, tolerance);
            if let Some((name, ..)) = candidates.find(is_same) {
                by.insert((node.graph, node.instruction), *name);
            }
        }
        Confirmed { by }
    }

    fn has(&self, graph: usize, node: usize) -> bool {
        self.by.contains_key(&(graph, node))
    }
}

/// Some elements, evenly spaced.
fn sample(tensor: &Tensor) -> Vec<f64> {
    let (count, size) = (tensor.numel(), tensor.dtype().size());
    let chosen = (0..SAMPLE.min(count)).map(|i| i * count / SAMPLE.min(count));
    let bytes: Vec<u8> = chosen.flat_map(|at| tensor.bytes()[at * size..(at + 1) * size].to_vec()).collect();
    let few = Tensor::new(tensor.dtype(), &[SAMPLE.min(count)], bytes.into()).ok().map(|few| few.aligned());
    let wide = few.and_then(|few| cast(&few, DType::F64).ok());
    wide.and_then(|wide| wide.as_slice::<f64>().map(<[f64]>::to_vec).ok()).unwrap_or_default()
}

/// Whether samples are so close that the whole tensors are worth a comparison.
fn is_near(a: &[f64], b: &[f64]) -> bool {
    let largest = b.iter().filter(|v| v.is_finite()).fold(1e-3, |most: f64, v| most.max(v.abs()));
    a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 0.25 * largest)
}

fn is_equal(tensor: &Tensor, expected: &Tensor, tolerance: Option<Tolerance>) -> bool {
    let is_alike = tensor.dtype().is_float() == expected.dtype().is_float();
    let tensor = if is_alike { cast(tensor, expected.dtype()).ok() } else { None };
    tensor.is_some_and(|tensor| differ(&tensor, expected, tolerance.unwrap_or_else(|| verify::rounding(expected))).is_ok())
}

/// The first node that the reference does not confirm.
fn first_wrong(
    (program, method): (&Program, &str),
    recording: &Recording,
    confirmed: &Confirmed<'_>,
) -> Result<Option<verify::Difference>> {
    let plan = program.file().plan(method).context("the program has no such method")?;
    for (number, delegate) in plan.delegates.iter().enumerate() {
        let graph = program.graph(plan, number, delegate)?;
        let readers = readers(&graph);
        // Whether the reference has the result of the node, or of one that depends on it.
        let mut is_right = vec![false; readers.len()];
        for at in (0..readers.len()).rev() {
            is_right[at] = confirmed.has(number, at) || readers[at].iter().any(|&reader| is_right[reader]);
        }
        let Some(wrong) = is_right.iter().position(|right| !right) else { continue };
        let Some(node) = recording.nodes.iter().find(|node| node.graph == number && node.instruction == wrong) else { continue };
        let operands = (0..wrong).filter(|&at| readers[at].contains(&wrong)).filter_map(|at| confirmed.by.get(&(number, at)));
        let mut what = "the reference has neither this result nor one that depends on it".to_owned();
        operands.for_each(|place| what += &format!("\n  its operand agrees: {place}"));
        return Ok(Some(node.difference(what)));
    }
    Ok(None)
}

/// A call with its place in the source.
fn place_of(exported: &Exported, name: &str) -> String {
    let node = exported.graph.nodes.iter().find(|node| node.output_names().contains(&name));
    let Some(node) = node else { return format!("`{name}`") };
    let source = node.source().to_string();
    if source.is_empty() { format!("{} (`{name}`)", node.target) } else { format!("{} (`{name}`) at {source}", node.target) }
}
