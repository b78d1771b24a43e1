//! GPT-2 and its successors: layer norms, layers without a gate, and learned or rotary positions.

use super::common::{Base, Defaults, layer};
use crate::{
    Result,
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Activation, Attention, AttentionNames, DecoderConfig, Joined, Layer, LayerNorms, Mlp, MlpNames, NormKind},
};

const GPT: Defaults = Defaults {
    keys: &[
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner"),
    ],
    positions: 1024,
    norm_eps: 1e-5,
    norm_key: "layer_norm_epsilon",
    norm: NormKind::Layer { bias: true },
    activation_key: "activation_function",
    tied: true,
    ..Defaults::LLAMA
};

/// Names of GPT-2's modules. Published folders may lack the module above them.
const RENAMES: &[(&str, &str)] = &[
    ("transformer.", ""),
    (".ln_1.", ".input_layernorm."),
    (".ln_2.", ".post_attention_layernorm."),
    ("ln_f.", "model.norm."),
    ("wte.", "model.embed_tokens."),
    ("wpe.", "model.embed_positions."),
    (".attn.attention.", ".attn."),
    (".attn.c_attn.", ".self_attn.qkv_proj."),
    (".attn.c_proj.", ".self_attn.o_proj."),
    (".attn.out_proj.", ".self_attn.o_proj."),
    (".attn.", ".self_attn."),
    (".mlp.c_fc.", ".mlp.up_proj."),
    (".mlp.fc_in.", ".mlp.up_proj."),
    (".mlp.c_proj.", ".mlp.down_proj."),
    (".mlp.fc_out.", ".mlp.down_proj."),
    ("h.", "model.layers."),
];

/// GPT-2: learned positions, joined projections, and matrices stored as [inputs, outputs].
pub(super) fn gpt2(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = Base::read(f, &GPT)?;
    let by_layer = f.bool_or("scale_attn_by_inverse_layer_idx", false)?;
    let attention = Attention { joined: Joined::Blocks, ..biased(&base, scaled(f)?) };
    let mlp = Mlp { bias: true.into(), ..base.ungated(f)? };
    let layers = (0..base.layers).map(|i| {
        let scale = if by_layer { attention.scale / (i + 1) as f64 } else { attention.scale };
        layer(Attention { scale, ..attention.clone() }, mlp)
    });
    let config = with_positions(base.config(f, "gpt2", layers.collect())?, 0);
    Ok(DecoderConfig { columns: &["qkv_proj", "o_proj", "up_proj", "down_proj"], ..config })
}

/// StarCoder and SantaCoder: GPT-2 with one head of keys and values.
pub(super) fn bigcode(f: &Fields<'_>) -> Result<DecoderConfig> {
    let one = f.bool_or("multi_query", true)?;
    let base = Base::read(f, &Defaults { kv_heads: one.then_some(1), ..GPT })?;
    let joined = if one { Joined::Blocks } else { Joined::Groups };
    let attention = Attention { joined, ..biased(&base, scaled(f)?) };
    let mlp = Mlp { bias: true.into(), ..base.ungated(f)? };
    Ok(with_positions(base.config(f, "gpt_bigcode", vec![layer(attention, mlp); base.layers])?, 0))
}

/// GPT-Neo: learned positions, scores without a scale, and a window in every other layer.
pub(super) fn neo(f: &Fields<'_>) -> Result<DecoderConfig> {
    let keys = &[("num_attention_heads", "num_heads"), ("num_hidden_layers", "num_layers")];
    let base = Base::read(f, &Defaults { keys, positions: 2048, ..GPT })?;
    let local = f.size_or("window_size", 256)?;
    let plain = Mlp { bias: true.into(), ..base.ungated(f)? };
    let layers = neo_kinds(f, base.layers)?.into_iter().map(|is_local| {
        let attention = Attention { scale: 1.0, output_bias: true, window: is_local.then_some(local), ..base.attention(None) };
        layer(attention, plain)
    });
    Ok(with_positions(base.config(f, "gpt_neo", layers.collect())?, 0))
}

/// Whether each layer has a window: listed by layer, or as lists of kinds with numbers of
/// repetitions.
fn neo_kinds(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let (listed, repeated) = (f.texts("attention_layers", layers)?, f.get("attention_types"));
    let of = |kind: &str| match kind {
        "global" => Ok(false),
        "local" => Ok(true),
        _ => Err(f.error("attention_layers", "global and local")),
    };
    if let Some(kinds) = listed {
        return kinds.into_iter().take(layers).map(of).collect();
    }
    let Some(repeated) = repeated else { return Ok((0..layers).map(|i| i % 2 == 1).collect()) };
    let all: Option<Vec<Vec<&str>>> = repeated.as_array().and_then(|items| items.iter().map(|i| repetition(i, layers)).collect());
    let all = all.map(|lists| lists.concat()).filter(|kinds| kinds.len() >= layers);
    let all = all.ok_or_else(|| f.error("attention_types", format!("kinds of {layers} layers")))?;
    all.into_iter().take(layers).map(of).collect()
}

