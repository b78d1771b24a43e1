//! Parakeet: recordings to text by CTC or by a transducer, with or without durations.

use super::common;
use crate::{
    Result,
    fields::Fields,
    limits::MAX_LAYERS,
    speech::{
        conformer::{Encoder, HALVINGS},
        parakeet::{HOP_LENGTH, Head, ParakeetConfig, SAMPLE_RATE, Transducer, WINDOW_SIZE},
    },
};

/// Values of `model_type` of a transducer with durations, a transducer without durations, and a CTC
/// model.
pub(super) const TDT: &str = "parakeet_tdt";
pub(super) const RNNT: &str = "parakeet_rnnt";
pub(super) const CTC: &str = "parakeet_ctc";

/// Reads `config.json`, and checks `preprocessor_config.json` against the computed features.
pub(super) fn config(f: &Fields<'_>, preprocessor: Option<&Fields<'_>>) -> Result<ParakeetConfig> {
    let part = f.child("encoder_config")?.ok_or_else(|| f.error("encoder_config", "an object"))?;
    let encoder = encoder(&part)?;
    if let Some(preprocessor) = preprocessor {
        features(preprocessor, encoder.mels)?;
    }
    let vocab = f.size("vocab_size")?;
    let kind = f.text("model_type")?.unwrap_or_default();
    let blank_key = if kind == CTC { "pad_token_id" } else { "blank_token_id" };
    let blank = f.count_or(blank_key, vocab - 1)?;
    if blank >= vocab {
        return Err(f.error(blank_key, format!("one of {vocab} tokens")));
    }
    let head = if kind == CTC { Head::Ctc } else { Head::Transducer(transducer(f, kind)?) };
    Ok(ParakeetConfig { encoder, vocab, blank, head, dtype: common::dtype(f)? })
}

fn encoder(f: &Fields<'_>) -> Result<Encoder> {
    f.expect_text("hidden_act", "silu")?;
    let (width, heads) = (f.size("hidden_size")?, f.size("num_attention_heads")?);
    for (key, expected) in [
        ("num_key_value_heads", heads),
        ("head_dim", width / heads),
        ("subsampling_factor", 1 << HALVINGS),
        ("subsampling_conv_kernel_size", 3),
        ("subsampling_conv_stride", 2),
    ] {
        f.expect_size(key, expected)?;
    }
    let encoder = Encoder {
        mels: f.size_or("num_mel_bins", 80)?,
        width,
        layers: f.size("num_hidden_layers")?,
        heads,
        feed_forward: f.size("intermediate_size")?,
        taps: f.size_or("conv_kernel_size", 9)?,
        channels: f.size_or("subsampling_conv_channels", 256)?,
        bias: f.bool_or("attention_bias", true)?,
        conv_bias: f.bool_or("convolution_bias", true)?,
        scaled: f.bool_or("scale_input", true)?,
        positions: f.size_or("max_position_embeddings", 5000)?,
    };
    encoder.checked(f, ["num_mel_bins", "hidden_size", "num_hidden_layers", "conv_kernel_size", "max_position_embeddings"])
}

fn transducer(f: &Fields<'_>, kind: &str) -> Result<Transducer> {
    f.expect_text("hidden_act", "relu")?;
    let layers = f.size_or("num_decoder_layers", 2)?;
    if layers > MAX_LAYERS {
        return Err(f.error("num_decoder_layers", format!("at most {MAX_LAYERS}")));
    }
    let durations = if kind == TDT { f.ints("durations")? } else { Vec::new() };
    if kind == TDT && (durations.is_empty() || durations.iter().any(|&duration| duration < 0)) {
        return Err(f.error("durations", "a list of numbers of positions"));
    }
    Ok(Transducer {
        width: f.size_or("decoder_hidden_size", 640)?,
        layers,
        durations,
        most_symbols: f.size_or("max_symbols_per_step", 10)?,
    })
}

/// Checks the feature parameters against `flambeau-audio`.
fn features(f: &Fields<'_>, mels: usize) -> Result<()> {
    let sizes = [
        ("feature_size", mels),
        ("sampling_rate", SAMPLE_RATE),
        ("win_length", WINDOW_SIZE),
        ("hop_length", HOP_LENGTH),
        ("n_fft", 512),
    ];
    for (key, expected) in sizes {
        f.expect_size(key, expected)?;
    }
    match f.positive_or("preemphasis", 0.97)? {
        0.97 => Ok(()),
        _ => Err(f.error("preemphasis", "0.97")),
    }
}
