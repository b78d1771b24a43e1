//! Snapshots of texts that no loaded sequence holds.

use super::super::{
    adapters::Text,
    prefix::{reusable, stands_for},
    snapshot::Snapshot,
};

/// Snapshots of sequences with their tokens, limited in total size.
#[derive(Debug)]
pub(super) struct SnapshotPool {
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

impl Entry {
    fn text(&self) -> Text<'_> {
        Text { adapters: &self.snapshot.adapters, ids: &self.ids }
    }

    fn reusable(&self, text: Text<'_>, can_truncate: bool) -> usize {
        if self.snapshot.adapters == *text.adapters { reusable(&self.ids, text.ids, can_truncate) } else { 0 }
    }

    /// Whether it serves every prompt that a snapshot of this text serves.
    fn stands_for(&self, text: Text<'_>, can_truncate: bool) -> bool {
        self.snapshot.adapters == *text.adapters && stands_for(&self.ids, text.ids, can_truncate)
    }
}

impl SnapshotPool {
    pub(super) fn new(limit: usize, can_truncate: bool) -> SnapshotPool {
        SnapshotPool { limit, bytes: 0, list: Vec::new(), can_truncate }
    }

    /// Total size of the snapshots in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All snapshots with their tokens, most recently used last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Text<'_>, &Snapshot)> {
        self.list.iter().map(|entry| (entry.text(), &entry.snapshot))
    }

    /// Whether a snapshot of this size fits the limit.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes > 0 && bytes <= self.limit
    }

    /// Length of the longest stored prefix of a prompt, in tokens.
    pub(super) fn reach(&self, prompt: Text<'_>) -> usize {
        self.list.iter().map(|entry| entry.reusable(prompt, self.can_truncate)).max().unwrap_or(0)
    }

    /// The snapshot with the longest prefix of a prompt, and this prefix's length in tokens.
    pub(super) fn best(&mut self, prompt: Text<'_>) -> Option<(&Snapshot, usize)> {
        let reach = self.reach(prompt);
        let at = self.list.iter().position(|entry| reach > 0 && entry.reusable(prompt, self.can_truncate) == reach)?;
        let entry = self.list.remove(at);
        self.list.push(entry);
        self.list.last().map(|entry| (&entry.snapshot, reach))
    }

    /// Whether a snapshot covers all of these tokens.
    pub(super) fn holds(&self, text: Text<'_>) -> bool {
        self.list.iter().any(|entry| entry.stands_for(text, self.can_truncate))
    }

    /// Stores a snapshot of these tokens. Evicts shorter snapshots that it covers, then the least
    /// recently used ones.
    pub(super) fn put(&mut self, ids: Vec<u32>, snapshot: Snapshot) {
        let entry = Entry { ids, snapshot };
        if !self.takes(entry.snapshot.bytes()) || self.holds(entry.text()) {
            return;
        }
        self.list.retain(|other| !entry.stands_for(other.text(), self.can_truncate));
        self.list.push(entry);
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

    use super::{super::super::adapters::Adapters, *};

    fn text(ids: &[u32]) -> Text<'_> {
        ids.into()
    }

    /// A snapshot with four bytes per token.
    fn snapshot(tokens: usize) -> Snapshot {
        let state = vec![Tensor::from_slice(&vec![0.0f32; tokens], &[tokens]).unwrap()];
        Snapshot { position: tokens, adapters: Adapters::default(), state }
    }

    fn pool(limit: usize, can_truncate: bool, texts: &[&[u32]]) -> SnapshotPool {
        let mut pool = SnapshotPool::new(limit, can_truncate);
        texts.iter().for_each(|ids| pool.put(ids.to_vec(), snapshot(ids.len())));
        pool
    }

    #[test]
    fn a_part_serves_where_caches_can_go_back() {
        let texts: [&[u32]; 2] = [&[1, 2, 3, 4], &[7, 8]];
        let mut pool = pool(100, true, &texts);
        assert_eq!((pool.reach(text(&[1, 2, 9])), pool.reach(text(&[7, 8])), pool.reach(text(&[9]))), (2, 1, 0));
        assert_eq!(pool.best(text(&[1, 2, 3, 4, 5])).map(|(snapshot, count)| (snapshot.position(), count)), Some((4, 4)));
        assert!(pool.best(text(&[5])).is_none() && pool.holds(text(&[1, 2])) && !pool.holds(text(&[2])));
        let whole = self::pool(100, false, &texts);
        assert_eq!((whole.reach(text(&[1, 2, 9])), whole.reach(text(&[7, 8, 9])), whole.reach(text(&[7, 8]))), (0, 2, 0));
        assert!(!whole.holds(text(&[1, 2])) && whole.holds(text(&[7, 8])));
    }

    #[test]
    fn texts_of_other_adapters_do_not_serve() {
        let of = |scale: f32| Snapshot { adapters: Adapters::new(&[scale]), ..snapshot(3) };
        let mut pool = SnapshotPool::new(100, true);
        pool.put(vec![1, 2, 3], of(1.0));
        pool.put(vec![1, 2, 3], of(0.5));
        let reach = |pool: &SnapshotPool, scale: f32| pool.reach(Text { adapters: &Adapters::new(&[scale]), ids: &[1, 2, 3, 4] });
        assert_eq!([1.0, 0.5, 0.0, 0.25].map(|scale| reach(&pool, scale)), [3, 3, 0, 0]);
        assert!(pool.best(text(&[1, 2, 3, 4])).is_none() && !pool.holds(text(&[1, 2])));
        pool.put(vec![1, 2, 3], snapshot(3));
        assert_eq!((pool.list.len(), reach(&pool, 0.0)), (3, 3));
    }

    #[test]
    fn bytes_are_bounded_and_the_oldest_go_first() {
        let mut pool = pool(40, true, &[&[1; 4], &[2; 3], &[3; 3]]);
        assert_eq!(pool.bytes(), 40);
        assert!(pool.best(text(&[1; 9])).is_some());
        pool.put(vec![4; 2], snapshot(2));
        assert!(!pool.holds(text(&[2])) && pool.holds(text(&[1])) && pool.holds(text(&[3])) && pool.holds(text(&[4])));
        assert_eq!(pool.bytes(), 36);
        pool.put(vec![5; 11], snapshot(11));
        assert!(!pool.holds(text(&[5])), "what never fits drives nothing out");
        // A longer text covers its prefixes.
        pool.put(vec![3; 4], snapshot(4));
        assert_eq!(pool.bytes(), 40);
    }
}
