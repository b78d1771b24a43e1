//! Reads NeMo's config of a Parakeet model. Its training settings are ignored.

use indexmap::IndexMap;

use crate::{
    CheckpointTensor, Error, Result,
    fields::Fields,
    limits::MAX_LAYERS,
    speech::{
        conformer::{Encoder, HALVINGS},
        parakeet::{Head, ParakeetConfig, Transducer},
    },
};

const EMBEDDING: &str = "decoder.embedding.weight";
const CTC_HEAD: &str = "ctc_head.weight";

/// A CTC model or a transducer. Models with both heads decode as transducers.
pub(super) fn parakeet(f: &Fields<'_>, tensors: &IndexMap<String, CheckpointTensor>) -> Result<ParakeetConfig> {
    let encoder = encoder(&f.object("encoder")?)?;
    features(&f.object("preprocessor")?, encoder.mels)?;
    let head = match f.child("joint")? {
        Some(joint) => Head::Transducer(transducer(f, &joint)?),
        None => Head::Ctc,
    };
    let name = if head == Head::Ctc { CTC_HEAD } else { EMBEDDING };
    let rows = tensors.get(name).and_then(|tensor| tensor.shape().first().copied()).filter(|&rows| rows > 0);
    // The blank is the last token.
    let vocab = rows.ok_or_else(|| Error::MissingTensor(name.into()))?;
    Ok(ParakeetConfig { encoder, vocab, blank: vocab - 1, head, dtype: None })
}

fn encoder(f: &Fields<'_>) -> Result<Encoder> {
    let texts = [
        ("subsampling", "dw_striding"),
        ("self_attention_model", "rel_pos"),
        ("conv_norm_type", "batch_norm"),
        ("att_context_style", "regular"),
    ];
    for (key, expected) in texts {
        f.expect_text(key, expected)?;
    }
    for (key, expected) in [("causal_downsampling", false), ("untie_biases", true)] {
        f.expect_bool(key, expected)?;
    }
    if f.ints("att_context_size")?.iter().any(|&size| size != -1) {
        return Err(f.error("att_context_size", "-1 on both sides: all positions at once"));
    }
    for key in ["conv_context_size", "reduction"] {
        if f.get(key).is_some() {
            return Err(f.error(key, "nothing"));
        }
    }
    let width = f.size("d_model")?;
    if f.ints("feat_out")?.iter().any(|&size| size > 0 && size as usize != width) {
        return Err(f.error("feat_out", "the width of the layers"));
    }
    f.expect_size("subsampling_factor", 1 << HALVINGS)?;
    let has_channels = f.ints("subsampling_conv_channels")?.first().is_some_and(|&channels| channels > 0);
    let bias = f.bool_or("use_bias", true)?;
    let encoder = Encoder {
        mels: f.size("feat_in")?,
        width,
        layers: f.size("n_layers")?,
        heads: f.size("n_heads")?,
        feed_forward: width * f.size_or("ff_expansion_factor", 4)?.min(width),
        taps: f.size_or("conv_kernel_size", 31)?,
        channels: if has_channels { f.size("subsampling_conv_channels")? } else { width },
        bias,
        conv_bias: bias,
        scaled: f.bool_or("xscaling", true)?,
        positions: f.size_or("pos_emb_max_len", 5000)?,
    };
    encoder.checked(f, ["feat_in", "d_model", "n_layers", "conv_kernel_size", "pos_emb_max_len"])
}

fn transducer(f: &Fields<'_>, joint: &Fields<'_>) -> Result<Transducer> {
    let decoder = f.object("decoder")?;
    decoder.expect_bool("blank_as_pad", true)?;
    let (own, joined) = (decoder.object("prednet")?, joint.object("jointnet")?);
    joined.expect_text("activation", "relu")?;
    let (width, layers) = (own.size("pred_hidden")?, own.size_or("pred_rnn_layers", 1)?);
    if joined.size_or("joint_hidden", width)? != width {
        return Err(joined.error("joint_hidden", format!("{width}, as `pred_hidden`")));
    }
    if layers > MAX_LAYERS {
        return Err(own.error("pred_rnn_layers", format!("at most {MAX_LAYERS}")));
    }
    let decoding = f.child("decoding")?;
    let nested = |child: &Option<Fields<'_>>, key: &str| child.as_ref().map(|child| child.ints(key)).transpose();
    let stated = nested(&decoding, "durations")?.unwrap_or_default();
    let defaults = nested(&f.child("model_defaults")?, "tdt_durations")?.unwrap_or_default();
    let all = if stated.is_empty() { defaults } else { stated };
    let extra = joint.count_or("num_extra_outputs", 0)?;
    let durations = if extra == 0 { Vec::new() } else { all };
    if durations.len() != extra || durations.iter().any(|&duration| duration < 0) {
        return Err(joint.error("num_extra_outputs", format!("as many as the {} durations that `decoding` lists", durations.len())));
    }
    let greedy = decoding.map(|decoding| decoding.child("greedy")).transpose()?.flatten();
    let most_symbols = greedy.map(|greedy| greedy.size_opt("max_symbols")).transpose()?.flatten().unwrap_or(10);
    Ok(Transducer { width, layers, durations, most_symbols })
}

/// Checks the feature parameters against `flambeau-audio`.
fn features(f: &Fields<'_>, mels: usize) -> Result<()> {
    for (key, expected) in [("sample_rate", 16_000), ("n_fft", 512), ("features", mels), ("frame_splicing", 1)] {
        f.expect_size(key, expected)?;
    }
    for (key, expected) in [("window_size", 0.025), ("window_stride", 0.01), ("preemph", 0.97), ("mag_power", 2.0)] {
        if f.positive_or(key, expected)? != expected {
            return Err(f.error(key, expected.to_string()));
        }
    }
    for (key, expected) in [("normalize", "per_feature"), ("window", "hann"), ("mel_norm", "slaney")] {
        f.expect_text(key, expected)?;
    }
    Ok(())
}
