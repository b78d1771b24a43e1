//! The sequences of a scheduler, and the choice of the sequence that a prompt continues.

use super::{
    super::{
        adapters::Text,
        disk::{DiskCache, DiskTexts},
        model::Model,
        session::Session,
        snapshot::Snapshot,
    },
    snapshot_pool::SnapshotPool,
};
use crate::Result;

/// Minimum number of tokens worth copying; fewer are computed again.
pub(super) const WORTH_A_COPY: usize = 32;

/// Loaded sequences; idle ones keep their text.
pub(super) struct Pool {
    model: Model,
    /// Maximum number of loaded sequences.
    limit: usize,
    /// Number of loaded sequences, including those in use.
    loaded: usize,
    /// Idle sessions in order of last use, most recent last.
    idle: Vec<Session>,
    /// Snapshots of earlier contents of sequences.
    snapshots: SnapshotPool,
    /// Snapshots on disk.
    disk: Option<DiskTexts>,
}

/// Suitability of an idle sequence for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fit {
    at: usize,
    /// Number of prompt tokens that it holds.
    kept: usize,
    /// Number of its tokens that would be lost.
    lost: usize,
}

/// Source of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Idle(usize),
    Load,
}

impl Pool {
    /// Creates a pool of at most `limit` sequences, and of `kept_bytes` bytes of snapshots.
    pub(super) fn new(model: Model, limit: usize, kept_bytes: usize) -> Pool {
        let snapshots = SnapshotPool::new(if model.can_snapshot() { kept_bytes } else { 0 }, model.can_truncate());
        Pool { model, limit, loaded: 0, idle: Vec::new(), snapshots, disk: None }
    }

    /// Adds a prompt cache on disk, to read from and write to.
    pub(super) fn use_disk(&mut self, disk: &DiskCache) {
        self.disk = self.model.can_snapshot().then(|| disk.of(&self.model));
    }

    /// Writes the texts of idle sequences and snapshots to the folder.
    pub(super) fn save(&mut self) {
        let Some(disk) = &self.disk else { return };
        for (text, snapshot) in self.snapshots.iter().filter(|(text, _)| !disk.holds(*text)) {
            disk.put(text.ids, snapshot);
        }
        for session in &mut self.idle {
            let ids = session.cached().ids().to_vec();
            if ids.len() >= WORTH_A_COPY
                && !disk.holds(text_of(session, &ids))
                && let Ok(Some(snapshot)) = session.snapshot(ids.len())
            {
                disk.put(&ids, &snapshot);
            }
        }
    }

