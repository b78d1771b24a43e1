//! Description of a decoder, independent of file formats. Families fill it in, and blocks write programs from it.
//!
//! Names of modules are data: each block holds those of its parts, below the name of the layer.

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
    /// The norm ahead of the head.
    pub(crate) final_norm: &'static str,
    /// Whether the head reads the embedding's weights; `None` leaves it to whether the head has its own.
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
    /// Element type of the checkpoint, where it says so.
    pub(crate) dtype: Option<DType>,
    /// Whether activations stay below 65504, the largest number of f16.
    pub(crate) fits_f16: bool,
    pub(crate) bos: Option<i64>,
    /// All ids that end a text.
    pub(crate) eos: Vec<i64>,
    /// Inputs beside text that the model has and the program has not.
    pub(crate) unused: Vec<&'static str>,
}

impl Config {
    /// Adds ids that end a text, once each.
    pub(crate) fn add_eos(&mut self, ids: Vec<i64>) {
        for id in ids {
            if !self.eos.contains(&id) {
                self.eos.push(id);
            }
        }
    }
}

/// A norm of the last axis.
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
    /// Layer norm with a weight and, if there is one, a bias.
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

/// One layer: a mixer of positions, then a layer on each position. Each result is added to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) mixer: Mixer,
    pub(crate) feed: Feed,
    pub(crate) norms: LayerNorms,
    /// Whether both halves read the layer's input; without a norm of its own, the second half reads the norm of the first.
    pub(crate) parallel: bool,
    /// Factor on what is added to the residual stream.
    pub(crate) residual: f64,
    /// Whether `layer_scalar` multiplies the layer's output.
    pub(crate) scalar: bool,
}

/// Names of a layer's norms: before and after either half, where there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerNorms {
    pub(crate) mixer_in: Option<&'static str>,
    pub(crate) mixer_out: Option<&'static str>,
    pub(crate) feed_in: Option<&'static str>,
    pub(crate) feed_out: Option<&'static str>,
}

impl LayerNorms {
    /// One norm before either half.
    pub(crate) const PRE: LayerNorms = LayerNorms {
        mixer_in: Some("input_layernorm"),
        mixer_out: None,
        feed_in: Some("post_attention_layernorm"),
        feed_out: None,
    };
    /// Norms before and after either half, as Gemma names them.
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
    /// Attention and a state space that read the same norm's result; the sum of both.
    AttentionAndMamba(Box<Attention>, Box<Mamba>),
    /// The layer has no mixer.
    None,
}

impl Mixer {
    /// Whether it keeps a recurrent state. Unlike a cache, such a state cannot be cut back to an earlier position.
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
    /// Distance from which on keys are not seen, if there is one.
    pub(crate) window: Option<usize>,
    pub(crate) qk_norm: QkNorm,
    /// Whether values are normalized per head, without weights.
    pub(crate) value_norm: bool,
    pub(crate) values: Values,
    /// Which of queries, keys and values have biases.
    pub(crate) qkv_bias: QkvBias,
    /// Whether the output has a bias.
    pub(crate) output_bias: bool,
    pub(crate) joined: Joined,
    pub(crate) gate: Gate,
    /// Factors on what attention reads and gives.
    pub(crate) factors: [f64; 2],
    /// Factor on queries that grows with their position.
    pub(crate) temperature: Option<Temperature>,
    /// Length of the chunks of positions within which keys are seen, if there are chunks.
    pub(crate) chunk: Option<usize>,
    /// Bound on the scores, by tanh.
    pub(crate) cap: Option<f64>,
    /// Whether a learned logit a head joins the softmax.
    pub(crate) sinks: bool,
    pub(crate) names: AttentionNames,
}

/// How queries and keys are normalized; before they are rotated, unless stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// Each head, with the same weights.
    Heads,
    /// All heads together.
    Whole,
    /// A layer norm of each head with a weight of its own, without bias.
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
    /// Query, key and value of each head in turn.
    Heads,
}

