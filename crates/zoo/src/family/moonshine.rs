//! Moonshine: waveforms to text.

use super::common;
use crate::{
    Result,
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    speech::moonshine::MoonshineConfig,
};

/// Value of `model_type`.
pub(super) const NAME: &str = "moonshine";

/// Default rotated share of a head.
const ROTARY_PART: f64 = 0.9;

/// Reads `config.json`. `generation_config.json` may state the tokens that end a text.
pub(super) fn config(f: &Fields<'_>, generation: Option<&Fields<'_>>) -> Result<MoonshineConfig> {
    f.expect_text("encoder_hidden_act", "gelu")?;
    f.expect_text("decoder_hidden_act", "silu")?;
    let (width, heads) = (f.size("hidden_size")?, f.size("encoder_num_attention_heads")?);
    for key in ["decoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"] {
        if f.size_or(key, heads)? != heads {
            return Err(f.error(key, format!("{heads}, as in the encoder")));
        }
    }
    if !width.is_multiple_of(heads) {
        return Err(f.error("hidden_size", format!("a multiple of {heads} heads")));
    }
    let layers = |key: &str| match f.size(key)? {
        n if n <= MAX_LAYERS => Ok(n),
        _ => Err(f.error(key, format!("at most {MAX_LAYERS}"))),
    };
    let positions = f.size_or("max_position_embeddings", 512)?;
    if positions > MAX_POSITIONS {
        return Err(f.error("max_position_embeddings", format!("at most {MAX_POSITIONS}")));
    }
    // Some attention implementations need wider heads, padded with zeros.
    f.size_opt("pad_head_dim_to_multiple_of")?;
    let (theta, rotary) = rotary(f, width / heads)?;
    let own = generation.map(|generation| generation.ints("eos_token_id")).transpose()?.unwrap_or_default();
    let ends = if own.is_empty() { f.ints("eos_token_id")? } else { own };
    if ends.is_empty() {
        return Err(f.error("eos_token_id", "the tokens that end a text"));
    }
    Ok(MoonshineConfig {
        width,
        feed_forward: f.size("intermediate_size")?,
        heads,
        encoder_layers: layers("encoder_num_hidden_layers")?,
        decoder_layers: layers("decoder_num_hidden_layers")?,
        bias: f.bool_or("attention_bias", false)?,
        theta,
        rotary,
        positions,
        vocab: f.size("vocab_size")?,
        tied: f.bool_or("tie_word_embeddings", true)?,
        start: f.ints("decoder_start_token_id")?.first().copied().unwrap_or(1),
        ends,
        dtype: common::dtype(f)?,
    })
}

/// Base of the rotary frequencies, and number of rotated elements of a head.
fn rotary(f: &Fields<'_>, head_dim: usize) -> Result<(f64, usize)> {
    let child = f.child("rope_parameters")?;
    if let Some(child) = &child {
        child.expect_text("rope_type", "default")?;
    }
    if f.child("rope_scaling")?.is_some_and(|scaling| !scaling.is_empty()) {
        return Err(f.error("rope_scaling", "nothing"));
    }
    let both = |key: &str| -> Result<Option<f64>> {
        let nested = child.as_ref().map(|child| child.positive_opt(key)).transpose()?.flatten();
        Ok(nested.or(f.positive_opt(key)?))
    };
    let part = both("partial_rotary_factor")?.unwrap_or(ROTARY_PART);
    let dims = (head_dim as f64 * part) as usize;
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        return Err(f.error("partial_rotary_factor", format!("an even part of the {head_dim} elements of a head")));
    }
    Ok((both("rope_theta")?.unwrap_or(10_000.0), dims))
}
