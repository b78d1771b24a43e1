//! The outer program: the method's values, and its calls of delegates and kernels in order.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use flambeau_ir::{MetaDim, Slot, TensorMeta};
use flambeau_lower::{Constant, SsaGraph};
use flambeau_pt2::{Argument, Exported};
use flambeau_wire::pte::{Allocation, Chain, ContainerMeta, Delegate, EValue, ExecutionPlan, Instruction, Operator, TensorValue};

use crate::{
    error::ProgramError,
    fallback::{FallbackCall, KernelArg, Size},
    plan_memory::{Request, assign_offsets},
    slots::{self, Slotted},
    trace::{MethodInput, MethodOutput},
};

/// Name under which ExecuTorch registers its MLX delegate.
const BACKEND: &str = "MLXBackend";

/// Largest assumed upper bound of an unbounded size in a plan's tensors.
const UNBOUNDED: u32 = 1 << 16;

/// Smallest assumed upper bound of an unbounded size.
const LEAST_UNBOUNDED: u32 = 1 << 4;

/// Memory budget for the tensors of a plan, in bytes. Above it, unbounded sizes count as less than
/// [`UNBOUNDED`].
const BUDGET: u64 = 1 << 36;

/// Largest memory of a plan, in bytes.
const MOST: u64 = 1 << 47;

/// One instruction.
pub(crate) enum OuterStep<'s> {
    /// A delegate, with the slots of the graph that its results represent.
    Delegate(&'s Slotted, &'s [Slot]),
    Kernel(&'s FallbackCall),
}

/// A plan under construction.
pub(crate) struct Outer<'f> {
    ssa: &'f SsaGraph,
    values: Vec<EValue>,
    /// Values by slot.
    known: HashMap<Slot, u32>,
    /// Values by the argument numbers of delegates.
    numbered: HashMap<u32, u32>,
    /// Tensor values with at least one unbounded size.
    open: BTreeMap<u32, TensorMeta>,
    /// First and last instruction that needs each planned tensor value.
    lives: BTreeMap<u32, (usize, usize)>,
    /// Constant values.
    pub(crate) constants: Vec<(u32, Arc<Constant>)>,
    operators: Vec<Operator>,
    instructions: Vec<Instruction>,
    delegates: Vec<Delegate>,
    inputs: Vec<u32>,
    /// Values of the last delegate's results, in order.
    results: Vec<u32>,
}

