//! A program for runners: methods, metadata and tokenizer.

use flambeau_pt2::Exported;
use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::{TokenizerSource, low_rank::Attached, options::Settings, spec::DecoderConfig};

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

impl Model {
    /// The methods in the form that the compiler takes.
    pub fn programs(&self) -> Vec<(&str, &Exported)> {
        self.methods.iter().map(|(name, exported)| (*name, exported)).collect()
    }
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

/// Names and default strengths of the adapters, as JSON, if there are some.
pub(crate) fn adapter_facts(adapters: &[Attached]) -> Option<(String, MethodConstant)> {
    let list: Vec<Value> = adapters.iter().map(|adapter| json!({ "name": adapter.name, "scale": adapter.strength })).collect();
    (!list.is_empty()).then(|| ("get_lora_adapters".to_owned(), MethodConstant::Text(Value::Array(list).to_string())))
}
