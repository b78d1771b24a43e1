//! Measured times of a method's runs, instructions and steps, and their results.

mod node_results;

use std::sync::{Arc, Mutex, PoisonError};

use flambeau_ir::engine::{Clock, Engine, LoadOptions, Span};
use flambeau_wire::pte::{ExecutionPlan, Instruction};

use self::node_results::NodeResults;
use crate::{Error, Method, Place, Program, Result, Value, kernel::items, verify::NodeByNode};

/// Largest number of instructions and steps that a method records.
const MAX_EVENTS: usize = 1 << 20;

/// A measured run.
#[derive(Clone, Debug, Default)]
pub struct RunTrace {
    /// Name of the method.
    pub method: String,
    /// The clock's nanoseconds at the start.
    pub start: u64,
    /// Nanoseconds that the run took.
    pub time: u64,
    pub instructions: Vec<InstructionTrace>,
    /// Outputs, if values are kept.
    pub outputs: Vec<Value>,
}

/// A measured instruction of a run.
#[derive(Clone, Debug)]
pub struct InstructionTrace {
    pub place: Place,
    /// The delegate that it calls.
    pub delegate: Option<u32>,
    /// Name of the called kernel, backend or instruction.
    pub name: String,
    /// The clock's nanoseconds at the start.
    pub start: u64,
    /// Nanoseconds that the instruction took.
    pub time: u64,
    /// Steps of the delegate, if its engine measures them.
    pub steps: Vec<Span>,
    /// Results of a kernel call, or arguments and results of a delegate's call, if values are kept.
    pub values: Vec<Value>,
    /// Results of the steps, each with the number of its step, if values are kept. The numbers
    /// ascend.
    pub results: Vec<(usize, Value)>,
}

/// Records runs.
#[derive(Debug)]
pub(crate) struct Tracer {
    clock: Clock,
    runs: Vec<RunTrace>,
    /// Instructions of the current run.
    current: Vec<InstructionTrace>,
    events: usize,
    /// Present if values are kept.
    nodes: Option<Arc<Mutex<NodeResults>>>,
}

impl Tracer {
    fn new(clock: Clock, nodes: Option<Arc<Mutex<NodeResults>>>) -> Tracer {
        Tracer { clock, runs: Vec::new(), current: Vec::new(), events: 0, nodes }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }
}

impl Program {
    /// Loads a method that measures its runs and keeps the results of each call and of each node,
    /// up to `room` bytes. Delegates run node by node, which takes longer.
    ///
    /// # Errors
    /// As [`method`](Self::method). The options share state, which such a method cannot do.
    pub fn method_with_results(
        &self,
        name: &str,
        engine: &Arc<dyn Engine>,
        options: &LoadOptions,
        clock: &Clock,
        room: usize,
    ) -> Result<Method> {
        if options.shared.is_some() {
            return Err(Error::KeepsShared { method: name.to_owned() });
        }
        let nodes = Arc::new(Mutex::new(NodeResults::new(clock.clone(), room)));
        let engine: Arc<dyn Engine> = Arc::new(NodeByNode::new(Arc::clone(engine), Arc::clone(&nodes) as _));
        let mut method = self.method(name, &engine, options)?;
        method.tracer = Some(Tracer::new(clock.clone(), Some(nodes)));
        Ok(method)
    }
}

impl Method {
    /// Measures runs from now on with the clock of the engine's profile. `None` stops measuring.
    pub fn trace_with(&mut self, clock: Option<Clock>) {
        self.tracer = clock.map(|clock| Tracer::new(clock, None));
    }

    /// The runs since the last call, at most 2^20 instructions and steps. Their steps are not part
    /// of [`take_spans`](Method::take_spans).
    pub fn take_runs(&mut self) -> Vec<RunTrace> {
        let Some(tracer) = &mut self.tracer else { return Vec::new() };
        tracer.events = 0;
        std::mem::take(&mut tracer.runs)
    }

    /// Whether runs keep their results.
    pub(crate) fn keeps_results(&self) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| tracer.nodes.is_some())
    }

    /// The clock's nanoseconds, if runs are measured.
    pub(crate) fn trace_start(&self) -> Option<u64> {
        self.tracer.as_ref().map(Tracer::now)
    }

    /// Records an instruction that ends now.
    ///
    /// # Errors
    /// The kept values have no room.
    pub(crate) fn trace_instruction(
        &mut self,
        plan: &ExecutionPlan,
        place: Place,
        instruction: &Instruction,
        start: Option<u64>,
        cells: &[Option<Value>],
    ) -> Result<()> {
        let (Some(start), Some(tracer)) = (start, &mut self.tracer) else { return Ok(()) };
        let time = tracer.now().saturating_sub(start);
        let (delegate, name) = match instruction {
            Instruction::DelegateCall { delegate, .. } => (Some(*delegate), plan.delegates[*delegate as usize].id.clone()),
            Instruction::KernelCall { op, .. } => (None, plan.operators[*op as usize].full_name()),
            Instruction::MoveCall { .. } => (None, "MOVE_CALL".into()),
            Instruction::JumpFalse { .. } => (None, "JUMP_CALL".into()),
            Instruction::Free { .. } => (None, "FREE_CALL".into()),
        };
        let mut steps = delegate.map(|at| self.delegates[at as usize].session.take_spans()).unwrap_or_default();
        let (mut values, mut results) = (Vec::new(), Vec::new());
        if let Some(nodes) = &tracer.nodes {
            let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            (steps, results) = nodes.take_steps(delegate);
            let places = match instruction {
                Instruction::DelegateCall { args, .. } => items(plan, args),
                Instruction::KernelCall { .. } => self.kernels.get(&place).map(|kernel| kernel.results.clone()).unwrap_or_default(),
                _ => Vec::new(),
            };
            values.extend(places.iter().filter_map(|&at| cells.get(at as usize)?.clone()));
            values.iter().for_each(|value| nodes.count(value));
            nodes.check(&plan.name)?;
        }
        tracer.events += 1 + steps.len();
        if tracer.events <= MAX_EVENTS {
            tracer.current.push(InstructionTrace { place, delegate, name, start, time, steps, values, results });
        }
        Ok(())
    }

    /// Records a run that ends now. A run that fails has no outputs.
    ///
    /// # Errors
    /// The kept values have no room.
    pub(crate) fn trace_run(&mut self, start: Option<u64>, outputs: &[Value]) -> Result<()> {
        let (Some(start), true) = (start, self.tracer.is_some()) else { return Ok(()) };
        let method = self.name().to_owned();
        let Some(tracer) = &mut self.tracer else { return Ok(()) };
        let time = tracer.now().saturating_sub(start);
        let instructions = std::mem::take(&mut tracer.current);
        let mut kept = Vec::new();
        if let Some(nodes) = &tracer.nodes {
            let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            outputs.iter().for_each(|value| nodes.count(value));
            nodes.check(&method)?;
            kept.extend_from_slice(outputs);
        }
        if tracer.events <= MAX_EVENTS {
            tracer.runs.push(RunTrace { method, start, time, instructions, outputs: kept });
        }
        Ok(())
    }
}
