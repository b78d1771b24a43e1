//! Recordings of all results of a run, and their comparison.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use flambeau_ir::{
    Slot,
    engine::{Engine, EngineError, LoadOptions, Value as EngineValue},
};
use flambeau_tensor::{Tensor, Tolerance};

use super::{
    check::{Verdict, output_differences},
    difference::{Difference, Scale, described},
    engine::NodeByNode,
    walk::{NodeRun, Observer},
};
use crate::{Program, Result, Value};

/// Bytes of results that a recording may keep.
const MAX_BYTES: usize = 8 << 30;

/// A result of a node.
#[derive(Clone, Debug)]
pub struct RecordedNode {
    /// Number of the run.
    pub run: usize,
    /// Number of the graph, in the order in which an engine loads them.
    pub graph: usize,
    /// Position in the main chain.
    pub instruction: usize,
    pub slot: Slot,
    pub value: EngineValue,
    /// Kind of the node.
    pub name: &'static str,
    at: Difference,
}

impl RecordedNode {
    /// The node's place and text in words.
    pub fn place(&self) -> String {
        format!("delegate {}, node {}: {}", self.graph, self.instruction, self.at.node)
    }

    /// A difference at this node, described by the caller.
    pub fn difference(&self, what: String) -> Difference {
        Difference { slot: Some(self.slot), expected: described(&self.value), what, ..self.at.clone() }
    }
}

/// All results of the nodes of runs, in order, and the outputs of the runs.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub nodes: Vec<RecordedNode>,
    pub outputs: Vec<Vec<Value>>,
}

/// Position of a node's result: graph, position in the main chain, slot.
pub type ResultPlace = (usize, usize, Slot);

impl Recording {
    /// Whether the other recording has the same nodes in the same order.
    pub fn is_like(&self, other: &Recording) -> bool {
        let keys = |recording: &Recording| recording.nodes.iter().map(|node| (node.run, node.graph, node.name)).collect::<Vec<_>>();
        keys(self) == keys(other)
    }

    /// One recording for each run.
    pub fn split_runs(&self) -> Vec<Recording> {
        let mut nodes = vec![Vec::new(); self.outputs.len()];
        for node in &self.nodes {
            if let Some(run) = nodes.get_mut(node.run) {
                run.push(node.clone());
            }
        }
        let outputs = self.outputs.iter().map(|outputs| vec![outputs.clone()]);
        nodes.into_iter().zip(outputs).map(|(nodes, outputs)| Recording { nodes, outputs }).collect()
    }

    /// The tensors of a recording of one run, by place.
    pub fn tensors(&self) -> BTreeMap<ResultPlace, Tensor> {
        let tensor = |node: &RecordedNode| match &node.value {
            EngineValue::Tensor(tensor) => Some(((node.graph, node.instruction, node.slot), tensor.clone())),
            EngineValue::Int(_) => None,
        };
        self.nodes.iter().filter_map(tensor).collect()
    }
}

/// Runs a method node by node with each list of inputs, and keeps all results.
///
/// # Errors
/// The engine cannot run the method, the inputs do not fit, or the results take over 8 GiB.
pub fn record(
    program: &Program,
    method: &str,
    engine: &Arc<dyn Engine>,
    runs: &[Vec<Value>],
    options: &LoadOptions,
) -> Result<Recording> {
    let observer = Arc::new(Mutex::new(Recorder { recording: Recording::default(), run: 0, bytes: 0 }));
    let stepping: Arc<dyn Engine> = Arc::new(NodeByNode::new(Arc::clone(engine), Arc::clone(&observer) as _));
    let mut method = program.method(method, &stepping, options)?;
    let mut outputs = Vec::with_capacity(runs.len());
    for (run, inputs) in runs.iter().enumerate() {
        observer.lock().unwrap_or_else(PoisonError::into_inner).run = run;
        outputs.push(method.run(inputs)?);
    }
    let mut kept = observer.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Recording { outputs, ..std::mem::take(&mut kept.recording) })
}

struct Recorder {
    recording: Recording,
    run: usize,
    bytes: usize,
}

