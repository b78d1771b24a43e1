//! Rounds of draft tokens, and prompt lookup (Saxena 2023). Prompt lookup finds an earlier
//! occurrence of the text's last tokens and proposes the tokens after it. One step of the model
//! verifies all draft tokens. Tokens are chosen from the model's logits as usual; a token that
//! differs from the draft ends the round.

use std::time::Duration;

/// Maximum number of draft tokens. With the known token, they are as many rows as engines multiply
/// in one pass over the weights.
const MOST: usize = 7;

/// Minimum length of a match, and maximum length that ranks two matches.
const SHORTEST: usize = 2;
const LONGEST: usize = 6;

/// Maximum number of tokens without a draft after a draft of wrong tokens only.
const LONGEST_REST: usize = 64;

/// Draft tokens and the logits of their verification.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Logits `[1 + guesses, V]` after the known token and after each draft token.
    pub(super) logits: Vec<f32>,
    guesses: Vec<u32>,
    /// The current row of `logits`.
    row: usize,
    /// Whether the token chosen from this row equals the draft token.
    agrees: bool,
    /// Maximum number of draft tokens of the next round, and number of tokens until then.
    width: usize,
    rest: usize,
    /// Pause after the next round without an accepted token.
    patience: usize,
    pace: Pace,
}

impl Default for Lookup {
    fn default() -> Lookup {
        let (logits, guesses) = (Vec::new(), Vec::new());
        Lookup { logits, guesses, row: 0, agrees: false, width: MOST, rest: 0, patience: 1, pace: Pace::default() }
    }
}

impl Lookup {
    /// A state for a draft model, which takes time itself: starts with few draft tokens.
    pub(super) fn of_model() -> Lookup {
        Lookup { width: FIRST_WIDTH, ..Lookup::default() }
    }

    /// Proposes up to `most` tokens that may follow the text.
    pub(super) fn guess(&mut self, text: &[u32], most: usize) -> Vec<u32> {
        if self.rest > 0 {
            self.rest -= 1;
            return Vec::new();
        }
        continuation(text, self.width.min(most))
    }

    /// Number of draft tokens, at most `most`, for the draft model in the round that begins `now`.
    /// If drafting is slower per token than plain steps, some rounds are plain.
    pub(super) fn width(&mut self, most: usize, now: Duration) -> usize {
        let rest = self.pace.note(now, 1 + self.row);
        if rest > 0 {
            (self.rest, self.width) = (self.rest.max(rest), FIRST_WIDTH);
        }
        let rests = self.rest > 0 || !self.pace.knows_plain();
        self.rest = self.rest.saturating_sub(1);
        self.pace.begin(!rests);
        if rests { 0 } else { self.width.min(most) }
    }

    /// Begins a round; the logits were computed with these draft tokens after the known token.
    pub(super) fn begin(&mut self, guesses: Vec<u32>) {
        (self.guesses, self.row, self.agrees) = (guesses, 0, false);
    }

    /// Logits of the next token.
    pub(super) fn row(&self) -> &[f32] {
        let width = self.logits.len() / (1 + self.guesses.len());
        &self.logits[self.row * width..][..width]
    }

    /// Records the token chosen from the row; returns the number of wrong draft tokens after the
    /// accepted ones.
    pub(super) fn choose(&mut self, token: u32) -> usize {
        self.agrees = self.guesses.get(self.row) == Some(&token);
        if self.agrees {
            return 0;
        }
        let wrong = self.guesses.len() - self.row;
        self.adapt(self.row, wrong);
        wrong
    }

    /// Whether the logits after the last chosen token are available.
    pub(super) fn has_more(&self) -> bool {
        self.agrees
    }

    /// Moves to the row of the last chosen token; false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        self.row += usize::from(self.agrees);
        std::mem::take(&mut self.agrees)
    }

    /// Makes often wrong drafts shorter and rarer, because verifying them takes longer than a plain
    /// step.
    fn adapt(&mut self, right: usize, wrong: usize) {
        match (right, wrong) {
            (0, 0) => {}
            (_, 0) => (self.width, self.patience) = ((2 * self.width).min(MOST), 1),
            (0, _) => {
                self.width = (self.width / 2).max(1);
                self.rest = self.patience;
                self.patience = (2 * self.patience).min(LONGEST_REST);
            }
            _ => (self.width, self.patience) = ((right + 1).min(MOST), 1),
        }
    }
}

/// Time per token with a draft model and without.
#[derive(Debug, Default)]
struct Pace {
    /// Start of the last round.
    began: Option<Duration>,
    /// Whether the draft model ran in the last round and in the one before.
    asked: [bool; 2],
    /// Number of plain steps so far.
    steps: usize,
    /// Seconds per token in recent rounds: plain, and with a draft.
    plain: f64,
    guessed: f64,
    /// Whether the latest drafts were slower than plain steps.
    has_failed: bool,
}

/// Number of plain steps before the first draft; their time is the baseline for drafts.
const PLAIN_STEPS: usize = 4;

/// Number of tokens without drafts after slow drafts. A retry makes the draft model read the missed
/// tokens first. If it fails too, drafting ends for good.
const REST: usize = 32;

/// Initial number of draft tokens of a draft model.
const FIRST_WIDTH: usize = 2;

