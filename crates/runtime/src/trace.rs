//! Measured times of a method's runs, instructions and steps.

use flambeau_ir::engine::{Clock, Span};
use flambeau_wire::pte::{ExecutionPlan, Instruction};

use crate::{Method, Place};

/// Largest number of instructions and steps that a method records.
const MAX_EVENTS: usize = 1 << 20;

/// A measured run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunTrace {
    /// The clock's nanoseconds at the start.
    pub start: u64,
    /// Nanoseconds that the run took.
    pub time: u64,
    pub instructions: Vec<InstructionTrace>,
}

/// A measured instruction of a run.
#[derive(Clone, Debug, PartialEq)]
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
}

/// Records runs.
#[derive(Debug)]
pub(crate) struct Tracer {
    clock: Clock,
    runs: Vec<RunTrace>,
    /// Instructions of the current run.
    current: Vec<InstructionTrace>,
    events: usize,
}

impl Tracer {
    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }
}

impl Method {
    /// Measures runs from now on with the clock of the engine's profile. `None` stops measuring.
    pub fn trace_with(&mut self, clock: Option<Clock>) {
        self.tracer = clock.map(|clock| Tracer { clock, runs: Vec::new(), current: Vec::new(), events: 0 });
    }

    /// The runs since the last call, at most 2^20 instructions and steps. Their steps are not part
    /// of [`take_spans`](Method::take_spans).
    pub fn take_runs(&mut self) -> Vec<RunTrace> {
        let Some(tracer) = &mut self.tracer else { return Vec::new() };
        tracer.events = 0;
        std::mem::take(&mut tracer.runs)
    }

    /// The clock's nanoseconds, if runs are measured.
    pub(crate) fn trace_start(&self) -> Option<u64> {
        self.tracer.as_ref().map(Tracer::now)
    }

    /// Records an instruction that ends now.
    pub(crate) fn trace_instruction(&mut self, plan: &ExecutionPlan, place: Place, instruction: &Instruction, start: Option<u64>) {
        let (Some(start), Some(tracer)) = (start, &mut self.tracer) else { return };
        let time = tracer.now().saturating_sub(start);
        let (delegate, name) = match instruction {
            Instruction::DelegateCall { delegate, .. } => (Some(*delegate), plan.delegates[*delegate as usize].id.clone()),
            Instruction::KernelCall { op, .. } => (None, plan.operators[*op as usize].full_name()),
            Instruction::MoveCall { .. } => (None, "MOVE_CALL".into()),
            Instruction::JumpFalse { .. } => (None, "JUMP_CALL".into()),
            Instruction::Free { .. } => (None, "FREE_CALL".into()),
        };
        let steps = delegate.map(|at| self.delegates[at as usize].session.take_spans()).unwrap_or_default();
        tracer.events += 1 + steps.len();
        if tracer.events <= MAX_EVENTS {
            tracer.current.push(InstructionTrace { place, delegate, name, start, time, steps });
        }
    }

    /// Records a run that ends now.
    pub(crate) fn trace_run(&mut self, start: Option<u64>) {
        if let (Some(start), Some(tracer)) = (start, &mut self.tracer) {
            let time = tracer.now().saturating_sub(start);
            let instructions = std::mem::take(&mut tracer.current);
            if tracer.events <= MAX_EVENTS {
                tracer.runs.push(RunTrace { start, time, instructions });
            }
        }
    }
}
