//! Keys shared by the configs of most families.

use flambeau_pt2::ScalarType;
use flambeau_tensor::DType;

use crate::{
    Error, Result,
    fields::Fields,
    limits::{MAX_HEAD_DIM, MAX_LAYERS},
    rope::Rope,
    spec::{
        Activation, Attention, AttentionNames, DecoderConfig, ExpertLayout, Experts, FeedForward, Gate, Joined, Layer, LayerNorms,
        Mixer, Mlp, MlpBias, MlpNames, Norm, NormKind, QkNorm, QkvBias, Router, Values,
    },
};

/// Keys of MosaicML's configs, DBRX and MPT, in place of the usual ones.
pub(super) const MOSAIC_KEYS: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("num_attention_heads", "n_heads"),
    ("num_hidden_layers", "n_layers"),
    ("max_position_embeddings", "max_seq_len"),
];

/// Defaults of a family for missing keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// Heads of keys and values. `None` means as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// Elements of a head. `None` means the width divided by the number of heads.
    pub(super) head_dim: Option<usize>,
    pub(super) positions: usize,
    /// Layers of a model whose config states their kinds only.
    pub(super) layers: Option<usize>,
    /// Other names of Llama's keys, each after Llama's. Configs may use either.
    pub(super) keys: &'static [(&'static str, &'static str)],
    pub(super) norm_eps: f64,
    pub(super) norm: NormKind,
    pub(super) norm_key: &'static str,
    pub(super) activation_key: &'static str,
    /// The activation without a key. `None` means the default of [`activation`].
    pub(super) activation: Option<Activation>,
    pub(super) tied: bool,
    /// Base of the rotary frequencies, and rotated share of a head.
    pub(super) theta: f64,
    pub(super) rotary_part: f64,
}

impl Defaults {
    pub(super) const LLAMA: Defaults = Defaults {
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        layers: None,
        keys: &[],
        norm_eps: 1e-6,
        norm: NormKind::Rms,
        norm_key: "rms_norm_eps",
        activation_key: "hidden_act",
        activation: None,
        tied: false,
        theta: 10_000.0,
        rotary_part: 1.0,
    };

    /// The name under which a config states Llama's key `key`.
    pub(super) fn key(&self, f: &Fields<'_>, key: &'static str) -> &'static str {
        let other = self.keys.iter().find(|(known, _)| *known == key).map(|(_, other)| *other);
        other.filter(|other| f.get(other).is_some() || f.get(key).is_none()).unwrap_or(key)
    }
}

/// Hyperparameters that most families share.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) defaults: Defaults,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) positions: usize,
    pub(super) norm: Norm,
    pub(super) activation: Activation,
}