impl Pace {
    /// Records that a round ends and another begins `now`. Returns the number of tokens to generate
    /// without drafts because these are too slow.
    fn note(&mut self, now: Duration, tokens: usize) -> usize {
        let Some(began) = self.began.replace(now) else { return 0 };
        let each = now.saturating_sub(began).as_secs_f64() / tokens as f64;
        let blend = |old: f64| if old == 0.0 { each } else { 0.75 * old + 0.25 * each };
        match self.asked {
            [false, _] => {
                self.plain = blend(self.plain);
                self.steps += 1;
                return 0;
            }
            // In the first round after a pause, the draft model reads the missed tokens, so its
            // time does not count.
            [true, false] => return 0,
            [true, true] => self.guessed = blend(self.guessed),
        }
        if self.guessed <= self.plain {
            self.has_failed = false;
            return 0;
        }
        // The next drafts are timed afresh.
        self.guessed = 0.0;
        if std::mem::replace(&mut self.has_failed, true) { usize::MAX } else { REST }
    }

    /// Begins a round; `asks` tells whether the draft model runs.
    fn begin(&mut self, asks: bool) {
        self.asked = [asks, self.asked[0]];
    }

    fn knows_plain(&self) -> bool {
        self.steps >= PLAIN_STEPS
    }
}

/// Tokens after the best earlier match of the text's end: the longest match of at least
/// [`SHORTEST`] tokens, and the latest of equal ones. At the end of the text, the continuation
/// repeats itself.
fn continuation(text: &[u32], most: usize) -> Vec<u32> {
    let same = |end: usize| (0..LONGEST.min(end)).take_while(|i| text[end - 1 - i] == text[text.len() - 1 - i]).count();
    let places = (SHORTEST..text.len()).map(|end| (same(end), end));
    let Some((_, end)) = places.max().filter(|&(length, _)| length >= SHORTEST) else { return Vec::new() };
    let mut guesses: Vec<u32> = Vec::with_capacity(most);
    for at in end..end + most {
        guesses.push(text.get(at).copied().unwrap_or_else(|| guesses[at - text.len()]));
    }
    guesses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_and_longest_place_tells_what_follows() {
        let text = [7, 1, 2, 3, 9, 1, 2, 4, 1, 2, 5, 1, 2];
        assert_eq!(continuation(&text, 3), [5, 1, 2], "the latest");
        assert_eq!(continuation(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2), [3, 8], "the longest");
        assert!(continuation(&[1, 2, 3, 4, 2], 3).is_empty(), "one token is none");
        assert_eq!(continuation(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1], "beyond the end of the text");
        assert!(continuation(&[1], 3).is_empty() && continuation(&text, 0).is_empty());
    }

    /// A round with `right` accepted tokens and then a wrong one.
    fn round(lookup: &mut Lookup, guesses: &[u32], right: usize) -> usize {
        lookup.logits = vec![0.0; (1 + guesses.len()) * 2];
        lookup.begin(guesses.to_vec());
        for &guess in &guesses[..right] {
            assert_eq!(lookup.choose(guess), 0);
            assert!(lookup.has_more() && lookup.advance());
        }
        let wrong = lookup.choose(100);
        assert!(!lookup.has_more() && !lookup.advance());
        wrong
    }

    #[test]
    fn a_round_ends_with_the_first_token_that_was_not_guessed() {
        let mut lookup = Lookup::default();
        assert_eq!(round(&mut lookup, &[1, 2, 3], 1), 2);
        assert_eq!(round(&mut lookup, &[1, 2, 3], 3), 0);
        assert_eq!(round(&mut lookup, &[], 0), 0);
    }

    #[test]
    fn guesses_of_a_model_make_way_where_they_do_not_pay() {
        // Milliseconds of a plain step and of a step with drafts, and the number of accepted tokens
        // of seven.
        let widths = |plain: u64, guessed: u64, right: usize| {
            let (mut lookup, mut now, mut widths) = (Lookup::of_model(), 0, Vec::new());
            for _ in 0..100 {
                let width = lookup.width(7, Duration::from_millis(now));
                widths.push(width);
                round(&mut lookup, &vec![1; width], right.min(width));
                now += if width == 0 { plain } else { guessed };
            }
            widths
        };
        let paid = widths(10, 20, 5);
        assert!(paid[..PLAIN_STEPS].iter().all(|&width| width == 0), "first it is seen how long a step takes: {paid:?}");
        assert!(paid[PLAIN_STEPS..].iter().all(|&width| width > 0), "{paid:?}");
        let lost = widths(10, 90, 5);
        let rounds = lost.iter().filter(|&&width| width > 0).count();
        assert!((1..5).contains(&rounds), "{rounds} rounds that do not pay: {lost:?}");
    }

    #[test]
    fn guesses_that_are_wrong_get_shorter_and_rarer() {
        let text: Vec<u32> = [1, 2].repeat(20);
        let mut lookup = Lookup::default();
        let mut widths = Vec::new();
        for _ in 0..200 {
            let guesses = lookup.guess(&text, 100);
            if !guesses.is_empty() {
                widths.push(guesses.len());
                round(&mut lookup, &guesses, 0);
            }
        }
        assert_eq!(widths[..4], [7, 3, 1, 1]);
        assert!(widths.len() < 10, "{widths:?}");
        round(&mut lookup, &[], 0);
        assert_eq!((lookup.width, lookup.patience), (1, LONGEST_REST), "a round without guesses says nothing of them");
        round(&mut lookup, &[1], 1);
        assert_eq!((lookup.width, lookup.patience), (2, 1));
    }
}
