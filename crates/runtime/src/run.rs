//! The outer instructions.

use flambeau_ir::engine::Value as EngineValue;
use flambeau_tensor::{Tensor, cast};
use flambeau_wire::pte::{EValue, ExecutionPlan, Instruction};

use crate::{Error, Method, Result, Value};

/// Instructions of one run, the bound that ExecuTorch sets.
const MAX_INSTRUCTIONS: u64 = 10_000_000;

/// What the caller reads of delegates' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    /// The last entry along the second-to-last axis.
    Last,
}

/// Runs all chains of a method, one after the other.
pub(crate) fn execute(method: &mut Method, plan: &ExecutionPlan, cells: &mut [Option<Value>], wanted: Wanted) -> Result<()> {
    let mut count = 0u64;
    for (c, chain) in plan.chains.iter().enumerate() {
        let mut at = 0;
        while let Some(instruction) = chain.instructions.get(at) {
            count += 1;
            if count > MAX_INSTRUCTIONS {
                return Err(Error::Endless { method: plan.name.clone(), max: MAX_INSTRUCTIONS });
            }
            let next = step(method, plan, (c, at), instruction, cells, wanted);
            let fail = |what| Error::Run { method: plan.name.clone(), chain: c, instruction: at, what };
            at = next.map_err(fail)?.unwrap_or(at + 1);
        }
    }
    Ok(())
}

/// Runs one instruction; returns where to go on if that is not the next one.
fn step(
    method: &mut Method,
    plan: &ExecutionPlan,
    place: (usize, usize),
    instruction: &Instruction,
    cells: &mut [Option<Value>],
    wanted: Wanted,
) -> Result<Option<usize>, String> {
    match instruction {
        Instruction::DelegateCall { delegate, args } => call_delegate(method, plan, *delegate as usize, args, cells, wanted)?,
        Instruction::KernelCall { args, .. } => {
            let engine = std::sync::Arc::clone(&method.engine);
            let kernel = method.kernels.get_mut(&place).ok_or("the kernel is not loaded")?;
            kernel.run(plan, args, cells, &engine)?;
        }
        Instruction::MoveCall { from, to } => {
            let value = read(cells, *from)?.clone();
            set(cells, *to, value)?;
        }
        Instruction::JumpFalse { cond, destination } => {
            if !truth(read(cells, *cond)?)? {
                return Ok(Some(*destination as usize));
            }
        }
        Instruction::Free { value } => {
            if let Some(cell) = cells.get_mut(*value as usize) {
                *cell = None;
            }
        }
    }
    Ok(None)
}

/// What a value holds.
pub(crate) fn read(cells: &[Option<Value>], at: u32) -> Result<&Value, String> {
    cells.get(at as usize).and_then(Option::as_ref).ok_or_else(|| format!("value {at} is read before anything is written to it"))
}

/// Stores a result.
pub(crate) fn set(cells: &mut [Option<Value>], at: u32, value: Value) -> Result<(), String> {
    let cell = cells.get_mut(at as usize).ok_or_else(|| format!("there is no value {at}"))?;
    *cell = Some(value);
    Ok(())
}

/// Stores a tensor in the element type that the plan declares.
pub(crate) fn set_tensor(plan: &ExecutionPlan, cells: &mut [Option<Value>], at: u32, tensor: Tensor) -> Result<(), String> {
    let tensor = match plan.values.get(at as usize) {
        Some(EValue::Tensor(t)) if t.dtype != tensor.dtype() => cast(&tensor, t.dtype).map_err(|e| e.to_string())?,
        _ => tensor,
    };
    set(cells, at, Value::Tensor(tensor))
}

/// False is the boolean, and any tensor of booleans that has a false element.
fn truth(value: &Value) -> Result<bool, String> {
    let bad = || format!("the condition is {}, expected a boolean", value.describe());
    match value {
        Value::Bool(b) => Ok(*b),
        Value::Tensor(t) => {
            let elements = t.as_slice::<flambeau_tensor::Bool>().map_err(|_| bad())?;
            Ok(elements.iter().all(|b| b.get()))
        }
        _ => Err(bad()),
    }
}

/// What a delegate is called with.
pub(crate) fn arguments(delegate: usize, inputs: &[u32], cells: &[Option<Value>]) -> Result<Vec<EngineValue>, String> {
    let argument = |&at: &u32| match read(cells, at)? {
        Value::Tensor(t) => Ok(EngineValue::Tensor(t.clone())),
        Value::Int(v) => i32::try_from(*v).map(EngineValue::Int).map_err(|_| format!("the integer {v} does not fit 32 bits")),
        other => Err(format!("delegate {delegate} cannot take {}", other.describe())),
    };
    inputs.iter().map(argument).collect()
}

fn call_delegate(
    method: &mut Method,
    plan: &ExecutionPlan,
    index: usize,
    args: &[u32],
    cells: &mut [Option<Value>],
    wanted: Wanted,
) -> Result<(), String> {
    let delegate = method.delegates.get_mut(index).ok_or_else(|| format!("there is no delegate {index}"))?;
    let (inputs, outputs) = args.split_at(delegate.graph.inputs.len().min(args.len()));
    let arguments = arguments(index, inputs, cells)?;
    let results = match wanted {
        Wanted::All => delegate.session.run(&arguments),
        Wanted::Last => delegate.session.run_last(&arguments),
    };
    let results = results.map_err(|e| format!("delegate {index}: {e}"))?;
    if results.len() != outputs.len() {
        return Err(format!("delegate {index} gave {} results, expected {}", results.len(), outputs.len()));
    }
    for (&at, result) in outputs.iter().zip(results) {
        match result {
            EngineValue::Tensor(tensor) => set_tensor(plan, cells, at, tensor)?,
            EngineValue::Int(v) => set(cells, at, Value::Int(v.into()))?,
        }
    }
    Ok(())
}
