//! Decoders that serve as text encoders: their layers without caches and without a head.

use crate::{
    Error, Result,
    encoder::{self, Embedding, Sentence},
    spec::{Activation, Attention, DecoderConfig, EMBEDDING, FeedForward, Gate, HEAD, Joined, Layer, Mixer, Mlp, QkNorm, Values},
};

/// The encoder with the layers of a decoder. Tokens see later tokens too unless it is `causal`. A
/// window then covers half of its size on either side.
///
/// # Errors
/// [`Error::File`] for a layer that an encoder cannot have.
pub(crate) fn encoder(mut config: DecoderConfig, causal: bool, sentence: Sentence) -> Result<encoder::EncoderConfig> {
    for (_, attention) in config.attentions().filter(|_| !causal) {
        attention.window = attention.window.map(|window| window / 2 + 1);
    }
    if config.per_layer.is_some()
        || config.conditioned.is_some()
        || config.streams.is_some()
        || config.embedding_norm.is_some()
        || config.embedding_width.is_some()
        || config.norms_sums
        || config.learned_positions.is_some()
        || !config.layers.iter().all(is_supported)
    {
        let what =
            format!("vectors by layers of the family {} are not supported: only plain attention and dense layers", config.family);
        return Err(Error::file("config.json", what));
    }
    Ok(encoder::EncoderConfig {
        embedding: Embedding { table: EMBEDDING, scale: config.embedding_scale, norm: None, ..Embedding::BERT },
        root: "model.layers",
        layers: config.layers,
        norms_sums: false,
        final_norm: Some("model.norm"),
        causal,
        renames: config.renames,
        dtype: config.dtype,
        fits_f16: config.fits_f16,
        head: (config.tied != Some(true)).then_some(HEAD),
        ..encoder::EncoderConfig::new(config.family, [config.hidden, config.vocab, config.positions], config.norm, sentence)
    })
}

/// Whether an encoder computes everything in this layer.
fn is_supported(layer: &Layer) -> bool {
    let mixer = matches!(&layer.mixer, Mixer::Attention(a) if is_plain(a));
    let feed_forward = matches!(&layer.feed_forward, FeedForward::Mlp(mlp) if is_dense(mlp));
    mixer && feed_forward && !layer.parallel && layer.residual == 1.0 && !layer.scalar
}

fn is_dense(mlp: &Mlp) -> bool {
    let activation = matches!(mlp.activation, Activation::Silu | Activation::GeluTanh | Activation::GeluErf);
    activation && mlp.factors == [1.0; 2] && mlp.cutoff.is_none() && mlp.inner_norm.is_none()
}

fn is_plain(a: &Attention) -> bool {
    let plain_norm = matches!(a.qk_norm, QkNorm::None | QkNorm::Heads | QkNorm::Whole);
    plain_norm
        && a.values == Values::Projected
        && matches!(a.joined, Joined::No | Joined::Blocks)
        && a.gate == Gate::None
        && a.output_norm.is_none()
        && a.factors == [1.0; 2]
        && a.clip.is_none()
        && a.value_dim() == a.head_dim
        && !a.value_norm
        && a.temperature.is_none()
        && a.chunk.is_none()
        && a.slopes.is_none()
        && a.cap.is_none()
        && !a.sinks
}
