//! Methods: entry points of a program, loaded on an engine.

use std::{collections::HashMap, fmt, sync::Arc};

use flambeau_ir::{
    Checked, MetaDim, Slot, TensorMeta,
    engine::{Engine, LoadOptions, Session},
};
use flambeau_tensor::Tensor;
use flambeau_wire::pte::{EValue, ExecutionPlan, Instruction, TensorValue};

use crate::{
    DimSpec, Error, InstructionError, Place, Program, Result, TensorSpec, Value, ValueKind, ValueSpec,
    kernel::{Kernel, items},
    run::{self, Rows},
    shared_values::SharedValues,
    trace::Tracer,
    views::{Access, Views},
};

/// A delegate that is ready to run.
pub(crate) struct Delegate {
    pub(crate) graph: Arc<Checked>,
    pub(crate) session: Box<dyn Session>,
}

/// A loaded method. It shares weights with all other methods of the program. It shares mutable
/// state with methods loaded with the same [`LoadOptions::shared`].
pub struct Method {
    pub(crate) program: Program,
    pub(crate) plan: usize,
    pub(crate) engine: Arc<dyn Engine>,
    inputs: Vec<ValueSpec>,
    outputs: Vec<ValueSpec>,
    pub(crate) delegates: Vec<Delegate>,
    pub(crate) kernels: HashMap<Place, Kernel>,
    /// Contents of each value at the start of a run.
    pub(crate) initial: Vec<Option<Value>>,
    /// Values that persist between runs, with their contents after loading.
    state: Vec<(usize, Option<Value>)>,
    /// Storage of shared values between runs.
    pub(crate) shared: SharedValues,
    /// Values that no instruction writes, in the memory of others.
    pub(crate) views: Views,
    /// Inputs that instructions write to, by number and value.
    overwritten: Vec<(usize, usize)>,
    written: Vec<(usize, Value)>,
    /// Present while runs are measured.
    pub(crate) tracer: Option<Tracer>,
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Method").field("name", &self.name()).field("inputs", &self.inputs).field("outputs", &self.outputs).finish()
    }
}

impl Program {
    /// Loads a method on an engine. Each loaded method has separate mutable state, unless the
    /// options name state to share. Then buffers with equal names are one buffer, inside and
    /// outside of delegates.
    ///
    /// # Errors
    /// The method does not exist or needs another backend. A delegate's graph is invalid, or the
    /// engine lacks nodes. Weights are missing. No rule covers an operator outside of the
    /// delegates.
    pub fn method(&self, name: &str, engine: &Arc<dyn Engine>, options: &LoadOptions) -> Result<Method> {
        let index = self.plan_index(name)?;
        let plan = &self.file().plans[index];
        if let Some(at) = plan.devices.iter().find(|at| at.device.kind != 0) {
            let kind = if at.device.kind == 1 { "cuda" } else { "unknown" };
            return Err(Error::Device { method: name.to_owned(), kind, index: at.device.index });
        }
        let mut delegates = Vec::with_capacity(plan.delegates.len());
        for i in 0..plan.delegates.len() {
            let graph = self.checked(index, i)?;
            let session = engine.load(Arc::clone(&graph), self, options);
            let session = session.map_err(|source| Error::Load { method: name.to_owned(), delegate: i, source })?;
            delegates.push(Delegate { graph, session });
        }
        check_calls(plan, &delegates)?;
        let kernels = load_kernels(plan, engine)?;
        let mut initial = Vec::with_capacity(plan.values.len());
        for i in 0..plan.values.len() {
            let value = self.initial(plan, i as u32);
            initial.push(value.map_err(|source| Error::Value { method: name.to_owned(), value: i, source })?);
        }
        let steps = instructions(plan).map(|(place, instruction)| {
            let (reads, writes) = accesses(plan, &delegates, &kernels, place, instruction);
            Access { place, instruction, reads, writes }
        });
        let steps: Vec<Access<'_>> = steps.collect();
        let views = Views::find(plan, &steps);
        let mut state = find_state(plan, &steps, &views, &mut initial);
        let shared = SharedValues::join(plan, options.shared.clone(), &mut state, &mut initial);
        let shared = shared.map_err(|source| Error::Shared { method: name.to_owned(), source })?;
        let inputs = plan.inputs.iter().map(|&v| spec_of(plan, &delegates, &kernels, v, true)).collect();
        let outputs = plan.outputs.iter().map(|&v| spec_of(plan, &delegates, &kernels, v, false)).collect();
        let engine = Arc::clone(engine);
        let overwritten = overwritten(plan, &delegates, &kernels);
        let (program, written) = (self.clone(), Vec::new());
        Ok(Method {
            program,
            plan: index,
            engine,
            inputs,
            outputs,
            delegates,
            kernels,
            initial,
            state,
            shared,
            views,
            overwritten,
            written,
            tracer: None,
        })
    }
}

