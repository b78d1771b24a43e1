//! The hyperparameters of a decoder, independent of the file format.

use flambeau_tensor::DType;

use crate::{
    Error, Result,
    fields::Fields,
    keys::{Keys, SizeNames, Sizes},
    rope::{Rope, Scaling, longrope_amplitude, yarn_amplitude},
};

/// A model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Llama 2 and 3, SmolLM2 and all that share their layout.
    Llama,
    /// Qwen 2 and 2.5, dense.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// Phi-3 and Phi-4 mini.
    Phi3,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Phi3];

    /// Its name as `model_type` of a config.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Phi3 => "phi3",
        }
    }

    /// The family with that name, out of `from`.
    ///
    /// # Errors
    /// [`Error::Family`] with the names that would do.
    pub(crate) fn from_name(name: &str, from: &[Family]) -> Result<Family> {
        let family = from.iter().copied().find(|f| f.name() == name);
        family.ok_or_else(|| {
            let names: Vec<_> = from.iter().map(|f| f.name()).collect();
            Error::Family { found: name.chars().take(80).collect(), supported: names.join(", ") }
        })
    }
}

/// Which projections add a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The attention's output.
    pub output: bool,
    /// Gate, up and down.
    pub mlp: bool,
}

/// A decoder's hyperparameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated layer.
    pub intermediate: usize,
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Positions for which the model was trained.
    pub positions: usize,
    /// Distance from which on keys are not seen, if there is one.
    pub window: Option<usize>,
    pub norm_eps: f64,
    /// Whether the head reads the embedding's weights; `None` leaves it to whether the head has its own.
    pub tied: Option<bool>,
    pub rope: Rope,
    pub biases: Biases,
    /// Whether queries and keys are normalized per head.
    pub qk_norm: bool,
    /// Whether q/k/v and gate/up are one matrix each.
    pub fused: bool,
    /// Element type of the checkpoint, where it says so.
    pub dtype: Option<DType>,
    pub bos: Option<i64>,
    /// All ids that end a text.
    pub eos: Vec<i64>,
}

/// What `config.json` calls the sizes.
const NAMES: SizeNames = SizeNames {
    hidden: "hidden_size",
    intermediate: "intermediate_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
};

impl Config {
    /// What families share, from the keys of `config.json`. Families adjust it after.
    pub(crate) fn from_fields(family: Family, f: &Fields, default_eps: f64) -> Result<Config> {
        if let Some(act) = f.text("hidden_act")?.filter(|a| !matches!(*a, "silu" | "swish")) {
            return Err(Error::key("hidden_act", "silu", act));
        }
        let sizes = Sizes::read(f, &NAMES)?;
        let positions = f.size_opt("max_position_embeddings")?.unwrap_or(2048);
        Ok(Config {
            family,
            hidden: sizes.hidden,
            intermediate: sizes.intermediate,
            layers: sizes.layers,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            vocab: f.size("vocab_size")?,
            positions,
            window: None,
            norm_eps: f.positive_opt("rms_norm_eps")?.unwrap_or(default_eps),
            tied: f.bool_opt("tie_word_embeddings")?,
            rope: rope(f, sizes.head_dim, positions)?,
            biases: Biases::default(),
            qk_norm: false,
            fused: false,
            dtype: dtype(f)?,
            bos: f.ints("bos_token_id")?.first().copied(),
            eos: f.ints("eos_token_id")?,
        })
    }
}

fn dtype(f: &Fields) -> Result<Option<DType>> {
    let key = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    Ok(match f.text(key)? {
        Some("bfloat16") => Some(DType::BF16),
        Some("float16") => Some(DType::F16),
        Some("float32") => Some(DType::F32),
        _ => None,
    })
}

/// The rotary embedding: old configs spread it over top-level keys and `rope_scaling`, new ones have `rope_parameters`.
fn rope(f: &Fields, head_dim: usize, positions: usize) -> Result<Rope> {
    let child = match f.child("rope_parameters")? {
        Some(child) => Some(child),
        None => f.child("rope_scaling")?,
    };
    let both = |key: &str| -> Result<Option<f64>> {
        match child.as_ref().map(|c| c.positive_opt(key)).transpose()?.flatten() {
            Some(v) => Ok(Some(v)),
            None => f.positive_opt(key),
        }
    };
    let theta = both("rope_theta")?.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(Error::key("rope_theta", "a number above 1", theta));
    }
    let part = both("partial_rotary_factor")?.unwrap_or(1.0);
    let dims = (head_dim as f64 * part) as usize;
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        return Err(Error::key("partial_rotary_factor", format!("an even part of the {head_dim} elements of a head"), part));
    }
    let scaling = match &child {
        Some(child) => scaling(child, f, dims, positions)?,
        None => Scaling::None,
    };
    Ok(Rope { theta, dims, scaling })
}

fn scaling(c: &Fields, f: &Fields, dims: usize, positions: usize) -> Result<Scaling> {
    let key = if c.get("rope_type").is_some() { "rope_type" } else { "type" };
    let original = || -> Result<f64> {
        let key = "original_max_position_embeddings";
        Ok(c.positive_opt(key)?.or(f.positive_opt(key)?).unwrap_or(positions as f64))
    };
    match c.text(key)?.unwrap_or("default") {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: c.positive("factor")? }),
        "llama3" => {
            let (low, high) = (c.positive("low_freq_factor")?, c.positive("high_freq_factor")?);
            if low >= high {
                return Err(c.error("high_freq_factor", format!("a number above low_freq_factor {low}")));
            }
            Ok(Scaling::Llama3 { factor: c.positive("factor")?, low, high, original: original()? })
        }
        "yarn" => {
            if let Some(key) = ["mscale", "mscale_all_dim"].into_iter().find(|k| c.get(k).is_some()) {
                return Err(c.error(key, "no such key"));
            }
            let factor = c.positive("factor")?;
            let (beta_fast, beta_slow) =
                (c.positive_opt("beta_fast")?.unwrap_or(32.0), c.positive_opt("beta_slow")?.unwrap_or(1.0));
            let (truncate, amplitude) = (c.bool_or("truncate", true)?, c.positive_opt("attention_factor")?);
            let amplitude = amplitude.unwrap_or(yarn_amplitude(factor));
            Ok(Scaling::Yarn { factor, original: original()?, beta_fast, beta_slow, truncate, amplitude })
        }
        "longrope" | "su" => {
            let original = original()?;
            let amplitude =
                c.positive_opt("attention_factor")?.unwrap_or(longrope_amplitude(positions as f64 / original, original));
            let (short, long) = (c.positives("short_factor", dims / 2)?, c.positives("long_factor", dims / 2)?);
            Ok(Scaling::LongRope { short, long, original: original as usize, amplitude })
        }
        _ => Err(c.error(key, "default, linear, llama3, yarn or longrope")),
    }
}
