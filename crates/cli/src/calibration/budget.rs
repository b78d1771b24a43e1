//! A number of bits per weight, divided among weights by how much the model's predictions need.

use std::collections::BTreeMap;

use anyhow::Result;
use flambeau::compile::{LinearWeight, Options, Scheme, SchemeName, WeightRule};

use super::sensitivity::Unit;
use crate::failure::usage;

/// Schemes from few bits to many, with the sizes of their groups. The last number is the squared
/// error of a layer's results, relative to 4 bits in groups of 64. It falls with the bits. It was
/// measured on the layers of SmolLM2-135M, whose numbers differ by less than 10 %.
const SCHEMES: [(&str, u32, f64); 16] = [
    ("2w", 64, 13.1),
    ("2w", 32, 9.2),
    ("3w", 128, 4.6),
    ("3w", 64, 3.8),
    ("3w", 32, 2.7),
    ("4w", 128, 1.3),
    ("4w", 64, 1.0),
    ("4w", 32, 0.70),
    ("5w", 128, 0.33),
    ("5w", 64, 0.252),
    ("5w", 32, 0.176),
    ("6w", 128, 0.087),
    ("6w", 64, 0.067),
    ("6w", 32, 0.049),
    ("8w", 64, 0.0050),
    ("8w", 32, 0.0036),
];

/// The scheme of heads without another one.
const HEAD: (&str, u32) = ("8w", 64);

/// Bits of a scale and a bias.
const PARAMETERS: f64 = 32.0;

/// A scheme that a weight can have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) scheme: Scheme,
    /// Bits of a weight, with its share of a scale and a bias.
    bits: f64,
    /// The relative squared error of a layer's results.
    error: f64,
}

/// The mean number of bits that weights may have.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    bits: f64,
    choices: Vec<Choice>,
}

impl Budget {
    /// The schemes that weights with a mean of `bits` may have. None has less than one bit below
    /// the mean, because further bits of other weights do not make up for it.
    ///
    /// # Errors
    /// If no scheme has so few bits, or none so many.
    pub(super) fn new(bits: f64) -> Result<Budget> {
        let choice = |(name, group, error)| {
            let scheme = Scheme::from_name(name, Some(group))?;
            Ok(Choice { scheme, bits: f64::from(scheme.bits) + PARAMETERS / f64::from(group), error })
        };
        let mut choices = SCHEMES.into_iter().map(choice).collect::<Result<Vec<Choice>>>()?;
        let [least, most] = [choices.first(), choices.last()].map(|choice| choice.map_or(0.0, |choice| choice.bits));
        if !(least..=most).contains(&bits) {
            let advice = "4.5 is what 4 bits in groups of 64 take, with their scales and biases";
            return Err(usage(format!("--bits-per-weight {bits}: expected {least} to {most}; {advice}")));
        }
        choices.retain(|choice| f64::from(choice.scheme.bits) >= bits.floor() - 1.0);
        Ok(Budget { bits, choices })
    }

    /// Checks that the budget suffices for the fewest possible bits of all weights.
    ///
    /// # Errors
    /// If the weights take more bits at least.
    pub(super) fn check(&self, weights: &[LinearWeight]) -> Result<()> {
        let (mut spent, mut elements) = (0.0, 0.0);
        for LinearWeight { shape, .. } in weights {
            let columns = shape.last().copied().unwrap_or(0);
            let count = shape.iter().product::<usize>() as f64;
            // The first choice has the fewest bits. Weights that no choice fits stay floats.
            if let Some(choice) = self.fitting(columns).next() {
                spent += choice.bits * count;
                elements += count;
            }
        }
        // Sums of many weights are rounded.
        if spent > self.bits * elements * (1.0 + 1e-9) {
            let least = (spent / elements * 100.0).ceil() / 100.0;
            let reason = "rows that are no multiple of 64 need groups of 32, whose scales and biases take 1 bit per weight";
            return Err(usage(format!("--bits-per-weight {}: this model needs at least {least}, because {reason}", self.bits)));
        }
        Ok(())
    }

