//! Executes the outer instructions. The file reader has checked that all named values, operators
//! and delegates exist.

use flambeau_ir::engine::{EngineError, Value as EngineValue};
use flambeau_tensor::{Tensor, cast};
use flambeau_wire::pte::{EValue, ExecutionPlan, Instruction};

use crate::{Error, InstructionError, Method, Place, Result, Value};

/// Largest number of instructions in one run, as in ExecuTorch.
const MAX_INSTRUCTIONS: u64 = 10_000_000;

/// Rows of delegates' results that the caller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    All,
    /// The last entry along the second-to-last axis.
    Last,
}

/// Runs all chains of a method, one after another.
pub(crate) fn execute(method: &mut Method, plan: &ExecutionPlan, cells: &mut [Option<Value>], rows: Rows) -> Result<()> {
    let mut count = 0u64;
    for (c, chain) in plan.chains.iter().enumerate() {
        let mut at = 0;
        while let Some(instruction) = chain.instructions.get(at) {
            count += 1;
            if count > MAX_INSTRUCTIONS {
                return Err(Error::Endless { method: plan.name.clone(), max: MAX_INSTRUCTIONS });
            }
            let place = Place { chain: c, instruction: at };
            let start = method.trace_start();
            let next = step(method, plan, place, instruction, cells, rows);
            if next.is_ok() {
                method.trace_instruction(plan, place, instruction, start, cells)?;
            }
            let fail = |source: InstructionError| Error::Run { method: plan.name.clone(), place, source: Box::new(source) };
            at = next.map_err(fail)?.unwrap_or(at + 1);
        }
    }
    Ok(())
}

/// Runs one instruction. Returns the jump target if the next instruction does not follow.
fn step(
    method: &mut Method,
    plan: &ExecutionPlan,
    place: Place,
    instruction: &Instruction,
    cells: &mut [Option<Value>],
    rows: Rows,
) -> Result<Option<usize>, InstructionError> {
    method.views.set_before(place, plan, cells)?;
    match instruction {
        Instruction::DelegateCall { delegate, args } => call_delegate(method, plan, *delegate, args, cells, rows)?,
        Instruction::KernelCall { args, .. } => {
            let engine = std::sync::Arc::clone(&method.engine);
            let kernel = method.kernels.get_mut(&place).expect("loading prepares every kernel call");
            kernel.run(plan, args, cells, &engine)?;
        }
        Instruction::MoveCall { from, to } => {
            let value = read(cells, *from)?.clone();
            cells[*to as usize] = Some(value);
        }
        Instruction::JumpFalse { cond, destination } => {
            if !truth(read(cells, *cond)?)? {
                return Ok(Some(*destination as usize));
            }
        }
        Instruction::Free { value } => cells[*value as usize] = None,
    }
    Ok(None)
}

/// The contents of a value.
pub(crate) fn read(cells: &[Option<Value>], at: u32) -> Result<&Value, InstructionError> {
    cells[at as usize].as_ref().ok_or(InstructionError::Unset(at))
}

/// Stores a tensor in the element type that the plan declares.
pub(crate) fn set_tensor(
    plan: &ExecutionPlan,
    cells: &mut [Option<Value>],
    at: u32,
    tensor: Tensor,
) -> Result<(), InstructionError> {
    let tensor = match plan.values.get(at as usize) {
        Some(EValue::Tensor(t)) if t.dtype != tensor.dtype() => cast(&tensor, t.dtype)?,
        _ => tensor,
    };
    cells[at as usize] = Some(Value::Tensor(tensor));
    Ok(())
}

/// Evaluates a condition. `false` and boolean tensors with a false element count as false.
fn truth(value: &Value) -> Result<bool, InstructionError> {
    let bad = || InstructionError::Condition(value.describe());
    match value {
        Value::Bool(b) => Ok(*b),
        Value::Tensor(t) => {
            let elements = t.as_slice::<flambeau_tensor::Bool>().map_err(|_| bad())?;
            Ok(elements.iter().all(|b| b.get()))
        }
        _ => Err(bad()),
    }
}

/// The arguments of a delegate call.
pub(crate) fn arguments(delegate: u32, inputs: &[u32], cells: &[Option<Value>]) -> Result<Vec<EngineValue>, InstructionError> {
    let argument = |&at: &u32| {
        let value = read(cells, at)?;
        let wrong = || InstructionError::DelegateArgument { delegate, found: value.describe() };
        match value {
            Value::Tensor(t) => Ok(EngineValue::Tensor(t.clone())),
            // Integers of delegates have 32 bits.
            Value::Int(v) => i32::try_from(*v).map(EngineValue::Int).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    };
    inputs.iter().map(argument).collect()
}

fn call_delegate(
    method: &mut Method,
    plan: &ExecutionPlan,
    index: u32,
    args: &[u32],
    cells: &mut [Option<Value>],
    rows: Rows,
) -> Result<(), InstructionError> {
    let delegate = &mut method.delegates[index as usize];
    let (inputs, outputs) = args.split_at(delegate.graph.inputs.len().min(args.len()));
    let arguments = arguments(index, inputs, cells)?;
    let results = match rows {
        Rows::All => delegate.session.run(&arguments),
        Rows::Last => delegate.session.run_last(&arguments),
    };
    take_results(plan, index, outputs, results, cells)
}

/// Stores a delegate's results in the output values of its call.
pub(crate) fn take_results(
    plan: &ExecutionPlan,
    index: u32,
    outputs: &[u32],
    results: Result<Vec<EngineValue>, EngineError>,
    cells: &mut [Option<Value>],
) -> Result<(), InstructionError> {
    let results = results.map_err(|source| InstructionError::Delegate { delegate: index, source })?;
    if results.len() != outputs.len() {
        let (found, expected) = (results.len(), outputs.len());
        return Err(InstructionError::DelegateResults { delegate: index, found, expected });
    }
    for (&at, result) in outputs.iter().zip(results) {
        match result {
            EngineValue::Tensor(tensor) => set_tensor(plan, cells, at, tensor)?,
            EngineValue::Int(v) => cells[at as usize] = Some(Value::Int(v.into())),
        }
    }
    Ok(())
}
