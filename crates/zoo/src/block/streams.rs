//! Parallel residual streams. A layer computes on one of them, predicts the others before, and
//! corrects all of them afterwards.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    Result,
    builder::{Int, Val},
    spec::{Layer, Streams},
};

/// Smallest mean square of a projected stream.
const LEAST: f64 = 1e-5;

impl Decoder<'_> {
    /// All streams [1, s, N, hidden] of the embedding `x` [1, s, hidden]: itself, and projections
    /// with its magnitude.
    pub(super) fn spread(&mut self, x: &Val, streams: &Streams) -> Result<Val> {
        let target = self.magnitude(x, 0.0);
        let mut all = vec![x.clone()];
        for i in 1..streams.count {
            let path = format!("{}.altup_projections.{}", self.config.root, i - 1);
            all.push(self.projected_stream(x, &path, &target)?);
        }
        self.w.b.enter(self.config.root);
        let all: Vec<Val> = all.iter().map(|stream| self.w.b.unsqueeze(stream, 2)).collect();
        Ok(self.w.b.concatenate_all(&all[0], &all[1..].iter().collect::<Vec<_>>(), 2))
    }

    /// The mean [1, s, hidden] of the first of the streams `x` and of projections of the others
    /// with its magnitude.
    pub(super) fn gathered(&mut self, x: &Val, streams: &Streams) -> Result<Val> {
        self.w.b.enter(self.config.root);
        let mut sum = self.w.b.select(x, 2, 0);
        let target = self.magnitude(&sum, 0.0);
        for i in 1..streams.count {
            let stream = self.w.b.select(x, 2, i as i64);
            let path = format!("{}.altup_unembed_projections.{}", self.config.root, i - 1);
            let projected = self.projected_stream(&stream, &path, &target)?;
            sum = self.w.b.add(&sum, &projected);
        }
        Ok(self.w.b.divide(&sum, streams.count as f64))
    }

    /// The projection of `x` by module `path`, scaled to the magnitude `target` [1, s, 1].
    fn projected_stream(&mut self, x: &Val, path: &str, target: &Val) -> Result<Val> {
        let made = self.w.linear(x, path, self.config.hidden, false)?;
        let own = self.magnitude(&made, LEAST);
        let wide = self.w.b.cast(&made, DType::F32);
        let scaled = self.w.b.mul(&wide, target);
        let scaled = self.w.b.div(&scaled, &own);
        Ok(self.w.b.cast(&scaled, x.dtype))
    }

    /// The root mean square of the last axis, in f32. The mean is at least `least`.
    fn magnitude(&mut self, x: &Val, least: f64) -> Val {
        let b = &mut self.w.b;
        let wide = b.cast(x, DType::F32);
        let squares = b.mul(&wide, &wide);
        let mean = b.mean(&squares);
        let mean = if least > 0.0 { b.clamp(&mean, least, f64::INFINITY) } else { mean };
        b.sqrt(&mean)
    }

    /// A layer of the streams `x` [1, s, N, hidden].
    pub(super) fn layer_of_streams(
        &mut self,
        x: &Val,
        streams: Streams,
        (index, layer): (usize, &Layer),
        per_layer: Option<&Val>,
    ) -> Result<Val> {
        let path = format!("{}.layers.{index}", self.config.root);
        let predicted = self.predicted(x, &streams, &path)?;
        let active = self.w.b.select(&predicted, 2, streams.active as i64);
        let normed = self.norm_if(&active, &path, layer.norms.mixer_in)?;
        let short = self.low_rank_residual(&normed, streams.low_rank, &path)?;
        let mixed = match self.mixed(&normed, index, &layer.mixer, &path)? {
            Some(mixed) => self.residual(&active, &mixed, layer, &path, layer.norms.mixer_out)?,
            None => active,
        };
        let sum = self.w.b.add(&mixed, &short);
        let sum = self.w.b.scale(&sum, 0.5f64.sqrt());
        let normed = self.norm_if(&sum, &path, layer.norms.feed_in)?;
        let output = self.output(&sum, &normed, layer, &path)?;
        let made = self.residual(&sum, &output, layer, &path, layer.norms.feed_out)?;
        let corrected = self.corrected(&predicted, &made, &streams, &path)?;
        let (Some(inputs), Some(p)) = (per_layer, self.config.per_layer) else { return Ok(corrected) };
        self.w.b.enter(&path);
        let mut first = self.w.b.select(&corrected, 2, streams.active as i64);
        if streams.scaled {
            let scale = self.w.vector(&format!("{path}.altup.correct_output_scale"), self.config.hidden)?;
            first = self.w.b.mul(&first, &scale);
        }
        let added = self.per_layer_part(&first, inputs, index, &p, &path)?;
        let added = self.w.b.unsqueeze(&added, 2);
        let [kept, others] = [(0, 1), (1, streams.count)].map(|(from, to)| self.w.b.slice(&corrected, 2, &from.into(), &to.into()));
        let others = self.w.b.add(&others, &added);
        Ok(self.w.b.concatenate(&kept, &others, 2))
    }

    /// `x` plus the norm of its projection through `rank` elements.
    fn low_rank_residual(&mut self, x: &Val, rank: usize, path: &str) -> Result<Val> {
        let low = self.w.linear(x, &format!("{path}.laurel.linear_left"), rank, false)?;
        let made = self.w.linear(&low, &format!("{path}.laurel.linear_right"), self.config.hidden, false)?;
        let made = self.norm(&made, &format!("{path}.laurel.post_laurel_norm"))?;
        Ok(self.w.b.add(x, &made))
    }

    /// Each stream plus a combination of all of them, with weights that depend on the active one.
    fn predicted(&mut self, x: &Val, streams: &Streams, path: &str) -> Result<Val> {
        self.w.b.enter(path);
        let active = self.w.b.select(x, 2, streams.active as i64);
        let routed = self.routed(&active, streams, path)?;
        let n = streams.count;
        let weights = self.w.gate(&routed, &format!("{path}.altup.prediction_coefs"), n * n, false)?;
        let weights = self.w.b.reshape(&weights, &[Int::from(1), self.span.tokens.clone(), n.into(), n.into()]);
        let combined = self.w.b.matmul(&weights, x);
        Ok(self.w.b.add(x, &combined))
    }

    /// All streams plus multiples of the difference between the layer's result and the prediction.
    fn corrected(&mut self, predicted: &Val, made: &Val, streams: &Streams, path: &str) -> Result<Val> {
        let routed = self.routed(made, streams, path)?;
        let weights = self.w.gate(&routed, &format!("{path}.altup.correction_coefs"), streams.count, false)?;
        let weights = self.w.b.shift(&weights, 1.0);
        let weights = self.w.b.unsqueeze(&weights, 3);
        let active = self.w.b.select(predicted, 2, streams.active as i64);
        let change = self.w.b.sub(made, &active);
        let change = self.w.b.unsqueeze(&change, 2);
        let change = self.w.b.mul(&weights, &change);
        Ok(self.w.b.add(predicted, &change))
    }

    /// Router values [1, s, N] of `x` [1, s, hidden], within ±1.
    fn routed(&mut self, x: &Val, streams: &Streams, path: &str) -> Result<Val> {
        let normed = self.norm(x, &format!("{path}.altup.router_norm"))?;
        let normed = self.w.b.divide(&normed, self.config.hidden as f64);
        let routed = self.w.gate(&normed, &format!("{path}.altup.modality_router"), streams.count, false)?;
        let routed = self.w.b.cast(&routed, DType::F32);
        let routed = self.w.b.tanh(&routed);
        Ok(self.w.b.cast(&routed, x.dtype))
    }
}
