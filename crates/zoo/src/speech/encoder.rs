//! Whisper's encoder, which other families share.

use super::{Heads, NORM_EPS, Projections, feed_forward};
use crate::{
    Result,
    builder::{ConvParams, Int, Val},
    writer::Writer,
};

/// Layers of an encoder or of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Inner width of the feed-forward half.
    pub(crate) feed_forward: usize,
}

impl Stack {
    /// Attention in layers of this width.
    pub(super) fn attention(self, width: usize) -> Heads {
        let projections = Projections { queries: true, keys: false, values: true, output: true, output_name: "out_proj" };
        Heads { count: self.heads, width, projections }
    }
}

/// An encoder with two convolutions, a position table, layers with attention over the whole window,
/// and a norm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoder {
    /// The root module.
    pub(super) root: &'static str,
    pub(super) width: usize,
    /// Number of output positions, each of two frames.
    pub(super) positions: usize,
    pub(super) stack: Stack,
}

impl Encoder {
    /// A window's spectrogram [1, mels, 2 · positions] → the last hidden state [1, positions,
    /// width].
    pub(super) fn write(self, w: &mut Writer<'_>, features: &Val) -> Result<Val> {
        let Encoder { root, width, positions, stack } = self;
        let x = convolved(w, features, &format!("{root}.conv1"), width, 1)?;
        let x = convolved(w, &x, &format!("{root}.conv2"), width, 2)?;
        let x = w.b.transpose(&x, 1, 2);
        let places = w.plain(&format!("{root}.embed_positions.weight"), &[positions, width])?;
        let mut x = w.b.add(&x, &places);
        for layer in 0..stack.layers {
            x = self.layer(w, &x, &format!("{root}.layers.{layer}"))?;
        }
        w.layer_norm(&x, &format!("{root}.layer_norm"), NORM_EPS)
    }

    fn layer(self, w: &mut Writer<'_>, x: &Val, path: &str) -> Result<Val> {
        let (heads, tokens) = (self.stack.attention(self.width), Int::from(self.positions));
        let normed = w.layer_norm(x, &format!("{path}.self_attn_layer_norm"), NORM_EPS)?;
        let own = format!("{path}.self_attn");
        let q = heads.queries(w, &normed, &tokens, &own)?;
        let [k, v] = heads.keys_values(w, &normed, &tokens, &own)?;
        w.b.enter(&own);
        let attended = w.b.attention_over_all([&q, &k, &v], None, heads.scale());
        let mixed = heads.output(w, &attended, &tokens, &own)?;
        let x = w.b.add(x, &mixed);
        feed_forward(w, &x, heads.width, self.stack.feed_forward, path)
    }
}

/// A convolution of three taps with zero padding, then GELU.
fn convolved(w: &mut Writer<'_>, x: &Val, path: &str, width: usize, stride: usize) -> Result<Val> {
    w.b.enter(path);
    let weight = w.plain(&format!("{path}.weight"), &[width, x.dim(1), 3])?;
    let bias = w.vector(&format!("{path}.bias"), width)?;
    let x = w.b.conv([x, &weight], Some(&bias), ConvParams { stride, padding: 1, groups: 1 });
    Ok(w.b.gelu(&x, false))
}
