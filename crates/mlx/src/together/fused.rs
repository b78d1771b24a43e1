//! Steps that kernels of our own compute for all sessions.

use super::lanes::Lanes;
use crate::{
    cx::{Machine, Slot},
    error::Result,
    fused::{Attention, Kind, Linear},
};
use flambeau_ir::Tid;

impl Lanes<'_, '_> {
    /// Runs a step for all sessions; `false`, with every slot as it was, if no kernel takes it.
    ///
    /// # Errors
    /// If a session cannot take the step, or MLX fails.
    pub(super) fn run_fused(&mut self, kind: &Kind) -> Result<bool> {
        match kind {
            Kind::Linear(linear) => self.run_linear(linear),
            Kind::Attention(attention) => self.run_attention(attention),
            Kind::Chosen(_) | Kind::Delta(_) => Ok(false),
        }
    }

    /// Handles to the rows of slots; `None` if one of them has no rows.
    fn rows<const N: usize>(&mut self, tids: [Tid; N]) -> Result<Option<[Slot; N]>> {
        if !tids.iter().all(|&tid| self.has_rows(tid)) {
            return Ok(None);
        }
        let mut slots = Vec::with_capacity(N);
        for tid in tids {
            self.join(tid)?;
            slots.push(self.rows_of(tid)?.share()?);
        }
        Ok(slots.try_into().ok())
    }

    fn run_linear(&mut self, linear: &Linear) -> Result<bool> {
        let Some([x]) = self.rows([linear.x])? else { return Ok(false) };
        let residual = match linear.residual {
            Some(tid) => match self.rows([tid])? {
                Some([residual]) => Some(residual),
                None => return Ok(false),
            },
            None => None,
        };
        let Some(made) = linear.over_rows(self.machine(0), &x, residual.as_ref())? else { return Ok(false) };
        linear.outs.iter().zip(made).for_each(|(&tid, rows)| self.put_rows(tid, rows));
        Ok(true)
    }

    fn run_attention(&mut self, attention: &Attention) -> Result<bool> {
        let Some(heads) = attention.heads() else { return Ok(false) };
        let Some(rows) = self.rows(heads.map(|heads| heads.source))? else { return Ok(false) };
        let rows = rows.each_ref();
        if !attention.takes_rows(&self.machines(), rows) {
            return Ok(false);
        }
        for node in &attention.kept {
            self.step(node)?;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = attention.over_rows(&mut self.machines(), rows, &mut scratch);
        self.scratch = scratch;
        self.put_rows(attention.out, result?);
        Ok(true)
    }

    fn machines(&mut self) -> Vec<&mut Machine> {
        self.states.iter_mut().map(|state| &mut state.machine).collect()
    }
}
