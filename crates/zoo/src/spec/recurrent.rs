//! Mixers with a recurrent state.

use super::{Activation, Norm};

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
    /// Activation of the convolution.
    pub(crate) activation: Activation,
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
    /// Biases of the projections before and after.
    pub(crate) proj_bias: bool,
    pub(crate) output_bias: bool,
    /// Activation of the convolution, and of Mamba 1's gate.
    pub(crate) activation: Activation,
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
    /// Activation of the convolutions.
    pub(crate) activation: Activation,
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
