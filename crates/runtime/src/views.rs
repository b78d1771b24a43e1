//! Views without an instruction. ExecuTorch's exporter leaves out views of fixed shape. The value
//! of a view has the memory of another value, and no instruction writes it.

use std::collections::{BTreeMap, HashSet};

use flambeau_wire::pte::{EValue, ExecutionPlan, Instruction, TensorValue};

use crate::{InstructionError, Place, Value, run::read};

/// The value `to` has the elements of the value `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    from: u32,
    to: u32,
}

/// The views of a method.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// Views of inputs and buffers, before the first instruction.
    start: Vec<View>,
    /// Views that an instruction reads.
    before: BTreeMap<Place, Vec<View>>,
    /// Outputs that are views.
    end: Vec<View>,
}

/// An instruction with the values that it reads and writes.
pub(crate) struct Access<'p> {
    pub(crate) place: Place,
    pub(crate) instruction: &'p Instruction,
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

impl Views {
    /// Finds the views of a plan. The owner of a view's memory is the value that was written there
    /// last, in the order of the instructions.
    pub(crate) fn find(plan: &ExecutionPlan, steps: &[Access<'_>]) -> Views {
        let is_write = |step: &&Access<'_>| !matches!(step.instruction, Instruction::Free { .. });
        let mut written: HashSet<u32> = plan.inputs.iter().copied().collect();
        written.extend(steps.iter().filter(is_write).flat_map(|step| step.writes.iter().copied()));
        let is_view = |at: u32| !written.contains(&at) && tensor(plan, at).is_some_and(is_plain);
        // Contents before the first instruction.
        let buffers = (0..plan.values.len() as u32).filter(|at| tensor(plan, *at).is_some_and(|tensor| !is_plain(tensor)));
        let mut owners: Vec<u32> = buffers.chain(plan.inputs.iter().copied()).collect();
        let first = owners.len();
        let owner = |owners: &[u32], to: u32| {
            let found = owners.iter().rposition(|&from| from != to && same_memory(plan, from, to));
            found.map(|at| (View { from: owners[at], to }, at < first))
        };
        let mut views = Views::default();
        for step in steps {
            for &to in step.reads.iter().filter(|at| is_view(**at)) {
                match owner(&owners, to) {
                    Some((view, true)) => views.start.push(view),
                    Some((view, false)) => views.before.entry(step.place).or_default().push(view),
                    None => {}
                }
            }
            owners.extend(step.writes.iter().filter(|_| is_write(&step)));
        }
        views.end.extend(plan.outputs.iter().filter(|at| is_view(**at)).filter_map(|&to| Some(owner(&owners, to)?.0)));
        views
    }

    /// Whether the value is a view.
    pub(crate) fn contains(&self, at: u32) -> bool {
        self.start.iter().chain(self.before.values().flatten()).chain(&self.end).any(|view| view.to == at)
    }

    /// Sets the views of a run's initial contents.
    pub(crate) fn set_first(&self, plan: &ExecutionPlan, cells: &mut [Option<Value>]) {
        for view in &self.start {
            // A view without contents fails where it is read.
            let _ = view.set(plan, cells);
        }
    }

    /// Sets the views that an instruction reads.
    pub(crate) fn set_before(
        &self,
        place: Place,
        plan: &ExecutionPlan,
        cells: &mut [Option<Value>],
    ) -> Result<(), InstructionError> {
        if self.before.is_empty() {
            return Ok(());
        }
        self.before.get(&place).into_iter().flatten().try_for_each(|view| view.set(plan, cells))
    }

    /// Sets the outputs that are views.
    pub(crate) fn set_last(&self, plan: &ExecutionPlan, cells: &mut [Option<Value>]) {
        for view in &self.end {
            // An output without contents is an error of the run.
            let _ = view.set(plan, cells);
        }
    }
}

impl View {
    fn set(self, plan: &ExecutionPlan, cells: &mut [Option<Value>]) -> Result<(), InstructionError> {
        let (Value::Tensor(from), Some(to)) = (read(cells, self.from)?, tensor(plan, self.to)) else { return Ok(()) };
        let sizes: Vec<usize> = to.sizes.iter().map(|&size| size as usize).collect();
        let view = from.reshape(&sizes)?;
        cells[self.to as usize] = Some(Value::Tensor(view));
        Ok(())
    }
}

fn tensor(plan: &ExecutionPlan, at: u32) -> Option<&TensorValue> {
    match plan.values.get(at as usize) {
        Some(EValue::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// Whether a tensor has planned memory, a fixed shape, and neither a name nor contents in a file.
fn is_plain(tensor: &TensorValue) -> bool {
    let is_named = tensor.extra.as_ref().is_some_and(|extra| extra.external || extra.fully_qualified_name.is_some());
    tensor.allocation.is_some() && !tensor.dynamic && tensor.data_buffer_idx == 0 && !is_named
}

/// Whether both tensors have the same elements in memory.
fn same_memory(plan: &ExecutionPlan, a: u32, b: u32) -> bool {
    let (Some(a), Some(b)) = (tensor(plan, a), tensor(plan, b)) else { return false };
    a.allocation.is_some() && a.allocation == b.allocation && a.dtype == b.dtype && !a.dynamic && a.nbytes() == b.nbytes()
}
