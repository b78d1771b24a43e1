//! Compiles one method from an exported program into a plan with its delegates.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use flambeau_ir::{Checked, Graph, IdCopy, In, MetaDim, Node, Out, Slot, SlotClass, Tid, check, engine::Engine};
use flambeau_lower::{ConstExpr, Constant, SsaGraph, drop_unread, fuse};
use flambeau_pt2::Exported;
use flambeau_tensor::Shape;
use flambeau_wire::{
    Blob, ProgramWriter, mlx,
    pte::{Chain, EValue, ExecutionPlan, Instruction},
};

use crate::{
    Delegate, Error, Options,
    evaluate::{evaluate, identity},
    fallback::FallbackCall,
    fold::fold,
    outer::{Finished, Outer, OuterStep},
    quantize::quantize,
    report::{MethodReport, Outcome},
    slots::{self, Slotted},
    split::split,
    trace::{Buffer, Trace},
    weights::Weights,
};

/// A compiled method.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) graphs: Vec<Arc<Checked>>,
    /// By graph and node of its main chain, the number of the node's call in the report.
    pub(crate) calls: Vec<Vec<u32>>,
    plan: ExecutionPlan,
    /// Named constants of the delegates.
    constants: Vec<(String, Arc<Constant>)>,
    /// Constant values of the plan.
    outer_constants: Vec<(u32, Arc<Constant>)>,
    /// The assumed upper bound of unbounded sizes, if it is below the default.
    bound: Option<u32>,
}

/// Traces a method without compiling it, and reports the outcome of each call.
pub(crate) fn report(name: &str, exported: &Exported, options: &Options, state: &HashSet<String>) -> Result<MethodReport, Error> {
    let trace = Trace::run(exported, options, state)?;
    let mut report = reported(name, &trace);
    if report.refused().next().is_none() {
        let (mut ssa, trace) = trace.into_graph()?;
        run_passes(&mut ssa, &trace, options, None)?;
        report.nodes = ssa.node_count();
        attribute(&mut report, &ssa, exported);
    }
    Ok(report)
}

