//! Description of a decoder, independent of file formats. Families create it, and blocks write
//! programs from it.
//!
//! Module names are data. Each block holds the names of its parts, relative to the layer.

use flambeau_tensor::DType;

mod attention;
mod feed_forward;
mod recurrent;

pub(crate) use self::{attention::*, feed_forward::*, recurrent::*};

/// The embedding, which may also serve as head.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
/// The bias of the head.
pub(crate) const HEAD_BIAS: &str = "lm_head.bias";

/// A decoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecoderConfig {
    /// Name of the family.
    pub(crate) family: &'static str,
    /// The module above the layers.
    pub(crate) root: &'static str,
    /// Prefix of cache names; methods of one program share state by name.
    pub(crate) state_prefix: &'static str,
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
    /// Positions for which the model was trained.
    pub(crate) positions: usize,
    /// Factor on the embedding's rows.
    pub(crate) embedding_scale: f64,
    pub(crate) per_layer: Option<PerLayer>,
    pub(crate) conditioned: Option<Conditioned>,
    pub(crate) streams: Option<Streams>,
    pub(crate) layers: Vec<Layer>,
    /// Norms of layers, and of whole residual streams.
    pub(crate) norm: Norm,
    /// Whether the norms after the halves of a layer apply to the sum with the residual stream.
    pub(crate) norms_sums: bool,
    /// The norm before the head, if there is one.
    pub(crate) final_norm: Option<&'static str>,
    /// Whether the head reads the embedding's weights. `None` means that it does if the checkpoint
    /// has no head.
    pub(crate) tied: Option<bool>,
    /// Whether the head has a bias.
    pub(crate) head_bias: bool,
    /// Width of the embedding and of the head, if projections lead to and from the residual stream.
    pub(crate) embedding_width: Option<usize>,
    /// Norm of the embedding's rows.
    pub(crate) embedding_norm: Option<NormKind>,
    /// The row of position 0 in a table of learned positions, which are added to the embedding.
    pub(crate) learned_positions: Option<usize>,
    /// Names of modules whose matrices the checkpoint stores as [inputs, outputs].
    pub(crate) columns: &'static [&'static str],
    /// Replacements in the names of tensors, applied in order, that give the names of this config.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// Divisor of the logits.
    pub(crate) logits_divisor: f64,
    /// Bound on the logits, by tanh.
    pub(crate) logits_cap: Option<f64>,
    /// Element type of the checkpoint, if stated.
    pub(crate) dtype: Option<DType>,
    /// Whether activations stay below 65504, the largest number of f16.
    pub(crate) fits_f16: bool,
    pub(crate) bos: Option<i64>,
    /// All ids that end a text.
    pub(crate) eos: Vec<i64>,
    /// Inputs of the model other than text, which the program does not support.
    pub(crate) unused: Vec<&'static str>,
}

impl DecoderConfig {
    /// Adds ids that end a text, without duplicates.
    pub(crate) fn add_eos(&mut self, ids: Vec<i64>) {
        for id in ids {
            if !self.eos.contains(&id) {
                self.eos.push(id);
            }
        }
    }
}

/// A norm over the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    pub(crate) eps: f64,
    pub(crate) kind: NormKind,
}

/// Formula and weights of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// Root mean square, times a weight.
    Rms,
    /// Root mean square, times 1 plus a weight.
    RmsPlusOne,
    /// Root mean square without a weight.
    RmsPlain,
    /// Layer norm with a weight and an optional bias.
    Layer { bias: bool },
    /// Layer norm times 1 plus a weight, plus a bias.
    LayerPlusOne,
    /// Layer norm without weight and bias.
    LayerPlain,
}

impl Norm {
    /// A root-mean-square norm with a weight.
    pub(crate) const fn rms(eps: f64) -> Norm {
        Norm { eps, kind: NormKind::Rms }
    }
}

/// One layer: a mixer of positions, then a feed-forward half on each position. Each result is added
/// to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) mixer: Mixer,
    pub(crate) feed_forward: FeedForward,
    pub(crate) norms: LayerNorms,
    /// Whether both halves read the layer's input. Without a separate norm, the second half reads
    /// the first half's normalized input.
    pub(crate) parallel: bool,
    /// Factor on additions to the residual stream.
    pub(crate) residual: f64,
    /// Whether `layer_scalar` multiplies the layer's output.
    pub(crate) scalar: bool,
}