impl Method {
    /// The method's name.
    pub fn name(&self) -> &str {
        &self.program.file().plans[self.plan].name
    }

    /// The program that the method belongs to.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The engine that runs it.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Arguments of [`Method::run`].
    pub fn inputs(&self) -> &[ValueSpec] {
        &self.inputs
    }

    /// Results of [`Method::run`].
    pub fn outputs(&self) -> &[ValueSpec] {
        &self.outputs
    }

    /// Number of nodes in all delegates.
    pub fn node_count(&self) -> usize {
        self.delegates.iter().map(|d| d.graph.node_count()).sum()
    }

    /// Runs the method. Mutable state is kept for the next run.
    ///
    /// # Errors
    /// The arguments do not match the inputs, or an instruction fails. A failed instruction may
    /// leave state partly updated.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>> {
        self.run_for(inputs, Rows::All)
    }

    /// As [`run`](Self::run), for callers that read only the last entry of each result along its
    /// second-to-last axis. If the method is a single delegate call, the engine may omit the other
    /// entries. The axis then has size 1.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_last(&mut self, inputs: &[Value]) -> Result<Vec<Value>> {
        let is_one_call = only_instruction(&self.program.file().plans[self.plan]).is_some();
        self.run_for(inputs, if is_one_call { Rows::Last } else { Rows::All })
    }

    fn run_for(&mut self, inputs: &[Value], rows: Rows) -> Result<Vec<Value>> {
        self.check_inputs(inputs)?;
        let shared = self.shared.clone();
        shared.with(self, |method| &mut method.initial, |method| method.run_with_state(inputs, rows))
    }

    fn run_with_state(&mut self, inputs: &[Value], rows: Rows) -> Result<Vec<Value>> {
        let program = self.program.clone();
        let plan = &program.file().plans[self.plan];
        let start = self.trace_start();
        let mut cells = self.cells(inputs);
        let result = run::execute(self, plan, &mut cells, rows);
        let outputs = result.and_then(|()| self.end(plan, cells));
        self.trace_run(start, outputs.as_deref().unwrap_or_default())?;
        outputs
    }

    /// Ends a run: keeps its state and returns its outputs.
    pub(crate) fn end(&mut self, plan: &ExecutionPlan, mut cells: Vec<Option<Value>>) -> Result<Vec<Value>> {
        self.views.set_last(plan, &mut cells);
        let mut outputs = Vec::with_capacity(plan.outputs.len());
        for (i, &at) in plan.outputs.iter().enumerate() {
            let value = cells.get(at as usize).cloned().flatten();
            outputs.push(value.ok_or_else(|| Error::NoOutput { method: plan.name.clone(), output: i })?);
        }
        self.written.clear();
        self.written.extend(self.overwritten.iter().filter_map(|&(input, at)| Some((input, cells[at].clone()?))));
        for (at, _) in &self.state {
            self.initial[*at] = cells[*at].take();
        }
        Ok(outputs)
    }

    /// Inputs written by the last run, by number, with their new contents. The caller's tensors are
    /// unchanged.
    pub fn written_inputs(&self) -> &[(usize, Value)] {
        &self.written
    }

    /// Contents of each value at the start of a run with these inputs.
    pub(crate) fn cells(&self, inputs: &[Value]) -> Vec<Option<Value>> {
        let mut cells = self.initial.clone();
        let plan = &self.program.file().plans[self.plan];
        for (&at, value) in plan.inputs.iter().zip(inputs) {
            cells[at as usize] = Some(value.clone());
        }
        self.views.set_first(plan, &mut cells);
        cells
    }

    /// Whether the outer instructions keep no state between runs and write no input.
    pub(crate) fn carries_nothing(&self) -> bool {
        self.state.is_empty() && self.overwritten.is_empty()
    }

    pub(crate) fn check_inputs(&self, inputs: &[Value]) -> Result<()> {
        let method = || self.name().to_owned();
        if inputs.len() != self.inputs.len() {
            return Err(Error::ArgumentCount { method: method(), expected: self.inputs.len(), found: inputs.len() });
        }
        let misfit = self.inputs.iter().zip(inputs).enumerate().find(|(_, (spec, value))| !spec.admits(value));
        misfit.map_or(Ok(()), |(index, (spec, value))| {
            let name = spec.name.as_deref().map(|n| format!(" (`{}`)", n.escape_debug())).unwrap_or_default();
            Err(Error::Argument { method: method(), index, name, expected: spec.to_string(), found: value.describe() })
        })
    }

    /// Resets all mutable state to its contents after loading.
    pub fn reset(&mut self) {
        self.delegates.iter_mut().for_each(|d| d.session.reset());
        let shared = self.shared.clone();
        shared.with(
            self,
            |method| &mut method.initial,
            |method| {
                for (at, value) in &method.state {
                    method.initial[*at].clone_from(value);
                }
            },
        );
    }

    /// Counts of the delegates' steps by kind of preparation, if the engine counts them.
    pub fn steps(&self) -> Option<flambeau_ir::engine::Steps> {
        let mut total: Option<flambeau_ir::engine::Steps> = None;
        for steps in self.delegates.iter().filter_map(|d| d.session.steps()) {
            total.get_or_insert_default().add(&steps);
        }
        total
    }

    /// Measured steps of the delegates since the last call. Empty unless profiling is on and the
    /// engine measures steps.
    pub fn take_spans(&mut self) -> Vec<flambeau_ir::engine::Span> {
        self.delegates.iter_mut().flat_map(|d| d.session.take_spans()).collect()
    }

    /// Time per kind of node since the last call, if the engine measures it: (node name, calls,
    /// nanoseconds), slowest first.
    pub fn take_profile(&mut self) -> Vec<(&'static str, u64, u64)> {
        let mut total: Vec<(&'static str, u64, u64)> = Vec::new();
        for (name, calls, time) in self.delegates.iter_mut().flat_map(|d| d.session.take_profile()) {
            match total.iter_mut().find(|row| row.0 == name) {
                Some(row) => (row.1, row.2) = (row.1 + calls, row.2 + time),
                None => total.push((name, calls, time)),
            }
        }
        total.sort_by_key(|row| std::cmp::Reverse(row.2));
        total
    }
}

