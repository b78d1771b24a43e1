//! Index of a folder of texts, in order of last use.

use std::fmt;

use super::{
    super::prefix::{reusable, stands_for},
    file::Fingerprint,
};

/// A file's name: its model and its last use. Names sort by last use without a clock, also after a
/// restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    model: u64,
    turn: u64,
}

const ENDING: &str = ".text";

impl Name {
    /// The model's part of a file name.
    pub(super) fn model(fingerprint: &Fingerprint) -> u64 {
        fingerprint.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
    }

    /// Parses a file name; `None` if this cache did not write it.
    pub(super) fn parse(name: &str) -> Option<Name> {
        let (model, turn) = name.strip_suffix(ENDING)?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let parsed = Name { model: number(model)?, turn: number(turn)? };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}{ENDING}", self.model, self.turn)
    }
}

/// Contents of a file.
#[derive(Debug)]
pub(super) enum Contents {
    /// Not read yet.
    Unread,
    Text(Vec<u32>),
    /// Unusable: damaged or of another model.
    Unusable,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Name,
    bytes: u64,
    pub(super) contents: Contents,
}

impl Entry {
    /// The tokens of the text, if it belongs to the model.
    fn ids(&self, model: u64) -> Option<&[u32]> {
        match &self.contents {
            Contents::Text(ids) if self.name.model == model => Some(ids),
            _ => None,
        }
    }
}

/// The index of a folder.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Entries in order of last use, most recent last.
    entries: Vec<Entry>,
    /// Number of the next name.
    turn: u64,
}

impl Index {
    /// Adds a file.
    pub(super) fn put(&mut self, name: Name, bytes: u64, contents: Contents) {
        self.turn = self.turn.max(name.turn.saturating_add(1));
        let at = self.entries.partition_point(|entry| entry.name.turn <= name.turn);
        self.entries.insert(at, Entry { name, bytes, contents });
    }

    /// Returns a new unique name for a file of a model.
    pub(super) fn next(&mut self, model: u64) -> Name {
        let name = Name { model, turn: self.turn };
        self.turn = self.turn.saturating_add(1);
        name
    }

    pub(super) fn find(&mut self, name: Name) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == name)
    }

    /// Files of a model that are not read yet.
    pub(super) fn unread(&mut self, model: u64) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().filter(move |entry| entry.name.model == model && matches!(entry.contents, Contents::Unread))
    }

    /// The file with the longest prefix of a prompt, and this prefix's length in tokens.
    pub(super) fn best(&self, model: u64, prompt: &[u32], can_truncate: bool) -> Option<(Name, usize)> {
        let served = |entry: &Entry| Some((entry.name, reusable(entry.ids(model)?, prompt, can_truncate)));
        self.entries.iter().filter_map(served).filter(|(_, reach)| *reach > 0).max_by_key(|(_, reach)| *reach)
    }

    /// Whether a file of a model covers these tokens.
    pub(super) fn holds(&self, model: u64, ids: &[u32], can_truncate: bool) -> bool {
        self.entries.iter().filter_map(|entry| entry.ids(model)).any(|held| stands_for(held, ids, can_truncate))
    }

    /// Marks a file as used and returns its new name.
    pub(super) fn used(&mut self, name: Name) -> Name {
        let new = self.next(name.model);
        if let Some(at) = self.entries.iter().position(|entry| entry.name == name) {
            let entry = self.entries.remove(at);
            self.entries.push(Entry { name: new, ..entry });
        }
        new
    }

    /// Removes the entries that these tokens cover, and returns their names.
    pub(super) fn drop_covered(&mut self, model: u64, ids: &[u32], can_truncate: bool) -> Vec<Name> {
        let is_covered = |entry: &mut Entry| entry.ids(model).is_some_and(|held| stands_for(ids, held, can_truncate));
        self.entries.extract_if(.., is_covered).map(|entry| entry.name).collect()
    }

    /// Removes the least recently used entries until `bytes` more bytes fit, and returns their
    /// names.
    pub(super) fn make_room(&mut self, limit: u64, bytes: u64) -> Vec<Name> {
        let mut total = self.entries.iter().fold(bytes, |total, entry| total.saturating_add(entry.bytes));
        let mut gone = 0;
        while total > limit && gone < self.entries.len() {
            total -= self.entries[gone].bytes;
            gone += 1;
        }
        self.entries.drain(..gone).map(|entry| entry.name).collect()
    }
}
