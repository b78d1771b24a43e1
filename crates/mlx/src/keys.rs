//! Keys of random numbers.

use flambeau_tensor::Tensor;

use crate::{
    error::{OpError, Result},
    ffi::{Api, Array},
};

/// Random keys for nodes without a seed: each use splits the state. A session starts from seed 0,
/// so its runs are repeatable.
#[derive(Debug, Default)]
pub(crate) struct KeySequence(Option<Array>);

/// The key `[2]` of a seed.
pub(crate) fn key(api: Api, seed: i32) -> Result<Array> {
    let wide = i64::from(seed) as u64;
    let words = Tensor::from_slice(&[(wide >> 32) as u32, wide as u32], &[2]).map_err(|e| OpError::value(e.to_string()))?;
    Ok(Array::from_tensor(api, &words)?)
}

impl KeySequence {
    pub(crate) fn draw(&mut self, api: Api) -> Result<Array> {
        let state = self.0.take().map_or_else(|| key(api, 0), Ok)?;
        let split = state.random_bits(&[2, 2], 4)?;
        let row = |i: i64| Ok::<_, OpError>(split.slice(&[i, 0], &[i + 1, 2], &[1, 1])?.reshape(&[2])?);
        self.0 = Some(row(0)?);
        row(1)
    }
}