/// The instruction of a plan with exactly one instruction.
pub(crate) fn only_instruction(plan: &ExecutionPlan) -> Option<&Instruction> {
    let mut instructions = instructions(plan).map(|(_, instruction)| instruction);
    instructions.next().filter(|_| instructions.next().is_none())
}

/// All instructions with their places.
fn instructions(plan: &ExecutionPlan) -> impl Iterator<Item = (Place, &Instruction)> {
    plan.chains.iter().enumerate().flat_map(|(chain, c)| {
        let instructions = c.instructions.iter().enumerate();
        instructions.map(move |(at, instruction)| (Place { chain, instruction: at }, instruction))
    })
}

fn failed(plan: &ExecutionPlan, place: Place, source: InstructionError) -> Error {
    Error::Prepare { method: plan.name.clone(), place, source: Box::new(source) }
}

/// Checks the number of arguments of delegate calls. The graph's counts separate inputs from
/// outputs.
fn check_calls(plan: &ExecutionPlan, delegates: &[Delegate]) -> Result<()> {
    for (place, instruction) in instructions(plan) {
        if let Instruction::DelegateCall { delegate, args } = instruction {
            let graph = &delegates[*delegate as usize].graph;
            let (inputs, outputs) = (graph.inputs.len(), graph.outputs.len());
            if args.len() != inputs + outputs {
                let wrong = InstructionError::DelegateArity { delegate: *delegate, inputs, outputs, found: args.len() };
                return Err(failed(plan, place, wrong));
            }
        }
    }
    Ok(())
}

fn load_kernels(plan: &ExecutionPlan, engine: &Arc<dyn Engine>) -> Result<HashMap<Place, Kernel>> {
    let mut kernels = HashMap::new();
    for (place, instruction) in instructions(plan) {
        if let Instruction::KernelCall { op, args } = instruction {
            let kernel = Kernel::load(plan, *op, args, engine);
            kernels.insert(place, kernel.map_err(|source| failed(plan, place, source))?);
        }
    }
    Ok(kernels)
}

/// Values that an instruction reads and writes.
fn accesses(
    plan: &ExecutionPlan,
    delegates: &[Delegate],
    kernels: &HashMap<Place, Kernel>,
    place: Place,
    instruction: &Instruction,
) -> (Vec<u32>, Vec<u32>) {
    let split = |args: &[u32], inputs: usize| {
        let (reads, writes) = args.split_at(inputs.min(args.len()));
        (items(plan, reads), items(plan, writes))
    };
    match instruction {
        Instruction::KernelCall { args, .. } => split(args, kernels.get(&place).map_or(0, |k| k.inputs)),
        Instruction::DelegateCall { delegate, args } => {
            split(args, delegates.get(*delegate as usize).map_or(0, |d| d.graph.inputs.len()))
        }
        Instruction::MoveCall { from, to } => (vec![*from], vec![*to]),
        Instruction::JumpFalse { cond, .. } => (vec![*cond], vec![]),
        Instruction::Free { value } => (vec![], vec![*value]),
    }
}

