//! FastConformer: the encoder of Parakeet and other NeMo models, for recordings of any length.

use flambeau_tensor::{DType, Tensor};

use super::{Heads, NORM_EPS, Projections};
use crate::{
    Error, Result,
    builder::{ConvParams, Int, Val},
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    writer::Writer,
};

/// Epsilon of the batch norm in a convolution.
const BATCH_NORM_EPS: f64 = 1e-5;
/// Base of the frequencies that encode positions.
const POSITION_BASE: f32 = 10_000.0;
const FREQUENCIES: &str = "position_frequencies";
/// Number of halvings of the frames, and taps of each halving convolution.
pub(crate) const HALVINGS: usize = 3;
const TAPS: usize = 3;

/// Hyperparameters of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoder {
    /// Bins of the spectrogram.
    pub(crate) mels: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Inner width of a feed-forward half.
    pub(crate) feed_forward: usize,
    /// Taps of a layer's convolution, an odd number.
    pub(crate) taps: usize,
    /// Channels of the convolutions that halve the number of frames.
    pub(crate) channels: usize,
    /// Whether linear layers have biases, and whether convolutions have biases.
    pub(crate) bias: bool,
    pub(crate) conv_bias: bool,
    /// Whether the layers' input is scaled by the square root of the width.
    pub(crate) scaled: bool,
    /// Largest number of output positions.
    pub(crate) positions: usize,
}

