//! A number of bits per weight, divided among weights by how much they need.

use std::collections::BTreeMap;

use anyhow::Result;
use flambeau::compile::{Layers, Scheme, SchemeName, Sensitivity, WeightRule};

use crate::failure::usage;

/// Schemes from few bits to many, with the sizes of their groups.
const SCHEMES: [(&str, u32); 8] = [("2w", 64), ("3w", 64), ("4w", 128), ("4w", 64), ("4w", 32), ("5w", 64), ("6w", 64), ("8w", 64)];

/// Bits of a scale and a bias.
const PARAMETERS: f64 = 32.0;

/// The schemes that weights with a mean of `bits` may have. The fewest bits are one below the mean,
/// because an error of few bits in one layer is not made up for by others.
///
/// # Errors
/// If no scheme has so few bits, or none so many.
pub(crate) fn schemes(bits: f64) -> Result<Vec<Scheme>> {
    let all = SCHEMES.iter().map(|&(name, group)| Scheme::from_name(name, Some(group))).collect::<Result<Vec<_>, _>>()?;
    let [least, most] = [all.first(), all.last()].map(|scheme| scheme.map_or(0.0, bits_of));
    if !(least..=most).contains(&bits) {
        let advice = "4.5 is what 4 bits in groups of 64 take, with their scales and biases";
        return Err(usage(format!("--bits-per-weight {bits}: expected {least} to {most}; {advice}")));
    }
    Ok(all.into_iter().filter(|scheme| f64::from(scheme.bits) >= bits.floor() - 1.0).collect())
}

/// Bits of a weight with its share of a scale and a bias.
fn bits_of(scheme: &Scheme) -> f64 {
    f64::from(scheme.bits) + PARAMETERS / f64::from(scheme.group_size)
}

/// A weight's schemes that are worth their bits, by rising bits.
struct Choices<'a> {
    of: &'a Sensitivity,
    /// Number of a scheme, its bits and its error.
    list: Vec<(usize, f64, f64)>,
    chosen: usize,
}

impl<'a> Choices<'a> {
    /// The lower convex hull of errors over bits.
    fn new(of: &'a Sensitivity, schemes: &[Scheme]) -> Option<Choices<'a>> {
        let mut list: Vec<(usize, f64, f64)> = Vec::new();
        for (i, (scheme, error)) in schemes.iter().zip(&of.errors).enumerate() {
            let Some(error) = error.map(f64::from).filter(|error| error.is_finite()) else { continue };
            if list.last().is_some_and(|last| last.2 <= error) {
                continue;
            }
            let next = (i, bits_of(scheme), error);
            while let [.., a, b] = &list[..]
                && slope(a, b) <= slope(b, &next)
            {
                list.pop();
            }
            list.push(next);
        }
        (!list.is_empty()).then_some(Choices { of, list, chosen: 0 })
    }

    /// What the next scheme gains for each bit, and its bits.
    fn next(&self) -> Option<(f64, f64)> {
        let [now, next] = [self.list.get(self.chosen)?, self.list.get(self.chosen + 1)?];
        let elements = self.of.elements as f64;
        Some((slope(now, next) / elements, (next.1 - now.1) * elements))
    }
}

/// Error that a further bit saves, from one scheme to another.
fn slope(a: &(usize, f64, f64), b: &(usize, f64, f64)) -> f64 {
    (a.2 - b.2) / (b.1 - a.1)
}

/// Chooses a scheme for each weight, so that the sum of their errors is small and the mean of their
/// bits is at most `bits`. Also describes the choice.
pub(crate) fn rules(sensitivities: &[Sensitivity], schemes: &[Scheme], bits: f64) -> (Vec<WeightRule>, String) {
    let mut choices: Vec<Choices<'_>> = sensitivities.iter().filter_map(|of| Choices::new(of, schemes)).collect();
    let elements: f64 = choices.iter().map(|c| c.of.elements as f64).sum();
    let spent = |choices: &[Choices<'_>]| choices.iter().map(|c| c.list[c.chosen].1 * c.of.elements as f64).sum::<f64>();
    let mut left = bits * elements - spent(&choices);
    loop {
        let steps = choices.iter().enumerate().filter_map(|(i, c)| c.next().map(|(gain, cost)| (i, gain, cost)));
        let best = steps.filter(|(.., cost)| *cost <= left).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((i, _, cost)) = best else { break };
        choices[i].chosen += 1;
        left -= cost;
    }
    let mut counts = BTreeMap::new();
    let rules = choices.iter().map(|c| {
        let number = c.list[c.chosen].0;
        *counts.entry(number).or_insert(0) += 1;
        let scheme = Some(schemes[number]);
        WeightRule { pattern: c.of.weight.clone(), layers: Layers::All, scheme, is_optional: true }
    });
    let rules = rules.collect();
    let named = counts.iter().map(|(&number, count)| {
        let Scheme { bits, group_size, .. } = schemes[number];
        format!("{count} in {bits} bits by {group_size}")
    });
    (rules, format!("{:.2} bits per weight: {}", spent(&choices) / elements.max(1.0), named.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensitivity(name: &str, elements: usize, factor: f32, schemes: &[Scheme]) -> Sensitivity {
        let errors = schemes.iter().map(|s| Some(factor * (-bits_of(s) as f32 * 1.4).exp())).collect();
        Sensitivity { weight: name.into(), elements, errors }
    }

    #[test]
    fn sensitive_weights_get_more_bits_within_the_mean() {
        let all = schemes(4.5).unwrap();
        let list = [("even", 1 << 20, 1.0), ("loud", 1 << 20, 50.0), ("small", 1 << 14, 1.0)];
        let list = list.map(|(name, elements, factor)| sensitivity(name, elements, factor, &all));
        let (rules, told) = rules(&list, &all, 4.5);
        let bits = |name: &str| rules.iter().find(|r| r.pattern == name).and_then(|r| r.scheme.as_ref().map(bits_of)).unwrap();
        assert!(bits("even") < 4.5 && bits("loud") > 4.5 && bits("small") > bits("even"), "{told}");
        let total: f64 = list.iter().map(|s| bits(&s.weight) * s.elements as f64).sum();
        let mean = total / list.iter().map(|s| s.elements as f64).sum::<f64>();
        assert!((4.0..=4.5).contains(&mean), "{told}");
    }

    #[test]
    fn schemes_that_do_not_fit_are_not_chosen() {
        let all = schemes(5.0).unwrap();
        let mut narrow = sensitivity("narrow", 96, 1.0, &all);
        all.iter().zip(&mut narrow.errors).filter(|(s, _)| s.group_size != 32).for_each(|(_, error)| *error = None);
        let (rules, _) = rules(&[narrow], &all, 5.0);
        assert_eq!(rules[0].scheme.map(|s| (s.bits, s.group_size)), Some((4, 32)));
    }

    #[test]
    fn impossible_means_are_refused_with_the_possible_ones() {
        for bits in [1.0, 2.0, 9.0, f64::NAN] {
            let error = schemes(bits).unwrap_err().to_string();
            assert!(error.contains("expected 2.5 to 8.5"), "{error}");
        }
        assert!(schemes(2.5).unwrap().iter().all(|s| s.bits >= 2) && schemes(4.5).unwrap().iter().all(|s| s.bits >= 3));
    }
}