    /// The options with the scheme of most bits for linear layers, which packs whatever some scheme
    /// packs. Heads without a scheme get the scheme of embedding tables, or 8 bits.
    pub(super) fn whole(&self, options: &Options) -> Result<Options> {
        let linear = self.choices.last().map(|choice| choice.scheme);
        let eight = Scheme::from_name(HEAD.0, Some(HEAD.1))?;
        let head = options.head.unwrap_or(Some(options.embedding.unwrap_or(eight)));
        Ok(Options { linear, head: Some(head), ..options.clone() })
    }

    /// The choices that can pack rows of this many columns.
    fn fitting(&self, columns: usize) -> impl Iterator<Item = &Choice> {
        let fits = move |scheme: &Scheme| {
            columns.is_multiple_of(scheme.group_size as usize) && (columns * usize::from(scheme.bits)).is_multiple_of(32)
        };
        self.choices.iter().filter(move |choice| fits(&choice.scheme))
    }

    /// The scheme in which a weight of so many columns is measured: the one with the largest error.
    pub(super) fn measured(&self, columns: usize) -> Option<Choice> {
        self.fitting(columns).copied().max_by(|a, b| a.error.total_cmp(&b.error))
    }

    /// Chooses a scheme for each unit within the budget, for a small sum of divergences. Also
    /// describes the result. `measured` has the choice and the divergence of each measured unit.
    pub(super) fn rules(&self, measured: &[(Unit, Choice, f64)]) -> (Vec<WeightRule>, String) {
        let ladders = measured
            .iter()
            .filter_map(|(unit, choice, divergence)| Ladder::new(unit, self.fitting(unit.columns), divergence / choice.error));
        let mut ladders: Vec<Ladder<'_>> = ladders.collect();
        let elements: f64 = ladders.iter().map(|ladder| ladder.unit.elements as f64).sum();
        let mut left = self.bits * elements - ladders.iter().map(Ladder::spent).sum::<f64>();
        loop {
            let steps = ladders.iter().enumerate().filter_map(|(i, ladder)| Some((i, ladder.next()?)));
            let best = steps.filter(|(_, (_, bits))| *bits <= left).max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
            let Some((i, (_, bits))) = best else { break };
            ladders[i].at += 1;
            left -= bits;
        }
        let mut counts: BTreeMap<(u8, u32), usize> = BTreeMap::new();
        for ladder in &ladders {
            let scheme = ladder.rung().scheme;
            *counts.entry((scheme.bits, scheme.group_size)).or_default() += ladder.unit.names.len();
        }
        let counts = counts.iter().map(|((bits, group), count)| format!("{count} of {bits} bits by {group}"));
        let mean = ladders.iter().map(Ladder::spent).sum::<f64>() / elements.max(1.0);
        let told = format!("{mean:.2} bits per weight of linear layers: {}", counts.collect::<Vec<_>>().join(", "));
        (ladders.iter().flat_map(|ladder| ladder.unit.rules(ladder.rung().scheme)).collect(), told)
    }
}

/// A unit's choices that are worth their bits, by rising bits.
struct Ladder<'a> {
    unit: &'a Unit,
    /// Choices with the divergence of the unit.
    rungs: Vec<(Choice, f64)>,
    at: usize,
}

impl<'a> Ladder<'a> {
    /// The lower convex hull of divergences over bits. `unit_error` is the divergence of an error
    /// of 1. `None` if no choice fits.
    fn new<'c>(unit: &'a Unit, choices: impl Iterator<Item = &'c Choice>, unit_error: f64) -> Option<Ladder<'a>> {
        let mut rungs: Vec<(Choice, f64)> = Vec::new();
        for next in choices.map(|choice| (*choice, choice.error * unit_error)) {
            while let [.., a, b] = &rungs[..]
                && slope(a, b) <= slope(b, &next)
            {
                rungs.pop();
            }
            rungs.push(next);
        }
        (!rungs.is_empty()).then_some(Ladder { unit, rungs, at: 0 })
    }

    fn rung(&self) -> &Choice {
        &self.rungs[self.at].0
    }

    /// Bits of all weights of the unit.
    fn spent(&self) -> f64 {
        self.rung().bits * self.unit.elements as f64
    }

    /// The gain of the next choice for each bit, and its number of bits.
    fn next(&self) -> Option<(f64, f64)> {
        let (now, next) = (self.rungs.get(self.at)?, self.rungs.get(self.at + 1)?);
        let elements = self.unit.elements as f64;
        Some((slope(now, next) / elements, (next.0.bits - now.0.bits) * elements))
    }
}

