//! Voxtral and Voxtral Realtime: language models with audio input.

use super::{
    Configs, add_ids,
    common::{self, Base, Defaults, layer},
    harmless, read, rope,
};
use crate::{
    Error, Result,
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    spec::{self, Attention, Conditioned, LayerNorms, Mlp, MlpBias, QkvBias},
    speech::{encoder::Stack, voxtral, voxtral_realtime},
};

/// Base of the frequencies that encode Voxtral Realtime's delay.
const DELAY_BASE: f64 = 10_000.0;
/// Default number of silence embeddings before a recording.
const LEFT_PAD: usize = 32;

/// Reads Voxtral.
pub(super) fn config(configs: &Configs<'_>) -> Result<voxtral::VoxtralConfig> {
    let f = &configs.model;
    let audio = f.object("audio_config")?;
    let (width, heads) = (audio.size("hidden_size")?, audio.size("num_attention_heads")?);
    let (layers, feed_forward) = (audio.size("num_hidden_layers")?, audio.size("intermediate_size")?);
    let positions = audio.size_or("max_source_positions", 1500)?;
    if layers > MAX_LAYERS {
        return Err(audio.error("num_hidden_layers", format!("at most {MAX_LAYERS}")));
    }
    if positions > MAX_POSITIONS {
        return Err(Error::limit("positions", positions as u64, MAX_POSITIONS as u64));
    }
    if !width.is_multiple_of(heads) || audio.size_or("head_dim", width / heads)? != width / heads {
        return Err(audio.error("num_attention_heads", format!("a divisor of hidden_size {width} by head_dim")));
    }
    if audio.size_or("num_key_value_heads", heads)? != heads {
        return Err(audio.error("num_key_value_heads", heads.to_string()));
    }
    // The encoder has no tokens.
    audio.get("vocab_size");
    audio.expect_bool("scale_embedding", false)?;
    for (f, key) in [(&audio, "activation_function"), (f, "projector_hidden_act")] {
        needs_gelu(f, key)?;
    }
    // The projector joins as many positions as fill the feed-forward width.
    if !feed_forward.is_multiple_of(width) || !positions.is_multiple_of(feed_forward / width) {
        return Err(audio.error("intermediate_size", format!("a multiple of {width} by a divisor of {positions}")));
    }
    let mels = audio.size_or("num_mel_bins", 128)?;
    let text = text(configs, "voxtral")?;
    let encoder = Stack { layers, heads, feed_forward };
    Ok(voxtral::VoxtralConfig { mels, width, positions, encoder, joined: feed_forward / width, text })
}

/// Reads Voxtral Realtime. Its tokenizer states the number of silence embeddings before a
/// recording.
pub(super) fn realtime(configs: &Configs<'_>) -> Result<voxtral_realtime::VoxtralRealtimeConfig> {
    let f = &configs.model;
    let audio = f.object("audio_config")?;
    let encoder = listening(&audio)?;
    for (f, key) in [(&audio, "activation_function"), (f, "projector_hidden_act")] {
        needs_gelu(f, key)?;
    }
    let joined = f.size_or("downsample_factor", 4)?;
    if f.size_or("audio_length_per_tok", 2 * joined)? != 2 * joined {
        return Err(f.error("audio_length_per_tok", (2 * joined).to_string()));
    }
    let delay = f.count_or("default_num_delay_tokens", 6)?;
    let mut text = text(configs, "voxtral_realtime")?;
    text.conditioned = Some(Conditioned { module: "ada_rms_norm", value: delay as f64, base: DELAY_BASE });
    let padding = configs.tekken.as_ref().map(|tekken| tekken.child("audio")).transpose()?.flatten();
    let left_pad = padding.map(|audio| audio.count_or("streaming_n_left_pad_tokens", LEFT_PAD)).transpose()?;
    let (mels, left_pad) = (audio.size_or("num_mel_bins", 128)?, left_pad.unwrap_or(LEFT_PAD));
    Ok(voxtral_realtime::VoxtralRealtimeConfig { mels, encoder, joined, text, delay, left_pad })
}

/// The text part of Voxtral Realtime: Llama's layers with a window.
pub(super) fn realtime_text(f: &Fields<'_>) -> Result<spec::DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, tied: true, ..Defaults::LLAMA })?;
    let attention = Attention { window: common::window(f, None)?, ..base.attention(Some(rope::read(f, &base)?)) };
    base.config(f, "voxtral_realtime", vec![layer(attention, base.mlp(f)?); base.layers])
}

/// The layers of Voxtral Realtime's encoder.
fn listening(f: &Fields<'_>) -> Result<spec::DecoderConfig> {
    let base = Base::read(f, &Defaults { norm_eps: 1e-5, ..Defaults::LLAMA })?;
    let attention = Attention {
        window: common::window(f, None)?,
        qkv_bias: QkvBias::AllButKeys,
        output_bias: true,
        ..base.attention(Some(rope::read(f, &base)?))
    };
    let mlp = Mlp { bias: MlpBias::Down, ..base.mlp(f)? };
    let norms = LayerNorms { mixer_in: Some("self_attn_layer_norm"), feed_in: Some("final_layer_norm"), ..LayerNorms::PRE };
    let layer = spec::Layer { norms, ..layer(attention, mlp) };
    let config = base.config(f, "voxtral_realtime_encoder", vec![layer; base.layers])?;
    Ok(spec::DecoderConfig { root: "audio_tower", state_prefix: "encoder_", ..config })
}

fn text(configs: &Configs<'_>, family: &'static str) -> Result<spec::DecoderConfig> {
    let f = &configs.model;
    let text = f.object("text_config")?;
    let name = text.text("model_type")?.unwrap_or("llama");
    let config = if name == "voxtral_realtime_text" { realtime_text(&text)? } else { read(name, &text)? };
    let mut config = spec::DecoderConfig { family, ..config };
    config.tied = f.bool_opt("tie_word_embeddings")?.or(config.tied);
    config.dtype = common::dtype(f)?.or(config.dtype);
    add_ids(&mut config, configs.generation.as_ref())?;
    if f.size_or("hidden_size", config.hidden)? != config.hidden {
        return Err(f.error("hidden_size", config.hidden.to_string()));
    }
    text.finish(&harmless::for_text)?;
    Ok(config)
}

fn needs_gelu(f: &Fields<'_>, key: &str) -> Result<()> {
    if f.text(key)?.is_some_and(|name| name != "gelu") { Err(f.error(key, "gelu")) } else { Ok(()) }
}
