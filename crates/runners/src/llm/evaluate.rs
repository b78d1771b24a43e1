//! Perplexity of a model on a text, and divergence of its predictions from another model's.

use std::{
    ops::AddAssign,
    sync::atomic::{AtomicBool, Ordering},
};

use flambeau_text::argmax;

use super::sequence::Sequence;
use crate::{Error, Result};

/// Maximum number of tokens per scored step, which returns all logits. With a vocabulary of a
/// quarter million tokens, it takes 64 MB.
const LONGEST_SCORED_STEP: usize = 64;

/// Text cut into windows of equal length, each read from its beginning. Only predictions in a
/// window's second half are scored, so that each has at least half a window of context. llama.cpp's
/// perplexity tool scores the same predictions.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    ids: &'a [u32],
    length: usize,
    bos: Option<u32>,
}

impl<'a> Windows<'a> {
    /// Creates windows of `length` tokens; a rest at the end is ignored. `bos` replaces the first
    /// token of each window.
    ///
    /// # Errors
    /// Returns [`Error::Window`] if the length is below 4 or above the number of tokens.
    pub fn new(ids: &'a [u32], length: usize, bos: Option<u32>) -> Result<Windows<'a>> {
        if length < 4 || length > ids.len() {
            return Err(Error::Window { length, tokens: ids.len() });
        }
        Ok(Windows { ids, length, bos })
    }

    /// Number of windows, at least 1.
    pub fn count(&self) -> usize {
        self.ids.len() / self.length
    }

    /// Number of scored predictions per window.
    pub fn scored(&self) -> usize {
        self.length - 1 - self.first()
    }

    /// The first scored position.
    fn first(&self) -> usize {
        self.length / 2
    }

    fn window(&self, i: usize) -> Vec<u32> {
        let mut window = self.ids[i * self.length..(i + 1) * self.length].to_vec();
        window[0] = self.bos.unwrap_or(window[0]);
        window
    }
}

/// A mean of independent values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Mean {
    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The mean; NaN without values.
    pub fn value(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The mean's standard error; NaN for fewer than two values.
    pub fn error(&self) -> f64 {
        let n = self.count as f64;
        let variance = (self.squares / n - self.value().powi(2)).max(0.0);
        if self.count < 2 { f64::NAN } else { (variance / (n - 1.0)).sqrt() }
    }
}

impl AddAssign<f64> for Mean {
    fn add_assign(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }
}

/// Statistics of a model's predictions on a text.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    /// Negative log-likelihood of the actual tokens, in nats.
    pub loss: Mean,
    /// Comparison with a reference model; empty without one.
    pub against: Comparison,
}

/// Comparison of a model's predictions with a reference's.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The reference's own loss, as in [`Evaluation::loss`].
    pub loss: Mean,
    /// Kullback–Leibler divergence of the model's distribution from the reference's, in nats, in
    /// text order.
    pub divergences: Vec<f64>,
    /// Number of predictions with the same best token as the reference.
    pub agreements: usize,
}

impl Comparison {
    /// Mean divergence; NaN without predictions.
    pub fn mean_divergence(&self) -> f64 {
        self.divergences.iter().sum::<f64>() / self.divergences.len() as f64
    }

    /// The `part` quantile of the divergences; `None` without predictions.
    pub fn divergence_at(&self, part: f64) -> Option<f64> {
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        sorted.get((part * last as f64).round() as usize).copied()
    }

    /// Fraction of predictions with the same best token as the reference; NaN without predictions.
    pub fn agreement(&self) -> f64 {
        self.agreements as f64 / self.divergences.len() as f64
    }
}