impl Base {
    pub(super) fn read(f: &Fields<'_>, defaults: &Defaults) -> Result<Base> {
        let [hidden_key, heads_key, layers_key, kv_heads_key, positions_key] =
            ["hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "max_position_embeddings"]
                .map(|key| defaults.key(f, key));
        let (hidden, heads) = (f.size(hidden_key)?, f.size(heads_key)?);
        let layers = f.size_opt(layers_key)?.or(defaults.layers).ok_or_else(|| f.error(layers_key, "an integer"))?;
        let even = || hidden.is_multiple_of(heads).then(|| hidden / heads);
        // Null means the rule, also where the default is a number.
        let unless_null = |key: &str, default: Option<usize>| default.filter(|_| !f.has_null(key));
        let head_dim = f.size_opt("head_dim")?.or(unless_null("head_dim", defaults.head_dim)).or_else(even);
        let head_dim = head_dim.ok_or_else(|| f.error(heads_key, format!("a divisor of {hidden_key} {hidden}")))?;
        let kv_heads = f.size_opt(kv_heads_key)?.or(unless_null(kv_heads_key, defaults.kv_heads)).unwrap_or(heads);
        if layers > MAX_LAYERS {
            return Err(f.error(layers_key, format!("at most {MAX_LAYERS}")));
        }
        if head_dim > MAX_HEAD_DIM {
            return Err(Error::limit("elements of an attention head", head_dim as u64, MAX_HEAD_DIM as u64));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(f.error(kv_heads_key, format!("a divisor of the {heads} attention heads")));
        }
        let norm = Norm { eps: f.positive_or(defaults.norm_key, defaults.norm_eps)?, kind: defaults.norm };
        let positions = f.size_or(positions_key, defaults.positions)?;
        let stated = activation(f, defaults.activation_key)?;
        let activation = defaults.activation.filter(|_| f.get(defaults.activation_key).is_none()).unwrap_or(stated);
        Ok(Base { defaults: *defaults, hidden, layers, heads, kv_heads, head_dim, positions, norm, activation })
    }

    /// Llama's attention.
    pub(super) fn attention(&self, rope: Option<Rope>) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: None,
            scale: (self.head_dim as f64).sqrt().recip(),
            rope,
            window: None,
            qk_norm: QkNorm::None,
            clip: None,
            value_norm: false,
            values: Values::Projected,
            qkv_bias: QkvBias::None,
            output_bias: false,
            joined: Joined::No,
            gate: Gate::None,
            output_norm: None,
            factors: [1.0; 2],
            temperature: None,
            chunk: None,
            slopes: None,
            cap: None,
            sinks: false,
            names: AttentionNames::COMMON,
        }
    }

    /// Llama's gated layer.
    pub(super) fn mlp(&self, f: &Fields<'_>) -> Result<Mlp> {
        Ok(self.mlp_of(f.size("intermediate_size")?, "mlp"))
    }

    /// A layer without a gate, by default four times as wide as the residual stream.
    pub(super) fn ungated(&self, f: &Fields<'_>) -> Result<Mlp> {
        let width = f.size_or(self.defaults.key(f, "intermediate_size"), 4 * self.hidden)?;
        Ok(Mlp { gated: false, ..self.mlp_of(width, "mlp") })
    }

    pub(super) fn mlp_of(&self, width: usize, module: &'static str) -> Mlp {
        Mlp {
            width,
            gated: true,
            factors: [1.0; 2],
            activation: self.activation,
            cutoff: None,
            inner_norm: None,
            bias: MlpBias::None,
            joined: false,
            module,
            names: MlpNames::COMMON,
        }
    }

    /// Experts with Llama's gate and names, and a softmax router.
    pub(super) fn experts(&self, count: usize, chosen: usize, width: usize) -> Experts {
        Experts {
            count,
            chosen,
            width,
            activation: self.activation,
            router: Router::SOFTMAX,
            latent: None,
            shared: None,
            shared_gate: None,
            module: "mlp",
            names: MlpNames::COMMON,
            bias: false,
            gated: true,
            weighted_input: false,
            layout: ExpertLayout::Rows,
        }
    }

    /// One layer that combines `count` shared experts of `width` each.
    pub(super) fn shared_experts(&self, width: usize, count: usize) -> Option<Mlp> {
        (count > 0).then(|| self.mlp_of(width * count, "shared_experts"))
    }

    /// A decoder with these layers, and Llama's embedding and head.
    pub(super) fn config(&self, f: &Fields<'_>, family: &'static str, layers: Vec<Layer>) -> Result<DecoderConfig> {
        Ok(DecoderConfig {
            family,
            root: "model",
            state_prefix: "",
            hidden: self.hidden,
            vocab: f.size("vocab_size")?,
            positions: self.positions,
            embedding_scale: 1.0,
            per_layer: None,
            conditioned: None,
            streams: None,
            layers,
            norm: self.norm,
            norms_sums: false,
            final_norm: Some("norm"),
            tied: f.bool_opt("tie_word_embeddings")?.or(self.defaults.tied.then_some(true)),
            head_bias: false,
            embedding_width: None,
            embedding_norm: None,
            learned_positions: None,
            columns: &[],
            renames: &[],
            logits_divisor: 1.0,
            logits_cap: None,
            dtype: dtype(f)?,
            fits_f16: true,
            bos: f.ints("bos_token_id")?.first().copied(),
            eos: f.ints("eos_token_id")?,
            unused: Vec::new(),
        })
    }

    /// The kind of each layer, from `layer_types` or by a rule.
    pub(super) fn layer_types<'a>(&self, f: &Fields<'a>, rule: impl Fn(usize) -> &'a str) -> Result<Vec<&'a str>> {
        Ok(match f.texts("layer_types", self.layers)? {
            Some(mut list) => {
                list.truncate(self.layers);
                list.into_iter().map(kind_of).collect()
            }
            None => (0..self.layers).map(rule).collect(),
        })
    }
}

