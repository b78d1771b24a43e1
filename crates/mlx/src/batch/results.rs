//! The results of a joint run, for each session.

use flambeau_ir::{Tid, engine::Value};
use flambeau_tensor::{Shape, Tensor};

use crate::{
    error::{OpError, Result},
    ffi::Array,
    state::{Pending, State, last_entry},
};

/// A result of every session.
#[derive(Debug)]
pub(super) enum BatchResult {
    /// A value in each session.
    Each(Vec<Pending>),
    /// `rows` `[sessions, ..]`. Each session's result is its row, in the shape `one`.
    Joined { rows: Array, one: Shape },
}

/// A run before it is computed.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) results: Vec<BatchResult>,
    /// The buffers that it writes, by session.
    pub(super) written: Vec<(usize, Tid)>,
    /// Handles to the callers' inputs.
    pub(super) _inputs: Vec<Array>,
}

impl Built {
    /// Enqueues the buffers and the tokens that `draw` computes from the last rows of logits
    /// `[sessions, V]`. Returns the tokens `[sessions]`.
    ///
    /// # Errors
    /// If a result holds no logits of one row, or MLX fails.
    pub(super) fn submit(self, states: &[&mut State], logits: usize, draw: impl FnOnce(&Array) -> Result<Array>) -> Result<Array> {
        let bad = || OpError::value(format!("result {logits} holds no logits"));
        let rows = match last(self.results.into_iter().nth(logits).ok_or_else(bad)?)? {
            BatchResult::Joined { rows, .. } => rows,
            BatchResult::Each(each) => {
                let arrays =
                    each.iter().map(|pending| Ok(pending.array().ok_or_else(bad)?.share()?)).collect::<Result<Vec<_>>>()?;
                Array::stack(states[0].machine.api, &arrays, 0)?
            }
        };
        let (count, elements) = (states.len(), rows.spec()?.1.iter().product::<usize>());
        let tokens = draw(&rows.reshape(&[count, elements / count])?)?;
        let buffers = buffers(&self.written, states)?;
        states[0].machine.api.submit(std::iter::once(&tokens).chain(&buffers))?;
        Ok(tokens)
    }

    /// Computes the buffers, and the last entry of each result along its second-to-last axis.
    /// Returns the results by session.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn compute(self, states: &[&mut State]) -> Result<Vec<Vec<Value>>> {
        let results = self.results.into_iter().map(last).collect::<Result<Vec<_>>>()?;
        let arrays = buffers(&self.written, states)?;
        let api = states[0].machine.api;
        let made = results.iter().flat_map(|made| match made {
            BatchResult::Each(each) => each.iter().filter_map(Pending::array).collect(),
            BatchResult::Joined { rows, .. } => vec![rows],
        });
        api.eval(made.chain(&arrays))?;
        let mut values: Vec<Vec<Value>> = states.iter().map(|_| Vec::with_capacity(results.len())).collect();
        for made in results {
            for (values, value) in values.iter_mut().zip(read(made, states.len())?) {
                values.push(value);
            }
        }
        Ok(values)
    }
}

/// Handles to buffers, by session.
fn buffers(written: &[(usize, Tid)], states: &[&mut State]) -> Result<Vec<Array>> {
    let mut arrays = Vec::with_capacity(written.len());
    for &(session, tid) in written {
        arrays.extend(states[session].buffer(tid)?);
    }
    Ok(arrays)
}

/// The last entry of each session's result along its second-to-last axis.
fn last(made: BatchResult) -> Result<BatchResult> {
    let entry = |pending: Pending| match pending {
        Pending::Array(array) => Ok::<_, OpError>(Pending::Array(last_entry(&array)?)),
        int @ Pending::Int(_) => Ok(int),
    };
    Ok(match made {
        BatchResult::Each(each) => BatchResult::Each(each.into_iter().map(entry).collect::<Result<_>>()?),
        // In a matrix, that axis holds the sessions' rows, one each.
        BatchResult::Joined { rows, mut one } if one.len() > 2 => {
            let axis = one.len() - 2;
            one[axis] = 1;
            BatchResult::Joined { rows: last_entry(&rows)?, one }
        }
        joined @ BatchResult::Joined { .. } => joined,
    })
}

/// A computed result of every session.
fn read(made: BatchResult, count: usize) -> Result<Vec<Value>> {
    match made {
        BatchResult::Each(each) => each.into_iter().map(Pending::read).collect(),
        BatchResult::Joined { rows, one } => {
            let all = rows.to_tensor()?;
            let bytes = all.bytes().len() / count;
            let part = |row: usize| Tensor::new(all.dtype(), &one, all.bytes().slice(row * bytes..(row + 1) * bytes));
            (0..count).map(|row| Ok(Value::Tensor(part(row).map_err(|e| OpError::value(e.to_string()))?))).collect()
        }
    }
}
