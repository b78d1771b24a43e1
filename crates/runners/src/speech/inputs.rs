//! Inputs of methods that are whole numbers.

use flambeau_runtime::Value;
use flambeau_tensor::Tensor;

use crate::{Error, Result};

/// Tokens, i64 [1, s].
pub(crate) fn ids(tokens: &[u32]) -> Result<Value> {
    let ids: Vec<i64> = tokens.iter().map(|&id| i64::from(id)).collect();
    tensor(&ids, &[1, ids.len()])
}

/// Positions that follow one another, i64 [s].
pub(crate) fn positions(first: usize, count: usize) -> Result<Value> {
    let positions: Vec<i64> = (first as i64..).take(count).collect();
    tensor(&positions, &[count])
}

fn tensor(values: &[i64], shape: &[usize]) -> Result<Value> {
    Tensor::from_slice(values, shape).map(Value::Tensor).map_err(|_| Error::EmptyPrompt)
}
