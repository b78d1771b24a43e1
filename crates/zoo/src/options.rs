//! Options of a build, and the settings that follow from them.

use flambeau_tensor::DType;

use crate::{
    Checkpoint, Error, Result,
    limits::MAX_POSITIONS,
    spec::{DecoderConfig, Layer, Mixer},
};

/// Default largest number of tokens of a call.
const DEFAULT_CHUNK: usize = 512;
/// Default number of cache rows for models trained on longer contexts.
pub(crate) const DEFAULT_POSITIONS: usize = 2048;

/// Positions of a call that get logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logits {
    /// `[1, 1, vocab]`: the last position, which is sufficient for generation.
    #[default]
    Last,
    /// `[1, s, vocab]`: every position, as in ExecuTorch's exporter.
    All,
}

/// Float type of the scales and biases of packed weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalePrecision {
    /// The narrowest exact type. It is `f16` for GGUF's 32-element blocks, and `f32` for its
    /// 256-element blocks, whose scales are products. MLX's checkpoints keep the stored type.
    /// Products with activations of another type then run in `f32`.
    #[default]
    Exact,
    /// The type of the activations. Values are rounded, but GPU kernels prefer a single type.
    Activations,
    /// `f32`: exact for any block, even if an `f16` bias would overflow.
    F32,
}

/// Element type of the key-value cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvCache {
    /// Floats in the type of the activations.
    #[default]
    Float,
    /// 8-bit codes with scales in the type of the activations. Each 32 elements of a head share a
    /// scale, or the whole head if 32 does not divide it. Attention over latent vectors does not
    /// support this cache.
    Int8,
}

/// Build options. The defaults suit generation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Type of activations and caches: `f32`, `f16` or `bf16`. The default is
    /// [`Checkpoint::default_dtype`].
    pub dtype: Option<DType>,
    /// Number of tokens in the caches. The default is 2048 or the trained length, whichever is
    /// less. Speech models support at most the trained length.
    pub max_seq_len: Option<usize>,
    /// Largest number of tokens of a call. The default is 512 or `max_seq_len`, whichever is less.
    pub prefill_chunk: Option<usize>,
    pub logits: Logits,
    pub scales: ScalePrecision,
    pub kv_cache: KvCache,
}

/// All decided settings of a build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) dtype: DType,
    /// Type of the scales of packed weights. `None` means the exact type.
    pub(crate) scales: Option<DType>,
    /// Rows of the caches.
    pub(crate) positions: usize,
    /// Largest number of tokens of a call.
    pub(crate) chunk: usize,
    pub(crate) logits: Logits,
    pub(crate) kv_cache: KvCache,
}

/// Number types of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Precision {
    /// Type of activations and caches.
    pub(crate) dtype: DType,
    /// Type of the scales of packed weights. `None` means the exact type.
    pub(crate) scales: Option<DType>,
}

impl Precision {
    pub(crate) fn new(checkpoint: &Checkpoint, options: &Options) -> Result<Precision> {
        let dtype = options.dtype.unwrap_or(checkpoint.default_dtype());
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::Option { option: "dtype", expected: "f32, f16 or bf16".into(), found: dtype.to_string() });
        }
        let scales = match options.scales {
            ScalePrecision::Exact => None,
            ScalePrecision::Activations => Some(dtype),
            ScalePrecision::F32 => Some(DType::F32),
        };
        Ok(Precision { dtype, scales })
    }
}

/// An option from 1 to `high`.
pub(crate) fn ranged(option: &'static str, value: usize, high: usize) -> Result<usize> {
    if (1..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::Option { option, expected: format!("1 to {high}"), found: value.to_string() })
}

pub(crate) fn settings(checkpoint: &Checkpoint, config: &DecoderConfig, options: &Options) -> Result<Settings> {
    // Learned positions end where the training ended.
    let most = if config.learned_positions.is_some() { config.positions.min(MAX_POSITIONS) } else { MAX_POSITIONS };
    let positions = ranged("max_seq_len", options.max_seq_len.unwrap_or(config.positions.min(DEFAULT_POSITIONS)), most)?;
    let chunk = ranged("prefill_chunk", options.prefill_chunk.unwrap_or(DEFAULT_CHUNK.min(positions)), positions)?;
    let Precision { dtype, scales } = Precision::new(checkpoint, options)?;
    let is_latent = |layer: &Layer| matches!(layer.mixer, Mixer::Latent(_));
    if options.kv_cache == KvCache::Int8 && config.layers.iter().any(is_latent) {
        let expected = "float: attention over latent vectors has no other cache".into();
        return Err(Error::Option { option: "kv_cache", expected, found: "int8".into() });
    }
    Ok(Settings { dtype, scales, positions, chunk, logits: options.logits, kv_cache: options.kv_cache })
}

/// Refuses caches that are not floats.
pub(crate) fn float_caches(options: &Options, why: &str) -> Result<()> {
    if options.kv_cache == KvCache::Float {
        return Ok(());
    }
    Err(Error::Option { option: "kv_cache", expected: format!("float: {why}"), found: "int8".into() })
}