fn overwritten(plan: &ExecutionPlan, delegates: &[Delegate], kernels: &HashMap<Place, Kernel>) -> Vec<(usize, usize)> {
    let written: Vec<u32> = instructions(plan)
        .filter(|(_, i)| !matches!(i, Instruction::Free { .. }))
        .flat_map(|(place, i)| accesses(plan, delegates, kernels, place, i).1)
        .collect();
    let inputs = plan.inputs.iter().enumerate();
    inputs.filter(|(_, at)| written.contains(at)).map(|(i, &at)| (i, at as usize)).collect()
}

/// Finds the values that persist between runs, and initializes them. They are written tensors with
/// initial contents, and planned tensors that are read before they are written.
fn find_state(
    plan: &ExecutionPlan,
    steps: &[Access<'_>],
    views: &Views,
    initial: &mut [Option<Value>],
) -> Vec<(usize, Option<Value>)> {
    let mut written = vec![false; plan.values.len()];
    let mut state = vec![false; plan.values.len()];
    plan.inputs.iter().for_each(|&i| written[i as usize] = true);
    for step in steps {
        for at in step.reads.iter().map(|&at| at as usize) {
            if let Some(EValue::Tensor(t)) = plan.values.get(at) {
                let is_unset = initial[at].is_none() && !written[at] && !views.contains(at as u32);
                state[at] |= is_unset && t.allocation.is_some();
            }
        }
        for at in step.writes.iter().map(|&at| at as usize) {
            written[at] = true;
            state[at] |= matches!(plan.values.get(at), Some(EValue::Tensor(_))) && initial[at].is_some();
        }
    }
    let found: Vec<usize> = (0..state.len()).filter(|&at| state[at]).collect();
    for &at in &found {
        if let (None, Some(EValue::Tensor(t))) = (&initial[at], plan.values.get(at)) {
            initial[at] = zeros(t).map(Value::Tensor);
        }
    }
    found.into_iter().map(|at| (at, initial[at].clone())).collect()
}

fn zeros(t: &TensorValue) -> Option<Tensor> {
    let shape: Vec<usize> = t.sizes.iter().map(|&d| d as usize).collect();
    Tensor::zeros(t.dtype, &shape).ok()
}

/// Specification of a value, from the plan and the metadata of the delegate that takes or returns
/// it.
fn spec_of(
    plan: &ExecutionPlan,
    delegates: &[Delegate],
    kernels: &HashMap<Place, Kernel>,
    value: u32,
    is_input: bool,
) -> ValueSpec {
    let slot = instructions(plan).find_map(|(_, instruction)| {
        let Instruction::DelegateCall { delegate, args } = instruction else { return None };
        let graph = &delegates.get(*delegate as usize)?.graph;
        let (first, slots) = if is_input { (0, &graph.inputs) } else { (graph.inputs.len(), &graph.outputs) };
        let at = args.iter().skip(first).take(slots.len()).position(|&a| a == value)?;
        slots.get(at).map(|&slot| (graph, slot))
    });
    let name = slot.and_then(|(graph, slot)| graph.name_of(slot)).map(str::to_owned);
    let meta = slot.and_then(|(graph, slot)| match slot {
        Slot::Tensor(tid) => graph.meta.get(tid.0 as usize),
        Slot::Value(_) => None,
    });
    let used = || instructions(plan).any(|(place, i)| accesses(plan, delegates, kernels, place, i).0.contains(&value));
    let kind = match plan.values.get(value as usize) {
        Some(EValue::Tensor(t)) => ValueKind::Tensor(tensor_spec(t, meta)),
        Some(EValue::Int(_)) if !is_input || used() => ValueKind::Int,
        Some(EValue::Int(v)) => ValueKind::Fixed(Value::Int(*v)),
        Some(EValue::Bool(v)) => ValueKind::Fixed(Value::Bool(*v)),
        Some(EValue::Double(v)) => ValueKind::Fixed(Value::Double(*v)),
        Some(EValue::String(v)) => ValueKind::Fixed(Value::String(v.clone())),
        _ => ValueKind::Fixed(Value::None),
    };
    ValueSpec { name, kind }
}

fn tensor_spec(t: &TensorValue, meta: Option<&TensorMeta>) -> TensorSpec {
    let meta = meta.filter(|m| m.shape.len() == t.sizes.len());
    let dim = |(i, &size): (usize, &u32)| match meta.and_then(|m| m.shape.get(i)) {
        _ if !t.dynamic => DimSpec::Fixed(size as usize),
        Some(MetaDim::Static(n)) => DimSpec::Fixed(*n as usize),
        Some(MetaDim::Dynamic { max, .. }) => DimSpec::UpTo(max.map(|max| max as usize)),
        None => DimSpec::UpTo(Some(size as usize)),
    };
    TensorSpec { dtype: t.dtype, dims: t.sizes.iter().enumerate().map(dim).collect() }
}
