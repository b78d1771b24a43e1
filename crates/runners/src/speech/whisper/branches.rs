//! Texts with a common beginning, in one cache.

use flambeau_runtime::{Method, Value};
use flambeau_tensor::{DType, Tensor};

use super::unfit;
use crate::{
    Result, logits,
    speech::inputs::{ids, positions},
};

/// Step between numbers of visible cache rows. An engine prepares a run anew for each number.
const STEP: usize = 64;

/// The method `branches`. Each token has its own cache row, and attends to the rows of its text.
#[derive(Debug)]
pub(super) struct Branches {
    method: Method,
    capacity: usize,
    used: usize,
}

/// Cache rows of a text's tokens, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Path(Vec<usize>);

impl Path {
    /// Number of tokens in the text.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Branches {
    pub(super) fn new(method: Method) -> Result<Branches> {
        let capacity = method.cache_len().ok_or_else(|| unfit("its method `branches` keeps nothing"))?;
        Ok(Branches { method, capacity, used: 0 })
    }

    /// Forgets all texts.
    pub(super) fn restart(&mut self) {
        self.used = 0;
    }

    /// Number of tokens that still fit.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.used
    }

    /// Appends tokens to one text, and replaces `to` with the logits `[V]` of its next token.
    pub(super) fn extend(&mut self, path: &mut Path, tokens: &[u32], to: &mut Vec<f32>) -> Result<()> {
        let first = path.len();
        path.0.extend(self.used..self.used + tokens.len());
        let paths: Vec<&[usize]> = (first + 1..=path.len()).map(|end| &path.0[..end]).collect();
        let inputs = self.inputs(tokens, &paths)?;
        let outputs = self.method.run_last(&inputs)?;
        self.used += tokens.len();
        logits::last(self.method.name(), outputs.first(), to)
    }

    /// Appends a token to each text, and returns the logits [texts, V] of the next ones.
    pub(super) fn step(&mut self, paths: &mut [&mut Path], tokens: &[u32]) -> Result<Vec<f32>> {
        for (row, path) in (self.used..).zip(paths.iter_mut()) {
            path.0.push(row);
        }
        let paths: Vec<&[usize]> = paths.iter().map(|path| &path.0[..]).collect();
        let inputs = self.inputs(tokens, &paths)?;
        let outputs = self.method.run(&inputs)?;
        self.used += tokens.len();
        logits::all_rows(self.method.name(), outputs.first())
    }

    /// The method's inputs for tokens that end these paths.
    fn inputs(&self, tokens: &[u32], paths: &[&[usize]]) -> Result<[Value; 4]> {
        let no_room = || unfit("its method `branches` has no room for the texts");
        if tokens.len() > self.room() {
            return Err(no_room());
        }
        let rows = (self.used + tokens.len()).next_multiple_of(STEP).min(self.capacity);
        let mut seen = vec![0u8; tokens.len() * rows];
        for (seen, path) in seen.chunks_exact_mut(rows).zip(paths) {
            for &row in *path {
                seen[row] = 1;
            }
        }
        let places: Vec<i64> = paths.iter().map(|path| path.len() as i64 - 1).collect();
        let places = Tensor::from_slice(&places, &[places.len()]).map_err(|_| no_room())?;
        let seen = Tensor::new(DType::Bool, &[tokens.len(), rows], seen.into()).map_err(|_| no_room())?;
        Ok([ids(tokens)?, Value::Tensor(places), positions(self.used, tokens.len())?, Value::Tensor(seen)])
    }
}
