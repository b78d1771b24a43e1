//! Rules for the next token of a window's text.

use super::Vocabulary;

/// The rules of a window's text: lists of tokens that never come, and the grammar of timestamps.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub vocabulary: &'a Vocabulary,
    /// Whether the text has timestamps: one at the start, and one before and after each span.
    pub timestamps: bool,
}

impl Rules<'_> {
    /// Sets the logits of tokens that cannot follow `text` to minus infinity.
    pub fn apply(&self, text: &[u32], logits: &mut [f32]) {
        let v = self.vocabulary;
        let banned = v.suppressed.iter().chain(if text.is_empty() { &v.suppressed_at_begin[..] } else { &[] });
        for &id in banned {
            ban(logits, id as usize..id as usize + 1);
        }
        if !self.timestamps {
            return;
        }
        let (first, end) = (v.first_timestamp() as usize, v.end as usize);
        ban(logits, v.no_timestamps as usize..first);
        if text.is_empty() {
            ban(logits, 0..first);
            ban(logits, first + v.last_initial_timestamp as usize + 1..logits.len());
        }
        let is_stamp = |back: usize| text.len().checked_sub(back).is_some_and(|at| v.is_timestamp(text[at]));
        let (last, before) = (is_stamp(1), text.len() < 2 || is_stamp(2));
        match (last, before) {
            // Text follows the first timestamp and each pair.
            (true, true) => ban(logits, first..logits.len()),
            // After the end of a span, the next span begins or the text ends.
            (true, false) => ban(logits, 0..end),
            _ => {}
        }
        if let Some(&latest) = text.iter().rev().find(|&&id| v.is_timestamp(id)) {
            // A span may begin at the end of the previous span. It takes at least one step.
            let least = if last && !before { latest } else { latest + 1 };
            ban(logits, first..least as usize);
        }
        // The next token is a timestamp if all timestamps together are likelier than any other
        // token.
        let (texts, stamps) = logits.split_at(first.min(logits.len()));
        let most = |list: &[f32]| list.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (text_most, stamp_most) = (most(texts), most(stamps));
        let sum: f64 = stamps.iter().map(|&z| f64::from(z - stamp_most).exp()).sum();
        if stamp_most > f32::NEG_INFINITY && f64::from(stamp_most) + sum.ln() > f64::from(text_most) {
            ban(logits, 0..first);
        }
    }
}

fn ban(logits: &mut [f32], ids: std::ops::Range<usize>) {
    let end = ids.end.min(logits.len());
    if let Some(banned) = logits.get_mut(ids.start.min(end)..end) {
        banned.fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that may follow, where every logit is 0 but those given.
    fn allowed(timestamps: bool, text: &[u32], logits: &[(usize, f32)]) -> Vec<usize> {
        let vocabulary = Vocabulary::small();
        let mut all = vec![0.0; vocabulary.size];
        logits.iter().for_each(|&(id, logit)| all[id] = logit);
        Rules { vocabulary: &vocabulary, timestamps }.apply(text, &mut all);
        (0..all.len()).filter(|&id| all[id] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn banned_tokens_are_banned_with_and_without_timestamps() {
        assert_eq!(allowed(false, &[], &[])[..3], [0, 1, 9]);
        assert_eq!(allowed(false, &[1], &[])[..5], [0, 1, 3, 4, 9]);
    }

    #[test]
    fn a_window_begins_with_an_early_timestamp() {
        assert_eq!(allowed(true, &[], &[]), [10, 11, 12, 13, 14]);
    }

    #[test]
    fn timestamps_form_pairs_and_never_decrease() {
        let likely_text = [(0, 9.0), (1, 9.0), (3, 9.0), (4, 9.0)];
        // Text follows the first timestamp and each pair.
        assert_eq!(allowed(true, &[12], &likely_text), [0, 1, 3, 4]);
        assert_eq!(allowed(true, &[10, 1, 12, 12], &likely_text), [0, 1, 3, 4]);
        // After text, a later timestamp may end the span.
        assert_eq!(allowed(true, &[12, 1], &likely_text), [0, 1, 3, 4, 13, 14, 15, 16, 17, 18, 19]);
        // The next span begins there or later, or the text ends.
        assert_eq!(allowed(true, &[10, 1, 15], &[(4, 9.0)]), [4, 15, 16, 17, 18, 19]);
    }

    #[test]
    fn timestamps_replace_text_if_they_are_likelier_together() {
        assert_eq!(allowed(true, &[10, 1], &[(0, 2.0)]), [11, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(allowed(true, &[10, 1], &[(0, 3.0)])[..2], [0, 1]);
    }
}
