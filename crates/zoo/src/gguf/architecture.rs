//! Architectures of GGUF files: the family that reads their config, and exceptions in their
//! metadata.

use serde_json::{Map, Value, json};

use super::{
    Gguf,
    decays::DECAYS,
    gpt::GPTS,
    hybrids::HYBRIDS,
    keys::Keys,
    llamas::LLAMAS,
    sparse::SPARSE,
    variants::{self, VARIANTS},
};
use crate::{Error, Result};

/// (GGUF's key under the architecture's prefix, the key of a config)
pub(super) type KeyNames = &'static [(&'static str, &'static str)];

/// An architecture, with the family that reads its config.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    pub(super) model_type: &'static str,
    /// Keys in addition to the shared keys.
    pub(super) keys: &'static [KeyNames],
    /// Defaults of the architecture for missing keys.
    pub(super) implied: fn() -> Value,
    /// Keys with another form in the file. Null hides a key that the family lacks.
    pub(super) stated: fn(&Keys<'_>) -> Result<Value>,
    /// Whether rows of q and k are interleaved.
    pub(super) interleaved: bool,
    /// Whether norm weights are stored plus 1.
    pub(super) norms_plus_one: bool,
}

pub(super) const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    keys: &[],
    implied: || json!({"rms_norm_eps": 1e-5}),
    stated: |_| Ok(Value::Null),
    interleaved: false,
    norms_plus_one: false,
};

