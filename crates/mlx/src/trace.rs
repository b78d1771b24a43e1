//! Tracing: MLX compiles one run of the main chain as a function. Later runs of the same signature
//! build no arrays.
//!
//! A program's sizes depend on the call: a language model writes its cache at a given position and
//! reads it up to there. A trace keeps such integers open. An input that is an integer tensor of
//! one element has an [`Origin`], and so have integers computed from it. The few nodes that may
//! read an open integer use it as an array. A slice that ends at an open integer is [`Padded`]: its
//! array is longer than the slice, by less than [`BUCKET`], and attention masks the rest. Every
//! other node that reads an open value ends the trace, and the signature runs node by node.

use std::sync::{Arc, Mutex};

use flambeau_ir::{ChainId, Graph, Slot as GraphSlot, Tid, engine::Value};
use flambeau_tensor::{DType, Shape};

use crate::{
    counts::Counts,
    cx::{Cx, Machine},
    error::{OpError, Result},
    ffi::{Array, Closure, Failure, Unary},
    main_chain::MainChain,
    open::{Guard, OpenIntegers, Origin},
    values::{Feedback, Slot, cast},
};

/// Traces of one signature; a longer sequence replaces the oldest.
const MAX_TRACES: usize = 8;

/// Maximum number of signatures with their own traces.
const MAX_SIGNATURES: usize = 32;

/// A compiled run.
#[derive(Debug)]
struct Compiled {
    closure: Closure,
    guards: Vec<Guard>,
    /// Execution of one run's nodes.
    counts: Counts,
}

/// The history and the traces of a signature.
#[derive(Debug, Default)]
struct Known {
    runs: u32,
    refused: bool,
    compiled: Vec<Compiled>,
}

/// Types and shapes of tensor inputs; integers by value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Input {
    Tensor(DType, Shape),
    Int(i32),
}

/// Outputs, and handles to the inputs.
pub(crate) type Results = (Vec<Array>, Vec<Array>);

/// The compiled runs of a session.
#[derive(Debug)]
pub(crate) struct Traces {
    known: Vec<(Vec<Input>, Known)>,
    /// The buffers that a run writes.
    written: Vec<Tid>,
}

/// The integers that a trace leaves open, by input. An integer on the device is unknown to the
/// host.
fn open_integers(inputs: &[Value], feedback: Option<&Feedback>) -> Vec<Option<i64>> {
    let open = |(i, input): (usize, &Value)| match input {
        _ if feedback.is_some_and(|feedback| feedback.input == i) => None,
        Value::Tensor(t) if t.numel() == 1 && matches!(t.dtype(), DType::I32 | DType::I64) => {
            crate::values::integers(t).ok().and_then(|all| all.first().copied())
        }
        _ => None,
    };
    inputs.iter().enumerate().map(open).collect()
}

fn holds(guards: &[Guard], open: &[Option<i64>]) -> bool {
    guards.iter().all(|g| {
        let value = open.get(g.origin.input).copied().flatten().map(|v| v + g.origin.offset);
        value.is_some_and(|v| (g.low..=g.high).contains(&v))
    })
}

impl Traces {
    /// None yet, of the graph's main chain.
    pub(crate) fn of(graph: &Graph) -> Traces {
        Traces { known: Vec::new(), written: graph.buffers_written_by(ChainId(graph.main)) }
    }

