//! Masks of the tokens that a token sees. They are created at first use and shared by all layers.

use super::Parts;
use crate::{
    Result,
    builder::{Builder, Val},
};

#[derive(Debug, Default)]
pub(super) struct Masks {
    /// Whether a token is text and not padding, [b, 1, 1, s].
    is_text: Option<Val>,
    /// Masks by window, [b, 1, s, s] or broadcast to it.
    made: Vec<(Option<usize>, Val)>,
}

impl Masks {
    /// Masks for texts marked by `is_text` [b, s].
    pub(super) fn new(b: &mut Builder, is_text: &Val) -> Masks {
        let is_text = b.unsqueeze(is_text, 1);
        Masks { is_text: Some(b.unsqueeze(&is_text, 1)), made: Vec::new() }
    }
}

impl Parts<'_> {
    /// Mask of the keys that each query sees, at a distance below `window`. `None` for the causal
    /// mask: padding follows the text, so no token of the text sees it.
    pub(super) fn window_mask(&mut self, window: Option<usize>) -> Result<Option<Val>> {
        let window = window.filter(|&window| window < self.tokens);
        if self.c.causal && window.is_none() {
            return Ok(None);
        }
        if let Some((_, mask)) = self.masks.made.iter().find(|(known, _)| *known == window) {
            return Ok(Some(mask.clone()));
        }
        let mask = match (window, self.masks.is_text.clone()) {
            (None, Some(is_text)) => match self.c.distances {
                Some(distances) => self.with_distances(&is_text, distances)?,
                None => is_text,
            },
            (Some(window), Some(is_text)) => self.near(window, &is_text),
            (_, None) => return Ok(None),
        };
        self.masks.made.push((window, mask.clone()));
        Ok(Some(mask))
    }

    /// Keys of `is_text` [b, 1, 1, s] at a distance below `window`. A token always sees itself, so
    /// no row of the scores is empty.
    fn near(&mut self, window: usize, is_text: &Val) -> Val {
        let tokens = self.sizes[1].clone();
        let b = &mut self.w.b;
        b.enter("masks");
        let keys = b.count(&tokens);
        let queries = b.unsqueeze(&keys, 1);
        let distance = b.sub(&queries, &keys);
        let before = b.below(&distance, window as i64);
        let first = if self.c.causal { 0 } else { 1 - window as i64 };
        let after = b.at_least(&distance, first);
        let near = b.and(&before, &after);
        if self.c.causal {
            return near;
        }
        let own = b.equals(&distance, 0);
        let exists = b.or(is_text, &own);
        b.and(&exists, &near)
    }
}