impl<'f> Outer<'f> {
    /// Creates a plan with the method's inputs.
    pub(crate) fn new(ssa: &'f SsaGraph, inputs: &[MethodInput]) -> Outer<'f> {
        let mut outer = Outer {
            ssa,
            values: Vec::new(),
            known: HashMap::new(),
            numbered: HashMap::new(),
            open: BTreeMap::new(),
            lives: BTreeMap::new(),
            constants: Vec::new(),
            operators: Vec::new(),
            instructions: Vec::new(),
            delegates: Vec::new(),
            inputs: Vec::new(),
            results: Vec::new(),
        };
        for (number, input) in inputs.iter().enumerate() {
            let value = match input {
                MethodInput::Tensor(t) => outer.slot(Slot::Tensor(*t)),
                MethodInput::Int { slot, content } => {
                    let value = outer.value(EValue::Int(content.as_int().unwrap_or(1)));
                    outer.known.insert(Slot::Value(*slot), value);
                    value
                }
                MethodInput::Constant(argument) => outer.value(constant_value(argument)),
            };
            outer.numbered.insert(number as u32, value);
            outer.inputs.push(value);
        }
        outer
    }

    fn value(&mut self, value: EValue) -> u32 {
        self.values.push(value);
        self.values.len() as u32 - 1
    }

    /// Adds a value for a slot: a tensor at its upper bound, or an integer.
    fn fresh(&mut self, slot: Slot) -> u32 {
        match slot {
            Slot::Value(_) => self.value(EValue::Int(0)),
            Slot::Tensor(t) => {
                let meta = slots::meta(self.ssa, t);
                let value = self.value(EValue::Tensor(Box::new(tensor_value(&meta, UNBOUNDED))));
                if meta.shape.iter().any(|d| matches!(d, MetaDim::Dynamic { max: None, .. })) {
                    self.open.insert(value, meta);
                }
                self.lives.insert(value, (self.instructions.len(), self.instructions.len()));
                value
            }
        }
    }

    /// The value of a slot, added if no instruction has produced it yet.
    fn slot(&mut self, slot: Slot) -> u32 {
        if let Some(&value) = self.known.get(&slot) {
            self.touch(value);
            return value;
        }
        let constant = if let Slot::Tensor(t) = slot { self.ssa.constant(t).cloned() } else { None };
        let value = match constant {
            Some(constant) => {
                let sizes: Vec<u32> = constant.shape.iter().map(|&d| u32::try_from(d).unwrap_or(u32::MAX)).collect();
                let value = self.value(EValue::Tensor(Box::new(TensorValue::new(constant.dtype, &sizes))));
                self.constants.push((value, constant));
                value
            }
            None => self.fresh(slot),
        };
        self.known.insert(slot, value);
        value
    }

    /// Extends a tensor's life to the current instruction.
    fn touch(&mut self, value: u32) {
        if let Some((_, last)) = self.lives.get_mut(&value) {
            *last = self.instructions.len();
        }
    }

    /// Maps an argument number to a slot's value.
    pub(crate) fn number(&mut self, number: u32, slot: Slot) {
        if let Some(&value) = self.known.get(&slot) {
            self.numbered.insert(number, value);
        }
    }

    /// Appends an instruction.
    pub(crate) fn step(&mut self, step: &OuterStep<'_>) {
        // Instructions count from one, because the inputs exist before the first.
        match step {
            OuterStep::Delegate(slotted, results) => self.delegate(slotted, results),
            OuterStep::Kernel(call) => self.kernel(call),
        }
    }

    fn delegate(&mut self, slotted: &Slotted, results: &[Slot]) {
        self.instructions.push(Instruction::DelegateCall { delegate: self.delegates.len() as u32, args: Vec::new() });
        let mut args: Vec<u32> = slotted.inputs.iter().filter_map(|n| self.numbered.get(n).copied()).collect();
        args.iter().for_each(|&value| self.touch(value));
        self.results.clear();
        for &slot in results {
            let value = self.fresh(slot);
            self.known.entry(slot).or_insert(value);
            self.results.push(value);
        }
        args.extend(&self.results);
        if let Some(Instruction::DelegateCall { args: place, .. }) = self.instructions.last_mut() {
            *place = args;
        }
        self.delegates.push(Delegate { id: BACKEND.to_owned(), ..Delegate::default() });
    }

    fn kernel(&mut self, call: &FallbackCall) {
        let operator = Operator { name: call.kernel.name(), overload: call.kernel.overload().into_owned() };
        let op = self.operators.iter().position(|o| *o == operator).unwrap_or_else(|| {
            self.operators.push(operator);
            self.operators.len() - 1
        });
        self.instructions.push(Instruction::KernelCall { op: op as u32, args: Vec::new() });
        let mut all: Vec<u32> = call.args.iter().map(|a| self.argument(a)).collect();
        if call.kernel.is_in_place() {
            all.extend(all.first().copied());
            if let Some(Instruction::KernelCall { args, .. }) = self.instructions.last_mut() {
                *args = all;
            }
            return;
        }
        let results: Vec<u32> = call.results.iter().map(|&t| self.slot(Slot::Tensor(t))).collect();
        all.extend(&results);
        // The call's return value repeats the results: one tensor, or a list of tensors.
        all.push(if let [one] = results[..] { one } else { self.value(EValue::TensorList(results)) });
        if let Some(Instruction::KernelCall { args, .. }) = self.instructions.last_mut() {
            *args = all;
        }
    }

    fn argument(&mut self, argument: &KernelArg) -> u32 {
        match argument {
            KernelArg::Tensor(t) => self.slot(Slot::Tensor(*t)),
            KernelArg::Tensors(list) => {
                let items = list.iter().map(|t| self.slot(Slot::Tensor(*t))).collect();
                self.value(EValue::TensorList(items))
            }
            KernelArg::OptionalTensors(list) => {
                let items = list.iter().map(|t| t.map(|t| self.slot(Slot::Tensor(t)))).collect();
                self.value(EValue::OptionalTensorList(items))
            }
            KernelArg::Size(size) => self.size(size),
            KernelArg::Sizes(list) => {
                let items = list.iter().map(|s| self.size(s)).collect();
                self.value(EValue::IntList(items))
            }
            KernelArg::Value(value) => self.value(value.clone()),
        }
    }

    fn size(&mut self, size: &Size) -> u32 {
        match size {
            Size::Known(v) => self.value(EValue::Int(*v)),
            Size::Slot(v) => self.slot(Slot::Value(*v)),
        }
    }

    /// Finishes the plan. A fully delegated method (`whole`) returns its delegate's results. Any
    /// other method returns the values of its result slots.
    pub(crate) fn finish(
        mut self,
        name: &str,
        exported: &Exported,
        outputs: &[MethodOutput],
        whole: bool,
    ) -> Result<Finished, ProgramError> {
        let outputs: Vec<u32> = outputs
            .iter()
            .map(|output| match output {
                MethodOutput::Constant(argument) => self.value(constant_value(argument)),
                MethodOutput::Result(i) if whole => self.results[*i],
                MethodOutput::Result(i) => self.slot(self.ssa.results[*i]),
            })
            .collect();
        let end = self.instructions.len() + 1;
        for value in &outputs {
            if let Some((_, last)) = self.lives.get_mut(value) {
                *last = end;
            }
        }
        let (arena, bound) = self.plan_memory()?;
        let plan = ExecutionPlan {
            name: name.to_owned(),
            container: ContainerMeta { inputs: exported.in_spec.clone(), outputs: exported.out_spec.clone() },
            inputs: self.inputs,
            outputs,
            chains: vec![Chain { instructions: self.instructions, ..Chain::default() }],
            operators: self.operators,
            delegates: self.delegates,
            non_const_buffer_sizes: vec![0, arena],
            devices: Vec::new(),
            values: self.values,
        };
        Ok(Finished { plan, constants: self.constants, bound: Some(bound).filter(|&bound| bound < UNBOUNDED) })
    }

    /// Places every tensor in the arena. Halves the bound assumed for unbounded sizes until the
    /// arena fits the budget. Returns the arena's size in bytes and that bound.
    fn plan_memory(&mut self) -> Result<(u64, u32), ProgramError> {
        let mut bound = UNBOUNDED;
        let mut arena = self.place_tensors();
        while arena > BUDGET && bound > LEAST_UNBOUNDED && !self.open.is_empty() {
            bound /= 2;
            for (&value, meta) in &self.open {
                self.values[value as usize] = EValue::Tensor(Box::new(tensor_value(meta, bound)));
            }
            arena = self.place_tensors();
        }
        if arena > MOST { Err(ProgramError::Memory { arena, bound }) } else { Ok((arena, bound)) }
    }

    /// Places every tensor in the arena and returns the arena's size in bytes.
    fn place_tensors(&mut self) -> u64 {
        let lives: Vec<(u32, (usize, usize))> = self.lives.iter().map(|(v, life)| (*v, *life)).collect();
        let bytes =
            |value: &EValue| if let EValue::Tensor(t) = value { t.nbytes().map_or(MOST + 1, |n| n.min(MOST + 1)) } else { 0 };
        let request =
            |&(value, (first, last)): &(u32, (usize, usize))| Request { bytes: bytes(&self.values[value as usize]), first, last };
        let requests: Vec<Request> = lives.iter().map(request).collect();
        let (offsets, arena) = assign_offsets(&requests);
        for ((value, _), offset) in lives.iter().zip(offsets) {
            if let EValue::Tensor(t) = &mut self.values[*value as usize] {
                t.allocation = Some(Allocation { memory_id: 1, offset });
            }
        }
        arena
    }
}

/// A finished plan.
pub(crate) struct Finished {
    pub(crate) plan: ExecutionPlan,
    /// Constant values.
    pub(crate) constants: Vec<(u32, Arc<Constant>)>,
    /// The bound assumed for unbounded sizes, if memory limits it to less than [`UNBOUNDED`].
    pub(crate) bound: Option<u32>,
}

/// A tensor at its upper bound. Unbounded sizes count as `unbounded`, or as their lower bound if
/// that is larger.
fn tensor_value(meta: &TensorMeta, unbounded: u32) -> TensorValue {
    let bound = |d: &MetaDim| match d {
        MetaDim::Static(n) => *n,
        MetaDim::Dynamic { min, max } => max.unwrap_or(unbounded.max(*min)),
    };
    let sizes: Vec<u32> = meta.shape.iter().map(bound).collect();
    let mut tensor = TensorValue::new(meta.dtype, &sizes);
    tensor.dynamic = meta.shape.iter().any(|d| matches!(d, MetaDim::Dynamic { .. }));
    tensor
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

#[cfg(test)]
mod tests {
    use flambeau_ir::Spec;
    use flambeau_lower::{Lower, Origin};
    use flambeau_tensor::{DType, Expr, Symbol};

    use super::*;

    /// Plans an f32 input with `unbounded` unbounded sizes and one size of `fixed`. Returns the
    /// arena's size and the assumed bound.
    fn planned(unbounded: usize, fixed: i64) -> Result<(u64, u32), ProgramError> {
        let mut lower = Lower::new();
        let open = (0..unbounded).map(|i| Expr::symbol(Symbol::new(&format!("s{i}"))));
        let spec = Spec { dtype: DType::F32, dims: open.chain([Expr::Int(fixed)]).collect() };
        let inputs = [MethodInput::Tensor(lower.slot(spec, Origin::Input(0)))];
        Outer::new(&lower.into_graph(), &inputs).plan_memory()
    }

    #[test]
    fn sizes_without_a_bound_count_as_much_as_the_budget_allows() {
        assert_eq!(planned(1, 8), Ok((32 << 16, UNBOUNDED)));
        assert_eq!(planned(2, 1), Ok((4 << 32, UNBOUNDED)));
        assert_eq!(planned(3, 3), Ok((12 << 30, 1 << 10)));
        assert_eq!(planned(4, 1 << 31), Err(ProgramError::Memory { arena: MOST + 16, bound: LEAST_UNBOUNDED }));
    }
}