/// Names of a layer's norms before and after each half, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerNorms {
    pub(crate) mixer_in: Option<&'static str>,
    pub(crate) mixer_out: Option<&'static str>,
    pub(crate) feed_in: Option<&'static str>,
    pub(crate) feed_out: Option<&'static str>,
}

impl LayerNorms {
    /// One norm before each half.
    pub(crate) const PRE: LayerNorms = LayerNorms {
        mixer_in: Some("input_layernorm"),
        mixer_out: None,
        feed_in: Some("post_attention_layernorm"),
        feed_out: None,
    };
    /// Norms before and after each half, with Gemma's names.
    pub(crate) const SANDWICH: LayerNorms = LayerNorms {
        mixer_in: Some("input_layernorm"),
        mixer_out: Some("post_attention_layernorm"),
        feed_in: Some("pre_feedforward_layernorm"),
        feed_out: Some("post_feedforward_layernorm"),
    };
}

/// The half of a layer that mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    Latent(Box<Latent>),
    DeltaNet(DeltaNet),
    ShortConv(ShortConv),
    Mamba(Box<Mamba>),
    KeyDecay(Box<KeyDecay>),
    /// The sum of attention and a state space model, which read the same normalized input.
    AttentionAndMamba(Box<Attention>, Box<Mamba>),
    /// The layer has no mixer.
    None,
}

impl Mixer {
    /// Whether it keeps a recurrent state. Unlike a cache, such a state cannot be truncated to an
    /// earlier position.
    pub(crate) fn has_state(&self) -> bool {
        match self {
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => false,
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::KeyDecay(_) => true,
            Mixer::AttentionAndMamba(..) => true,
        }
    }
}

/// Embeddings of a token for each layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerLayer {
    pub(crate) width: usize,
    pub(crate) vocab: usize,
    pub(crate) activation: Activation,
}

/// Parallel residual streams. Each layer computes on the active one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// Number of streams, at least 2.
    pub(crate) count: usize,
    pub(crate) active: usize,
    /// Whether a weight scales the active stream where the embeddings per layer read it.
    pub(crate) scaled: bool,
    /// Width of the low-rank projection beside each mixer.
    pub(crate) low_rank: usize,
}

/// Norms before the feed-forward halves. Their weights depend on one number given to the whole
/// model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conditioned {
    /// Module of a layer with two matrices, from the encoded number to factors on the norm's
    /// weights, minus 1.
    pub(crate) module: &'static str,
    pub(crate) value: f64,
    /// Base of the frequencies that encode the number as cosines and sines.
    pub(crate) base: f64,
}

impl DecoderConfig {
    /// Number of heads and head size of the first cache, which represent all caches. Zeros without
    /// a cache.
    pub(crate) fn cache_sizes(&self) -> (usize, usize) {
        let sizes = self.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => Some((a.kv_heads, a.head_dim)),
            Mixer::Latent(l) => Some((1, l.rank + l.rotated_dim)),
            Mixer::AttentionAndMamba(a, _) => Some((a.kv_heads, a.head_dim)),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::KeyDecay(_) | Mixer::None => None,
        });
        sizes.unwrap_or((0, 0))
    }

    /// Bytes of the key-value caches for `positions` positions, in floats of `size` bytes. Caches
    /// with a window are not counted.
    pub(crate) fn cache_bytes(&self, positions: usize, size: usize) -> u64 {
        let elements = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(a) | Mixer::AttentionAndMamba(a, _) if a.window.is_none() && !matches!(a.values, Values::Layer(_)) => {
                2 * a.kv_heads * a.head_dim
            }
            Mixer::Latent(l) => l.rank + l.rotated_dim,
            _ => 0,
        };
        let each: u64 = self.layers.iter().map(|layer| elements(layer) as u64).sum();
        each.saturating_mul(positions as u64).saturating_mul(size as u64)
    }

    /// Every attention block, with its layer.
    pub(crate) fn attentions(&mut self) -> impl Iterator<Item = (usize, &mut Attention)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.filter_map(|(i, layer)| match &mut layer.mixer {
            Mixer::Attention(a) | Mixer::AttentionAndMamba(a, _) => Some((i, &mut **a)),
            _ => None,
        })
    }
}
