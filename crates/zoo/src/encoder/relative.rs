//! Biases of the scores by distance: MPNet's learned ones, and ALiBi.

use flambeau_tensor::Tensor;

use super::{Distances, Parts};
use crate::{Error, Result, alibi::slopes, builder::Val};

/// Distance from which all distances share a bucket.
const FARTHEST: f32 = 128.0;

impl Parts<'_> {
    /// Biases [b, heads, s, s] of the scores by distance. Keys outside of `visible` [b, 1, 1, s]
    /// have minus infinity.
    pub(super) fn with_distances(&mut self, visible: &Val, distances: Distances) -> Result<Val> {
        let biases = match distances {
            Distances::Learned { buckets, heads } => self.learned(buckets, heads)?,
            Distances::Slopes { heads } => self.sloped(heads)?,
        };
        let biases = self.w.b.unsqueeze(&biases, 0);
        let hidden = self.w.b.not(visible);
        let zeros = self.w.b.cast(&hidden, self.dtype);
        let zeros = self.w.b.scale(&zeros, 0.0);
        let hiding = self.w.b.masked_fill(&zeros, &hidden, f64::NEG_INFINITY);
        Ok(self.w.b.add(&biases, &hiding))
    }

    /// Learned biases [heads, s, s] by buckets of distances.
    fn learned(&mut self, buckets: usize, heads: usize) -> Result<Val> {
        const NAME: &str = "encoder.relative_attention_bias";
        let most = self.tokens;
        self.w.b.enter(NAME);
        let ids: Vec<i64> = (0..most).flat_map(|q| (0..most).map(move |k| bucket(k as i64 - q as i64, buckets))).collect();
        let ids = Tensor::from_slice(&ids, &[most, most]).map_err(|e| Error::tensor(NAME, "a table of buckets", e.to_string()))?;
        let ids = self.w.b.constant("distance_buckets", &ids);
        let tokens = self.sizes[1].clone();
        let ids = self.w.b.slice(&ids, 0, &0.into(), &tokens);
        let ids = self.w.b.slice(&ids, 1, &0.into(), &tokens);
        let table = self.w.plain(&format!("{NAME}.weight"), &[buckets, heads])?;
        let biases = self.w.b.embedding(&table, &ids);
        let biases = self.w.b.transpose(&biases, 1, 2);
        Ok(self.w.b.transpose(&biases, 0, 1))
    }

    /// The negative distance times the slope of each head, [heads, s, s].
    fn sloped(&mut self, heads: usize) -> Result<Val> {
        self.w.b.enter("encoder.alibi");
        let slopes: Vec<f32> = slopes(heads, 8.0).iter().map(|&slope| -slope as f32).collect();
        let slopes = Tensor::from_slice(&slopes, &[heads, 1, 1]);
        let slopes = slopes.map_err(|e| Error::tensor("alibi_slopes", "a slope for each head", e.to_string()))?;
        let slopes = self.w.b.constant("alibi_slopes", &slopes);
        let tokens = self.sizes[1].clone();
        let b = &mut self.w.b;
        let keys = b.places(&0.into(), &tokens);
        let queries = b.unsqueeze(&keys, 1);
        let distance = b.sub(&queries, &keys);
        let distance = b.abs(&distance);
        let biases = b.mul(&slopes, &distance);
        Ok(b.cast(&biases, self.dtype))
    }
}

/// The bucket of a key `distance` positions after its query. Each direction has half of the
/// buckets. Half of these hold one distance each, and the others hold growing ranges.
fn bucket(distance: i64, buckets: usize) -> i64 {
    let half = (buckets / 2) as i64;
    let (exact, far) = (half / 2, distance.abs());
    let base = if distance > 0 { half } else { 0 };
    if far < exact {
        return base + far;
    }
    let steps = (far as f32 / exact as f32).ln() / (FARTHEST / exact as f32).ln() * (half - exact) as f32;
    base + (exact + steps as i64).min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_the_distance() {
        // Values of transformers' `MPNetEncoder.relative_position_bucket`.
        let found: Vec<i64> = [-200, -64, -16, -8, -7, -1, 0, 1, 8, 11, 12, 127, 128].map(|d| bucket(d, 32)).to_vec();
        assert_eq!(found, [15, 14, 10, 8, 7, 1, 0, 17, 24, 24, 25, 31, 31]);
    }
}
