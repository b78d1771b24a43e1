//! Builds a program from a checkpoint and options.

use flambeau_pt2::Exported;
use flambeau_tensor::DType;
use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::{
    Checkpoint, Error, Result, TokenizerSource,
    block::{self, Settings},
    checkpoint::Architecture,
    encoder,
    limits::MAX_POSITIONS,
    low_rank::Attached,
    spec::{DecoderConfig, Layer, Mixer},
    speech::{moonshine, parakeet, voxtral, voxtral_realtime, whisper},
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

/// The value of a constant method.
#[derive(Clone, Debug, PartialEq)]
pub enum MethodConstant {
    Bool(bool),
    Int(i64),
    /// Several results of one method.
    Ints(Vec<i64>),
    Text(String),
}

/// A program with metadata for runners.
#[derive(Clone, Debug)]
pub struct Model {
    /// Methods by name. Methods of one model share their buffers.
    ///
    /// A language model has one method, `forward`.
    /// - Inputs: `input_ids` i64 `[1, s]` and `cache_position` i64 `[s]` (consecutive). `s` is 1 to
    ///   the prefill chunk.
    /// - With adapters at run time, a third input: `adapter_scales` f32 `[adapters]`. The constant
    ///   method `get_lora_adapters` names them.
    /// - Result: logits in the type of the activations.
    /// - State of attention: `key_cache_i` and `value_cache_i` [1, Hk, n, D]. `n` is `max_seq_len`.
    ///   With a window, `n` is at most window + prefill chunk − 1, and the rows form a ring.
    /// - State of attention in 8 bits: `cache_codes_i` [1, 2·Hk, n, G, D/G] and `cache_scales_i`
    ///   [1, 2·Hk, n, G, 1] instead, keys before values.
    /// - State of attention over latent vectors: `latent_cache_i` [1, 1, max_seq_len, R].
    /// - Recurrent state: `conv_state_i` [1, taps − 1, C] and `recurrent_state_i` [1, Hv, Dv, Dk].
    ///   It resets at position 0 and cannot go back to an earlier position.
    ///
    /// A text encoder has one method, `forward`.
    /// - Inputs: `input_ids` i64 [b, s] and `attention_mask` i64 [b, s]. The mask is 1 for tokens
    ///   and 0 for padding after them.
    /// - Result: f32 [b, width], a vector for each text.
    ///
    /// A classifier of texts has the method of a text encoder.
    /// - Inputs: in addition `token_type_ids` i64 [b, s] if the model tells the texts of a pair
    ///   apart. They are 1 in the second text.
    /// - Result: f32 [b, labels], scores before a sigmoid or softmax.
    ///
    /// A classifier of tokens has the method of a text encoder.
    /// - Result: f32 [b, s, labels], scores of each token before a softmax.
    ///
    /// Whisper has three or four methods.
    /// - `encoder`: `input_features` f32 [1, mels, frames] → last hidden state [1, positions,
    ///   width]. It fills `cross_key_i` and `cross_value_i` [1, H, positions, D] for the other
    ///   methods.
    /// - `decoder`: `input_ids` i64 [1, s], `cache_position` i64 `[s]` (consecutive) → logits
    ///   [1, 1, vocab] of the last token.
    /// - `alignment`, if the checkpoint names alignment heads: the same inputs from position 0 on →
    ///   attention weights of each head over audio positions, f32 [1, heads, s, positions].
    /// - `branches`, a decoder of texts with common beginnings: `input_ids` i64 [1, s],
    ///   `text_position` i64 `[s]`, `cache_position` i64 `[s]` (consecutive), `seen` bool [s, rows]
    ///   → logits [1, s, vocab]. `text_position` is a token's position in its text.
    ///   `cache_position` is its row in a separate cache, `branch_key_cache_i` and
    ///   `branch_value_cache_i`. `seen` marks the visible rows, including its own.
    ///
    /// Moonshine has two methods.
    /// - `encoder`: `input_values` f32 [1, samples] → last hidden state [1, positions, width]. It
    ///   fills the first positions of `cross_key_i` and `cross_value_i`.
    /// - `decoder`: as Whisper's, with `audio_length` i64 `[1]`, the number of those positions,
    ///   after its inputs.
    ///
    /// Parakeet has one method, or three as a transducer.
    /// - `encoder`: `input_features` f32 [1, frames, mels], one frame per 160 samples → last hidden
    ///   state [1, positions, width]. The second result of CTC models is logits
    ///   [1, positions, vocab], and of transducers the input `f` of `joint` [1, positions, J].
    /// - `decoder_step`: `token` i64 [1, 1], `h` and `c` [layers, 1, J] → `g` [1, 1, J], `h`, `c`.
    ///   A sequence begins with the blank and zeros.
    /// - `joint`: `f` [1, n, J], `g` [1, 1, J] → logits [1, n, vocab + durations].
    ///
    /// Voxtral has three methods.
    /// - `audio_encoder`: `input_features` f32 [1, mels, frames] of a window → embeddings
    ///   [1, t, hidden], which replace tokens.
    /// - `token_embedding`: `token_ids` i64 [1, s] → [1, s, hidden].
    /// - `text_decoder`: `inputs_embeds` [1, s, hidden], `cache_position` i64 `[s]` → logits, with
    ///   a language model's state.
    ///
    /// Voxtral Realtime has `encode_audio_chunk` instead of `audio_encoder`: `mel_chunk` f32
    /// [1, mels, 8·t], `enc_input_pos` i64 [4·t] → embeddings [1, t, hidden]. They are added to the
    /// embeddings of tokens. The encoder keeps the inputs that its convolutions and windows need
    /// later.
    pub methods: IndexMap<&'static str, Exported>,
    /// Names of weights that stay floats when others are quantized: routers, and gates with one
    /// number in total or per head.
    pub floats: Vec<String>,
    /// Constant methods by name.
    pub metadata: Vec<(String, MethodConstant)>,
    pub tokenizer: TokenizerSource,
}

/// Builds the forward pass of a checkpoint. No weight is read. The program's weights are slices of
/// the checkpoint, or compute their bytes on demand.
///
/// # Errors
/// [`Error::Option`] for an option out of range. [`Error::MissingTensor`] and [`Error::Tensor`] for
/// a checkpoint that does not match its config.
pub fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model> {
    model(checkpoint, options).map_err(|error| checkpoint.named_as_stored(error))
}

fn model(checkpoint: &Checkpoint, options: &Options) -> Result<Model> {
    let config = match checkpoint.architecture() {
        Architecture::Decoder(config) => config,
        Architecture::Encoder(config) => return encoder::model(checkpoint, config, options),
        Architecture::Moonshine(config) => return moonshine::model(checkpoint, config, options),
        Architecture::Parakeet(config) => return parakeet::model(checkpoint, config, options),
        Architecture::Whisper(config) => return whisper::model(checkpoint, config, options),
        Architecture::Voxtral(config) => return voxtral::model(checkpoint, config, options),
        Architecture::VoxtralRealtime(config) => return voxtral_realtime::model(checkpoint, config, options),
    };
    let settings = settings(checkpoint, config, options)?;
    let (program, floats) = block::program(checkpoint, config, settings)?;
    let (methods, tokenizer) = (IndexMap::from([("forward", program)]), checkpoint.tokenizer().clone());
    let mut metadata = metadata(config, settings);
    metadata.extend(adapter_facts(checkpoint.adapters()));
    Ok(Model { methods, floats, metadata, tokenizer })
}

/// Names and default strengths of the adapters, as JSON, if there are some.
fn adapter_facts(adapters: &[Attached]) -> Option<(String, MethodConstant)> {
    let list: Vec<Value> = adapters.iter().map(|adapter| json!({ "name": adapter.name, "scale": adapter.strength })).collect();
    (!list.is_empty()).then(|| ("get_lora_adapters".to_owned(), MethodConstant::Text(Value::Array(list).to_string())))
}

impl Model {
    /// The methods in the form that the compiler takes.
    pub fn programs(&self) -> Vec<(&str, &Exported)> {
        self.methods.iter().map(|(name, exported)| (*name, exported)).collect()
    }
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

/// Constant methods read by the runners of ExecuTorch and of this project.
pub(crate) fn metadata(c: &DecoderConfig, settings: Settings) -> Vec<(String, MethodConstant)> {
    let int = |v: usize| MethodConstant::Int(v as i64);
    let positions = int(settings.positions);
    let (kv_heads, head_dim) = c.cache_sizes();
    let mut out = vec![
        ("get_model_type", MethodConstant::Text(c.family.into())),
        ("get_dtype", MethodConstant::Int(i64::from(settings.dtype.code()))),
        ("get_max_seq_len", positions.clone()),
        ("get_max_context_len", positions.clone()),
        ("get_max_ctx_len", positions),
        ("get_prefill_chunk_size", int(settings.chunk)),
        ("get_max_batch_size", int(1)),
        ("get_vocab_size", int(c.vocab)),
        ("get_n_layers", int(c.layers.len())),
        ("get_n_kv_heads", int(kv_heads)),
        ("get_head_dim", int(head_dim)),
        ("use_kv_cache", MethodConstant::Bool(true)),
        ("use_sdpa_with_kv_cache", MethodConstant::Bool(false)),
        ("enable_dynamic_shape", MethodConstant::Bool(true)),
    ];
    // This state cannot go back to an earlier position.
    if c.layers.iter().any(|layer| layer.mixer.has_state()) {
        out.push(("use_recurrent_state", MethodConstant::Bool(true)));
    }
    out.extend(c.bos.map(|id| ("get_bos_id", MethodConstant::Int(id))));
    if !c.eos.is_empty() {
        out.push(("get_eos_ids", MethodConstant::Ints(c.eos.clone())));
    }
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
