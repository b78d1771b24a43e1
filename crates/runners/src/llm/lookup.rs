//! Rounds of guesses, and prompt lookup (Saxena 2023): what followed the text's last tokens where they stood before is guessed to follow again, and one step of the
//! model judges all guesses. A token is chosen from the model's logits as without guesses; one that was not guessed ends the round.

use std::time::Duration;

/// Most tokens that are guessed at once: with the one that is known, engines multiply as many rows in one pass over the weights.
const MOST: usize = 7;

/// How many of the last tokens have to stand elsewhere, and how many of them are looked at to tell the better of two places.
const SHORTEST: usize = 2;
const LONGEST: usize = 6;

/// Most tokens that go without guesses after some that were all wrong.
const LONGEST_REST: usize = 64;

/// Guesses and what the model thinks of them.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Logits `[1 + guesses, V]` of the tokens after the one that was known, and after each guess.
    pub(super) logits: Vec<f32>,
    guesses: Vec<u32>,
    /// The row in use.
    row: usize,
    /// Whether the token chosen from that row is what was guessed.
    agrees: bool,
    /// Most tokens of the next round, and tokens that go without one.
    width: usize,
    rest: usize,
    /// Rest after the next round of which nothing is right.
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
    /// For the guesses of another model, which take time themselves: few at first.
    pub(super) fn of_model() -> Lookup {
        Lookup { width: FIRST_WIDTH, ..Lookup::default() }
    }

    /// Up to `most` tokens that may follow the text.
    pub(super) fn guess(&mut self, text: &[u32], most: usize) -> Vec<u32> {
        if self.rest > 0 {
            self.rest -= 1;
            return Vec::new();
        }
        continuation(text, self.width.min(most))
    }

    /// How many tokens another model is to guess, of up to `most`, when a round begins that began at this time. Rounds that
    /// are slower by the token than steps without guesses make way for some of these.
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

    /// Begins a round: the logits were computed with these guesses behind the token that was known.
    pub(super) fn begin(&mut self, guesses: Vec<u32>) {
        (self.guesses, self.row, self.agrees) = (guesses, 0, false);
    }

    /// Logits of the next token.
    pub(super) fn row(&self) -> &[f32] {
        let width = self.logits.len() / (1 + self.guesses.len());
        &self.logits[self.row * width..][..width]
    }

    /// Notes the token that was chosen from the row; returns how many tokens were guessed wrongly, behind the ones that were right.
    pub(super) fn choose(&mut self, token: u32) -> usize {
        self.agrees = self.guesses.get(self.row) == Some(&token);
        if self.agrees {
            return 0;
        }
        let wrong = self.guesses.len() - self.row;
        self.adapt(self.row, wrong);
        wrong
    }

    /// Whether the token that was chosen last has its logits already.
    pub(super) fn has_more(&self) -> bool {
        self.agrees
    }

    /// Goes on to the row of the token that was chosen last; false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        self.row += usize::from(self.agrees);
        std::mem::take(&mut self.agrees)
    }

    /// Guesses that are often wrong get shorter and rarer: judging them takes longer than a step without any.
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

/// How long tokens take with guesses of another model and without.
#[derive(Debug, Default)]
struct Pace {
    /// When the last round began.
    began: Option<Duration>,
    /// Whether the other model was asked in the last round, and in the one before.
    asked: [bool; 2],
    /// Steps without guesses so far.
    steps: usize,
    /// Seconds for a token, of the latest rounds.
    plain: f64,
    guessed: f64,
    /// Whether the latest guesses did not pay.
    has_failed: bool,
}

/// Steps without guesses ahead of the first guess. Their time is what guesses are held against.
const PLAIN_STEPS: usize = 4;

/// Tokens that go without guesses after some that did not pay. To try again, the other model has to read what it missed; should they not pay
/// then, there are none any more.
const REST: usize = 32;

/// Tokens that another model guesses at first.
const FIRST_WIDTH: usize = 2;

impl Pace {
    /// Notes that a round ends, and another one begins, now; how many tokens are to go without guesses because they do not pay.
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
            // In the first round after some without, the other model reads what it missed.
            [true, false] => return 0,
            [true, true] => self.guessed = blend(self.guessed),
        }
        if self.guessed <= self.plain {
            self.has_failed = false;
            return 0;
        }
        // The next ones are judged by themselves.
        self.guessed = 0.0;
        if std::mem::replace(&mut self.has_failed, true) { usize::MAX } else { REST }
    }

    /// Begins a round, in which the other model is asked or not.
    fn begin(&mut self, asks: bool) {
        self.asked = [asks, self.asked[0]];
    }

    fn knows_plain(&self) -> bool {
        self.steps >= PLAIN_STEPS
    }
}

/// What followed the end of the text where most of it, and at least [`SHORTEST`] tokens, stood before; the latest such place counts. Where
/// the text itself ends, the guesses go on: a text that repeats itself does so again.
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

    /// A round of `right` guesses and a wrong one.
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
        // Milliseconds of a step without guesses, and of one with them, of which `right` of seven are right.
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