impl Observer for Recorder {
    fn node(&mut self, run: &NodeRun<'_>) -> Result<(), EngineError> {
        let at = Difference::at(run.graph_number, run.graph, run.instruction..=run.instruction);
        for (&slot, value) in run.part.outputs.iter().zip(run.results) {
            if let EngineValue::Tensor(tensor) = value {
                self.bytes += tensor.bytes().len();
            }
            if self.bytes > MAX_BYTES {
                return Err(EngineError::Arguments(format!("the results take over {} GiB; give smaller inputs", MAX_BYTES >> 30)));
            }
            self.recording.nodes.push(RecordedNode {
                run: self.run,
                graph: run.graph_number,
                instruction: run.instruction,
                slot,
                value: value.clone(),
                name: run.node.name(),
                at: at.clone(),
            });
        }
        Ok(())
    }
}

/// Compares a recording with the expected one of a program with [the same
/// nodes](Recording::is_like): node by node, and the outputs. Results of other element types are
/// compared as the expected type.
pub fn compare(actual: &Recording, expected: &Recording, tolerance: Option<Tolerance>) -> Verdict {
    let mut verdict = Verdict::default();
    let nodes = actual.nodes.len() / actual.outputs.len().max(1);
    for (actual, expected) in actual.nodes.iter().zip(&expected.nodes) {
        if shape_of(&actual.value) == shape_of(&expected.value) {
            let scale = Scale { given: tolerance, nodes: actual.instruction + 1 };
            verdict.nodes += 1;
            verdict.compare(&actual.at, actual.slot, [&like(&actual.value, &expected.value), &expected.value], scale);
        }
    }
    for (run, (actual, expected)) in actual.outputs.iter().zip(&expected.outputs).enumerate() {
        let wrong = compare_outputs(actual, expected, nodes, tolerance);
        verdict.outputs.extend(wrong.into_iter().map(|(output, what)| (run, output, what)));
    }
    verdict
}

/// Outputs that differ after a run of `nodes` nodes, with the mismatch in words. Outputs of other
/// element types are compared as the expected type.
pub fn compare_outputs(actual: &[Value], expected: &[Value], nodes: usize, tolerance: Option<Tolerance>) -> Vec<(usize, String)> {
    let alike: Vec<Value> = actual.iter().zip(expected).map(|(actual, expected)| like_output(actual, expected)).collect();
    let mut wrong: Vec<(usize, String)> = output_differences(&alike, expected, Scale { given: tolerance, nodes }).collect();
    if actual.len() != expected.len() {
        wrong.push((actual.len().min(expected.len()), format!("{} outputs instead of {}", actual.len(), expected.len())));
    }
    wrong
}

/// The shape of a result; `None` for integers.
fn shape_of(value: &EngineValue) -> Option<&[usize]> {
    match value {
        EngineValue::Tensor(tensor) => Some(tensor.shape()),
        EngineValue::Int(_) => None,
    }
}

fn like(value: &EngineValue, model: &EngineValue) -> EngineValue {
    match (value, model) {
        (EngineValue::Tensor(value), EngineValue::Tensor(model)) => EngineValue::Tensor(in_type(value, model)),
        _ => value.clone(),
    }
}

fn like_output(value: &Value, model: &Value) -> Value {
    match (value, model) {
        (Value::Tensor(value), Value::Tensor(model)) => Value::Tensor(in_type(value, model)),
        // Files of tensors hold integers as tensors.
        (Value::Int(value), Value::Tensor(model)) => Value::Tensor(in_type(&Tensor::scalar(*value), model)),
        _ => value.clone(),
    }
}

fn in_type(tensor: &Tensor, model: &Tensor) -> Tensor {
    let is_alike = tensor.dtype().is_float() == model.dtype().is_float();
    let cast = is_alike.then(|| flambeau_tensor::cast(tensor, model.dtype()).ok()).flatten();
    cast.unwrap_or_else(|| tensor.clone())
}

/// Compares a recording of one run with recorded tensors by place.
pub fn compare_with_recorded(
    actual: &Recording,
    expected: &BTreeMap<ResultPlace, Tensor>,
    tolerance: Option<Tolerance>,
) -> Verdict {
    let mut verdict = Verdict::default();
    for node in &actual.nodes {
        let Some(expected) = expected.get(&(node.graph, node.instruction, node.slot)) else {
            verdict.skipped.push((node.at.node.clone(), "it is not recorded"));
            continue;
        };
        let scale = Scale { given: tolerance, nodes: node.instruction + 1 };
        let expected = EngineValue::Tensor(expected.clone());
        verdict.nodes += 1;
        match &node.value {
            EngineValue::Tensor(_) => {
                verdict.compare(&node.at, node.slot, [&like(&node.value, &expected), &expected], scale);
            }
            EngineValue::Int(_) => verdict.skipped.push((described(&node.value), "it is no tensor")),
        }
    }
    verdict
}
