//! Mutable state that several sessions share.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// State by name. Sessions and methods loaded with clones of one value write to the same storage,
/// one at a time.
///
/// Buffers with equal names in a program's methods are one buffer. The first loaded session
/// provides its initial contents.
#[derive(Clone, Debug, Default)]
pub struct SharedState {
    /// Buffers and caches of engines.
    pub engine: Arc<StateMap>,
    /// Values of the outer program, outside of delegates. A run locks this map first and releases
    /// it last.
    pub program: Arc<StateMap>,
}

/// A locked map from names to values with types known only to their owners. Entries are never
/// removed, so indices stay valid.
#[derive(Default)]
pub struct StateMap(Mutex<Vec<Entry>>);

struct Entry {
    name: String,
    /// Its owner, element type and shape.
    kind: String,
    value: Box<dyn Any + Send>,
}

impl fmt::Debug for StateMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().0.iter().map(|entry| format!("{}: {}", entry.name, entry.kind))).finish()
    }
}

/// Shared state that two sessions or methods describe differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shared state `{}`: expected {expected}, found {found}", name.escape_debug())]
pub struct StateMismatch {
    pub name: String,
    /// The requested kind.
    pub expected: String,
    /// The existing kind.
    pub found: String,
}

impl StateMap {
    /// The index of the entry with this name. If there is none, `first` creates it.
    ///
    /// # Errors
    /// If the entry has another kind.
    pub fn index_or_insert_with<T: Any + Send>(
        &self,
        name: &str,
        kind: &str,
        first: impl FnOnce() -> T,
    ) -> Result<usize, StateMismatch> {
        let entries = &mut self.lock().0;
        match entries.iter().position(|entry| entry.name == name) {
            Some(at) if entries[at].kind == kind && entries[at].value.is::<T>() => Ok(at),
            Some(at) => Err(StateMismatch { name: name.to_owned(), expected: kind.to_owned(), found: entries[at].kind.clone() }),
            None => {
                entries.push(Entry { name: name.to_owned(), kind: kind.to_owned(), value: Box::new(first()) });
                Ok(entries.len() - 1)
            }
        }
    }

    /// Whether there is an entry with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.lock().0.iter().any(|entry| entry.name == name)
    }

    /// Exclusive access to all entries.
    pub fn lock(&self) -> StateMapGuard<'_> {
        StateMapGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A locked [`StateMap`].
pub struct StateMapGuard<'a>(MutexGuard<'a, Vec<Entry>>);

impl fmt::Debug for StateMapGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateMapGuard").field("entries", &self.0.len()).finish()
    }
}

impl StateMapGuard<'_> {
    /// Swaps `other` with the value of the entry at an index from
    /// [`StateMap::index_or_insert_with`]. Does nothing if there is no such entry or its value has
    /// another type.
    pub fn swap<T: Any>(&mut self, index: usize, other: &mut T) {
        if let Some(value) = self.0.get_mut(index).and_then(|entry| entry.value.downcast_mut::<T>()) {
            std::mem::swap(value, other);
        }
    }
}

/// The part of a buffer's name that a program's methods share. It follows the writer's prefix.
pub fn shared_name(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_name_and_kind() {
        let map = StateMap::default();
        assert_eq!(map.index_or_insert_with("a", "i32", || 1), Ok(0));
        assert!(!map.contains("b"));
        assert_eq!(map.index_or_insert_with("b", "i32", || 2), Ok(1));
        assert!(map.contains("b"));
        assert_eq!(map.index_or_insert_with("a", "i32", || 3), Ok(0));
        let other = map.index_or_insert_with("a", "f32", || 3).unwrap_err();
        assert_eq!(other.to_string(), "shared state `a`: expected f32, found i32");
        assert!(map.index_or_insert_with("a", "i32", || "text").is_err());
        let mut mine = 7;
        map.lock().swap(0, &mut mine);
        assert_eq!(mine, 1);
        map.lock().swap(0, &mut mine);
        assert_eq!(mine, 7);
    }

    #[test]
    fn prefixes_do_not_count() {
        for (name, want) in [("5151/model.cache", "model.cache"), ("cache", "cache"), ("0001.2/a", "a")] {
            assert_eq!(shared_name(name), want);
        }
    }
}