    /// Total size of the snapshots in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        self.snapshots.bytes()
    }

    /// Length of the longest prefix of a prompt in an idle sequence or a snapshot, in tokens.
    pub(super) fn reach(&self, prompt: Text<'_>) -> usize {
        let disk = self.disk.as_ref().map_or(0, |disk| disk.reach(prompt));
        self.reach_in_memory(prompt).max(disk)
    }

    fn reach_in_memory(&self, prompt: Text<'_>) -> usize {
        let idle = self.idle.iter().map(|session| session.reusable(prompt)).max();
        idle.unwrap_or(0).max(self.snapshots.reach(prompt))
    }

    /// A snapshot from disk and its usable prefix, if longer than the prefix in memory and the
    /// `elsewhere` tokens.
    fn read_from_disk(&self, prompt: Text<'_>, elsewhere: usize) -> Option<(Snapshot, usize)> {
        let disk = self.disk.as_ref()?;
        let worth = self.reach_in_memory(prompt).max(elsewhere) + WORTH_A_COPY;
        if disk.reach(prompt) < worth { None } else { disk.best(prompt) }
    }

    /// Whether a sequence is idle or can still be loaded.
    pub(super) fn has_room(&self) -> bool {
        !self.idle.is_empty() || self.loaded < self.limit
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Takes a sequence for a prompt: the one with its longest prefix if `reuses`, else an empty
    /// one. A sequence is available while fewer than the limit are in use. `elsewhere` is the
    /// number of prompt tokens that the caller can copy.
    ///
    /// # Errors
    /// Fails if the engine cannot load another sequence.
    pub(super) fn take(&mut self, prompt: Text<'_>, reuses: bool, elsewhere: usize) -> Result<Session> {
        let disk = if reuses { self.read_from_disk(prompt, elsewhere) } else { None };
        let copied = match disk {
            Some((_, count)) => count,
            None if reuses => self.snapshots.reach(prompt).max(elsewhere),
            None => 0,
        };
        let fit = |(at, session): (usize, &Session)| {
            let kept = if reuses { session.reusable(prompt) } else { 0 };
            Fit { at, kept, lost: session.cached().ids().len() - kept }
        };
        let mut fits: Vec<Fit> = self.idle.iter().enumerate().map(fit).collect();
        let is_copied = fits.iter().all(|fit| fit.kept + WORTH_A_COPY <= copied);
        if is_copied {
            // A copy replaces the sequence's contents, so its prefix of the prompt does not matter.
            fits.iter_mut().for_each(|fit| (fit.kept, fit.lost) = (0, fit.kept + fit.lost));
        }
        let choice = choose(&fits, self.loaded < self.limit);
        let mut session = match choice {
            Choice::Idle(at) => {
                let mut session = self.idle.remove(at);
                if fits[at].lost >= WORTH_A_COPY {
                    self.keep(&mut session);
                }
                session
            }
            Choice::Load => {
                let sequence = self.model.sequence()?;
                self.loaded += 1;
                Session::new(sequence)
            }
        };
        if !reuses {
            session.reset();
        } else if is_copied {
            let copy = disk.as_ref().map(|(snapshot, count)| (snapshot, *count)).or_else(|| self.snapshots.best(prompt));
            if let Some((snapshot, count)) = copy.filter(|(_, count)| *count == copied) {
                // If the snapshot cannot be restored, the sequence is empty and computes the whole
                // prompt.
                let _ = session.restore(snapshot, &prompt.ids[..count]);
            }
        }
        Ok(session)
    }

    /// Stores a snapshot of an idle sequence, if the limit allows.
    fn keep(&mut self, session: &mut Session) {
        let ids = session.cached().ids().to_vec();
        self.keep_text(session, ids);
    }

    /// Stores a snapshot of a sequence's first tokens, `ids`, if the limit allows.
    pub(super) fn keep_text(&mut self, session: &mut Session, ids: Vec<u32>) {
        let text = text_of(session, &ids);
        let in_memory = self.snapshots.takes(1) && !self.snapshots.holds(text);
        let disk = self.disk.as_ref().filter(|disk| !disk.holds(text));
        // An engine that fails to copy reports the failure at its next run.
        if (in_memory || disk.is_some())
            && let Ok(Some(snapshot)) = session.snapshot(ids.len())
        {
            disk.iter().for_each(|disk| disk.offer(&ids, &snapshot));
            self.snapshots.put(ids, snapshot);
        }
    }

    /// Returns a sequence to the pool.
    pub(super) fn put(&mut self, session: Session) {
        self.idle.push(session);
    }

    /// Records that a taken sequence will not come back.
    pub(super) fn lost(&mut self) {
        self.loaded = self.loaded.saturating_sub(1);
    }
}

/// A text that a session computed.
fn text_of<'a>(session: &'a Session, ids: &'a [u32]) -> Text<'a> {
    Text { adapters: session.sequence().adapters(), ids }
}

/// Chooses the sequence with the longest prefix of a prompt, unless it would lose more tokens than
/// it keeps and another one can be used. Without a prefix, chooses an empty or a new sequence, or
/// else the least recently used one.
fn choose(fits: &[Fit], can_load: bool) -> Choice {
    let best = fits.iter().filter(|fit| fit.kept > 0).max_by_key(|fit| (fit.kept, usize::MAX - fit.lost));
    let empty = fits.iter().find(|fit| fit.kept + fit.lost == 0);
    match (best, empty) {
        (Some(best), None) if best.kept >= best.lost || !can_load => Choice::Idle(best.at),
        (Some(best), Some(_)) if best.kept >= best.lost => Choice::Idle(best.at),
        (_, Some(empty)) => Choice::Idle(empty.at),
        (_, None) if can_load || fits.is_empty() => Choice::Load,
        (_, None) => Choice::Idle(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_continue_where_most_of_them_is() {
        let fits = |list: &[(usize, usize)]| -> Vec<Fit> {
            list.iter().enumerate().map(|(at, &(kept, lost))| Fit { at, kept, lost }).collect()
        };
        let check = |list: &[(usize, usize)], can_load, expected| assert_eq!(choose(&fits(list), can_load), expected, "{list:?}");
        check(&[], true, Choice::Load);
        check(&[(0, 9)], true, Choice::Load);
        check(&[(0, 9), (0, 3)], false, Choice::Idle(0));
        check(&[(0, 9), (0, 0)], true, Choice::Idle(1));
        check(&[(4, 1), (7, 2), (7, 1)], true, Choice::Idle(2));
        // A long text is not lost for a short prefix while another sequence can be loaded.
        check(&[(4, 100)], true, Choice::Load);
        check(&[(4, 100)], false, Choice::Idle(0));
        check(&[(4, 100), (0, 0)], false, Choice::Idle(1));
    }
}
