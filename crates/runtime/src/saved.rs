//! Copies of what a method keeps between runs.

use flambeau_ir::{Checked, Node, Tid, engine::StatePart};
use flambeau_tensor::Tensor;

use crate::{Error, Method, Result, state};

impl Method {
    /// Whether what the method keeps can be [copied](Self::save) as far as its program is concerned: all of it lies in the buffers of
    /// its delegates. An engine may still keep them to itself.
    pub fn has_plain_state(&self) -> bool {
        let is_plain = |graph: &Checked| !graph.chains.iter().flatten().any(|node| matches!(node, Node::UpdateAndAttend(_)));
        self.carries_nothing() && self.delegates.iter().all(|d| is_plain(&d.graph))
    }

    /// A copy of the state after `rows` positions: of caches that keep a row for each position those rows, of other buffers all. `None` if the
    /// engine does not hand it out.
    ///
    /// # Errors
    /// The caches have fewer rows.
    pub fn save(&mut self, rows: usize) -> Result<Option<Vec<Tensor>>> {
        let mut copies = Vec::new();
        for at in 0..self.delegates.len() {
            let parts = parts(&self.delegates[at].graph, rows);
            let Some(read) = self.delegates[at].session.read_state(&parts) else { return Ok(None) };
            copies.extend(read.map_err(|source| self.failed_state(at, source))?);
        }
        Ok(Some(copies))
    }

    /// Puts back what [`save`](Self::save) copied after as many positions, from this method or from another one of the same program.
    ///
    /// # Errors
    /// The copies are of another program or of other positions; the state is then in parts the old one, and the method to be
    /// [reset](Self::reset).
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

/// What a copy of a graph's state after so many positions consists of.
fn parts(graph: &Checked, rows: usize) -> Vec<StatePart> {
    let of = |(buffer, axis): (Tid, Option<usize>)| StatePart { buffer, rows: axis.map(|axis| (axis, rows)) };
    state::row_axes(graph).into_iter().map(of).collect()
}
