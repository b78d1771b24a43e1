//! Inputs of methods.

use flambeau_runtime::{Method, Value, ValueSpec};
use flambeau_tensor::{Tensor, cast};

use crate::{Error, Result};

/// Tokens, i64 [1, s].
pub(crate) fn ids(tokens: &[u32]) -> Result<Value> {
    let ids: Vec<i64> = tokens.iter().map(|&id| i64::from(id)).collect();
    tensor(&ids, &[1, ids.len()])
}

/// Consecutive positions, i64 [s].
pub(crate) fn positions(first: usize, count: usize) -> Result<Value> {
    let positions: Vec<i64> = (first as i64..).take(count).collect();
    tensor(&positions, &[count])
}

/// Floats, cast to the type of the method's input with index `input`.
pub(crate) fn floats(method: &Method, input: usize, floats: &Tensor) -> Result<Value> {
    let dtype = method.inputs().get(input).and_then(ValueSpec::tensor).map_or(floats.dtype(), |spec| spec.dtype);
    let bad = |_| Error::Signature { method: method.name().into(), what: format!("it takes {dtype} in the place of floats") };
    cast(floats, dtype).map(Value::Tensor).map_err(bad)
}

fn tensor(values: &[i64], shape: &[usize]) -> Result<Value> {
    Tensor::from_slice(values, shape).map(Value::Tensor).map_err(|_| Error::EmptyPrompt)
}
