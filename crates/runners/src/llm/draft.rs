//! Speculation: a program's own draft method guesses several tokens, and one step of the model judges them all.
//!
//! The draft sees hidden states of the model, its *taps*, which the model's method gives beside the logits. A guess is accepted as
//! long as the model itself would have chosen it, so that the text is that of greedy decoding.

use std::{fmt, sync::Arc};

use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};

use crate::{Error, Result, logits};

/// The methods of a program that brings a draft.
pub(super) const TARGET: &str = "target";
const DRAFT: &str = "draft";

/// A draft method and the sequence in its caches.
pub(super) struct Draft {
    method: Method,
    /// Stands for tokens that are to be guessed.
    mask: u32,
    /// Most tokens of a block: one that is known, and guesses.
    longest: usize,
    /// Elements of a tap.
    width: usize,
    /// Positions whose taps the method's caches hold.
    told: usize,
    /// Taps `[count, width]` of the positions after those.
    taps: Vec<f32>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("method", &self.method).field("told", &self.told).finish_non_exhaustive()
    }
}

/// Whether the program is a pair of a model and its draft.
pub(super) fn has_draft(program: &Program) -> bool {
    let names: Vec<&str> = program.computing_methods().collect();
    names.contains(&TARGET) && names.contains(&DRAFT) && program.constant_int("get_mask_token_id").is_some()
}

impl Draft {
    /// Loads the draft of a program that [has one](has_draft).
    ///
    /// # Errors
    /// The method cannot be loaded, or its inputs are not tokens, taps and positions.
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

    /// Most tokens that it guesses at once.
    pub(super) fn most(&self) -> usize {
        self.longest.saturating_sub(1)
    }

    /// Number of positions whose taps it knows.
    pub(super) fn known(&self) -> usize {
        self.told + self.taps.len() / self.width.max(1)
    }

    /// Notes the first `count` of a step's taps `[1, S, W]`, whose first is at `position`. Taps behind a gap are dropped.
    ///
    /// # Errors
    /// They are no taps of this draft.
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

    /// Forgets all positions from `position` on.
    pub(super) fn truncate(&mut self, position: usize) {
        self.told = self.told.min(position);
        self.taps.truncate((position - self.told) * self.width);
    }

    /// Forgets the sequence.
    pub(super) fn reset(&mut self) {
        self.method.reset();
        self.truncate(0);
    }

    /// Guesses the `count` tokens that follow `last`, which itself follows the positions that are known.
    ///
    /// # Errors
    /// The method fails, or its result is no logits.
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
