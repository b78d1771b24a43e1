//! Calls that run on host kernels.

use flambeau_aten::Schema;
use flambeau_host::{Argument, Call, Kernel};
use flambeau_tensor::{DType, Tensor};
use flambeau_wire::pte::{EValue, ExecutionPlan};

use crate::{OperatorError, Value};

/// Runs a kernel on `inputs` and returns one tensor for each of `results`.
pub(super) fn run(
    kernel: &Kernel,
    schema: &'static Schema,
    plan: &ExecutionPlan,
    inputs: &[u32],
    results: &[u32],
    cells: &[Option<Value>],
) -> Result<Vec<Tensor>, OperatorError> {
    let args: Vec<Argument> = inputs.iter().map(|&at| argument(plan, cells, at)).collect();
    let dtype = |at: &u32| match plan.values.get(*at as usize) {
        Some(EValue::Tensor(t)) => t.dtype,
        _ => DType::F32,
    };
    let dtypes: Vec<DType> = results.iter().map(dtype).collect();
    let made = kernel.run(&Call { schema, args: &args, results: &dtypes })?;
    if made.len() != results.len() {
        return Err(OperatorError::ResultCount { found: made.len(), expected: results.len() });
    }
    Ok(made)
}

/// The contents of a plan's value, or none if it is not set.
fn argument(plan: &ExecutionPlan, cells: &[Option<Value>], at: u32) -> Argument {
    let tensor = |at: u32| cells.get(at as usize)?.as_ref()?.as_tensor().cloned();
    match plan.values.get(at as usize) {
        Some(EValue::TensorList(list)) => Argument::Tensors(list.iter().map(|&at| tensor(at)).collect()),
        Some(EValue::OptionalTensorList(list)) => Argument::Tensors(list.iter().map(|at| at.and_then(tensor)).collect()),
        Some(EValue::IntList(list)) => {
            let int = |&at: &u32| cells.get(at as usize)?.as_ref()?.as_int();
            list.iter().map(int).collect::<Option<Vec<_>>>().map_or(Argument::None, Argument::Ints)
        }
        Some(EValue::DoubleList(list)) => Argument::Floats(list.clone()),
        Some(EValue::BoolList(list)) => Argument::Bools(list.clone()),
        _ => match cells.get(at as usize).and_then(Option::as_ref) {
            Some(Value::Tensor(t)) => Argument::Tensor(t.clone()),
            Some(Value::Int(v)) => Argument::Int(*v),
            Some(Value::Bool(b)) => Argument::Bool(*b),
            Some(Value::Double(v)) => Argument::Float(*v),
            Some(Value::String(s)) => Argument::Str(s.clone()),
            Some(Value::None) | None => Argument::None,
        },
    }
}