/// Compiles one method. `number` makes the keys of its constants unique, and `state` names the
/// program's mutable buffers. If a call was refused, only the report is returned.
pub(crate) fn compile<'a>(
    (name, number): (&str, usize),
    exported: &'a Exported,
    options: &Options,
    state: &HashSet<String>,
    engine: &dyn Engine,
) -> Result<(MethodReport, Option<(Compiled, Weights<'a>)>), Error> {
    let trace = Trace::run(exported, options, state)?;
    let mut report = reported(name, &trace);
    if report.refused().next().is_some() {
        return Ok((report, None));
    }
    let (mut ssa, trace) = trace.into_graph()?;
    run_passes(&mut ssa, &trace, options, Some(engine))?;
    attribute(&mut report, &ssa, exported);
    let prefix = format!("{}{number:04x}", options.key_prefix);
    // A delegate cannot return elements of types that graphs lack.
    let returns_foreign = ssa.results.iter().any(|slot| matches!(slot, Slot::Tensor(t) if !ssa.spec(*t).dtype.is_node_dtype()));
    let compiled = match trace.fallback.calls[..] {
        [] if !returns_foreign => whole(name, exported, ssa, &trace, (&prefix, options.keep_inputs))?,
        _ => parts(name, exported, &ssa, &trace, &prefix)?,
    };
    report.nodes = compiled.graphs.iter().map(|g| g.node_count()).sum();
    report.unbounded = compiled.bound;
    Ok((report, Some((compiled, trace.weights))))
}

fn reported(name: &str, trace: &Trace<'_>) -> MethodReport {
    let mut calls = trace.calls.clone();
    for call in &trace.fallback.calls {
        if let Some(report) = calls.get_mut(call.call as usize).filter(|r| !matches!(r.outcome, Outcome::Refused(_))) {
            report.outcome = Outcome::Fallback(format!("{}.{}", call.kernel.name(), call.kernel.overload()));
        }
    }
    MethodReport { name: name.to_owned(), calls, nodes: 0, unbounded: None }
}

/// Quantizes and fuses, and folds constants if an engine is given.
fn run_passes(ssa: &mut SsaGraph, trace: &Trace<'_>, options: &Options, engine: Option<&dyn Engine>) -> Result<(), Error> {
    // Operands of fallback calls count as results here, because passes drop unread values.
    let n_results = ssa.results.len();
    ssa.results.extend(trace.fallback.calls.iter().flat_map(FallbackCall::reads));
    quantize(ssa, options);
    fuse(ssa);
    if let Some(engine) = engine {
        fold(ssa, &trace.weights, engine)?;
        drop_unread(ssa);
    }
    ssa.results.truncate(n_results);
    Ok(())
}

/// A method of one delegate.
fn whole(
    name: &str,
    exported: &Exported,
    ssa: SsaGraph,
    trace: &Trace<'_>,
    (prefix, keep_inputs): (&str, bool),
) -> Result<Compiled, Error> {
    let buffers: Vec<&Buffer<'_>> = trace.state.buffers.iter().collect();
    let results = ssa.results.clone();
    let slotted = slotted(ssa.clone(), prefix, &buffers, keep_inputs)?;
    let mut outer = Outer::new(&ssa, &trace.interface.inputs);
    outer.step(&OuterStep::Delegate(&slotted, &results));
    let Finished { plan, constants: outer_constants, bound } = outer.finish(name, exported, &trace.interface.outputs, true)?;
    let graph = check(slotted.graph).map_err(Error::Check)?;
    Ok(Compiled {
        graphs: vec![Arc::new(graph)],
        calls: vec![slotted.calls],
        plan,
        constants: slotted.constants,
        outer_constants,
        bound,
    })
}

/// A method of several delegates with kernel calls between them.
fn parts(name: &str, exported: &Exported, ssa: &SsaGraph, trace: &Trace<'_>, prefix: &str) -> Result<Compiled, Error> {
    let names: Vec<String> = trace.state.buffers.iter().map(|b| b.name.clone()).collect();
    let kernel_results: Vec<Tid> = trace.fallback.calls.iter().flat_map(|c| c.results.iter().copied()).collect();
    let first = trace.interface.inputs.len() as u32;
    let split = split(ssa, &trace.fallback.calls, &names, first + kernel_results.len() as u32)?;
    let mut numbers: Vec<(u32, Slot)> = (first..).zip(kernel_results.into_iter().map(Slot::Tensor)).collect();
    numbers.extend(split.crossing);
    let mut outer = Outer::new(ssa, &trace.interface.inputs);
    let mut compiled = Compiled {
        graphs: Vec::new(),
        calls: Vec::new(),
        plan: ExecutionPlan::default(),
        constants: Vec::new(),
        outer_constants: Vec::new(),
        bound: None,
    };
    let mut parts = split.parts.into_iter().peekable();
    let run_kernels = |outer: &mut Outer<'_>, at: Option<usize>| {
        for (call, _) in trace.fallback.calls.iter().zip(&split.levels).filter(|(_, level)| **level == at) {
            outer.step(&OuterStep::Kernel(call));
        }
    };
    run_kernels(&mut outer, None);
    for level in 0..=trace.fallback.calls.len() {
        if let Some(part) = parts.next_if(|p| p.level == level) {
            numbers.iter().for_each(|&(number, slot)| outer.number(number, slot));
            let buffers: Vec<&Buffer<'_>> = part.buffers.iter().map(|&b| &trace.state.buffers[b]).collect();
            let prefix = if level == 0 { prefix.to_owned() } else { format!("{prefix}.{level}") };
            let results = part.ssa.results.clone();
            let slotted = slotted(part.ssa, &prefix, &buffers, false)?;
            outer.step(&OuterStep::Delegate(&slotted, &results));
            compiled.constants.extend(slotted.constants);
            compiled.calls.push(slotted.calls);
            compiled.graphs.push(Arc::new(check(slotted.graph).map_err(Error::Check)?));
        }
        run_kernels(&mut outer, Some(level));
    }
    let finished = outer.finish(name, exported, &trace.interface.outputs, false)?;
    (compiled.plan, compiled.outer_constants, compiled.bound) = (finished.plan, finished.constants, finished.bound);
    Ok(compiled)
}

