//! One method: from an exported program to a plan with its delegate.

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{Checked, Graph, IdCopy, In, MetaDim, Node, Out, Slot, SlotClass, Tid, check, engine::Engine};
use flambeau_lower::{Constant, Flow, Recipe, fuse};
use flambeau_pt2::{Argument, Exported};
use flambeau_tensor::Shape;
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Allocation, Chain, ContainerMeta, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
};

use crate::{
    Error, Options,
    fold::fold,
    materialize::{identity, materialize},
    quantize::quantize,
    report::{MethodReport, Outcome},
    slots::{self, Slotted},
    trace::{Buffer, MethodInput, MethodOutput, Trace},
    weights::Weights,
};

/// Name under which ExecuTorch registers its MLX delegate.
const BACKEND: &str = "MLXBackend";

/// Planned tensors start at multiples of this, in bytes.
const PLAN_ALIGNMENT: u64 = 16;

/// Stand-in for the upper bound of a size that has none, in a plan's tensors.
const UNBOUNDED: u32 = 1 << 16;

/// A compiled method.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) graph: Arc<Checked>,
    plan: ExecutionPlan,
    constants: Vec<(String, Arc<Constant>)>,
}

/// Compiles one method. Nothing but the report comes back if a call was refused.
pub(crate) fn compile<'a>(
    name: &str,
    number: usize,
    exported: &'a Exported,
    options: &Options,
    folder: &dyn Engine,
) -> Result<(MethodReport, Option<(Compiled, Weights<'a>)>), Error> {
    let trace = Trace::run(exported)?;
    let mut report = MethodReport { name: name.to_owned(), calls: trace.calls.clone(), nodes: 0 };
    if report.refused().next().is_some() {
        return Ok((report, None));
    }
    let (mut flow, trace) = trace.into_flow()?;
    quantize(&mut flow, options);
    fuse(&mut flow);
    fold(&mut flow, &trace.weights, folder)?;
    flambeau_lower::drop_unread(&mut flow);
    attribute(&mut report, &flow, exported);
    let buffer_names: Vec<String> = trace.buffers.iter().map(|b| b.name.clone()).collect();
    let mut slotted = slots::assign(flow, &format!("{number:04x}"), &buffer_names);
    let initial = initial_contents(&mut slotted, &trace.buffers)?;
    slotted.constants.splice(0..0, initial);
    report.nodes = slotted.graph.node_count();
    let plan = plan(name, exported, &slotted, &trace);
    let graph = check(slotted.graph).map_err(|e| Error::Check(e.to_string()))?;
    let compiled = Compiled { graph: Arc::new(graph), plan, constants: slotted.constants };
    Ok((report, Some((compiled, trace.weights))))
}

/// Says of each call which nodes came from it, and where it stands in the user's code.
fn attribute(report: &mut MethodReport, flow: &Flow, exported: &Exported) {
    let mut nodes: HashMap<u32, Vec<&'static str>> = HashMap::new();
    for entry in flow.chains.iter().flatten() {
        nodes.entry(entry.call).or_default().push(entry.node.name());
    }
    let sources: HashMap<&str, &flambeau_pt2::Node> =
        exported.graph.nodes.iter().filter_map(|n| Some((n.name.as_deref()?, n))).collect();
    for (i, call) in report.calls.iter_mut().enumerate() {
        if let Some(names) = nodes.remove(&(i as u32)) {
            call.outcome = Outcome::Lowered(names);
        }
        if let Some(node) = sources.get(call.name.as_str()) {
            call.source = node.source();
        }
    }
}

/// Buffers start at zero; other initial contents become constants that the init chain copies in.
fn initial_contents(slotted: &mut Slotted, buffers: &[Buffer<'_>]) -> Result<Vec<(String, Arc<Constant>)>, Error> {
    let mut added = Vec::new();
    let mut copies = Vec::new();
    for (i, buffer) in buffers.iter().enumerate() {
        let tensor = buffer.initial.tensor()?;
        if tensor.bytes().iter().all(|&b| b == 0) {
            continue;
        }
        let key = format!("{}_initial", slotted.graph.names.iter().find(|(n, _)| n.ends_with(&format!("/{}", buffer.name))).map_or(buffer.name.as_str(), |(n, _)| n));
        let recipe = Recipe::Literal(tensor.bytes().clone());
        let shape = Shape::from_slice(tensor.shape());
        added.push((key, Arc::new(Constant { name: buffer.name.clone(), dtype: tensor.dtype(), shape, recipe })));
        copies.push(i);
    }
    if added.is_empty() {
        return Ok(added);
    }
    insert_constants(&mut slotted.graph, &added);
    let init = (0..copies.len()).map(|i| {
        let out = slotted.graph.slot(SlotClass::Buffer, copies[i] as u32);
        Node::from(IdCopy { x: In(Tid(i as u32)), out: Out(out) })
    });
    let init = init.collect();
    slotted.graph.init = Some(slotted.graph.chains.len() as u32);
    slotted.graph.chains.push(init);
    Ok(added)
}

/// Puts constants in front: every other tensor slot moves up.
fn insert_constants(graph: &mut Graph, added: &[(String, Arc<Constant>)]) {
    let n = added.len() as u32;
    let shift = |slot: &mut Slot| {
        if let Slot::Tensor(t) = slot {
            t.0 += n;
        }
    };
    for node in graph.chains.iter_mut().flatten() {
        node.walk_mut(&mut |_, slot| {
            if let flambeau_ir::SlotRef::Tensor(t) = slot {
                t.0 += n;
            }
        });
    }
    graph.inputs.iter_mut().for_each(shift);
    graph.outputs.iter_mut().for_each(shift);
    graph.names.iter_mut().map(|(_, s)| s).for_each(shift);
    graph.buffers.iter_mut().for_each(|t| t.0 += n);
    graph.slots.constants += n;
    let dims = |c: &Constant| c.shape.iter().map(|&d| MetaDim::Static(d as u32)).collect();
    let metas = added.iter().map(|(_, c)| flambeau_ir::TensorMeta::row_major(c.dtype, dims(c)));
    graph.meta.splice(0..0, metas);
    let names = added.iter().enumerate().map(|(i, (key, _))| (key.clone(), Slot::Tensor(Tid(i as u32))));
    graph.names.splice(0..0, names);
}

/// The outer program: inputs and outputs in one arena, and one call of the delegate.
fn plan(name: &str, exported: &Exported, slotted: &Slotted, trace: &Trace<'_>) -> ExecutionPlan {
    let mut planner = Planner { values: Vec::new(), arena: 0 };
    let graph = &slotted.graph;
    let mut method_inputs = Vec::new();
    for (number, input) in trace.inputs.iter().enumerate() {
        let slot = slotted.inputs.iter().position(|&n| n as usize == number).map(|i| graph.inputs[i]);
        let index = match (input, slot) {
            (MethodInput::Tensor { .. }, Some(Slot::Tensor(t))) => planner.tensor(&graph.meta[t.0 as usize]),
            // An input that nothing reads is still part of the signature.
            (MethodInput::Tensor { spec, .. }, _) => planner.tensor(&unread_meta(spec)),
            (MethodInput::Int { content, .. }, _) => planner.value(EValue::Int(content.as_int().unwrap_or(1))),
            (MethodInput::Constant(argument), _) => planner.value(constant_value(argument)),
        };
        method_inputs.push(index);
    }
    let mut args: Vec<u32> = slotted.inputs.iter().map(|&n| method_inputs[n as usize]).collect();
    let results: Vec<u32> = graph
        .outputs
        .iter()
        .map(|slot| match slot {
            Slot::Tensor(t) => planner.tensor(&graph.meta[t.0 as usize]),
            Slot::Value(_) => planner.value(EValue::Int(0)),
        })
        .collect();
    args.extend(&results);
    let outputs = trace.outputs.iter().map(|o| match o {
        MethodOutput::Result(i) => results[*i],
        MethodOutput::Constant(argument) => planner.value(constant_value(argument)),
    });
    let outputs = outputs.collect();
    ExecutionPlan {
        name: name.to_owned(),
        container: ContainerMeta { inputs: exported.in_spec.clone(), outputs: exported.out_spec.clone() },
        inputs: method_inputs,
        outputs,
        chains: vec![Chain { instructions: vec![Instruction::DelegateCall { delegate: 0, args }], ..Chain::default() }],
        operators: Vec::new(),
        delegates: vec![Delegate { id: BACKEND.to_owned(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, planner.arena],
        devices: Vec::new(),
        values: planner.values,
    }
}

fn unread_meta(spec: &flambeau_ir::Spec) -> flambeau_ir::TensorMeta {
    let dim = |d: &flambeau_tensor::Expr| match d.as_int() {
        Some(v) => MetaDim::Static(u32::try_from(v).unwrap_or(0)),
        None => MetaDim::Dynamic { min: 0, max: None },
    };
    flambeau_ir::TensorMeta::row_major(spec.dtype, spec.dims.iter().map(dim).collect())
}

fn constant_value(argument: &Argument) -> EValue {
    match argument {
        Argument::Int(v) => EValue::Int(*v),
        Argument::Float(v) => EValue::Double(*v),
        Argument::Bool(v) => EValue::Bool(*v),
        Argument::String(s) => EValue::String(s.clone()),
        _ => EValue::None,
    }
}

/// Values of a plan and the arena that their tensors share.
struct Planner {
    values: Vec<EValue>,
    arena: u64,
}

impl Planner {
    fn value(&mut self, value: EValue) -> u32 {
        self.values.push(value);
        self.values.len() as u32 - 1
    }

    /// A tensor at its upper bound, with memory of its own.
    fn tensor(&mut self, meta: &flambeau_ir::TensorMeta) -> u32 {
        let bound = |d: &MetaDim| match d {
            MetaDim::Static(n) => *n,
            MetaDim::Dynamic { max, .. } => max.unwrap_or(UNBOUNDED),
        };
        let sizes: Vec<u32> = meta.shape.iter().map(bound).collect();
        let dynamic = meta.shape.iter().any(|d| matches!(d, MetaDim::Dynamic { .. }));
        let offset = self.arena;
        let mut tensor = TensorValue::new(meta.dtype, &sizes);
        tensor.dynamic = dynamic;
        tensor.allocation = Some(Allocation { memory_id: 1, offset });
        self.arena = (offset + tensor.nbytes().unwrap_or(0)).next_multiple_of(PLAN_ALIGNMENT);
        self.value(EValue::Tensor(Box::new(tensor)))
    }
}

impl Compiled {
    /// Adds the method and its weights to a file under construction.
    pub(crate) fn add_to<'w>(&'w self, writer: &mut ProgramWriter<'w>, weights: &'w Weights<'_>) -> Result<(), Error> {
        writer.method(self.plan.clone(), vec![Blob::from_bytes(mlx::encode(&self.graph))])?;
        for (key, constant) in &self.constants {
            let blob = match &constant.recipe {
                Recipe::Literal(bytes) => Blob::from_bytes(bytes.clone()),
                _ => {
                    let len = constant.shape.iter().product::<usize>() * constant.dtype.size();
                    Blob::lazy(len as u64, identity(constant, weights).as_bytes(), move |out| {
                        let tensor = materialize(constant, weights).map_err(std::io::Error::other)?;
                        out.write_all(tensor.bytes())
                    })
                }
            };
            writer.named(key.clone(), blob)?;
        }
        Ok(())
    }
}