/// Kinds of layers, as often as `[kinds, number]` states.
fn repetition(item: &serde_json::Value, most: usize) -> Option<Vec<&str>> {
    let kinds: Vec<&str> = item[0].as_array()?.iter().map(|kind| kind.as_str()).collect::<Option<_>>()?;
    let times = usize::try_from(item[1].as_u64()?).ok()?.min(most);
    Some(kinds.repeat(times))
}

/// GPT-J: one norm for both halves, an interleaved rotary embedding, and a head with a bias.
pub(super) fn gptj(f: &Fields<'_>) -> Result<DecoderConfig> {
    rotary(f, "gptj", Joined::No)
}

/// CodeGen: GPT-J with projections joined in the four parts of its training.
pub(super) fn codegen(f: &Fields<'_>) -> Result<DecoderConfig> {
    rotary(f, "codegen", Joined::Shards(4))
}

fn rotary(f: &Fields<'_>, family: &'static str, joined: Joined) -> Result<DecoderConfig> {
    let base = Base::read(f, &Defaults { positions: 2048, tied: false, ..GPT })?;
    f.expect_bool("rotary", true)?;
    f.expect_bool("scale_attn_weights", true)?;
    let dims = if f.has_null("rotary_dim") { base.head_dim } else { f.size_or("rotary_dim", 64)? };
    if dims > base.head_dim || !dims.is_multiple_of(2) {
        return Err(f.error("rotary_dim", format!("an even number up to the {} elements of a head", base.head_dim)));
    }
    if let Joined::Shards(count) = joined
        && !base.heads.is_multiple_of(count)
    {
        return Err(f.error("n_head", format!("a multiple of {count}")));
    }
    let rope = Rope { theta: 10_000.0, dims, interleaved: true, reversed: false, scaling: Scaling::None };
    let attention = Attention { joined, ..base.attention(Some(rope)) };
    let norms = LayerNorms { feed_in: None, ..LayerNorms::PRE };
    let mlp = Mlp { bias: true.into(), ..base.ungated(f)? };
    let layer = Layer { norms, parallel: true, ..layer(attention, mlp) };
    let config = base.config(f, family, vec![layer; base.layers])?;
    Ok(DecoderConfig { head_bias: true, renames: RENAMES, ..config })
}

/// OPT: learned positions after two unused rows, and ReLU. The model of 350M normalizes sums and
/// has a narrower embedding.
pub(super) fn opt(f: &Fields<'_>) -> Result<DecoderConfig> {
    let defaults = Defaults { keys: &[], positions: 2048, norm_key: "", activation: Some(Activation::Relu), ..GPT };
    let is_plain = !f.bool_or("layer_norm_elementwise_affine", true)?;
    let norm = if is_plain { NormKind::LayerPlain } else { NormKind::Layer { bias: true } };
    let base = Base::read(f, &Defaults { norm, ..defaults })?;
    let norms_sums = !f.bool_or("do_layer_norm_before", true)?;
    let ends_plain = f.bool_or("_remove_final_layer_norm", false)? || norms_sums;
    let width = f.size_or("word_embed_proj_dim", base.hidden)?;
    let bias = f.bool_or("enable_bias", true)?;
    let names = AttentionNames { output: "out_proj", ..AttentionNames::COMMON };
    let attention = Attention { names, qkv_bias: bias.into(), output_bias: bias, ..base.attention(None) };
    let names = MlpNames { gate: "", up: "fc1", down: "fc2" };
    let mlp = Mlp { gated: false, bias: bias.into(), module: "mlp", names, ..base.mlp_of(f.size("ffn_dim")?, "mlp") };
    let (first, second) = (Some("self_attn_layer_norm"), Some("final_layer_norm"));
    let norms = match norms_sums {
        true => LayerNorms { mixer_in: None, mixer_out: first, feed_in: None, feed_out: second },
        false => LayerNorms { mixer_in: first, feed_in: second, ..LayerNorms::PRE },
    };
    let config = base.config(f, "opt", vec![Layer { norms, ..layer(attention, mlp) }; base.layers])?;
    let renames = &[
        ("model.decoder.", "model."),
        ("model.final_layer_norm.", "model.norm."),
        ("decoder.", "model."),
        (".fc1.", ".mlp.fc1."),
        (".fc2.", ".mlp.fc2."),
    ];
    let final_norm = if ends_plain { None } else { config.final_norm };
    let embedding_width = Some(width).filter(|&width| width != config.hidden);
    Ok(DecoderConfig { renames, norms_sums, final_norm, embedding_width, ..with_positions(config, 2) })
}

/// Attention with biases, and scores with this scale.
fn biased(base: &Base, is_scaled: bool) -> Attention {
    let attention = base.attention(None);
    let scale = if is_scaled { attention.scale } else { 1.0 };
    Attention { scale, qkv_bias: true.into(), output_bias: true, ..attention }
}

fn scaled(f: &Fields<'_>) -> Result<bool> {
    f.bool_or("scale_attn_weights", true)
}

/// A model with GPT-2's names, whose embedding adds learned positions.
fn with_positions(config: DecoderConfig, first: usize) -> DecoderConfig {
    DecoderConfig { learned_positions: Some(first), renames: RENAMES, ..config }
}
