//! Speculative decoding with a program's own draft method: it proposes several tokens, and one step
//! of the model verifies them all.
//!
//! The draft reads hidden states of the model, its *taps*, which the model's method returns next to
//! the logits. A draft token is accepted if the model would have chosen it, so the text is the same
//! as by greedy decoding.

use std::{fmt, sync::Arc};

use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};

use crate::{Error, Result, logits};

/// Methods of a program with a draft.
pub(super) const TARGET: &str = "target";
const DRAFT: &str = "draft";

/// A draft method and the sequence in its caches.
pub(super) struct Draft {
    method: Method,
    /// Placeholder token for positions to predict.
    mask: u32,
    /// Maximum length of a block: one known token and the draft tokens.
    longest: usize,
    /// Size of a tap.
    width: usize,
    /// Number of positions whose taps are in the method's caches.
    told: usize,
    /// Taps `[count, width]` of the following positions.
    taps: Vec<f32>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("method", &self.method).field("told", &self.told).finish_non_exhaustive()
    }
}

/// Whether the program contains a model and its draft.
pub(super) fn has_draft(program: &Program) -> bool {
    let names: Vec<&str> = program.computing_methods().collect();
    names.contains(&TARGET) && names.contains(&DRAFT) && program.constant_int("get_mask_token_id").is_some()
}

impl Draft {
    /// Loads the draft of a program [with one](has_draft).
    ///
    /// # Errors
    /// Fails if the method cannot be loaded, or if its inputs are not tokens, taps and positions.
    pub(super) fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Draft> {
        let method = program.method(DRAFT, engine, &LoadOptions::default())?;
        let listed = || method.inputs().iter().map(ValueSpec::to_string).collect::<Vec<_>>().join(", ");
        let unfit = || bad(format!("expected tokens i64[1, B], taps f32[1, N, W] and positions i64[N], found ({})", listed()));
        let count = |name: &str| program.constant_int(name).and_then(|v| u32::try_from(v).ok());
        let dims: Vec<_> = method.inputs().iter().filter_map(|spec| spec.tensor().map(|t| (t.dtype, &t.dims[..]))).collect();
        let [(DType::I64, [_, block]), (DType::F32, [_, _, width]), (DType::I64, [_])] = dims[..] else { return Err(unfit()) };
        let longest = count("get_max_block_len").map(|n| n as usize).into_iter().chain(block.max()).min().ok_or_else(unfit)?;
        let (width, mask) = (width.max().ok_or_else(unfit)?, count("get_mask_token_id").ok_or_else(unfit)?);
        Ok(Draft { method, mask, longest, width, told: 0, taps: Vec::new() })
    }

    /// Maximum number of draft tokens per call.
    pub(super) fn max_tokens(&self) -> usize {
        self.longest.saturating_sub(1)
    }

    /// Number of positions with known taps.
    pub(super) fn known(&self) -> usize {
        self.told + self.taps.len() / self.width.max(1)
    }

    /// Stores the first `count` of a step's taps `[1, S, W]`, which begin at `position`. Taps after
    /// a gap are dropped.
    ///
    /// # Errors
    /// Fails if `taps` does not have the draft's shape.
    pub(super) fn note(&mut self, taps: Option<&Value>, count: usize, position: usize) -> Result<()> {
        self.truncate(position);
        let found = || taps.map_or_else(|| "nothing".into(), Value::describe);
        let unfit = || bad(format!("method `{TARGET}` gave {} beside the logits, expected taps [1, S, {}]", found(), self.width));
        let taps = taps.and_then(Value::as_tensor).filter(|t| t.shape().last() == Some(&self.width)).ok_or_else(unfit)?;
        let taps = cast(taps, DType::F32).map_err(|e| bad(e.to_string()))?;
        let rows = taps.as_slice::<f32>().ok().and_then(|all| all.get(..count * self.width)).ok_or_else(unfit)?;
        if self.known() == position {
            self.taps.extend_from_slice(rows);
        }
        Ok(())
    }

    /// Drops all positions from `position` on.
    pub(super) fn truncate(&mut self, position: usize) {
        self.told = self.told.min(position);
        self.taps.truncate((position - self.told) * self.width);
    }

    /// Resets the draft to an empty sequence.
    pub(super) fn reset(&mut self) {
        self.method.reset();
        self.truncate(0);
    }

    /// Predicts `count` tokens after `last`, which follows the known positions.
    ///
    /// # Errors
    /// Fails if the method fails or does not return logits.
    pub(super) fn guess(&mut self, last: u32, count: usize) -> Result<Vec<u32>> {
        let block: Vec<i64> = std::iter::once(last).chain(std::iter::repeat_n(self.mask, count)).map(i64::from).collect();
        let positions: Vec<i64> = (self.told as i64..self.known() as i64).collect();
        let inputs = [
            Tensor::from_slice(&block, &[1, block.len()]),
            Tensor::from_slice(&self.taps, &[1, positions.len(), self.width]),
            Tensor::from_slice(&positions, &[positions.len()]),
        ];
        let inputs = inputs.into_iter().map(|t| t.map(Value::Tensor).map_err(|e| bad(e.to_string())));
        let outputs = self.method.run(&inputs.collect::<Result<Vec<_>>>()?)?;
        (self.told, self.taps) = (self.known(), Vec::new());
        logits::best_tokens(DRAFT, outputs.first(), count)
    }
}

fn bad(what: String) -> Error {
    Error::Signature { method: DRAFT.to_owned(), what }
}