pub(super) const EXPERTS: KeyNames = &[
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_weights_norm", "norm_topk_prob"),
];
pub(super) const SHARED_EXPERT: KeyNames = &[("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
/// Experts with a sigmoid router, selected by group.
pub(super) const GROUPED_EXPERTS: KeyNames = &[
    ("expert_count", "n_routed_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
];
const DELTA_NET: KeyNames = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("full_attention_interval", "full_attention_interval"),
];
const SHORT_CONV: KeyNames = &[("shortconv.l_cache", "conv_L_cache"), ("attention.layer_norm_rms_epsilon", "norm_eps")];

const ARCHITECTURES: [Architecture; 23] = [
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        keys: &[GROUPED_EXPERTS, &[("attention.kv_lora_rank", "kv_lora_rank")]],
        stated: latent,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        keys: &[&[("attn_logit_softcapping", "attn_logit_softcapping")]],
        implied: || json!({}),
        stated: |keys| gemma_scale(keys, 46),
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        implied: || json!({"rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6}),
        stated: |keys| gemma_scale(keys, 62),
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: super::encoder::GEMMA,
        model_type: "gemma3_text",
        implied: || json!({"rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6, "use_bidirectional_attention": true}),
        stated: |keys| gemma_scale(keys, usize::MAX),
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "gemma3n",
        model_type: "gemma3n_text",
        keys: &[&[
            ("altup.active_idx", "altup_active_idx"),
            ("altup.num_inputs", "altup_num_inputs"),
            ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
        ]],
        implied: || json!({"rope_local_base_freq": 10_000.0}),
        stated: super::gemma4::third,
        ..PLAIN
    },
    Architecture { name: "gemma4", model_type: "gemma4_text", implied: || json!({}), stated: super::gemma4::stated, ..PLAIN },
    Architecture { name: "glm4", model_type: "glm4", ..PLAIN },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        keys: &[GROUPED_EXPERTS],
        stated: |keys| {
            sigmoid(keys, true)?;
            Ok(json!({"use_qk_norm": keys.file.has_in_blocks("attn_q_norm.weight")}))
        },
        ..PLAIN
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        keys: &[&[("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")]],
        stated: |keys| {
            let width = keys.size_opt("expert_feed_forward_length")?.or(keys.size_opt("feed_forward_length")?);
            Ok(json!({"intermediate_size": width}))
        },
        ..PLAIN
    },
    Architecture { name: "granite", model_type: "granite", keys: &[variants::GRANITE], interleaved: true, ..PLAIN },
    Architecture {
        name: "lfm2",
        model_type: "lfm2",
        keys: &[SHORT_CONV],
        implied: || json!({"block_auto_adjust_ff_dim": false}),
        stated: short_convs,
        ..PLAIN
    },
    Architecture {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        keys: &[
            SHORT_CONV,
            EXPERTS,
            &[("expert_weights_scale", "routed_scaling_factor"), ("leading_dense_block_count", "num_dense_layers")],
        ],
        implied: || json!({"num_dense_layers": 0}),
        stated: |keys| {
            sigmoid(keys, true)?;
            let corrected = keys.file.has_in_blocks("exp_probs_b.bias");
            Ok(with(short_convs(keys)?, json!({"use_expert_bias": corrected})))
        },
        ..PLAIN
    },
    Architecture { name: "llama", model_type: "llama", stated: llama, interleaved: true, ..PLAIN },
    Architecture {
        name: "minicpm3",
        model_type: "minicpm3",
        keys: &[&[("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank")]],
        stated: minicpm3,
        ..PLAIN
    },
    Architecture { name: "olmo2", model_type: "olmo2", stated: variants::olmo2, ..PLAIN },
    Architecture { name: "phi3", model_type: "phi3", stated: longrope, ..PLAIN },
    Architecture { name: "qwen2", model_type: "qwen2", stated: windowed, ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", stated: windowed, ..PLAIN },
    Architecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        keys: &[DELTA_NET],
        stated: delta_nets,
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe_text",
        keys: &[DELTA_NET, EXPERTS, SHARED_EXPERT],
        stated: delta_nets,
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        keys: &[EXPERTS],
        implied: || json!({"rms_norm_eps": 1e-5, "norm_topk_prob": true}),
        stated: windowed,
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        keys: &[DELTA_NET, EXPERTS, SHARED_EXPERT],
        stated: delta_nets,
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture { name: "smollm3", model_type: "smollm3", interleaved: true, ..PLAIN },
];

/// The architecture of a file.
///
/// # Errors
/// [`Error::Family`] for an unsupported architecture.
pub(super) fn architecture(file: &Gguf) -> Result<&'static Architecture> {
    const KEY: &str = "general.architecture";
    let name = file.text(KEY)?.ok_or_else(|| Error::key(KEY, "the name of a family", "nothing"))?;
    let others = [&GPTS[..], &VARIANTS, &HYBRIDS, &DECAYS, &LLAMAS, &SPARSE];
    let known = || ARCHITECTURES.iter().chain(others.into_iter().flatten());
    known().find(|a| a.name == name).ok_or_else(|| {
        let mut names: Vec<_> = known().map(|a| a.name).collect();
        names.sort_unstable();
        Error::Family { found: name.chars().take(80).collect(), supported: names.join(", ") }
    })
}

/// Merges the keys of both objects.
pub(super) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(map), Value::Object(more)) = (&mut object, more) {
        map.extend(more);
    }
    object
}

/// Mistral and Mixtral use the same architecture name.
fn llama(keys: &Keys<'_>) -> Result<Value> {
    let experts = keys.size_opt("expert_count")?;
    if experts.is_some() {
        let chosen = keys.size_opt("expert_used_count")?;
        return Ok(json!({"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": chosen}));
    }
    keys.get("expert_used_count");
    let windowed = keys.get("attention.sliding_window").is_some();
    Ok(if windowed { json!({"model_type": "mistral"}) } else { json!({}) })
}

/// A stated window applies to every layer.
pub(super) fn windowed(keys: &Keys<'_>) -> Result<Value> {
    let windowed = keys.get("attention.sliding_window").is_some();
    Ok(if windowed { json!({"use_sliding_window": true, "max_window_layers": 0}) } else { json!({}) })
}

/// Sets the divisor of the scores: the square root of a head's width. The model with `largest`
/// layers uses a head's share of the hidden width instead.
fn gemma_scale(keys: &Keys<'_>, largest: usize) -> Result<Value> {
    let width = if keys.size_opt("block_count")? == Some(largest) { keys.even_head_dim()? } else { keys.head_dim()? };
    Ok(json!({"query_pre_attn_scalar": width}))
}

/// Refuses a router without sigmoid scores. If `implied`, a file need not state the function.
pub(super) fn sigmoid(keys: &Keys<'_>, implied: bool) -> Result<()> {
    const SIGMOID: i64 = 2;
    match keys.int("expert_gating_func")? {
        Some(SIGMOID) => Ok(()),
        None if implied => Ok(()),
        _ => Err(keys.error("expert_gating_func", "2, a sigmoid")),
    }
}

/// Attention over latent vectors, with the family.
fn latent(keys: &Keys<'_>) -> Result<Value> {
    Ok(with(latent_family(keys)?, latent_sizes(keys)?))
}

/// Sizes of attention over latent vectors, which are separate for queries, keys and values.
pub(super) fn latent_sizes(keys: &Keys<'_>) -> Result<Value> {
    let rotated = keys.size("rope.dimension_count")?;
    // Older files, from before attention over the latent vector itself, have these sizes under the
    // common names.
    let size = |name: &str| Ok::<_, Error>(keys.size_opt(&format!("{name}_mla"))?.or(keys.size_opt(name)?));
    let missing = |name: &str| keys.error(&format!("{name}_mla"), "an integer");
    let whole = size("attention.key_length")?.ok_or_else(|| missing("attention.key_length"))?;
    let values = size("attention.value_length")?.ok_or_else(|| missing("attention.value_length"))?;
    let plain = whole.checked_sub(rotated).filter(|&plain| plain > 0);
    let plain = plain.ok_or_else(|| keys.error("attention.key_length_mla", format!("more than the {rotated} rotated elements")))?;
    // Heads that share the latent vector.
    keys.get("attention.head_count_kv");
    Ok(json!({
        "head_dim": null, "num_key_value_heads": null,
        "qk_rope_head_dim": rotated, "qk_nope_head_dim": plain, "v_head_dim": values,
        // Null means a direct projection. A missing key would mean the default.
        "q_lora_rank": keys.size_opt("attention.q_lora_rank")?,
    }))
}

/// The family: DeepSeek V3, V2 with a softmax as router, or a model without experts.
fn latent_family(keys: &Keys<'_>) -> Result<Value> {
    const SOFTMAX: i64 = 1;
    if keys.size_opt("expert_count")?.is_none() {
        let unused = GROUPED_EXPERTS.iter().map(|(stored, key)| {
            keys.get(stored);
            ((*key).to_owned(), Value::Null)
        });
        return Ok(with(Value::Object(unused.collect()), json!({"model_type": "youtu"})));
    }
    // Old files do not state the function. Only sigmoid routers have a correction.
    let silent = if keys.file.has_in_blocks("exp_probs_b.bias") { None } else { Some(SOFTMAX) };
    if keys.int("expert_gating_func")?.or(silent) == Some(SOFTMAX) {
        let groups = keys.size_opt("expert_group_count")?.unwrap_or(1);
        let method = if groups > 1 { "group_limited_greedy" } else { "greedy" };
        return Ok(json!({"model_type": "deepseek_v2", "topk_method": method}));
    }
    sigmoid(keys, true)?;
    Ok(json!({}))
}

/// Layers with gated delta nets, and the width of their values.
fn delta_nets(keys: &Keys<'_>) -> Result<Value> {
    let (inner, heads) = (keys.size("ssm.inner_size")?, keys.size("ssm.time_step_rank")?);
    if !inner.is_multiple_of(heads) {
        return Err(keys.error("ssm.inner_size", format!("a multiple of the {heads} heads")));
    }
    let kinds = keys.bools("attention.recurrent_layers")?;
    let kind = |&recurrent: &bool| if recurrent { "linear_attention" } else { "full_attention" };
    let kinds: Option<Vec<_>> = kinds.map(|kinds| kinds.iter().map(kind).collect());
    Ok(json!({"linear_value_head_dim": inner / heads, "layer_types": kinds}))
}

/// Layers without keys have convolutions.
fn short_convs(keys: &Keys<'_>) -> Result<Value> {
    let heads = keys.counts("attention.head_count_kv")?;
    let kind = |&heads: &usize| if heads == 0 { "conv" } else { "full_attention" };
    let kinds: Vec<_> = heads.iter().map(kind).collect();
    let most = heads.iter().copied().max();
    if heads.iter().any(|&n| n > 0 && Some(n) != most) {
        return Err(keys.error("attention.head_count_kv", "one number for all layers with attention"));
    }
    let biased = keys.file.has_in_blocks("shortconv.in_proj.bias");
    Ok(json!({"rms_norm_eps": null, "num_key_value_heads": most, "layer_types": kinds, "conv_bias": biased}))
}

/// Reads the lists of longrope, which are tensors.
pub(super) fn longrope(keys: &Keys<'_>) -> Result<Value> {
    let list = |name: &str| keys.file.source(name)?.map(|source| source.values(name)).transpose();
    let (short, long) = (list("rope_factors_short.weight")?, list("rope_factors_long.weight")?);
    let original = keys.size_opt("rope.scaling.original_context_length")?;
    let amplitude = keys.positive_opt("rope.scaling.attn_factor")?;
    let (Some(short), Some(long)) = (short, long) else {
        return Ok(json!({"original_max_position_embeddings": original}));
    };
    let scaling = json!({"rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": amplitude});
    Ok(json!({"original_max_position_embeddings": original, "rope_scaling": scaling}))
}

/// MiniCPM 3: latent attention. The factors of the published model are not in files.
fn minicpm3(keys: &Keys<'_>) -> Result<Value> {
    let (whole, rotated, heads) =
        (keys.size("attention.key_length")?, keys.size("rope.dimension_count")?, keys.size("attention.head_count")?);
    let plain = whole.checked_sub(rotated).filter(|&plain| plain > 0);
    let plain = plain.ok_or_else(|| keys.error("attention.key_length", format!("more than the {rotated} rotated elements")))?;
    let output = keys.file.tensors.get("blk.0.attn_output.weight").and_then(|tensor| tensor.shape.last().copied());
    let values = output.map(|cols| cols / heads);
    // All heads have separate keys.
    keys.get("attention.head_count_kv");
    Ok(with(
        longrope(keys)?,
        json!({
            "head_dim": null, "num_key_value_heads": null,
            "qk_rope_head_dim": rotated, "qk_nope_head_dim": plain, "v_head_dim": values,
        }),
    ))
}

/// The JSON object of a value, or an empty one.
pub(super) fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}
