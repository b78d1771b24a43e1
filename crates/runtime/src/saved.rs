//! Saves and restores a method's state.

use flambeau_ir::{Checked, Node, Tid, engine::StatePart};
use flambeau_tensor::Tensor;

use crate::{Error, Method, Result, state};

impl Method {
    /// Whether the program allows [saving](Self::save) the state, because buffers of delegates hold
    /// all of it. The engine may still refuse.
    pub fn has_plain_state(&self) -> bool {
        let is_plain = |graph: &Checked| !graph.chains.iter().flatten().any(|node| matches!(node, Node::UpdateAndAttend(_)));
        self.carries_nothing() && self.delegates.iter().all(|d| is_plain(&d.graph))
    }

    /// Copies the state after `rows` positions: the first `rows` rows of caches with one row per
    /// position, and other buffers in full. `None` if the engine does not support it.
    ///
    /// # Errors
    /// The caches have fewer than `rows` rows.
    pub fn save(&mut self, rows: usize) -> Result<Option<Vec<Tensor>>> {
        let mut copies = Vec::new();
        for at in 0..self.delegates.len() {
            let parts = parts(&self.delegates[at].graph, rows);
            let Some(read) = self.delegates[at].session.read_state(&parts) else { return Ok(None) };
            copies.extend(read.map_err(|source| self.failed_state(at, source))?);
        }
        Ok(Some(copies))
    }

    /// Restores a copy that [`save`](Self::save) made after the same number of positions, from this
    /// method or another method of the same program.
    ///
    /// # Errors
    /// The copies belong to another program or another number of positions. The state may then be
    /// partly restored, so [reset](Self::reset) the method.
    pub fn restore(&mut self, rows: usize, copies: &[Tensor]) -> Result<()> {
        let mut rest = copies;
        for at in 0..self.delegates.len() {
            let parts = parts(&self.delegates[at].graph, rows);
            let own = rest.split_off(..parts.len()).ok_or_else(|| self.foreign_state())?;
            let pairs: Vec<(StatePart, &Tensor)> = parts.into_iter().zip(own).collect();
            let written = self.delegates[at].session.write_state(&pairs);
            written.map_err(|source| self.failed_state(at, source))?;
        }
        if rest.is_empty() { Ok(()) } else { Err(self.foreign_state()) }
    }

    fn failed_state(&self, delegate: usize, source: flambeau_ir::engine::EngineError) -> Error {
        Error::State { method: self.name().to_owned(), what: format!("delegate {delegate}: {source}") }
    }

    fn foreign_state(&self) -> Error {
        Error::State { method: self.name().to_owned(), what: "it has another number of buffers".into() }
    }
}

/// The parts of a graph's state after `rows` positions.
fn parts(graph: &Checked, rows: usize) -> Vec<StatePart> {
    let of = |(buffer, axis): (Tid, Option<usize>)| StatePart { buffer, rows: axis.map(|axis| (axis, rows)) };
    state::row_axes(graph).into_iter().map(of).collect()
}
