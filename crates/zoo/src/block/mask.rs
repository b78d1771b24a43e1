//! Masks of visible keys, and the flag for resetting state. They are created at first use and
//! shared by all blocks.

use std::sync::Arc;

use flambeau_tensor::{DType, Tensor};

use super::Decoder;
use crate::{
    Error, Result,
    builder::{Builder, Val},
};

#[derive(Debug)]
pub(super) struct Masks {
    /// Positions of the queries [s].
    places: Val,
    /// Position of the call's first token [].
    first: Val,
    /// Whether that position is 0.
    fresh: Option<Val>,
    /// Visible keys by window, or all keys up to the query's own: [s, pos + s], or [s, rows] of a
    /// ring.
    windows: Vec<(Option<usize>, Val)>,
    /// Biases of the scores by slopes of the heads, [1, H, s, n].
    sloped: Vec<(Arc<[f32]>, Val)>,
    /// Rows [s] of the call's tokens, by ring length.
    ring_rows: Vec<(usize, Val)>,
}

impl Masks {
    pub(super) fn new(places: Val, first: Val) -> Masks {
        Masks { places, first, fresh: None, windows: Vec::new(), sloped: Vec::new(), ring_rows: Vec::new() }
    }

    /// Positions of the queries [s].
    pub(super) fn places(&self) -> Val {
        self.places.clone()
    }

    /// Restricts the masks to the last query.
    pub(super) fn narrow(&mut self, b: &mut Builder) {
        let last = b.select(&self.places, 0, -1);
        self.places = b.unsqueeze(&last, 0);
        self.windows.clear();
        self.sloped.clear();
    }
}

impl Decoder<'_> {
    /// Mask [s, n] of cache rows for each query: keys up to its own position, at a distance below
    /// `window`.
    pub(super) fn window_mask(&mut self, window: Option<usize>) -> Val {
        if let Some((_, mask)) = self.masks.windows.iter().find(|(known, _)| *known == window) {
            return mask.clone();
        }
        let (mut mask, distance) = match self.ring(window) {
            Some(rows) => self.ring_mask(rows),
            None => self.ordered_mask(),
        };
        if let Some(window) = window {
            let near = self.w.b.below(&distance, window as i64);
            mask = self.w.b.and(&mask, &near);
        }
        self.masks.windows.push((window, mask.clone()));
        mask
    }

    /// Biases [1, H, s, n] of the scores: the negative distance times the slope of each head for
    /// visible keys, and minus infinity for others.
    pub(super) fn sloped(&mut self, slopes: &Arc<[f32]>, window: Option<usize>) -> Result<Val> {
        if let Some((_, biases)) = self.masks.sloped.iter().find(|(known, _)| known == slopes) {
            return Ok(biases.clone());
        }
        let visible = self.window_mask(window);
        let (_, distance) = match self.ring(window) {
            Some(rows) => self.ring_mask(rows),
            None => self.ordered_mask(),
        };
        let factors: Vec<f32> = slopes.iter().map(|slope| -slope).collect();
        let factors = Tensor::from_slice(&factors, &[1, slopes.len(), 1, 1]);
        let factors = factors.map_err(|e| Error::tensor("alibi_slopes", "a slope for each head", e.to_string()))?;
        let b = &mut self.w.b;
        let factors = b.constant("alibi_slopes", &factors);
        let distance = b.cast(&distance, DType::F32);
        let biases = b.mul(&factors, &distance);
        let hidden = b.not(&visible);
        let biases = b.masked_fill(&biases, &hidden, f64::NEG_INFINITY);
        let biases = b.cast(&biases, self.settings.dtype);
        self.masks.sloped.push((Arc::clone(slopes), biases.clone()));
        Ok(biases)
    }

    /// Mask [s, n] of cache rows for each query: rows of the same chunk of `chunk` positions, up to
    /// the query's position.
    pub(super) fn chunk_mask(&mut self, chunk: usize) -> Val {
        let past = self.window_mask(None);
        let end = self.w.b.add_int(&self.span.pos, &self.span.tokens);
        let keys = self.w.b.count(&end);
        let within = self.w.b.remainder(&self.masks.places, chunk as i64);
        let first = self.w.b.sub(&self.masks.places, &within);
        let first = self.w.b.unsqueeze(&first, 1);
        let same = self.w.b.at_most(&first, &keys);
        self.w.b.and(&past, &same)
    }

    /// For a cache in order, with key `j` in row `j`: the causal mask, and the distance from keys
    /// to queries, [s, pos + s].
    fn ordered_mask(&mut self) -> (Val, Val) {
        let end = self.w.b.add_int(&self.span.pos, &self.span.tokens);
        let keys = self.w.b.count(&end);
        let queries = self.w.b.unsqueeze(&self.masks.places, 1);
        let distance = self.w.b.sub(&queries, &keys);
        (self.w.b.at_least(&distance, 0), distance)
    }

    /// As [`ordered_mask`](Self::ordered_mask) for a ring, [s, rows]. Row `j` holds the last key
    /// at a position equal to `j` modulo the number of rows. Rows without a key are hidden as well.
    fn ring_mask(&mut self, rows: usize) -> (Val, Val) {
        let newest = self.w.b.select(&self.masks.places, 0, -1);
        let all = self.w.b.count(&rows.into());
        let age = self.w.b.sub(&newest, &all);
        let age = self.w.b.remainder(&age, rows as i64);
        let exists = self.w.b.at_most(&age, &newest);
        let behind = self.w.b.sub(&newest, &self.masks.places);
        let behind = self.w.b.unsqueeze(&behind, 1);
        let distance = self.w.b.sub(&age, &behind);
        let past = self.w.b.at_least(&distance, 0);
        (self.w.b.and(&past, &exists), distance)
    }

    /// Rows of a ring [s] for the keys of this call.
    pub(super) fn ring_rows(&mut self, rows: usize) -> Val {
        if let Some((_, known)) = self.masks.ring_rows.iter().find(|(known, _)| *known == rows) {
            return known.clone();
        }
        let made = self.w.b.remainder(&self.masks.places, rows as i64);
        self.masks.ring_rows.push((rows, made.clone()));
        made
    }

    /// Rows of a cache for a window: all keys that the first query of the longest call sees, and
    /// the call's own keys. `None` if a cache of all positions is not longer.
    pub(super) fn ring(&self, window: Option<usize>) -> Option<usize> {
        window.map(|window| window + self.settings.chunk - 1).filter(|&rows| rows < self.settings.positions)
    }

    /// The window, if it is shorter than the cache.
    pub(super) fn effective(&self, window: Option<usize>) -> Option<usize> {
        window.filter(|&window| window < self.settings.positions)
    }

    /// State at the start of a call: zeros at position 0, else the state of the last call.
    pub(crate) fn carried(&mut self, state: &Val) -> Val {
        let fresh = match &self.masks.fresh {
            Some(fresh) => fresh.clone(),
            None => {
                let fresh = self.w.b.equals(&self.masks.first, 0);
                self.masks.fresh = Some(fresh.clone());
                fresh
            }
        };
        self.w.b.masked_fill(state, &fresh, 0.0)
    }
}