impl Evaluation {
    /// Exponential of the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.value().exp()
    }

    /// Adds one prediction, given the actual token.
    fn add(&mut self, logits: &[f32], reference: Option<&[f32]>, token: u32) -> Result<()> {
        let ours = LogProbabilities::of(logits);
        self.loss += -ours.of_token(token)?;
        let Some(reference) = reference else { return Ok(()) };
        if reference.len() != logits.len() {
            return Err(Error::Vocabularies { model: logits.len(), reference: reference.len() });
        }
        let theirs = LogProbabilities::of(reference);
        self.against.loss += -theirs.of_token(token)?;
        self.against.divergences.push(theirs.divergence(&ours));
        self.against.agreements += usize::from(best(logits) == best(reference));
        Ok(())
    }
}

/// Evaluates a model on all windows, and compares it with a reference on the same windows. Resets
/// both sequences.
///
/// Calls `on_window` after each window with the number of finished windows. Checks `cancelled`
/// between windows; the result then covers the finished windows.
///
/// # Errors
/// Fails if a window exceeds a model's context, if vocabularies differ in size, if a token is
/// outside them, or if a model fails.
pub fn evaluate(
    model: &mut Sequence,
    mut reference: Option<&mut Sequence>,
    windows: &Windows<'_>,
    cancelled: &AtomicBool,
    on_window: &mut dyn FnMut(usize, &Evaluation),
) -> Result<Evaluation> {
    let mut evaluation = Evaluation::default();
    check_room(model, windows)?;
    if let Some(reference) = &reference {
        check_room(reference, windows)?;
    }
    for i in 0..windows.count() {
        if cancelled.load(Ordering::Relaxed) {
            break;
        }
        let window = windows.window(i);
        let (before, scored) = window.split_at(windows.first());
        let mut models = Models { model: &mut *model, reference: reference.as_deref_mut() };
        models.begin(before)?;
        models.score(scored, &mut evaluation)?;
        on_window(i + 1, &evaluation);
    }
    model.reset();
    if let Some(reference) = reference {
        reference.reset();
    }
    Ok(evaluation)
}

/// Checks that a window fits the context. Its last token is only predicted.
fn check_room(model: &Sequence, windows: &Windows<'_>) -> Result<()> {
    match model.metadata().context.filter(|&context| context < windows.length - 1) {
        Some(context) => Err(Error::PromptTooLong { prompt: windows.length - 1, context }),
        None => Ok(()),
    }
}

fn best(logits: &[f32]) -> Option<u32> {
    argmax(logits).map(|(token, _)| token)
}

/// The model and its reference at the same position of a text.
struct Models<'a> {
    model: &'a mut Sequence,
    reference: Option<&'a mut Sequence>,
}

impl Models<'_> {
    fn each(&mut self) -> impl Iterator<Item = &mut Sequence> {
        std::iter::once(&mut *self.model).chain(self.reference.as_deref_mut())
    }

    /// Feeds both the beginning of a window.
    fn begin(&mut self, before: &[u32]) -> Result<()> {
        for model in self.each() {
            model.reset();
            for step in before.chunks(model.chunk()) {
                model.step(step)?;
            }
        }
        Ok(())
    }

    /// Feeds both the next tokens, and scores their predictions.
    fn score(&mut self, tokens: &[u32], evaluation: &mut Evaluation) -> Result<()> {
        let longest = self.each().map(|model| if model.model().gives_all_logits() { model.chunk() } else { 1 }).min().unwrap_or(1);
        let read = &tokens[..tokens.len() - 1];
        let mut next = tokens[1..].iter();
        for step in read.chunks(longest.min(LONGEST_SCORED_STEP)) {
            let logits = self.model.step_all(step)?;
            let others = self.reference.as_deref_mut().map(|reference| reference.step_all(step)).transpose()?;
            let mut others = others.as_deref().map(|others| others.chunks(others.len() / step.len()));
            for (row, &token) in logits.chunks(logits.len() / step.len()).zip(&mut next) {
                evaluation.add(row, others.as_mut().and_then(Iterator::next), token)?;
            }
        }
        Ok(())
    }
}

/// Kullback–Leibler divergence of the distribution with some logits from the one with the
/// reference's, in nats.
pub fn divergence(logits: &[f32], reference: &[f32]) -> f64 {
    LogProbabilities::of(reference).divergence(&LogProbabilities::of(logits))
}

