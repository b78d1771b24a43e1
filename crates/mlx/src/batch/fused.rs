//! Fused steps for all sessions at once.

use flambeau_ir::{Node, Role, Slot as GraphSlot, Tid};

use super::run::BatchRun;
use crate::{
    cx::Machine,
    error::Result,
    fused::{Attention, FusedNodes, Kind, Linear, Plan, RowSteps},
    values::Slot,
};

/// The first session's own slot contents, saved while its slots hold the rows of all sessions for a
/// launch.
#[derive(Default)]
struct Borrowed {
    own: Vec<(Tid, Option<Slot>)>,
    /// Slots that steps of the launch write.
    outs: Vec<Tid>,
}

impl Borrowed {
    /// Whether the first session's slot holds the rows of all.
    fn holds(&self, tid: Tid) -> bool {
        self.outs.contains(&tid) || self.own.iter().any(|(own, _)| *own == tid)
    }

    /// Whether a node cannot run before the launch: it writes such a slot, or reads a result of the
    /// launch.
    fn is_touched_by(&self, node: &Node) -> bool {
        let reads = !matches!(node, Node::SymSize(_));
        let mut is_touched = false;
        node.walk(&mut |role, slot| {
            is_touched |= match slot {
                GraphSlot::Tensor(tid) if role == Role::Write => self.holds(tid),
                GraphSlot::Tensor(tid) => reads && self.outs.contains(&tid),
                _ => false,
            };
        });
        is_touched
    }
}

impl BatchRun<'_, '_> {
    /// Runs the steps from a node on for all sessions, as one launch if it may fill the device.
    /// Returns the index of the next node. Returns `None` and leaves every slot unchanged if no
    /// kernel supports the first step.
    ///
    /// # Errors
    /// If a session cannot take a step, or MLX fails.
    pub(super) fn run_fused(&mut self, plan: &mut Plan, at: usize) -> Result<Option<usize>> {
        let (steps, shared) = plan.parts();
        if !steps.get(&at).is_some_and(|step| matches!(step.kind, Kind::Linear(_) | Kind::Attention(_))) {
            return Ok(None);
        }
        let (mut scratch, mut borrowed) = (std::mem::take(&mut self.scratch), Borrowed::default());
        let count = self.states.len();
        let mut run = RowSteps::new(self.machine(0), shared, &mut scratch, count)?;
        let (mut end, mut attends) = (at, false);
        while let Some(step) = steps.get(&end) {
            // A layer each, so that layers share a kernel.
            let is_attention = |step: &FusedNodes| matches!(step.kind, Kind::Attention(_));
            if attends && (is_attention(step) || steps.get(&step.end).is_some_and(is_attention)) {
                break;
            }
            if !self.add(&mut run, step, &mut borrowed)? {
                break;
            }
            attends |= is_attention(step);
            end = step.end;
        }
        if !run.is_empty() {
            run.launch(self.machine(0), &borrowed.outs)?;
        }
        self.scratch = scratch;
        self.give_back(borrowed);
        Ok((end > at).then_some(end))
    }

    /// Adds a step to a launch; `false` if no kernel takes it.
    fn add(&mut self, run: &mut RowSteps<'_>, step: &FusedNodes, borrowed: &mut Borrowed) -> Result<bool> {
        let is_added = match &step.kind {
            Kind::Linear(linear) => self.add_linear(run, linear, borrowed)?,
            Kind::Attention(attention) => self.add_attention(run, attention, borrowed)?,
            Kind::Mixture(_) | Kind::Delta(_) => false,
        };
        if is_added {
            for tid in step.outs() {
                let rows = self.machine(0).slot(tid)?.share()?;
                self.promise_rows(tid, rows);
                borrowed.outs.retain(|&out| out != tid);
                borrowed.outs.push(tid);
            }
        }
        Ok(is_added)
    }

    fn add_linear(&mut self, run: &mut RowSteps<'_>, linear: &Linear, borrowed: &mut Borrowed) -> Result<bool> {
        let scales = linear.updates.iter().map(|update| update.scales);
        let sources: Vec<Tid> = std::iter::once(linear.x).chain(linear.residual).chain(scales).collect();
        Ok(self.lend(&sources, borrowed)? && run.linear(self.machine(0), linear)?)
    }

    fn add_attention(&mut self, run: &mut RowSteps<'_>, attention: &Attention, borrowed: &mut Borrowed) -> Result<bool> {
        let Some(heads) = attention.heads() else { return Ok(false) };
        if attention.kept.iter().any(|node| borrowed.is_touched_by(node)) {
            return Ok(false);
        }
        let mut rows = Vec::with_capacity(heads.len());
        for source in heads.map(|heads| heads.source) {
            match self.rows_for(source, borrowed)? {
                Some(slot) => rows.push(slot),
                None => return Ok(false),
            }
        }
        let [q, k, v] = &rows[..] else { return Ok(false) };
        if !attention.takes_rows(&self.machines(), [q, k, v]) {
            return Ok(false);
        }
        // The other nodes may write where the rows are.
        let names = run.name_heads(attention, [q, k, v])?;
        for node in &attention.kept {
            self.step(node)?;
        }
        run.attention(&mut self.machines(), attention, &names, q.dtype)?;
        self.states.iter_mut().for_each(|state| state.is_used_unseen = true);
        Ok(true)
    }

    /// Points the first session's slots at the rows of all sessions; `false` if a slot is empty.
    fn lend(&mut self, tids: &[Tid], borrowed: &mut Borrowed) -> Result<bool> {
        let rows = tids.iter().map(|&tid| self.rows_for(tid, borrowed)).collect::<Result<Option<Vec<_>>>>()?;
        let Some(rows) = rows else { return Ok(false) };
        for (&tid, rows) in tids.iter().zip(rows) {
            if !borrowed.holds(tid) {
                borrowed.own.push((tid, self.machine(0).env.tensors[tid.0 as usize].replace(rows)));
            }
        }
        Ok(true)
    }

    /// A handle to the rows of all sessions, or to their placeholder before the launch; `None` if
    /// the slot has no rows.
    fn rows_for(&mut self, tid: Tid, borrowed: &Borrowed) -> Result<Option<Slot>> {
        if borrowed.holds(tid) {
            return Ok(Some(self.machine(0).slot(tid)?.share()?));
        }
        if !self.has_rows(tid) {
            return Ok(None);
        }
        self.join(tid)?;
        Ok(Some(self.rows_of(tid)?.share()?))
    }

    /// Stores the results of a launch and restores the first session's own slot contents.
    fn give_back(&mut self, borrowed: Borrowed) {
        for (tid, slot) in borrowed.own {
            if !borrowed.outs.contains(&tid) {
                self.machine(0).env.tensors[tid.0 as usize] = slot;
            }
        }
        for tid in borrowed.outs {
            if let Some(rows) = self.machine(0).env.tensors[tid.0 as usize].take() {
                self.put_rows(tid, rows);
            }
        }
    }

    fn machines(&mut self) -> Vec<&mut Machine> {
        self.states.iter_mut().map(|state| &mut state.machine).collect()
    }
}
