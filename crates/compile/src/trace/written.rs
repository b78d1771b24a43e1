//! Writes of branches to tensors from outside.

use flambeau_ir::Tid;
use flambeau_lower::Refuse;

use super::{Binding, Trace};

/// New contents of a tensor.
pub(super) struct Written {
    /// Key of the tensor.
    pub(super) key: String,
    /// Number of its base.
    base: usize,
    pub(super) tid: Tid,
}

impl<'a> Trace<'a> {
    /// The bases behind values of these names, by key.
    pub(super) fn bases_of(&self, names: &[&str]) -> Vec<(String, usize)> {
        let mut found: Vec<(String, usize)> = Vec::new();
        for name in names {
            let mut key = self.names.key(name);
            let base = loop {
                match self.names.values.get(&key) {
                    Some(Binding::Same(other)) => key.clone_from(other),
                    Some(Binding::Tensor(t)) => match &t.view {
                        Some(view) => key.clone_from(&view.parent),
                        None => break Some(t.base),
                    },
                    _ => break None,
                }
            };
            if let Some(base) = base
                && !found.iter().any(|(_, known)| *known == base)
            {
                found.push((key, base));
            }
        }
        found
    }

    /// The bases that the open chain has written since their versions were `before`.
    pub(super) fn written_in_chain(&mut self, bases: &[(String, usize)], before: &[u32]) -> Result<Vec<Written>, Refuse> {
        let changed: Vec<usize> = (0..before.len()).filter(|&base| self.memory.versions[base] != before[base]).collect();
        if let Some(lost) = changed.iter().find(|base| !bases.iter().any(|(_, known)| known == *base)) {
            return Err(Refuse::Unsupported(format!("a branch writes to a tensor that it does not get (number {lost})")));
        }
        let mut written = Vec::new();
        for (key, base) in bases.iter().filter(|(_, base)| changed.contains(base)) {
            written.push(Written { key: key.clone(), base: *base, tid: self.current(key)? });
        }
        Ok(written)
    }

    /// Adds a slot for each tensor that any chain writes, and lets each chain copy its final
    /// contents there.
    pub(super) fn join_writes(
        &mut self,
        bases: &[(String, usize)],
        chains: &[u32],
        written: &[Vec<Written>],
    ) -> Result<Vec<Written>, Refuse> {
        let mut after = Vec::new();
        for (key, base) in bases {
            if !written.iter().flatten().any(|w| w.base == *base) {
                continue;
            }
            let before = self.base_contents(key)?;
            let spec = self.lower.spec(before).clone();
            let slot = self.lower.slot(spec, flambeau_lower::Origin::Node);
            for (&chain, written) in chains.iter().zip(written) {
                let from = written.iter().find(|w| w.base == *base).map_or(before, |w| w.tid);
                self.lower.reopen_chain(chain);
                let copied = self.lower.copy(from, slot);
                self.lower.close_chain();
                copied?;
            }
            after.push(Written { key: key.clone(), base: *base, tid: slot });
        }
        Ok(after)
    }

    /// The contents of a base before the branches.
    fn base_contents(&self, key: &str) -> Result<Tid, Refuse> {
        match self.names.resolve(key) {
            Some(Binding::Tensor(t)) => Ok(t.tid),
            _ => Err(Refuse::Reported),
        }
    }
}
