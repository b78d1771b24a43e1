//! Mutable state that several sessions hold in common.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// State by name. Sessions and methods that are loaded with clones of one value write to the same storage; they take turns.
///
/// Names say which buffers are one: those that a program's methods call alike. What a buffer holds before the first run is what
/// the first of them to be loaded makes of it.
#[derive(Clone, Debug, Default)]
pub struct SharedState {
    /// What engines keep.
    pub inside: Arc<Cells>,
    /// What lies outside of engines' graphs. A run holds it before, and longer than, what is inside.
    pub outside: Arc<Cells>,
}

/// Named places for values of types that only those know who put them there.
#[derive(Default)]
pub struct Cells(Mutex<Vec<Cell>>);

struct Cell {
    name: String,
    /// Who holds it, and in what type and shape.
    kind: String,
    contents: Box<dyn Any + Send>,
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held().0.iter().map(|cell| format!("{}: {}", cell.name, cell.kind))).finish()
    }
}

impl Cells {
    /// The number of the place of that name, which `first` fills if it is new.
    ///
    /// # Errors
    /// What is expected and found if the place is held as another kind.
    pub fn join<T: Any + Send>(&self, name: &str, kind: &str, first: impl FnOnce() -> T) -> Result<usize, String> {
        let cells = &mut self.held().0;
        match cells.iter().position(|cell| cell.name == name) {
            Some(at) if cells[at].kind == kind && cells[at].contents.is::<T>() => Ok(at),
            Some(at) => Err(format!("shared state `{}`: expected {kind}, found {}", name.escape_debug(), cells[at].kind)),
            None => {
                cells.push(Cell { name: name.to_owned(), kind: kind.to_owned(), contents: Box::new(first()) });
                Ok(cells.len() - 1)
            }
        }
    }

    /// Whether there is a place of that name.
    pub fn has(&self, name: &str) -> bool {
        self.held().0.iter().any(|cell| cell.name == name)
    }

    /// All places, for as long as nobody else may see them.
    pub fn held(&self) -> Held<'_> {
        Held(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The places of some [`Cells`], locked.
pub struct Held<'a>(MutexGuard<'a, Vec<Cell>>);

impl fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("cells", &self.0.len()).finish()
    }
}

impl Held<'_> {
    /// Swaps the contents of the place of that number, which [`Cells::join`] gave, with `other`. Nothing happens for a number
    /// or type of other places.
    pub fn swap<T: Any>(&mut self, number: usize, other: &mut T) {
        if let Some(contents) = self.0.get_mut(number).and_then(|cell| cell.contents.downcast_mut::<T>()) {
            std::mem::swap(contents, other);
        }
    }
}

/// The part of a graph's name for a buffer that other methods of the program share: what follows the writer's prefix.
pub fn shared_name(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_joined_by_name_and_kind() {
        let cells = Cells::default();
        assert_eq!(cells.join("a", "i32", || 1), Ok(0));
        assert!(!cells.has("b"));
        assert_eq!(cells.join("b", "i32", || 2), Ok(1));
        assert!(cells.has("b"));
        assert_eq!(cells.join("a", "i32", || 3), Ok(0));
        assert!(cells.join("a", "f32", || 3).unwrap_err().contains("expected f32, found i32"));
        assert!(cells.join("a", "i32", || "text").is_err());
        let mut mine = 7;
        cells.held().swap(0, &mut mine);
        assert_eq!(mine, 1);
        cells.held().swap(0, &mut mine);
        assert_eq!(mine, 7);
    }

    #[test]
    fn prefixes_do_not_count() {
        for (name, want) in [("5151/model.cache", "model.cache"), ("cache", "cache"), ("0001.2/a", "a")] {
            assert_eq!(shared_name(name), want);
        }
    }
}