/// Gate on the results of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    None,
    /// The sigmoid of a gate beside each query head, in the projection to queries.
    Queries,
    /// The sigmoid of a projection of that name, element by element.
    Elements(&'static str),
    /// The sigmoid of a projection of that name, one number a head.
    Heads(&'static str),
    /// The softplus of a projection of that name, one number a head.
    SoftHeads(&'static str),
}

/// The factor `1 + beta * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Temperature {
    pub(crate) beta: f64,
    pub(crate) offset: usize,
    pub(crate) length: f64,
}

/// Where a layer's keys and values are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Projections of their own.
    Projected,
    /// The projected keys serve as values, before they are normalized and rotated.
    Keys,
    /// The cache of another layer, ahead of this one.
    Layer(usize),
}

/// Which of the projections to queries, keys and values have biases.
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

/// Attention over a latent vector a position, from which the heads' keys and values are made; a rotated part is shared by all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latent {
    pub(crate) heads: usize,
    /// Width of the queries' latent vector; without it they are projected at once.
    pub(crate) query_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub(crate) rank: usize,
    /// Elements of a head's query that are not rotated, and that are.
    pub(crate) plain_dim: usize,
    pub(crate) rotated_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f64,
    /// Rotary embedding; without one, the rotated part is used as it is.
    pub(crate) rope: Option<Rope>,
    /// Projection to one number a head whose sigmoid multiplies the head's result.
    pub(crate) gate: Option<&'static str>,
    /// Norm of the latent vectors.
    pub(crate) norm: Norm,
    /// Whether the projections to latent vectors and the output have biases.
    pub(crate) bias: bool,
}

/// A linear attention whose state forgets and corrects: the gated delta rule behind a short convolution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaNet {
    pub(crate) key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Taps of the convolution.
    pub(crate) taps: usize,
    /// Norm of the results, ahead of their gate.
    pub(crate) norm: Norm,
    /// Whether value head `h` reads key head `h` modulo their number; else as many value heads in a row read the same one.
    pub(crate) tiled: bool,
}

/// A state space behind a short convolution: each head decays its state and adds the product of its input and a key.
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
    /// Mamba 1. A head is one channel, with a decay for each element of its state. Steps come from a projection of rank `rank`;
    /// `norm` applies to steps, keys and queries.
    Channels { rank: usize, norm: Option<Norm> },
    /// Mamba 2. A head has one decay.
    Heads {
        /// Bounds on steps.
        limits: (f64, f64),
        /// Norm of the gated result, in as many parts as there are groups.
        norm: Option<Norm>,
        /// Whether the gate multiplies after the norm.
        gate_last: bool,
    },
}

/// Factors in a state space.
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

/// The delta rule whose state decays in each element of a key on its own, behind short convolutions of queries, keys and values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyDecay {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Taps of the convolutions.
    pub(crate) taps: usize,
    /// Lower bound of the logarithm of the decay; without one it has a softplus's range.
    pub(crate) lower_bound: Option<f64>,
    /// Whether the projections to decays and output gates go through the width of a head.
    pub(crate) low_rank: bool,
    pub(crate) norm: Norm,
}

/// A gated causal convolution of each channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortConv {
    pub(crate) taps: usize,
    pub(crate) bias: bool,
}

/// The half of a layer that works on each position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Feed {
    Mlp(Mlp),
    Experts(Box<Experts>),
    /// Both at once: the sum of the normalized results.
    Both(Mlp, Box<Experts>),
    /// The layer has a mixer alone.
    None,
}

/// A layer on each position: `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mlp {
    pub(crate) width: usize,
    pub(crate) gated: bool,
    /// Factors on the gate ahead of its activation, and on the result.
    pub(crate) factors: [f64; 2],
    pub(crate) activation: Activation,
    pub(crate) bias: MlpBias,
    /// Whether gate and up are one matrix.
    pub(crate) joined: bool,
    pub(crate) module: &'static str,
    pub(crate) names: MlpNames,
}

/// Which of a gated layer's matrices have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MlpBias {
    None,
    All,
    /// The one to the residual stream.
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
    /// As Mixtral and LFM2 number them.
    pub(crate) const NUMBERED: MlpNames = MlpNames { gate: "w1", up: "w3", down: "w2" };
}