impl Encoder {
    /// Checks that the sizes are consistent. The names are the keys of bins, width, layers, taps
    /// and positions.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub(crate) fn checked(self, f: &Fields<'_>, [mels, width, layers, taps, positions]: [&str; 5]) -> Result<Encoder> {
        let (factor, heads, most) = (1 << HALVINGS, self.heads, MAX_POSITIONS >> HALVINGS);
        let rules = [
            (mels, self.mels.is_multiple_of(factor), format!("a multiple of {factor}")),
            (width, self.width.is_multiple_of(2 * heads), format!("a multiple of twice {heads} heads")),
            (layers, self.layers <= MAX_LAYERS, format!("at most {MAX_LAYERS}")),
            (taps, !self.taps.is_multiple_of(2), "an odd number".into()),
            (positions, self.positions <= most, format!("at most {most}")),
        ];
        match rules.into_iter().find(|(_, holds, _)| !holds) {
            Some((key, _, expected)) => Err(f.error(key, expected)),
            None => Ok(self),
        }
    }

    /// Largest number of frames of a spectrogram.
    pub(crate) fn frames(&self) -> usize {
        self.positions << HALVINGS
    }

    fn attention(&self) -> Heads {
        let bias = self.bias;
        let projections = Projections { queries: bias, keys: bias, values: bias, output: bias, output_name: "o_proj" };
        Heads { count: self.heads, width: self.width, projections }
    }

    /// `input_features` [1, frames, mels] of module `encoder` → last hidden state [1, positions,
    /// width].
    pub(crate) fn write(&self, w: &mut Writer<'_>, features: &Val) -> Result<Val> {
        let mut x = self.subsampled(w, features)?;
        if self.scaled {
            x = w.b.scale(&x, (self.width as f64).sqrt());
        }
        let tokens = w.b.size(&x, 1);
        let distances = self.distances(w, &tokens, x.dtype)?;
        for layer in 0..self.layers {
            x = self.layer(w, &x, (&tokens, &distances), &format!("encoder.layers.{layer}"))?;
        }
        Ok(x)
    }

    /// Reduces the frames to an eighth by three convolutions that halve both axes. The last two are
    /// depthwise, followed by a pointwise convolution. Then one projection joins all features of a
    /// position.
    fn subsampled(&self, w: &mut Writer<'_>, features: &Val) -> Result<Val> {
        let path = |layer: usize| format!("encoder.subsampling.layers.{layer}");
        let x = w.b.unsqueeze(features, 1);
        let halving = ConvParams { stride: 2, padding: TAPS / 2, groups: 1 };
        let x = self.convolved(w, &x, &path(0), (TAPS, halving))?;
        let mut x = w.b.relu(&x);
        for layer in (2..).step_by(3).take(HALVINGS - 1) {
            x = self.convolved(w, &x, &path(layer), (TAPS, ConvParams { groups: self.channels, ..halving }))?;
            x = self.convolved(w, &x, &path(layer + 1), (1, ConvParams { stride: 1, padding: 0, groups: 1 }))?;
            x = w.b.relu(&x);
        }
        let x = w.b.transpose(&x, 1, 2);
        let (tokens, values) = (w.b.size(&x, 1), x.dim(2) * x.dim(3));
        let x = w.b.reshape(&x, &[1.into(), tokens, values.into()]);
        w.linear(&x, "encoder.subsampling.linear", self.width, true)
    }

    fn convolved(&self, w: &mut Writer<'_>, x: &Val, path: &str, (taps, walk): (usize, ConvParams)) -> Result<Val> {
        w.b.enter(path);
        let weight = w.plain(&format!("{path}.weight"), &[self.channels, x.dim(1) / walk.groups, taps, taps])?;
        let bias = w.vector(&format!("{path}.bias"), self.channels)?;
        Ok(w.b.conv([x, &weight], Some(&bias), walk))
    }

    /// Encodings of the distances `n` to `-n` of `n` tokens [1, 2n + 1, width], with interleaved
    /// sines and cosines.
    fn distances(&self, w: &mut Writer<'_>, tokens: &Int, dtype: DType) -> Result<Val> {
        w.b.enter("encoder.encode_positions");
        let (least, end) = (w.b.sub_int(&0.into(), tokens), w.b.add_int(tokens, &1.into()));
        let places = w.b.places(&least, &end);
        let places = w.b.unsqueeze(&places, 1);
        // Places increase while distances decrease.
        let frequency = |i: usize| -1.0 / POSITION_BASE.powf((2 * i) as f32 / self.width as f32);
        let frequencies: Vec<f32> = (0..self.width / 2).map(frequency).collect();
        let frequencies = Tensor::from_slice(&frequencies, &[frequencies.len()]);
        let frequencies = frequencies.map_err(|e| Error::tensor(FREQUENCIES, "half the width", e.to_string()))?;
        let frequencies = w.b.constant(FREQUENCIES, &frequencies);
        let angles = w.b.mul(&places, &frequencies);
        let waves = [w.b.sin(&angles), w.b.cos(&angles)].map(|waves| w.b.unsqueeze(&waves, 2));
        let pairs = w.b.concatenate(&waves[0], &waves[1], 2);
        let count = w.b.size(&places, 0);
        let table = w.b.reshape(&pairs, &[1.into(), count, self.width.into()]);
        Ok(w.b.cast(&table, dtype))
    }

    fn layer(&self, w: &mut Writer<'_>, x: &Val, (tokens, distances): (&Int, &Val), path: &str) -> Result<Val> {
        let x = self.half_feed_forward(w, x, path, 1)?;
        let normed = w.layer_norm(&x, &format!("{path}.norm_self_att"), NORM_EPS)?;
        let mixed = self.attended(w, &normed, (tokens, distances), &format!("{path}.self_attn"))?;
        let x = w.b.add(&x, &mixed);
        let normed = w.layer_norm(&x, &format!("{path}.norm_conv"), NORM_EPS)?;
        let mixed = self.mixed_in_time(w, &normed, &format!("{path}.conv"))?;
        let x = w.b.add(&x, &mixed);
        let x = self.half_feed_forward(w, &x, path, 2)?;
        w.layer_norm(&x, &format!("{path}.norm_out"), NORM_EPS)
    }

    /// One of a layer's two feed-forward parts. Half of its result is added to `x`.
    fn half_feed_forward(&self, w: &mut Writer<'_>, x: &Val, path: &str, number: usize) -> Result<Val> {
        let normed = w.layer_norm(x, &format!("{path}.norm_feed_forward{number}"), NORM_EPS)?;
        let wide = w.linear(&normed, &format!("{path}.feed_forward{number}.linear1"), self.feed_forward, self.bias)?;
        let wide = w.b.silu(&wide);
        let narrow = w.linear(&wide, &format!("{path}.feed_forward{number}.linear2"), self.width, self.bias)?;
        let half = w.b.scale(&narrow, 0.5);
        Ok(w.b.add(x, &half))
    }

    /// Attention with scores by contents and by relative position (Dai et al. 2019,
    /// "Transformer-XL", section 3.3).
    fn attended(&self, w: &mut Writer<'_>, x: &Val, (tokens, distances): (&Int, &Val), path: &str) -> Result<Val> {
        let heads = self.attention();
        let q = heads.queries(w, x, tokens, path)?;
        let [k, v] = heads.keys_values(w, x, tokens, path)?;
        let count = w.b.size(distances, 1);
        let far = w.linear(distances, &format!("{path}.relative_k_proj"), self.width, false)?;
        let far = heads.apart(w, &far, &count);
        let mut biased = |name: &str| {
            let bias = w.plain(&format!("{path}.{name}"), &[heads.count, heads.dim()])?;
            let bias = w.b.unsqueeze(&bias, 1);
            Ok::<_, Error>(w.b.add(&q, &bias))
        };
        let [by_content, by_distance] = [biased("bias_u")?, biased("bias_v")?];
        let scores = self.distance_scores(w, (&by_distance, &far), tokens);
        let attended = w.b.attention_over_all([&by_content, &k, &v], Some(&scores), heads.scale());
        heads.output(w, &attended, tokens, path)
    }

    /// Scaled products [1, heads, n, n] of each query with the distance to each key. `far` holds
    /// projections [1, heads, 2n + 1, dim] of the distances n to -n. The product of query i and key
    /// j, at distance i - j, is in column n - i + j. This is element n + 2n·i + j of the
    /// concatenated rows.
    fn distance_scores(&self, w: &mut Writer<'_>, (queries, far): (&Val, &Val), tokens: &Int) -> Val {
        let heads = self.attention();
        let far = w.b.transpose(far, 2, 3);
        let products = w.b.matmul(queries, &far);
        let (twice, all) = (w.b.add_int(tokens, tokens), w.b.size(&products, 3));
        let places = w.b.mul_int(tokens, &all);
        let flat = w.b.reshape(&products, &[1.into(), self.heads.into(), places.clone()]);
        let shifted = w.b.slice(&flat, 2, tokens, &places);
        let rows = w.b.reshape(&shifted, &[1.into(), self.heads.into(), tokens.clone(), twice]);
        let scores = w.b.slice(&rows, 3, &0.into(), tokens);
        w.b.scale(&scores, heads.scale())
    }

    /// The convolution module: a gate, a depthwise convolution over time, a norm, and a pointwise
    /// convolution.
    fn mixed_in_time(&self, w: &mut Writer<'_>, x: &Val, path: &str) -> Result<Val> {
        let both = w.pointwise(x, &format!("{path}.pointwise_conv1"), 2 * self.width, self.conv_bias)?;
        let [value, gate] = w.b.split(&both, [self.width; 2]);
        let gate = w.b.sigmoid(&gate);
        let gated = w.b.mul(&value, &gate);
        let channels = w.b.transpose(&gated, 1, 2);
        let name = format!("{path}.depthwise_conv");
        w.b.enter(&name);
        let weight = w.plain(&format!("{name}.weight"), &[self.width, 1, self.taps])?;
        let bias = self.conv_bias.then(|| w.vector(&format!("{name}.bias"), self.width)).transpose()?;
        let walk = ConvParams { padding: self.taps / 2, ..ConvParams::depthwise(self.width) };
        let channels = w.b.conv([&channels, &weight], bias.as_ref(), walk);
        let channels = w.batch_norm(&channels, &format!("{path}.norm"), BATCH_NORM_EPS)?;
        let channels = w.b.silu(&channels);
        let x = w.b.transpose(&channels, 1, 2);
        w.pointwise(&x, &format!("{path}.pointwise_conv2"), self.width, self.conv_bias)
    }
}