    /// Runs the compiled main chain and binds the written buffers. Returns the outputs in order and
    /// handles to the inputs, or `None` if the chain must run node by node.
    ///
    /// # Errors
    /// If MLX fails; the buffers are then as before.
    pub(crate) fn run(
        &mut self,
        m: &mut Machine,
        main: &mut MainChain,
        inputs: &[Value],
        feedback: Option<&Feedback>,
    ) -> Option<Result<Results>> {
        let signature = inputs.iter().map(|input| match input {
            Value::Tensor(t) => Input::Tensor(t.dtype(), Shape::from_slice(t.shape())),
            Value::Int(v) => Input::Int(*v),
        });
        let signature: Vec<Input> = signature.collect();
        let at = self.known.iter().position(|k| k.0 == signature).unwrap_or_else(|| {
            if self.known.len() == MAX_SIGNATURES {
                self.known.remove(0);
            }
            self.known.push((signature, Known::default()));
            self.known.len() - 1
        });
        let known = &mut self.known[at].1;
        known.runs = known.runs.saturating_add(1);
        // A signature that comes once, as a prompt's length does, is not worth a trace.
        if known.refused || known.runs < 2 {
            return None;
        }
        let open = open_integers(inputs, feedback);
        let written = &self.written;
        let mut arrays = match arguments(m, inputs, feedback, written) {
            Ok(arrays) => arrays,
            Err(error) => return Some(Err(error)),
        };
        let compiled = known.compiled.iter().position(|c| holds(&c.guards, &open));
        let result = match compiled {
            Some(i) => {
                main.counts.add(&known.compiled[i].counts);
                known.compiled[i].closure.call(&arrays).map_err(OpError::from)
            }
            None => match compile((m, main), inputs, &open, written, &arrays) {
                Ok((compiled, results)) => {
                    if known.compiled.len() == MAX_TRACES {
                        known.compiled.remove(0);
                    }
                    main.counts.add(&compiled.counts);
                    known.compiled.push(compiled);
                    Ok(results)
                }
                Err(_) => {
                    // After a traced run, a failed trace is an exception, such as a position past
                    // the end, and refuses no later trace.
                    known.refused = known.compiled.is_empty();
                    return None;
                }
            },
        };
        arrays.truncate(arrays.len() - written.len());
        Some(result.and_then(|results| Ok((bind(m, results, written)?, arrays))))
    }
}

/// Inputs, then written buffers. The buffers keep their handles in the slots, in case the run
/// fails.
fn arguments(m: &Machine, inputs: &[Value], feedback: Option<&Feedback>, written: &[Tid]) -> Result<Vec<Array>> {
    let mut arrays = Vec::with_capacity(inputs.len() + written.len());
    for (i, input) in inputs.iter().enumerate() {
        match (input, feedback.filter(|feedback| feedback.input == i)) {
            (Value::Tensor(_), Some(feedback)) => arrays.push(feedback.array.share()?),
            (Value::Tensor(tensor), None) => arrays.push(Array::from_tensor(m.api, tensor)?),
            (Value::Int(_), _) => {}
        }
    }
    for &tid in written {
        let slot = m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref);
        arrays.push(slot.ok_or_else(|| OpError::value(format!("buffer {tid} is empty")))?.array.share()?);
    }
    Ok(arrays)
}

/// Removes the written buffers from the results.
fn bind(m: &mut Machine, mut results: Vec<Array>, written: &[Tid]) -> Result<Vec<Array>> {
    let buffers = results.split_off(results.len() - written.len());
    for (&tid, array) in written.iter().zip(buffers) {
        let (dtype, shape) = array.spec()?;
        m.set(tid, Slot::new(array, dtype, shape));
    }
    Ok(results)
}