/// Logits and the logarithm of the sum of their exponentials.
struct LogProbabilities<'a> {
    logits: &'a [f32],
    total: f64,
}

impl<'a> LogProbabilities<'a> {
    fn of(logits: &'a [f32]) -> LogProbabilities<'a> {
        let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - top).exp()).sum();
        LogProbabilities { logits, total: top + sum.ln() }
    }

    fn of_token(&self, token: u32) -> Result<f64> {
        let logit = self.logits.get(token as usize).ok_or(Error::OutsideVocabulary { token, vocabulary: self.logits.len() })?;
        Ok(f64::from(*logit) - self.total)
    }

    /// Kullback–Leibler divergence of `other` from these probabilities.
    fn divergence(&self, other: &LogProbabilities<'_>) -> f64 {
        let terms = self.logits.iter().zip(other.logits).map(|(&p, &q)| {
            let log_p = f64::from(p) - self.total;
            let weight = log_p.exp();
            if weight == 0.0 { 0.0 } else { weight * (log_p - (f64::from(q) - other.total)) }
        });
        terms.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_count_their_second_halves() {
        let ids: Vec<u32> = (10..31).collect();
        let windows = Windows::new(&ids, 8, Some(1)).unwrap();
        assert_eq!((windows.count(), windows.scored()), (2, 3));
        assert_eq!(windows.window(1), [1, 19, 20, 21, 22, 23, 24, 25]);
        assert_eq!(Windows::new(&ids, 8, None).unwrap().window(1)[0], 18);
        assert!(Windows::new(&ids, 3, None).is_err() && Windows::new(&ids, 22, None).is_err());
    }

    #[test]
    fn losses_and_divergences_are_those_of_the_definition() {
        let mut evaluation = Evaluation::default();
        // Probabilities 1/4, 3/4 against 1/2, 1/2.
        let (ours, reference) = ([0.0, 3f32.ln()], [5.0, 5.0]);
        evaluation.add(&ours, Some(&reference), 0).unwrap();
        assert!((evaluation.perplexity() - 4.0).abs() < 1e-6);
        assert!((evaluation.against.loss.value() - 2f64.ln()).abs() < 1e-6);
        let divergence = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((evaluation.against.mean_divergence() - divergence).abs() < 1e-6);
        assert_eq!(evaluation.against.agreement(), 0.0);
        evaluation.add(&ours, Some(&ours), 1).unwrap();
        assert_eq!((evaluation.against.agreements, evaluation.against.divergence_at(0.0)), (1, Some(0.0)));
        assert!((evaluation.against.divergence_at(1.0).unwrap() - divergence).abs() < 1e-6);
    }

    #[test]
    fn impossible_tokens_and_other_vocabularies_are_errors() {
        let mut evaluation = Evaluation::default();
        assert!(matches!(evaluation.add(&[0.0; 4], None, 4), Err(Error::OutsideVocabulary { token: 4, vocabulary: 4 })));
        assert!(matches!(evaluation.add(&[0.0; 4], Some(&[0.0; 5]), 1), Err(Error::Vocabularies { model: 4, reference: 5 })));
    }

    #[test]
    fn certainty_of_what_did_not_come_is_an_infinite_loss() {
        let mut evaluation = Evaluation::default();
        evaluation.add(&[0.0, f32::NEG_INFINITY], None, 1).unwrap();
        assert_eq!(evaluation.perplexity(), f64::INFINITY);
    }

    #[test]
    fn means_have_standard_errors() {
        let mut mean = Mean::default();
        assert!(mean.value().is_nan() && mean.error().is_nan());
        [1.0, 2.0, 3.0, 4.0].into_iter().for_each(|x| mean += x);
        assert_eq!((mean.count(), mean.value()), (4, 2.5));
        assert!((mean.error() - (5f64 / 12.0).sqrt()).abs() < 1e-12);
    }
}
