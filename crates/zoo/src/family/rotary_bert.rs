//! Encoders in the form of BERT with rotary embedding in place of learned positions.

use super::{
    Configs,
    bert::{self, POST},
    common::{self, Base, Defaults, layer},
    rope,
};
use crate::{
    Result,
    encoder::{Embedding, EncoderConfig, Tasks},
    fields::Fields,
    rope::{Rope, Scaling},
    spec::{Activation, Attention, Experts, FeedForward, Layer, Mlp, MlpBias, Norm, NormKind, QkvBias, Router},
};

/// Prefixes that tasks add to the names of tensors.
const PREFIXES: &[&str] = &["nomic_bert.", "bert.", "roberta.", "gte.", "new."];

/// Replacements in published names, in order. The longer of two equal beginnings comes first.
const RENAMES: &[(&str, &str)] = &[
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers.", "layers."),
    ("encoder.layer.", "layers."),
    (".parametrizations.weight.original", ".weight"),
    ("attention.qkv_proj", "self_attn.qkv_proj"),
    ("attention.o_proj", "self_attn.o_proj"),
    (".attn.Wqkv", ".self_attn.qkv_proj"),
    (".attn.out_proj", ".self_attn.o_proj"),
    (".mixer.Wqkv", ".self_attn.qkv_proj"),
    (".mixer.out_proj", ".self_attn.o_proj"),
    ("attn_ln", "post_attention_layernorm"),
    ("mlp_ln", "post_mlp_layernorm"),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
    (".mlp.fc11.", ".mlp.up_proj."),
    (".mlp.fc12.", ".mlp.gate_proj."),
    (".mlp.fc1.", ".mlp.up_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
];

/// Differences between the families.
struct Family {
    name: &'static str,
    defaults: Defaults,
    eps: f64,
    token_types: usize,
    /// Biases of attention and of the feed-forward half.
    bias: QkvBias,
    feed_bias: MlpBias,
    gated: bool,
}

const ROTARY: Defaults = Defaults { positions: 2048, theta: 1000.0, ..Defaults::LLAMA };

/// Nomic Embed: no biases, a gated feed-forward half.
const NOMIC: Family = Family {
    name: "nomic_bert",
    defaults: ROTARY,
    eps: 1e-12,
    token_types: 2,
    bias: QkvBias::None,
    feed_bias: MlpBias::None,
    gated: true,
};

/// Alibaba's GTE: biases of attention and of the narrow layer.
const GTE: Family = Family {
    name: "gte",
    defaults: Defaults { positions: 8192, theta: 160_000.0, ..ROTARY },
    eps: 1e-12,
    token_types: 1,
    bias: QkvBias::All,
    feed_bias: MlpBias::Down,
    gated: true,
};

/// Jina Embeddings 3: XLM-RoBERTa with rotary embedding.
const JINA: Family = Family {
    name: "jina_embeddings_v3",
    defaults: Defaults { positions: 8194, theta: 20_000.0, ..ROTARY },
    eps: 1e-5,
    token_types: 1,
    bias: QkvBias::All,
    feed_bias: MlpBias::All,
    gated: false,
};

pub(super) fn nomic(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    if f.get("n_embd").is_some() { first_nomic(configs) } else { read(&NOMIC, configs, None) }
}

pub(super) fn jina(configs: &Configs<'_>) -> Result<EncoderConfig> {
    read(&JINA, configs, None)
}

/// Jina Embeddings 3 in the form of its own release: XLM-RoBERTa's config with rotary embedding,
/// and adapters of tasks.
pub(super) fn published_jina(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    f.expect_text("emb_pooler", "mean")?;
    let base = base(&JINA, f)?;
    let theta = f.positive_or("rotary_emb_base", 10_000.0)?;
    let rope = Rope { theta, dims: base.head_dim, interleaved: false, reversed: false, scaling: Scaling::None };
    let token_types = f.count_or("type_vocab_size", JINA.token_types)?;
    let mut config = written(&JINA, configs, &base, f.size("intermediate_size")?, rope, token_types)?;
    let names = f.texts("lora_adaptations", 1)?.unwrap_or_default();
    let alpha = f.positive_or("lora_alpha", 1.0)?;
    if let Some(instructions) = f.child("task_instructions")? {
        let prompts = &mut config.sentence.prompts.texts;
        for name in &names {
            let instruction = instructions.text(name)?.unwrap_or_default();
            prompts.entry((*name).to_owned()).or_insert_with(|| instruction.to_owned());
        }
    }
    if f.bool_or("load_trained_adapters", false)? && !names.is_empty() {
        config.tasks = Some(Tasks { names: names.into_iter().map(str::to_owned).collect(), alpha });
    }
    Ok(config)
}

/// GTE under its own name, and under the name `new` of its first release.
pub(super) fn gte(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    f.expect_text("position_embedding_type", "rope")?;
    f.expect_text("layer_norm_type", "layer_norm")?;
    f.expect_bool("logn_attention_scale", false)?;
    f.expect_bool("logn_attention_clip1", false)?;
    for key in ["pack_qkv", "unpad_inputs", "use_memory_efficient_attention"] {
        f.bool_opt(key)?;
    }
    read(&GTE, configs, f.child("rope_scaling")?.filter(|child| !child.is_empty()))
}

/// Reads a config in transformers' form.
fn read(family: &Family, configs: &Configs<'_>, scaling: Option<Fields<'_>>) -> Result<EncoderConfig> {
    let f = &configs.model;
    let base = base(family, f)?;
    let rope = match scaling {
        Some(scaling) if scaling.text("type")? == Some("ntk") => stretched(f, &scaling, &base)?,
        _ => rope::read(f, &base)?,
    };
    let token_types = f.count_or("type_vocab_size", family.token_types)?;
    written(family, configs, &base, f.size("intermediate_size")?, rope, token_types)
}

/// Hyperparameters under transformers' keys.
fn base(family: &Family, f: &Fields<'_>) -> Result<Base> {
    let base = Base::read(f, &Defaults { activation_key: "hidden_act", ..family.defaults })?;
    let activation = match f.get("hidden_act") {
        None if family.name == NOMIC.name => Activation::Silu,
        _ => bert::activation(f, "hidden_act")?,
    };
    f.expect_size("num_key_value_heads", base.heads)?;
    let norm = Norm { eps: f.positive_or("layer_norm_eps", family.eps)?, kind: NormKind::Layer { bias: true } };
    Ok(Base { norm, activation, ..base })
}

/// A rotary embedding whose base is multiplied by `factor`. All frequencies are divided by its
/// power 2 / dims as well.
fn stretched(f: &Fields<'_>, scaling: &Fields<'_>, base: &Base) -> Result<Rope> {
    let (factor, dims) = (scaling.positive("factor")?, base.head_dim);
    let divisors = (0..dims / 2).map(|i| factor.powf((2 * i + 2) as f64 / dims as f64)).collect();
    let theta = f.positive_or("rope_theta", base.defaults.theta)?;
    Ok(Rope { theta, dims, interleaved: false, reversed: false, scaling: Scaling::Divisors(divisors) })
}

/// Reads Nomic's config in the form of its first release, with GPT-2's keys.
fn first_nomic(configs: &Configs<'_>) -> Result<EncoderConfig> {
    let f = &configs.model;
    for key in ["prenorm", "parallel_block", "rotary_emb_interleaved", "use_rms_norm", "causal", "scale_attn_by_inverse_layer_idx"]
    {
        f.expect_bool(key, false)?;
    }
    f.expect_bool("scale_attn_weights", true)?;
    if f.positive_or("rotary_emb_fraction", 1.0)? != 1.0 {
        return Err(f.error("rotary_emb_fraction", "1"));
    }
    let (gated, activation) = match f.text("activation_function")? {
        None | Some("swiglu") => (true, Activation::Silu),
        Some("gelu") => (false, Activation::GeluErf),
        Some(_) => return Err(f.error("activation_function", "swiglu or gelu")),
    };
    let feed_bias = f.bool_or("mlp_fc1_bias", false)?;
    f.expect_bool("mlp_fc2_bias", feed_bias)?;
    let family = Family { bias: f.bool_or("qkv_proj_bias", false)?.into(), feed_bias: feed_bias.into(), gated, ..NOMIC };
    let (hidden, heads, layers) = (f.size("n_embd")?, f.size("n_head")?, f.size("n_layer")?);
    if !hidden.is_multiple_of(heads) {
        return Err(f.error("n_embd", format!("a multiple of {heads} heads")));
    }
    // Beyond the trained length the frequencies would depend on the length of each text.
    let (trained, scaling) = (f.size_or("max_trained_positions", 2048)?, f.positive_opt("rotary_scaling_factor")?);
    let positions = f.size("n_positions")?;
    let base = Base {
        defaults: ROTARY,
        hidden,
        layers: bert::layers(f, "n_layer", layers)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        positions: if scaling.is_some() { positions.min(trained) } else { positions },
        norm: Norm { eps: f.positive_or("layer_norm_epsilon", 1e-12)?, kind: NormKind::Layer { bias: true } },
        activation,
    };
    let theta = f.positive_or("rotary_emb_base", ROTARY.theta)?;
    let rope = Rope { theta, dims: base.head_dim, interleaved: false, reversed: false, scaling: Scaling::None };
    let token_types = f.count_or("type_vocab_size", NOMIC.token_types)?;
    let mut config = written(&family, configs, &base, f.size("n_inner")?, rope, token_types)?;
    let period = f.count_or("moe_every_n_layers", 0)?;
    if period > 0 {
        let experts = experts(f, &base)?;
        for layer in config.layers.iter_mut().skip(1).step_by(period) {
            layer.feed_forward = FeedForward::Experts(Box::new(experts.clone()));
        }
    }
    Ok(config)
}

/// Experts of Nomic Embed 2: layers without a gate, whose weights are not normalized.
fn experts(f: &Fields<'_>, base: &Base) -> Result<Experts> {
    for key in ["expert_choice_router", "moe_normalize_expert_weights"] {
        f.expect_bool(key, false)?;
    }
    if f.count_or("num_shared_experts", 0)? != 0 {
        return Err(f.error("num_shared_experts", "0"));
    }
    f.expect_size("ffn_div", 1)?;
    for key in ["moe_impl", "moe_resid_pdrop", "pad_vocab_size_multiple"] {
        f.get(key);
    }
    let (count, chosen) = (f.size("num_experts")?, f.size_or("moe_top_k", 1)?);
    if chosen > count {
        return Err(f.error("moe_top_k", format!("at most {count}, the number of experts")));
    }
    let router = Router { module: "router.layer", ..Router::SOFTMAX };
    Ok(Experts { router, bias: true, gated: false, ..base.experts(count, chosen, f.size("n_inner")?) })
}

fn written(
    family: &Family,
    configs: &Configs<'_>,
    base: &Base,
    feed_forward: usize,
    rope: Rope,
    token_types: usize,
) -> Result<EncoderConfig> {
    let f = &configs.model;
    let is_biased = family.bias == QkvBias::All;
    let attention = Attention { qkv_bias: family.bias, output_bias: is_biased, ..base.attention(Some(rope)) };
    let mlp = Mlp { gated: family.gated, bias: family.feed_bias, ..base.mlp_of(feed_forward, "mlp") };
    Ok(EncoderConfig {
        embedding: Embedding { token_types, ..Embedding::BERT },
        layers: vec![Layer { norms: POST, ..layer(attention, mlp) }; base.layers],
        prefixes: PREFIXES,
        renames: RENAMES,
        dtype: common::dtype(f)?,
        ..EncoderConfig::new(family.name, [base.hidden, f.size("vocab_size")?, base.positions], base.norm, (configs.sentence)()?)
    })
}
