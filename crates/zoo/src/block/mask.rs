//! Which keys queries see, and whether state begins anew: made when a block first asks, shared by all.

use super::Decoder;
use crate::builder::{Builder, Val};

#[derive(Debug)]
pub(super) struct Masks {
    /// Places of the queries [s].
    places: Val,
    /// Place of the first token of the call [].
    first: Val,
    /// Whether that is 0.
    fresh: Option<Val>,
    /// Keys within each window, or all up to the query's own [s, pos + s].
    seen: Vec<(Option<usize>, Val)>,
}

impl Masks {
    pub(super) fn new(places: Val, first: Val) -> Masks {
        Masks { places, first, fresh: None, seen: Vec::new() }
    }

    /// Goes on with the last query alone.
    pub(super) fn narrow(&mut self, b: &mut Builder) {
        let last = b.select(&self.places, 0, -1);
        self.places = b.unsqueeze(&last, 0);
        self.seen.clear();
    }
}

impl Decoder<'_> {
    /// Whether query `i` sees key `j`, [s, pos + s]: keys up to its own place, not `window` or more before it.
    pub(super) fn seen(&mut self, window: Option<usize>) -> Val {
        if let Some((_, mask)) = self.masks.seen.iter().find(|(known, _)| *known == window) {
            return mask.clone();
        }
        let end = self.b.add_int(&self.span.pos, &self.span.tokens);
        let keys = self.b.count(&end);
        let queries = self.b.unsqueeze(&self.masks.places, 1);
        let distance = self.b.sub(&queries, &keys);
        let mut mask = self.b.at_least(&distance, 0);
        if let Some(window) = window {
            let near = self.b.below(&distance, window as i64);
            mask = self.b.and(&mask, &near);
        }
        self.masks.seen.push((window, mask.clone()));
        mask
    }

    /// A window that hides something from a cache of this length.
    pub(super) fn effective(&self, window: Option<usize>) -> Option<usize> {
        window.filter(|&window| window < self.settings.positions)
    }

    /// State as a call finds it: zeros at position 0, whatever the last call left.
    pub(super) fn carried(&mut self, state: &Val) -> Val {
        let fresh = match &self.masks.fresh {
            Some(fresh) => fresh.clone(),
            None => {
                let fresh = self.b.equals(&self.masks.first, 0);
                self.masks.fresh = Some(fresh.clone());
                fresh
            }
        };
        self.b.masked_fill(state, &fresh, 0.0)
    }
}
