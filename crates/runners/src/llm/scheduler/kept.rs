//! Snapshots of texts that no loaded sequence holds.

use super::super::{
    prefix::{reusable, stands_for},
    snapshot::Snapshot,
};

/// Snapshots of sequences with their tokens, limited in total size.
#[derive(Debug)]
pub(super) struct Kept {
    /// Maximum total size in bytes.
    limit: usize,
    bytes: usize,
    /// Entries in order of last use, most recent last.
    list: Vec<Entry>,
    /// Whether a snapshot serves a prompt that shares only a part of its tokens.
    can_truncate: bool,
}

#[derive(Debug)]
struct Entry {
    ids: Vec<u32>,
    snapshot: Snapshot,
}

impl Kept {
    pub(super) fn new(limit: usize, can_truncate: bool) -> Kept {
        Kept { limit, bytes: 0, list: Vec::new(), can_truncate }
    }

    /// Total size of the snapshots in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All snapshots with their tokens, most recently used last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u32], &Snapshot)> {
        self.list.iter().map(|entry| (&entry.ids[..], &entry.snapshot))
    }

    /// Whether a snapshot of this size fits the limit.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes > 0 && bytes <= self.limit
    }

    /// Length of the longest stored prefix of a prompt, in tokens.
    pub(super) fn reach(&self, prompt: &[u32]) -> usize {
        self.list.iter().map(|entry| reusable(&entry.ids, prompt, self.can_truncate)).max().unwrap_or(0)
    }

    /// The snapshot with the longest prefix of a prompt, and this prefix's length in tokens.
    pub(super) fn best(&mut self, prompt: &[u32]) -> Option<(&Snapshot, usize)> {
        let reach = self.reach(prompt);
        let at = self.list.iter().position(|entry| reach > 0 && reusable(&entry.ids, prompt, self.can_truncate) == reach)?;
        let entry = self.list.remove(at);
        self.list.push(entry);
        self.list.last().map(|entry| (&entry.snapshot, reach))
    }

    /// Whether a snapshot covers all of these tokens.
    pub(super) fn holds(&self, ids: &[u32]) -> bool {
        self.list.iter().any(|entry| stands_for(&entry.ids, ids, self.can_truncate))
    }

    /// Stores a snapshot of these tokens. Evicts shorter snapshots that it covers, then the least
    /// recently used ones.
    pub(super) fn put(&mut self, ids: Vec<u32>, snapshot: Snapshot) {
        if !self.takes(snapshot.bytes()) || self.holds(&ids) {
            return;
        }
        self.list.retain(|entry| !stands_for(&ids, &entry.ids, self.can_truncate));
        self.list.push(Entry { ids, snapshot });
        let mut bytes: usize = self.list.iter().map(|entry| entry.snapshot.bytes()).sum();
        let mut gone = 0;
        while bytes > self.limit {
            bytes -= self.list[gone].snapshot.bytes();
            gone += 1;
        }
        self.list.drain(..gone);
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::Tensor;

    use super::*;

    /// A snapshot with four bytes per token.
    fn snapshot(tokens: usize) -> Snapshot {
        let state = vec![Tensor::from_slice(&vec![0.0f32; tokens], &[tokens]).unwrap()];
        Snapshot { position: tokens, state }
    }

    fn kept(limit: usize, can_truncate: bool, texts: &[&[u32]]) -> Kept {
        let mut kept = Kept::new(limit, can_truncate);
        texts.iter().for_each(|ids| kept.put(ids.to_vec(), snapshot(ids.len())));
        kept
    }

    #[test]
    fn a_part_serves_where_caches_can_go_back() {
        let texts: [&[u32]; 2] = [&[1, 2, 3, 4], &[7, 8]];
        let mut kept = kept(100, true, &texts);
        assert_eq!((kept.reach(&[1, 2, 9]), kept.reach(&[7, 8]), kept.reach(&[9])), (2, 1, 0));
        assert_eq!(kept.best(&[1, 2, 3, 4, 5]).map(|(snapshot, count)| (snapshot.position(), count)), Some((4, 4)));
        assert!(kept.best(&[5]).is_none() && kept.holds(&[1, 2]) && !kept.holds(&[2]));
        let whole = self::kept(100, false, &texts);
        assert_eq!((whole.reach(&[1, 2, 9]), whole.reach(&[7, 8, 9]), whole.reach(&[7, 8])), (0, 2, 0));
        assert!(!whole.holds(&[1, 2]) && whole.holds(&[7, 8]));
    }

    #[test]
    fn bytes_are_bounded_and_the_oldest_go_first() {
        let mut kept = kept(40, true, &[&[1; 4], &[2; 3], &[3; 3]]);
        assert_eq!(kept.bytes(), 40);
        assert!(kept.best(&[1; 9]).is_some());
        kept.put(vec![4; 2], snapshot(2));
        assert!(!kept.holds(&[2]) && kept.holds(&[1]) && kept.holds(&[3]) && kept.holds(&[4]));
        assert_eq!(kept.bytes(), 36);
        kept.put(vec![5; 11], snapshot(11));
        assert!(!kept.holds(&[5]), "what never fits drives nothing out");
        // A longer text covers its prefixes.
        kept.put(vec![3; 4], snapshot(4));
        assert_eq!(kept.bytes(), 40);
    }
}
