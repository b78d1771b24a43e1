//! Attention of a decoder layer, and its positions.

use std::sync::Arc;

use super::Norm;
use crate::rope::Rope;

/// Attention of grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attention {
    pub(crate) heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Elements of a head's value, at most `head_dim`. `None` means `head_dim`.
    pub(crate) value_dim: Option<usize>,
    /// Factor on the scores.
    pub(crate) scale: f64,
    /// Rotary embedding, if there is one.
    pub(crate) rope: Option<Rope>,
    /// Distance from which keys are hidden, if limited.
    pub(crate) window: Option<usize>,
    pub(crate) qk_norm: QkNorm,
    /// Bound on queries, keys and values before the rotation.
    pub(crate) clip: Option<f64>,
    /// Whether values are normalized per head, without weights.
    pub(crate) value_norm: bool,
    pub(crate) values: Values,
    /// Biases of queries, keys and values.
    pub(crate) qkv_bias: QkvBias,
    /// Whether the output has a bias.
    pub(crate) output_bias: bool,
    pub(crate) joined: Joined,
    pub(crate) gate: Gate,
    /// Norm of the joined results of all heads, before the output projection.
    pub(crate) output_norm: Option<&'static str>,
    /// Factors on the input and the output of attention.
    pub(crate) factors: [f64; 2],
    /// Factor on queries that grows with their position.
    pub(crate) temperature: Option<Temperature>,
    /// Length of the chunks of positions, if queries see only keys in their chunk.
    pub(crate) chunk: Option<usize>,
    /// Factor of each head on the negative distance, which is added to the scores.
    pub(crate) slopes: Option<Arc<[f32]>>,
    /// Bound on the scores, by tanh.
    pub(crate) cap: Option<f64>,
    /// Whether the softmax of each head includes a learned logit.
    pub(crate) sinks: bool,
    pub(crate) names: AttentionNames,
}

impl Attention {
    /// Elements of a head's value.
    pub(crate) fn value_dim(&self) -> usize {
        self.value_dim.unwrap_or(self.head_dim)
    }

    /// The rows of the joined matrix that hold all queries (0), keys (1) or values (2), head by
    /// head.
    pub(crate) fn joined_rows(&self, part: usize) -> Vec<usize> {
        let kv = self.kv_heads * self.head_dim;
        self.joined.rows([self.heads * self.head_dim, kv, kv], self.kv_heads, part)
    }
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
    /// The queries of one key head, its key and its value, then the same of the next key head.
    Groups,
    /// This number of parts with equal shares of all heads. Each holds queries, then values, then
    /// keys.
    Shards(usize),
}

impl Joined {
    /// The rows of a joined matrix that hold all queries (0), keys (1) or values (2). A part has
    /// `sizes` rows in total, divided among `groups` key heads.
    fn rows(self, sizes: [usize; 3], groups: usize, part: usize) -> Vec<usize> {
        let (blocks, order) = match self {
            Joined::No | Joined::Blocks => (1, [0, 1, 2]),
            Joined::Groups => (groups, [0, 1, 2]),
            Joined::Shards(count) => (count, [0, 2, 1]),
        };
        let each = sizes.map(|size| size / blocks);
        let before = order.iter().take_while(|&&other| other != part).map(|&other| each[other]);
        let (total, start) = (each.iter().sum::<usize>(), before.sum::<usize>());
        (0..blocks).flat_map(|block| (0..each[part]).map(move |row| block * total + start + row)).collect()
    }
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
    /// The softplus of a projection with this name, element by element.
    SoftElements(&'static str),
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
