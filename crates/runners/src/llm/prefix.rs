//! Reuse of cached prefixes of prompts.

/// The tokens in a model's caches, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedTokens {
    ids: Vec<u32>,
}

impl CachedTokens {
    /// The tokens, oldest first.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Number of leading prompt tokens that need not be fed again. The last prompt token is always
    /// fed, because its logits are needed. Caches that cannot be truncated are reused entirely or
    /// not at all.
    pub fn reusable(&self, prompt: &[u32], can_go_back: bool) -> usize {
        reusable(&self.ids, prompt, can_go_back)
    }

    /// Records that the caches hold the first `count` of `tokens`.
    pub fn set(&mut self, tokens: impl IntoIterator<Item = u32>, count: usize) {
        self.ids = tokens.into_iter().take(count).collect();
    }

    /// Records that the caches are empty.
    pub fn clear(&mut self) {
        self.ids.clear();
    }
}

/// [`CachedTokens::reusable`] for caches or snapshots with the tokens `held`.
pub(super) fn reusable(held: &[u32], prompt: &[u32], can_go_back: bool) -> usize {
    let keep = common(held, prompt).min(prompt.len().saturating_sub(1));
    if can_go_back || keep == held.len() { keep } else { 0 }
}

/// Whether caches or snapshots with `held` can replace those with `ids` for every prompt.
pub(super) fn stands_for(held: &[u32], ids: &[u32], can_go_back: bool) -> bool {
    if can_go_back { held.starts_with(ids) } else { held == ids }
}

/// Length of the common prefix of two texts.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(ids: &[u32]) -> CachedTokens {
        CachedTokens { ids: ids.to_vec() }
    }

    fn check(held: &[u32], prompt: &[u32], keep: usize, keep_forward_only: usize) {
        for (can_go_back, keep) in [(true, keep), (false, keep_forward_only)] {
            assert_eq!(cached(held).reusable(prompt, can_go_back), keep, "{held:?} then {prompt:?}, {can_go_back}");
        }
    }

    #[test]
    fn only_new_tokens_are_fed() {
        check(&[], &[1, 2], 0, 0);
        check(&[1, 2], &[1, 2, 3, 4], 2, 2);
    }

    #[test]
    fn text_that_changed_is_fed_again_from_there() {
        check(&[1, 2, 9, 9], &[1, 2, 3, 4], 2, 0);
        check(&[9, 2], &[1, 2], 0, 0);
    }

    #[test]
    fn the_last_token_is_always_fed() {
        check(&[1, 2, 3], &[1, 2, 3], 2, 0);
        check(&[1, 2, 3], &[1, 2], 1, 0);
        check(&[1], &[], 0, 0);
    }

    #[test]
    fn tokens_that_did_not_reach_the_caches_do_not_count() {
        let mut tokens = cached(&[1]);
        tokens.set([1, 2, 3, 4], 3);
        assert_eq!(tokens.ids(), [1, 2, 3]);
        tokens.clear();
        assert_eq!(tokens.ids(), [] as [u32; 0]);
    }
}
