//! Tokens computed for each client of a scheduler. They decide which job is next.

use std::collections::BTreeMap;

/// Work of a token of an answer, in tokens of a prompt.
pub(super) const ANSWERED: u64 = 2;

/// Work done for each client. The counters of clients with jobs are comparable: a client that had
/// none begins at the least of the others, so it gains nothing from its absence.
///
/// Source: the virtual token counter of "Fairness in Serving Large Language Models" (OSDI 2024).
#[derive(Debug, Default)]
pub(super) struct Shares {
    done: BTreeMap<u64, u64>,
}

impl Shares {
    /// Work done for a client.
    pub(super) fn of(&self, client: u64) -> u64 {
        self.done.get(&client).copied().unwrap_or(0)
    }

    /// A client without jobs submits one; `others` are the clients that have some.
    pub(super) fn join(&mut self, client: u64, others: impl Iterator<Item = u64>) {
        match others.map(|other| self.of(other)).min() {
            Some(least) => {
                let own = self.of(client).max(least);
                self.done.insert(client, own);
            }
            // Without others, there is nothing to compare with.
            None => self.done.clear(),
        }
    }

    /// Counts work done for a client.
    pub(super) fn add(&mut self, client: u64, work: u64) {
        let done = self.done.entry(client).or_default();
        *done = done.saturating_add(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_gains_nothing() {
        let mut shares = Shares::default();
        shares.join(1, std::iter::empty());
        shares.add(1, 100);
        shares.join(2, [1].into_iter());
        assert_eq!((shares.of(1), shares.of(2)), (100, 100));
        shares.add(2, 50);
        // The first client comes back, with more work done than a newcomer would have.
        shares.add(1, 100);
        shares.join(1, [2].into_iter());
        assert_eq!((shares.of(1), shares.of(2)), (200, 150));
        shares.join(3, std::iter::empty());
        assert_eq!(shares.of(1), 0);
    }
}