/// How a gate acts on what it gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    Silu,
    GeluTanh,
    GeluErf,
    /// The square of the positive part.
    Relu2,
    /// Parabolas with two learned numbers a layer, `alpha_p` and `alpha_n`.
    Xielu,
    /// `(up + 1) * gate * sigmoid(alpha * gate)`, the gate at most `limit`, up within it.
    ClampedSwish {
        alpha: f64,
        limit: f64,
    },
}

/// Experts of which a router chooses a few for each position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    /// Experts for each position.
    pub(crate) chosen: usize,
    pub(crate) width: usize,
    pub(crate) activation: Activation,
    pub(crate) router: Router,
    /// Input and output width of experts; the width of the residual stream if `None`.
    pub(crate) latent: Option<usize>,
    /// A gated layer for all positions beside them.
    pub(crate) shared: Option<Mlp>,
    /// A projection to the logit of the shared layer's gate.
    pub(crate) shared_gate: Option<&'static str>,
    /// Module with the router, the experts and the shared layer; empty for the layer itself.
    pub(crate) module: &'static str,
    pub(crate) names: MlpNames,
    /// Whether the matrices have biases.
    pub(crate) bias: bool,
    /// Whether a gate multiplies; without one, an expert is `down(act(up(x)))`.
    pub(crate) gated: bool,
    /// Whether router weights multiply the inputs of experts instead of their outputs.
    pub(crate) weighted_input: bool,
    pub(crate) layout: ExpertLayout,
}

/// How a checkpoint holds the matrices of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertLayout {
    /// Outputs by inputs, gates above ups where they are joined.
    Rows,
    /// Inputs by outputs where gates and ups are joined, gates first.
    Columns,
    /// Gates and ups alternate where they are joined; floats are inputs by outputs.
    Alternating,
}

/// Selection of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Router {
    pub(crate) module: &'static str,
    /// Whether the logits have a bias.
    pub(crate) bias: bool,
    pub(crate) scores: Scores,
    /// A vector that is added to the scores for choosing alone.
    pub(crate) correction: Option<&'static str>,
    /// Groups of experts, and how many of them may be chosen from.
    pub(crate) groups: Option<(usize, usize)>,
    /// Number of best experts whose sum is the score of a group.
    pub(crate) group_best: usize,
    /// Whether the chosen scores are divided by their sum plus this.
    pub(crate) normalized: Option<f64>,
    /// Factor on the weights.
    pub(crate) scale: f64,
    /// Whether logits are computed in f32 throughout.
    pub(crate) wide: bool,
    /// Whether the router normalizes what it reads, with scales of its own, and scales each expert.
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

/// How logits become the weights of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scores {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Softmax over the chosen ones.
    SoftmaxOfChosen,
    /// Experts chosen one after the other, each weighted by its softmax over the logits within twice this relative distance of
    /// the best that is left.
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

/// Norms ahead of what works on each position, whose weights depend on a number that the whole model is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conditioned {
    /// Module of a layer with two matrices, from what the number becomes to factors on the norm's weights, less 1.
    pub(crate) module: &'static str,
    pub(crate) value: f64,
    /// Base of the frequencies whose cosines and sines the number becomes.
    pub(crate) base: f64,
}

impl Config {
    /// Heads and elements a head of the first cache, which stand for all; zeros where there is none.
    pub(crate) fn cache_sizes(&self) -> (usize, usize) {
        let sizes = self.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => Some((a.kv_heads, a.head_dim)),
            Mixer::Latent(l) => Some((1, l.rank + l.rotated_dim)),
            Mixer::AttentionAndMamba(a, _) => Some((a.kv_heads, a.head_dim)),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) | Mixer::KeyDecay(_) | Mixer::None => None,
        });
        sizes.unwrap_or((0, 0))
    }

    /// Bytes of the caches of keys and values for a number of positions, as floats of `size` bytes each; rows behind a window are left out.
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

    /// Every attention.
    pub(crate) fn attentions(&mut self) -> impl Iterator<Item = (usize, &mut Attention)> {
        let layers = self.layers.iter_mut().enumerate();
        layers.filter_map(|(i, layer)| match &mut layer.mixer {
            Mixer::Attention(a) | Mixer::AttentionAndMamba(a, _) => Some((i, &mut **a)),
            _ => None,
        })
    }
}
