//! How much a model's predictions suffer from few bits in some of its weights.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use flambeau::{
    compile::{self, Layers, LinearWeight, Scheme, WeightRule},
    engine::{Engine, Value},
    runners::llm::divergence,
    tensor::{DType, Tensor, cast},
    zoo,
};

use crate::progress;

/// Weights of linear layers that share a scheme: the same layer in one or several blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) names: Vec<String>,
    /// Number of columns of each weight.
    pub(super) columns: usize,
    /// Number of elements of all weights.
    pub(super) elements: usize,
}

impl Unit {
    /// Rules that give all weights of the unit a scheme.
    pub(super) fn rules(&self, scheme: Scheme) -> impl Iterator<Item = WeightRule> {
        let rule =
            move |name: &String| WeightRule { pattern: name.clone(), layers: Layers::All, scheme: Some(scheme), is_optional: true };
        self.names.iter().map(rule)
    }
}

/// A weight's name without the number of its block, and the number.
fn kind(name: &str) -> (String, usize) {
    let number = name.split('.').find_map(|part| part.parse().ok());
    let kind = name.split('.').filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".");
    (kind, number.unwrap_or(0))
}

/// Divides weights into units: each weight alone if that gives at most `most` units, otherwise runs
/// of blocks, but not fewer than three.
pub(super) fn units(weights: &[LinearWeight], most: usize) -> Vec<Unit> {
    let blocks = weights.iter().map(|weight| kind(&weight.name).1 + 1).max().unwrap_or(0);
    let divided = |run: usize| {
        let mut units: BTreeMap<_, Unit> = BTreeMap::new();
        for LinearWeight { name, shape } in weights {
            let (kind, block) = kind(name);
            let columns = shape.last().copied().unwrap_or(0);
            let empty = || Unit { names: Vec::new(), columns, elements: 0 };
            let unit = units.entry((kind, columns, block / run)).or_insert_with(empty);
            unit.names.push(name.clone());
            unit.elements += shape.iter().product::<usize>();
        }
        units.into_values().collect::<Vec<Unit>>()
    };
    let longest = blocks.div_ceil(3).max(1);
    (1..longest).map(divided).find(|units| units.len() <= most).unwrap_or_else(|| divided(longest))
}

/// The divergence of a language model's predictions, in nats, if one unit alone has its scheme.
/// `windows` are the method's inputs. All other weights are floats.
pub(super) fn divergences(
    model: &zoo::Model,
    (quantize, engine): (&compile::Options, &dyn Engine),
    windows: &[Vec<Value>],
    units: &[(&Unit, Scheme)],
) -> Result<Vec<f64>> {
    let floats = compile::Options { linear: None, embedding: None, head: None, rules: Vec::new(), ..quantize.clone() };
    let logits = |rules: Vec<WeightRule>| {
        let mut method = zoo::load(model, compile::Options { rules, ..floats.clone() }, engine)?;
        windows.iter().map(|window| logits(&method.run(window)?)).collect::<Result<Vec<Tensor>>>()
    };
    let reference = logits(Vec::new())?;
    let bar = progress::count(units.len() as u64);
    bar.set_message("groups of weights in few bits");
    let mut list = Vec::with_capacity(units.len());
    for (unit, scheme) in units {
        let found = logits(unit.rules(*scheme).collect())?;
        list.push(mean_divergence(&found, &reference)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(list)
}

/// The logits [1, S, V] of a run, in f32.
fn logits(results: &[Value]) -> Result<Tensor> {
    let Some(Value::Tensor(logits)) = results.first() else { anyhow::bail!("the model gives no logits") };
    Ok(cast(logits, DType::F32)?)
}

/// The mean divergence over the positions of all windows.
fn mean_divergence(found: &[Tensor], reference: &[Tensor]) -> Result<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (found, reference) in found.iter().zip(reference) {
        let vocabulary = *reference.shape().last().filter(|&&n| n > 0).context("the model gives no logits")?;
        let rows = found.as_slice::<f32>()?.chunks_exact(vocabulary).zip(reference.as_slice::<f32>()?.chunks_exact(vocabulary));
        for (found, reference) in rows {
            sum += divergence(found, reference);
            count += 1;
        }
    }
    Ok(sum / f64::from(count.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(blocks: usize) -> Vec<LinearWeight> {
        let of = |block: usize| {
            ["mlp.down_proj", "self_attn.q_proj"]
                .map(|layer| LinearWeight { name: format!("model.layers.{block}.{layer}.weight"), shape: [8, 64][..].into() })
        };
        (0..blocks).flat_map(of).collect()
    }

    #[test]
    fn many_weights_are_measured_in_runs_of_blocks() {
        let sizes = |most: usize| units(&weights(7), most).iter().map(|unit| unit.names.len()).collect::<Vec<_>>();
        assert_eq!(sizes(14), [1; 14]);
        assert_eq!(sizes(13), [2, 2, 2, 1, 2, 2, 2, 1]);
        assert_eq!(sizes(0), [3, 3, 1, 3, 3, 1]);
        let units = units(&weights(7), 0);
        assert_eq!(units[3].names[1], "model.layers.1.self_attn.q_proj.weight");
        assert_eq!((units[3].columns, units[3].elements), (64, 3 * 8 * 64));
    }
}
