//! Other names of config keys. transformers' config classes read both.

type Aliases = &'static [(&'static str, &'static str)];

const EXPERTS: Aliases = &[("num_local_experts", "num_experts")];
const LOCAL_EXPERTS: Aliases = &[("num_experts", "num_local_experts")];

/// Other names of a family's keys, each before the key.
pub(super) fn of(family: &str) -> Aliases {
    match family {
        "deepseek_v2" => &[("num_experts", "n_routed_experts")],
        "ernie4_5_moe" => &[("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")],
        "exaone" => &[("rms_norm_eps", "layer_norm_epsilon"), ("hidden_act", "activation_function")],
        "granitemoehybrid" => &[("layers_block_type", "layer_types")],
        "hunyuan_v1_moe" => &[("num_experts_per_tok", "moe_topk"), ("num_local_experts", "num_experts")],
        "internlm3" => &[("attention_bias", "qkv_bias"), ("mlp_bias", "bias")],
        "jamba" => EXPERTS,
        "lfm3" => &[("rms_norm_eps", "norm_eps")],
        "minimax_m2" => LOCAL_EXPERTS,
        "nemotron_h" => NEMOTRON_H,
        _ => &[],
    }
}

const NEMOTRON_H: Aliases = &[
    ("attention_head_dim", "head_dim"),
    ("layer_types", "layers_block_type"),
    ("mamba_chunk_size", "chunk_size"),
    ("mamba_conv_bias", "use_conv_bias"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_dt_init_floor", "time_step_floor"),
    ("mamba_dt_limit", "time_step_limit"),
    ("mamba_dt_max", "time_step_max"),
    ("mamba_dt_min", "time_step_min"),
    ("mamba_expand", "expand"),
    ("mamba_n_groups", "n_groups"),
];
