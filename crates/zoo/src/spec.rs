//! Description of a decoder, independent of file formats. Families create it, and blocks write
//! programs from it.
//!
//! Module names are data. Each block holds the names of its parts, relative to the layer.

use flambeau_tensor::DType;

use crate::rope::Rope;

/// A decoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
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
    pub(crate) layers: Vec<Layer>,
    /// Norms of layers, and of whole residual streams.
    pub(crate) norm: Norm,
    /// The norm before the head.
    pub(crate) final_norm: &'static str,
    /// Whether the head reads the embedding's weights. `None` means that it does if the checkpoint
    /// has no head.
    pub(crate) tied: Option<bool>,
    /// Whether the head has a bias.
    pub(crate) head_bias: bool,
    /// Whether the embedding's rows are normalized, without weights.
    pub(crate) embedding_norm: bool,
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

impl Config {
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
    pub(crate) feed: Feed,
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

/// Attention of grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attention {
    pub(crate) heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Factor on the scores.
    pub(crate) scale: f64,
    /// Rotary embedding, if there is one.
    pub(crate) rope: Option<Rope>,
    /// Distance from which keys are hidden, if limited.
    pub(crate) window: Option<usize>,
    pub(crate) qk_norm: QkNorm,
    /// Whether values are normalized per head, without weights.
    pub(crate) value_norm: bool,
    pub(crate) values: Values,
    /// Biases of queries, keys and values.
    pub(crate) qkv_bias: QkvBias,
    /// Whether the output has a bias.
    pub(crate) output_bias: bool,
    pub(crate) joined: Joined,
    pub(crate) gate: Gate,
    /// Factors on the input and the output of attention.
    pub(crate) factors: [f64; 2],
    /// Factor on queries that grows with their position.
    pub(crate) temperature: Option<Temperature>,
    /// Length of the chunks of positions, if queries see only keys in their chunk.
    pub(crate) chunk: Option<usize>,
    /// Bound on the scores, by tanh.
    pub(crate) cap: Option<f64>,
    /// Whether the softmax of each head includes a learned logit.
    pub(crate) sinks: bool,
    pub(crate) names: AttentionNames,
}

/// Normalization of queries and keys, before the rotation unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// Each head, with the same weights.
    Heads,
    /// All heads together.
    Whole,
    /// A layer norm of each head with a separate weight, without bias.
    OwnHeads,
    /// Each head, with the same weights, after the rotation.
    RotatedHeads,
    /// The root mean square of each head, without weights, after the rotation.
    RotatedPlain,
}

impl QkNorm {
    /// Whether the norm follows the rotation.
    pub(crate) fn is_rotated(self) -> bool {
        matches!(self, QkNorm::RotatedHeads | QkNorm::RotatedPlain)
    }
}

/// Whether the projections to queries, keys and values are one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Three matrices.
    No,
    /// All queries, then all keys, then all values.
    Blocks,
    /// Query, key and value of one head after another.
    Heads,
}

/// Gate on the results of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    None,
    /// The sigmoid of a gate next to each query head, in the projection to queries.
    Queries,
    /// The sigmoid of a projection with this name, element by element.
    Elements(&'static str),
    /// The sigmoid of a projection with this name, one number per head.
    Heads(&'static str),
    /// The softplus of a projection with this name, one number per head.
    SoftHeads(&'static str),
}

/// The factor `1 + beta * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Temperature {
    pub(crate) beta: f64,
    pub(crate) offset: usize,
    pub(crate) length: f64,
}

/// Source of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Separate projections.
    Projected,
    /// The projected keys serve as values, before normalization and rotation.
    Keys,
    /// The cache of an earlier layer.
    Layer(usize),
}

/// Biases of the projections to queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkvBias {
    None,
    All,
    /// Projections to queries and values.
    AllButKeys,
}

impl From<bool> for QkvBias {
    fn from(all: bool) -> QkvBias {
        if all { QkvBias::All } else { QkvBias::None }
    }
}

/// Names of an attention's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionNames {
    pub(crate) module: &'static str,
    pub(crate) output: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
}

impl AttentionNames {
    pub(crate) const COMMON: AttentionNames =
        AttentionNames { module: "self_attn", output: "o_proj", q_norm: "q_norm", k_norm: "k_norm" };
}