/// Divergence that a further bit saves, from one choice to another.
fn slope(a: &(Choice, f64), b: &(Choice, f64)) -> f64 {
    (a.1 - b.1) / (b.0.bits - a.0.bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, columns: usize, elements: usize) -> Unit {
        Unit { names: vec![name.into()], columns, elements }
    }

    /// The bits of the weight `name` by rules.
    fn bits(rules: &[WeightRule], name: &str) -> f64 {
        let rule = rules.iter().find(|rule| rule.pattern == name).and_then(|rule| rule.scheme);
        let Scheme { bits, group_size, .. } = rule.expect("each weight has a scheme");
        f64::from(bits) + PARAMETERS / f64::from(group_size)
    }

    #[test]
    fn sensitive_weights_get_more_bits_within_the_mean() {
        let budget = Budget::new(4.5).unwrap();
        let list = [("even", 1 << 20, 1.0), ("loud", 1 << 20, 50.0), ("small", 1 << 14, 1.0)];
        let measured = list.map(|(name, elements, cost)| (unit(name, 1024, elements), budget.measured(1024).unwrap(), cost));
        let (rules, told) = budget.rules(&measured);
        assert!(bits(&rules, "even") < 4.5 && bits(&rules, "loud") > 4.5, "{told}");
        assert!(bits(&rules, "small") > bits(&rules, "even"), "{told}");
        let elements: f64 = list.iter().map(|(_, elements, _)| f64::from(*elements as u32)).sum();
        let mean = list.iter().map(|(name, elements, _)| bits(&rules, name) * f64::from(*elements as u32)).sum::<f64>() / elements;
        assert!((4.0..=4.5).contains(&mean) && told.starts_with(&format!("{mean:.2} bits")), "{told}");
    }

    #[test]
    fn errors_fall_with_bits() {
        let choices = Budget::new(2.5).unwrap().choices;
        assert!(choices.windows(2).all(|pair| pair[0].bits < pair[1].bits && pair[0].error > pair[1].error));
    }

    #[test]
    fn schemes_that_cannot_pack_a_weight_are_not_chosen() {
        let budget = Budget::new(5.0).unwrap();
        let choice = budget.measured(96).unwrap();
        assert_eq!(choice.scheme.group_size, 32);
        let (rules, _) = budget.rules(&[(unit("narrow", 96, 96), choice, 1.0)]);
        assert_eq!(rules[0].scheme.map(|scheme| (scheme.bits, scheme.group_size)), Some((4, 32)));
        assert!(budget.measured(40).is_none());
    }

    #[test]
    fn a_mean_that_the_rows_cannot_keep_is_refused() {
        let weight = |columns: usize| LinearWeight { name: "w".into(), shape: [8, columns][..].into() };
        let check = |bits: f64, columns: &[usize]| {
            let weights: Vec<_> = columns.iter().map(|&columns| weight(columns)).collect();
            Budget::new(bits).unwrap().check(&weights).map_err(|error| error.to_string())
        };
        // 32 columns take 3 bits, 64 columns take 2.5, and 40 columns stay floats.
        assert_eq!(check(2.5, &[64, 40, 128]), Ok(()));
        assert!(check(2.6, &[32, 64]).unwrap_err().contains("needs at least 2.67"), "{:?}", check(2.6, &[32, 64]));
        assert_eq!(check(2.67, &[32, 64]), Ok(()));
        for bits in [3.0, 3.9, 4.0, 4.9, 5.0, 6.0, 9.0] {
            assert_eq!(check(bits, &[32, 96]), Ok(()), "{bits}");
        }
    }

    #[test]
    fn impossible_means_are_refused_with_the_possible_ones() {
        for bits in [1.0, 2.0, 9.5, f64::NAN] {
            let error = Budget::new(bits).unwrap_err().to_string();
            assert!(error.contains("expected 2.5 to 9"), "{error}");
        }
        let fewest = |bits: f64| Budget::new(bits).unwrap().choices.iter().map(|choice| choice.scheme.bits).min();
        assert_eq!([2.5, 3.6, 4.5, 5.5].map(fewest), [Some(2), Some(2), Some(3), Some(4)]);
    }
}
