//! Choosing the next token from logits.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::rng::Rng;

/// Sampling parameters. The default is greedy decoding.
///
/// The steps run in this order, each on the result of the previous one. `z` are the logits, `c(t)`
/// counts how often token `t` occurs in the history (its last
/// [`repeat_last_n`](Self::repeat_last_n) tokens).
/// 1. logit bias: `z[t] += bias[t]`;
/// 2. penalties, for `c(t) > 0`: `z[t] = z[t] / r` if positive, else `z[t] · r` (`r` the repetition
///    penalty), then `z[t] -= frequency · c(t) + presence`;
/// 3. temperature 0: the largest `z` wins, the lowest id on a tie. Otherwise `z / temperature`;
/// 4. top-k: the `k` largest stay, lower ids first on a tie;
/// 5. `p = softmax(z)` over the remaining tokens;
/// 6. top-p: the fewest tokens of largest `p` whose sum reaches `top_p` stay;
/// 7. min-p: tokens with `p < min_p · max p` go;
/// 8. one token is drawn with probability proportional to its `p`. It is the first token at which
///    the running sum of `p` passes a random share of the total. Tokens are ordered by descending
///    `p` if top-k or top-p removed some, else by id.
///
/// NaN counts as −∞: such a token is never chosen. If a logit is +∞, only tokens with +∞ can be
/// chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise finite and positive.
    pub temperature: f32,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Least probability in units of the largest one, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Greater than 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted for each occurrence; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Subtracted once for each token that occurs; 0 changes nothing.
    pub presence_penalty: f32,
    /// Number of recent history tokens that the penalties consider; 0 means all.
    pub repeat_last_n: usize,
    /// Added to the logits of these token ids; ids outside of the vocabulary are ignored.
    pub logit_bias: Vec<(u32, f32)>,
    /// Fixes the random sequence.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every parameter against its range.
    ///
    /// # Errors
    /// Names the first parameter that is outside.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, name, found: f32, expected| {
            if ok { Ok(()) } else { Err(Error::SamplingParameter { name, found: found.to_string(), expected }) }
        };
        let t = self.temperature;
        check(t.is_finite() && t >= 0.0, "temperature", t, "a finite number that is not negative")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "more than 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "0 to 1")?;
        let r = self.repetition_penalty;
        check(r.is_finite() && r > 0.0, "repetition_penalty", r, "a finite number greater than 0")?;
        check(self.frequency_penalty.is_finite(), "frequency_penalty", self.frequency_penalty, "a finite number")?;
        check(self.presence_penalty.is_finite(), "presence_penalty", self.presence_penalty, "a finite number")?;
        self.logit_bias.iter().try_for_each(|&(_, bias)| check(!bias.is_nan(), "logit_bias", bias, "a number"))
    }

    /// Whether the token of the highest logit is chosen.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.adjusts_logits()
    }

    /// Whether logits are changed before tokens are chosen: by penalties or a bias.
    pub fn adjusts_logits(&self) -> bool {
        let penalised = self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        penalised || !self.logit_bias.is_empty()
    }
}

/// A token that can still be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    /// Logit, later the probability up to a common factor.
    weight: f32,
}

/// Samples tokens by [`SamplingParams`]. Equal parameters, logits and calls give equal tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: Rng,
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

/// Candidates that the first round of top-p sorts; each further round takes four times as many.
const TOP_P_FIRST_ROUND: usize = 64;

