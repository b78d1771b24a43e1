//! Feed-forward halves of a decoder layer: dense, or experts with a router.

/// The feed-forward half of a layer, which processes each position separately.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FeedForward {
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
    /// Number of standard deviations above the mean that the gate must exceed. The activation reads
    /// the excess, or the gate itself for `None`.
    pub(crate) cutoff: Option<f64>,
    /// Norm of the gated values, before the last matrix.
    pub(crate) inner_norm: Option<&'static str>,
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
    /// `x * sigmoid(1.702 x)`.
    GeluSigmoid,
    /// The positive part.
    Relu,
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
    /// The matrices of all experts one below the other: gates and ups [outputs, inputs], and the
    /// last ones [inputs, outputs].
    Flat,
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
    /// Bound on the logits, by tanh.
    pub(crate) cap: Option<f64>,
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
        cap: None,
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