/// Traces the run and calls it for the first time.
fn compile(
    (m, main): (&mut Machine, &mut MainChain),
    inputs: &[Value],
    open: &[Option<i64>],
    written: &[Tid],
    arrays: &[Array],
) -> Result<(Compiled, Vec<Array>)> {
    let before = written.iter().map(|&tid| Cx { m: &mut *m }.get_slot(tid)).collect::<Result<Vec<_>>>()?;
    let counts = main.counts.clone();
    let lent = Lent { inputs: inputs.to_vec(), open: open.to_vec(), written: written.to_vec(), guards: Vec::new() };
    let api = m.api;
    let placeholder = Machine::new(Arc::clone(&m.graph), m.api, m.device, m.support, None);
    let cell = Arc::new(Mutex::new(Some((std::mem::replace(m, placeholder), std::mem::take(main), lent))));
    let results = m.graph.outputs.len() + written.len();
    let inside = Arc::clone(&cell);
    let body = move |traced: Vec<Array>| {
        let mut cell = inside.lock().unwrap_or_else(|e| e.into_inner());
        // MLX keeps the trace; it would call again only for another signature.
        let (machine, main, lent) = cell.as_mut().ok_or_else(|| Failure("a compiled run met another signature".into()))?;
        lent.trace(machine, main, traced).map_err(|e| Failure(e.to_string()))
    };
    let called = Closure::compile(api, results, body).and_then(|closure| closure.call(arrays).map(|results| (closure, results)));
    let guards = match cell.lock().unwrap_or_else(|e| e.into_inner()).take() {
        Some((machine, lent_main, lent)) => {
            (*m, *main) = (machine, lent_main);
            lent.guards
        }
        None => return Err(OpError::value("the trace was lost")),
    };
    m.open = None;
    // A failed trace is no run.
    let counted = main.counts.since(&counts);
    main.counts = counts;
    for (&tid, slot) in written.iter().zip(before) {
        m.set(tid, slot);
    }
    let (closure, results) = called?;
    Ok((Compiled { closure, guards, counts: counted }, results))
}

/// State lent to a trace besides the machine.
struct Lent {
    inputs: Vec<Value>,
    open: Vec<Option<i64>>,
    written: Vec<Tid>,
    guards: Vec<Guard>,
}

impl Lent {
    /// Runs the main chain on MLX's placeholders.
    fn trace(&mut self, m: &mut Machine, main: &mut MainChain, traced: Vec<Array>) -> Result<Vec<Array>> {
        let graph = Arc::clone(&m.graph);
        let mut traced = traced.into_iter();
        let mut next = || traced.next().ok_or_else(|| OpError::value("an argument is missing"));
        let mut trace = OpenIntegers::default();
        for ((slot, value), open) in graph.inputs.iter().zip(&self.inputs).zip(&self.open) {
            match (slot, value) {
                (GraphSlot::Tensor(tid), Value::Tensor(tensor)) => {
                    let array = next()?;
                    let mut slot = Slot::new(array.share()?, tensor.dtype(), Shape::from_slice(tensor.shape()));
                    slot.origin = open.map(|_| Origin { input: trace.inputs.len(), offset: 0 });
                    trace.inputs.push(open.map(|value| (array, value)));
                    m.set(*tid, slot);
                }
                (GraphSlot::Value(vid), Value::Int(v)) => {
                    trace.inputs.push(None);
                    if let Some(value) = m.env.values.get_mut(vid.0 as usize) {
                        *value = Some(*v);
                    }
                }
                _ => return Err(OpError::value("an argument has the wrong kind")),
            }
        }
        for &tid in &self.written {
            let array = next()?;
            let (dtype, shape) = array.spec()?;
            m.set(tid, Slot::new(array, dtype, shape));
        }
        m.open = Some(trace);
        main.run(m)?;
        self.guards = m.open.take().map(|t| t.guards).unwrap_or_default();
        let mut results = Vec::new();
        for slot in &graph.outputs {
            let GraphSlot::Tensor(tid) = *slot else { return Err(OpError::value("cannot trace an integer result")) };
            let slot = Cx { m: &mut *m }.get_slot(tid)?;
            if slot.padded.is_some() {
                return Err(OpError::value("cannot trace a result of open length"));
            }
            let dtype = graph.meta.get(tid.0 as usize).map_or(slot.dtype, |meta| meta.dtype);
            results.push(cast(&slot, dtype)?.unary(Unary::Contiguous)?);
        }
        for &tid in &self.written {
            results.push(Cx { m: &mut *m }.get_slot(tid)?.array);
        }
        m.clear();
        Ok(results)
    }
}