fn slotted(ssa: SsaGraph, prefix: &str, buffers: &[&Buffer<'_>], keep_inputs: bool) -> Result<Slotted, Error> {
    let names: Vec<String> = buffers.iter().map(|b| b.name.clone()).collect();
    let mut slotted = slots::assign(ssa, prefix, &names, keep_inputs);
    let initial = initial_contents(&mut slotted, buffers)?;
    slotted.constants.splice(0..0, initial);
    Ok(slotted)
}

/// Records the nodes and the source location of each call.
fn attribute(report: &mut MethodReport, ssa: &SsaGraph, exported: &Exported) {
    let mut nodes: HashMap<u32, Vec<&'static str>> = HashMap::new();
    for entry in ssa.chains.iter().flatten() {
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

/// Whether all bytes are zero. Bytes are checked in blocks, because caches of long contexts hold
/// gigabytes of zeros.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Buffers start at zero; other initial contents become constants that the init chain copies in.
fn initial_contents(slotted: &mut Slotted, buffers: &[&Buffer<'_>]) -> Result<Vec<(String, Arc<Constant>)>, Error> {
    let mut added = Vec::new();
    let mut copies = Vec::new();
    for (i, buffer) in buffers.iter().enumerate() {
        let tensor = buffer.initial.tensor()?;
        if is_zero(tensor.bytes()) {
            continue;
        }
        let key = format!(
            "{}_initial",
            slotted
                .graph
                .names
                .iter()
                .find(|(n, _)| n.ends_with(&format!("/{}", buffer.name)))
                .map_or(buffer.name.as_str(), |(n, _)| n)
        );
        let expr = ConstExpr::Literal(tensor.bytes().clone());
        let shape = Shape::from_slice(tensor.shape());
        added.push((key, Arc::new(Constant { name: buffer.name.clone(), dtype: tensor.dtype(), shape, expr })));
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

/// Inserts constants before all other tensor slots, which move up.
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

impl Compiled {
    /// Adds the method and its weights to a file under construction.
    pub(crate) fn add_to<'w>(&'w self, writer: &mut ProgramWriter<'w>, weights: &'w Weights<'_>) -> Result<(), Error> {
        let mut plan = self.plan.clone();
        for (value, constant) in &self.outer_constants {
            let index = writer.constant(blob(constant, weights));
            if let Some(EValue::Tensor(tensor)) = plan.values.get_mut(*value as usize) {
                tensor.data_buffer_idx = index;
            }
        }
        let payloads = self.graphs.iter().map(|graph| Blob::from_bytes(mlx::encode(graph))).collect();
        writer.method(plan, payloads)?;
        for (key, constant) in &self.constants {
            writer.named(key.clone(), blob(constant, weights))?;
        }
        Ok(())
    }
}

impl Compiled {
    pub(crate) fn name(&self) -> &str {
        &self.plan.name
    }

    /// The method's only delegate, if a call of it on the method's inputs and outputs is the whole
    /// method.
    pub(crate) fn delegate<'w>(&'w self, weights: &'w Weights<'_>) -> Option<Delegate<'w>> {
        let [graph] = &self.graphs[..] else { return None };
        let [Chain { instructions, .. }] = &self.plan.chains[..] else { return None };
        let [Instruction::DelegateCall { args, .. }] = &instructions[..] else { return None };
        if !args.iter().eq(self.plan.inputs.iter().chain(&self.plan.outputs)) {
            return None;
        }
        let constants = self.constants.iter().map(|(key, constant)| (key.as_str(), blob(constant, weights)));
        Some(Delegate { payload: mlx::encode(graph), nodes: graph.node_count(), constants: constants.collect() })
    }
}

/// A constant's bytes, computed when they are written.
fn blob<'w>(constant: &'w Constant, weights: &'w Weights<'_>) -> Blob<'w> {
    if let ConstExpr::Literal(bytes) = &constant.expr {
        return Blob::from_bytes(bytes.clone());
    }
    let len = constant.shape.iter().product::<usize>() * constant.dtype.size();
    Blob::lazy(len as u64, identity(constant, weights).as_bytes(), move |out| {
        let tensor = evaluate(constant, weights).map_err(std::io::Error::other)?;
        out.write_all(tensor.bytes())
    })
}