/// Attention over one latent vector per position, from which the heads' keys and values are
/// computed. All heads share the rotated part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latent {
    pub(crate) heads: usize,
    /// Width of the queries' latent vector. `None` means a direct projection.
    pub(crate) query_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub(crate) rank: usize,
    /// Elements of a head's query without rotation, and with rotation.
    pub(crate) plain_dim: usize,
    pub(crate) rotated_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f64,
    /// Rotary embedding. Without one, the rotated part is used unchanged.
    pub(crate) rope: Option<Rope>,
    /// Projection to one number per head, whose sigmoid multiplies the head's result.
    pub(crate) gate: Option<&'static str>,
    /// Norm of the latent vectors.
    pub(crate) norm: Norm,
    /// Whether the projections to latent vectors and the output have biases.
    pub(crate) bias: bool,
}

/// Linear attention with a decaying and corrected state: the gated delta rule after a short
/// convolution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaNet {
    pub(crate) key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Taps of the convolution.
    pub(crate) taps: usize,
    /// Norm of the results, before their gate.
    pub(crate) norm: Norm,
    /// Whether value head `h` reads key head `h` modulo their number. Else, consecutive value heads
    /// read the same key head.
    pub(crate) tiled: bool,
}

/// A state space model after a short convolution. Each head decays its state and adds the product
/// of its input and a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mamba {
    pub(crate) heads: usize,
    /// Elements of a head's input.
    pub(crate) head_dim: usize,
    /// Elements of a key.
    pub(crate) state: usize,
    /// Groups of heads that share keys and queries.
    pub(crate) groups: usize,
    /// Taps of the convolution.
    pub(crate) taps: usize,
    pub(crate) conv_bias: bool,
    pub(crate) proj_bias: bool,
    pub(crate) form: MambaForm,
    pub(crate) module: &'static str,
    /// Factors on the input, the result, and the projected gate, input, keys, queries and steps.
    pub(crate) factors: MambaFactors,
}

/// Differences between Mamba 1 and Mamba 2.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MambaForm {
    /// Mamba 1. A head is one channel, with a decay for each element of its state. Steps come from
    /// a projection of rank `rank`. `norm` applies to steps, keys and queries.
    Channels { rank: usize, norm: Option<Norm> },
    /// Mamba 2. A head has one decay.
    Heads {
        /// Bounds on steps.
        limits: (f64, f64),
        /// Norm of the gated result, separately for each group.
        norm: Option<Norm>,
        /// Whether the gate multiplies after the norm.
        gate_last: bool,
    },
}

/// Factors in a state space model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MambaFactors {
    pub(crate) input: f64,
    pub(crate) output: f64,
    /// On the gate, the input, keys, queries and steps.
    pub(crate) parts: [f64; 5],
}

impl MambaFactors {
    pub(crate) const ONE: MambaFactors = MambaFactors { input: 1.0, output: 1.0, parts: [1.0; 5] };
}

/// The delta rule with a separate decay per key element, after short convolutions of queries, keys
/// and values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyDecay {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Taps of the convolutions.
    pub(crate) taps: usize,
    /// Lower bound of the logarithm of the decay. Without one, it has the range of a softplus.
    pub(crate) lower_bound: Option<f64>,
    /// Whether the projections to decays and output gates are two matrices through the width of a
    /// head.
    pub(crate) low_rank: bool,
    pub(crate) norm: Norm,
}

/// A gated causal convolution of each channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortConv {
    pub(crate) taps: usize,
    pub(crate) bias: bool,
}

/// The feed-forward half of a layer, which processes each position separately.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Feed {
    Mlp(Mlp),
    Experts(Box<Experts>),
    /// The sum of the normalized results of both.
    Both(Mlp, Box<Experts>),
    /// The layer has only a mixer.
    None,
}

/// A feed-forward layer: `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mlp {
    pub(crate) width: usize,
    pub(crate) gated: bool,
    /// Factors on the gate before its activation, and on the result.
    pub(crate) factors: [f64; 2],
    pub(crate) activation: Activation,
    pub(crate) bias: MlpBias,
    /// Whether gate and up are one matrix.
    pub(crate) joined: bool,
    pub(crate) module: &'static str,
    pub(crate) names: MlpNames,
}