impl Sampler {
    /// A sampler at the beginning of its random sequence.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        let rng = Rng::new(params.seed);
        Ok(Self { params, rng, adjusted: Vec::new(), candidates: Vec::new() })
    }

    /// The parameters in force.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The random number in [0, 1) for the next choice, for a caller that samples elsewhere with
    /// the same parameters. `None` if the choice depends on the history or on the logit bias.
    pub fn next_uniform(&mut self) -> Option<f32> {
        if self.params.adjusts_logits() {
            return None;
        }
        let below_one = 1.0 - f32::EPSILON / 2.0;
        Some(if self.params.temperature == 0.0 { 0.0 } else { (self.rng.next_unit() as f32).min(below_one) })
    }

    /// Chooses the next token id from `logits` `[V]`; `history` are the ids so far, which only the
    /// penalties read.
    ///
    /// # Errors
    /// There is no logit that is a number greater than −∞.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        if self.params.adjusts_logits() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.adjust(&mut adjusted, history);
            let chosen = self.choose(&adjusted);
            self.adjusted = adjusted;
            chosen
        } else {
            self.choose(logits)
        }
    }

    fn adjust(&self, logits: &mut [f32], history: &[u32]) {
        let p = &self.params;
        for &(id, bias) in &p.logit_bias {
            if let Some(z) = logits.get_mut(id as usize) {
                *z += bias;
            }
        }
        let from = if p.repeat_last_n == 0 { 0 } else { history.len().saturating_sub(p.repeat_last_n) };
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for &id in history.get(from..).unwrap_or_default() {
            *counts.entry(id).or_default() += 1;
        }
        for (id, count) in counts {
            if let Some(z) = logits.get_mut(id as usize) {
                *z = if *z > 0.0 { *z / p.repetition_penalty } else { *z * p.repetition_penalty };
                *z -= p.frequency_penalty * count as f32 + p.presence_penalty;
            }
        }
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        let (best, max) = argmax(logits).ok_or(Error::NoCandidate { found: logits.len() })?;
        if self.params.temperature == 0.0 || self.params.top_k == 1 {
            return Ok(best);
        }
        self.candidates.clear();
        let usable = logits.iter().zip(0u32..).filter(|(z, _)| **z > f32::NEG_INFINITY);
        self.candidates.extend(usable.map(|(&weight, id)| Candidate { id, weight }));
        self.keep_top_k();
        self.weigh(max);
        self.keep_top_p();
        self.drop_below_min_p();
        Ok(self.draw().unwrap_or(best))
    }

    fn keep_top_k(&mut self) {
        let k = self.params.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, larger_first);
            self.candidates.truncate(k);
            self.candidates.sort_unstable_by(larger_first);
        }
    }

    /// Replaces each logit by `exp((z − max) / temperature)`: in [0, 1], and 1 for the best.
    fn weigh(&mut self, max: f32) {
        let t = self.params.temperature;
        for c in &mut self.candidates {
            c.weight = if c.weight == max { 1.0 } else { ((c.weight - max) / t).exp() };
        }
    }

    fn keep_top_p(&mut self) {
        if self.params.top_p >= 1.0 {
            return;
        }
        let goal = self.mass() * f64::from(self.params.top_p);
        let (mut sum, mut sorted, mut round) = (0.0, 0, TOP_P_FIRST_ROUND);
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let n = round.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n - 1, larger_first);
            }
            rest[..n].sort_unstable_by(larger_first);
            for (at, c) in rest[..n].iter().enumerate() {
                sum += f64::from(c.weight);
                if sum >= goal {
                    self.candidates.truncate(sorted + at + 1);
                    return;
                }
            }
            sorted += n;
            round *= 4;
        }
    }

    fn drop_below_min_p(&mut self) {
        let least = self.params.min_p;
        if least > 0.0 {
            self.candidates.retain(|c| c.weight >= least);
        }
    }

    fn mass(&self) -> f64 {
        self.candidates.iter().map(|c| f64::from(c.weight)).sum()
    }

    fn draw(&mut self) -> Option<u32> {
        let mut left = self.rng.next_unit() * self.mass();
        for c in &self.candidates {
            left -= f64::from(c.weight);
            if left < 0.0 {
                return Some(c.id);
            }
        }
        // Rounding can leave a remainder after the last candidate.
        self.candidates.iter().rev().find(|c| c.weight > 0.0).map(|c| c.id)
    }
}

/// Descending weight, then ascending id: a total order, as no NaN becomes a candidate.
fn larger_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

/// Index and value of the largest number of `values`, the first one on a tie; NaN and −∞ do not
/// count.
pub fn argmax(values: &[f32]) -> Option<(u32, f32)> {
    let mut best: Option<(u32, f32)> = None;
    for (&value, id) in values.iter().zip(0u32..) {
        if value > best.map_or(f32::NEG_INFINITY, |(_, max)| max) {
            best = Some((id, value));
        }
    }
    best
}

/// Ids of the `count` largest of `logits`, largest first, lower ids first on a tie; NaN and −∞ do
/// not count.
pub fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let usable = logits.iter().zip(0u32..).filter(|(z, _)| **z > f32::NEG_INFINITY);
    let mut all: Vec<Candidate> = usable.map(|(&weight, id)| Candidate { id, weight }).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, larger_first);
    }
    all.truncate(count);
    all.sort_unstable_by(larger_first);
    all.into_iter().map(|c| c.id).collect()
}

/// Natural logarithms of `softmax(logits)` for `ids`, in their order; −∞ for ids outside of
/// `logits` and for NaN.
pub fn log_probabilities(logits: &[f32], ids: &[u32]) -> Vec<f32> {
    let max = argmax(logits).map_or(0.0, |(_, max)| max);
    let usable = logits.iter().filter(|z| !z.is_nan());
    let sum: f64 = usable.map(|&z| if z == max { 1.0 } else { f64::from(z - max).exp() }).sum();
    let of = |id: &u32| match logits.get(*id as usize) {
        Some(&z) if z == max => -sum.ln() as f32,
        Some(z) if !z.is_nan() => (f64::from(z - max) - sum.ln()) as f32,
        _ => f32::NEG_INFINITY,
    };
    ids.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