/// A layer with one norm before each half.
pub(super) fn layer(mixer: impl Into<Mixer>, feed_forward: impl Into<FeedForward>) -> Layer {
    Layer {
        mixer: mixer.into(),
        feed_forward: feed_forward.into(),
        norms: LayerNorms::PRE,
        parallel: false,
        residual: 1.0,
        scalar: false,
    }
}

impl From<Attention> for Mixer {
    fn from(attention: Attention) -> Mixer {
        Mixer::Attention(Box::new(attention))
    }
}

impl From<Mlp> for FeedForward {
    fn from(mlp: Mlp) -> FeedForward {
        FeedForward::Mlp(mlp)
    }
}

impl From<Experts> for FeedForward {
    fn from(experts: Experts) -> FeedForward {
        FeedForward::Experts(Box::new(experts))
    }
}

/// The name of a layer's kind. Older configs have other names for two of them.
pub(super) fn kind_of(name: &str) -> &str {
    match name {
        "attention" => FULL,
        "mamba" => LINEAR,
        other => other,
    }
}

/// Attention of every layer, with the window of its kind, and with the rotary embedding that `rope`
/// returns.
pub(super) fn by_kind<'a>(
    f: &Fields<'a>,
    kinds: Vec<&'a str>,
    window: Option<usize>,
    attention: &Attention,
    rope: impl Fn(&str) -> Option<Rope>,
) -> Result<Vec<Attention>> {
    let of = |kind| Ok(Attention { window: window_of(kind, window, f)?, rope: rope(kind), ..attention.clone() });
    kinds.into_iter().map(of).collect()
}

/// The kind of layer `i` if every `period`-th layer is full and the others have a window.
pub(super) fn full_every(period: usize, i: usize) -> &'static str {
    if (i + 1).is_multiple_of(period) { FULL } else { SLIDING }
}

pub(super) const FULL: &str = "full_attention";
pub(super) const LINEAR: &str = "linear_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// The window of a layer by its kind: full or sliding.
pub(super) fn window_of(kind: &str, window: Option<usize>, f: &Fields<'_>) -> Result<Option<usize>> {
    match kind {
        "full_attention" => Ok(None),
        "sliding_attention" if window.is_some() => Ok(window),
        "sliding_attention" => Err(f.error("sliding_window", "the window of the layers of type sliding_attention")),
        _ => Err(f.error("layer_types", format!("full_attention and sliding_attention, not {kind}"))),
    }
}

/// The size of a window. 0 and null mean none.
pub(super) fn window(f: &Fields<'_>, default: Option<usize>) -> Result<Option<usize>> {
    if f.has_null("sliding_window") {
        return Ok(None);
    }
    let default = default.unwrap_or(0);
    Ok(Some(f.count_or("sliding_window", default)?).filter(|&window| window > 0))
}

pub(super) fn activation(f: &Fields<'_>, key: &str) -> Result<Activation> {
    match f.text(key)? {
        None if key == "hidden_act" => Ok(Activation::Silu),
        None | Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate") => {
            Ok(Activation::GeluTanh)
        }
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu" | "gelu_python") => Ok(Activation::GeluErf),
        Some("quick_gelu") => Ok(Activation::GeluSigmoid),
        Some("relu") => Ok(Activation::Relu),
        Some("relu2") => Ok(Activation::Relu2),
        Some(other) => Err(Error::key(key, "silu, gelu, gelu_pytorch_tanh, quick_gelu, relu or relu2", other)),
    }
}

pub(super) fn dtype(f: &Fields<'_>) -> Result<Option<DType>> {
    let key = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let named = f.text(key)?.and_then(ScalarType::from_torch_name).and_then(ScalarType::dtype);
    Ok(named.filter(|dtype| matches!(dtype, DType::BF16 | DType::F16 | DType::F32)))
}