/// Biases of a gated layer's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MlpBias {
    None,
    All,
    /// Only the projection to the residual stream.
    Down,
}

impl From<bool> for MlpBias {
    fn from(all: bool) -> MlpBias {
        if all { MlpBias::All } else { MlpBias::None }
    }
}

/// Names of a gated layer's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MlpNames {
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

impl MlpNames {
    pub(crate) const COMMON: MlpNames = MlpNames { gate: "gate_proj", up: "up_proj", down: "down_proj" };
    /// The numbers of Mixtral and LFM2.
    pub(crate) const NUMBERED: MlpNames = MlpNames { gate: "w1", up: "w3", down: "w2" };
}

/// Activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    Silu,
    GeluTanh,
    GeluErf,
    /// The square of the positive part.
    Relu2,
    /// xIELU, with two learned numbers per layer, `alpha_p` and `alpha_n`.
    Xielu,
    /// `(up + 1) * gate * sigmoid(alpha * gate)`, with `gate` at most `limit` and `up` within
    /// ±`limit`.
    ClampedSwish {
        alpha: f64,
        limit: f64,
    },
}

/// Experts and the router that selects a few of them for each position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    /// Number of selected experts per position.
    pub(crate) chosen: usize,
    pub(crate) width: usize,
    pub(crate) activation: Activation,
    pub(crate) router: Router,
    /// Input and output width of experts. `None` means the width of the residual stream.
    pub(crate) latent: Option<usize>,
    /// A shared gated layer for all positions.
    pub(crate) shared: Option<Mlp>,
    /// Name of the projection to the logit of the shared layer's gate.
    pub(crate) shared_gate: Option<&'static str>,
    /// Module with the router, the experts and the shared layer. Empty for the layer itself.
    pub(crate) module: &'static str,
    pub(crate) names: MlpNames,
    /// Whether the matrices have biases.
    pub(crate) bias: bool,
    /// Whether experts have a gate. Without one, an expert is `down(act(up(x)))`.
    pub(crate) gated: bool,
    /// Whether router weights multiply the inputs of experts instead of their outputs.
    pub(crate) weighted_input: bool,
    pub(crate) layout: ExpertLayout,
}

/// Storage of the matrices of experts in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertLayout {
    /// Matrices [outputs, inputs]. Joined ones have gates above ups.
    Rows,
    /// Matrices [inputs, outputs] if gates and ups are joined, gates first.
    Columns,
    /// Joined gates and ups alternate. Floats are [inputs, outputs].
    Alternating,
}

/// Selection of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Router {
    pub(crate) module: &'static str,
    /// Whether the logits have a bias.
    pub(crate) bias: bool,
    pub(crate) scores: Scores,
    /// A vector added to the scores only for the selection.
    pub(crate) correction: Option<&'static str>,
    /// Number of groups of experts, and of groups that may be selected.
    pub(crate) groups: Option<(usize, usize)>,
    /// Number of best experts whose sum is the score of a group.
    pub(crate) group_best: usize,
    /// Number added to the sum by which the selected scores are divided. `None` means no division.
    pub(crate) normalized: Option<f64>,
    /// Factor on the weights.
    pub(crate) scale: f64,
    /// Whether logits are computed in f32 throughout.
    pub(crate) wide: bool,
    /// Whether the router normalizes its input with separate scales, and scales each expert.
    pub(crate) own_norm: bool,
}

impl Router {
    /// A softmax over all experts.
    pub(crate) const SOFTMAX: Router = Router {
        module: "gate",
        bias: false,
        scores: Scores::Softmax,
        correction: None,
        groups: None,
        group_best: 2,
        normalized: None,
        scale: 1.0,
        wide: false,
        own_norm: false,
    };
}

/// Conversion of logits to weights of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scores {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Softmax over the selected experts.
    SoftmaxOfChosen,
    /// Experts are selected one after another. Each weight is a softmax over the logits within
    /// twice this relative distance of the best remaining logit.
    Sparse {
        jitter: f64,
    },
}

/// Embeddings of a token for each layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerLayer {
    pub(crate) width: usize,
    pub(crate) vocab: usize,
    pub(crate) activation: Activation,
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

impl Config {
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
