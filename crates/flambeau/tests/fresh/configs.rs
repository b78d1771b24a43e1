//! Configs of tiny models. Their heads have the sizes of published models, so kernels take them.

use serde_json::{Value, json};

pub(crate) const VOCABULARY: usize = 512;

/// A config's name and its keys.
pub(crate) type Family = (&'static str, Value);

/// A plain decoder with two layers, with the keys of `more`. A null removes a key.
fn decoder(name: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": name, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 1024, "tie_word_embeddings": false, "eos_token_id": 1, "torch_dtype": "bfloat16",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(config.as_object_mut().and_then(|keys| keys.remove(key))),
            value => config[key] = value.clone(),
        }
    }
    config
}

/// Keys of gated delta nets beside gated attention.
fn delta_nets(name: &str, more: Value) -> Value {
    let mut config = decoder(
        name,
        json!({
            "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 256, "linear_num_value_heads": 16, "linear_num_key_heads": 8,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rope_theta": null,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        }),
    );
    config.as_object_mut().into_iter().for_each(|keys| keys.extend(more.as_object().cloned().unwrap_or_default()));
    config
}

fn experts() -> Value {
    json!({
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    })
}

fn gemma4(more: Value) -> Value {
    let mut config = decoder(
        "gemma4_text",
        json!({
            "head_dim": 256, "global_head_dim": 512, "sliding_window": 32, "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": null, "final_logit_softcapping": 30.0, "tie_word_embeddings": true, "enable_moe_block": false,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            },
        }),
    );
    config.as_object_mut().into_iter().for_each(|keys| keys.extend(more.as_object().cloned().unwrap_or_default()));
    config
}

/// All families with fused forms, and a few others.
pub(crate) fn families() -> Vec<Family> {
    let (sliding, full) = ("sliding_attention", "full_attention");
    vec![
        ("llama", decoder("llama", json!({}))),
        ("llama, tied", decoder("llama", json!({"tie_word_embeddings": true}))),
        ("llama, heads of 80", decoder("llama", json!({"head_dim": 80}))),
        ("mistral", decoder("mistral", json!({"sliding_window": 32}))),
        ("qwen2", decoder("qwen2", json!({}))),
        ("qwen3", decoder("qwen3", json!({"head_dim": 128}))),
        (
            "qwen3_moe",
            decoder(
                "qwen3_moe",
                json!({"head_dim": 128, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": true}),
            ),
        ),
        ("qwen3_5", delta_nets("qwen3_5_text", json!({}))),
        ("qwen3_5_moe", delta_nets("qwen3_5_moe_text", experts())),
        ("qwen3_next", delta_nets("qwen3_next", experts())),
        ("gemma", decoder("gemma", json!({"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"}))),
        (
            "gemma3",
            decoder(
                "gemma3_text",
                json!({"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 32, "layer_types": [sliding, full]}),
            ),
        ),
        (
            "gemma4, keys as values",
            gemma4(json!({
                "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
                "hidden_size_per_layer_input": 0, "layer_types": [sliding, full],
            })),
        ),
        (
            "gemma4, shared caches",
            gemma4(json!({
                "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "attention_k_eq_v": false,
                "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
                "use_double_wide_mlp": true, "layer_types": [sliding, full, sliding, full],
            })),
        ),
        ("granite", decoder("granite", json!({}))),
        ("olmo2", decoder("olmo2", json!({}))),
        ("phi3", decoder("phi3", json!({"head_dim": null}))),
        ("smollm3", decoder("smollm3", json!({"no_rope_layers": [1, 1]}))),
        (
            "gpt_oss",
            decoder(
                "gpt_oss",
                json!({"num_local_experts": 16, "num_experts_per_tok": 4, "layer_types": [sliding, full], "sliding_window": 32}),
            ),
        ),
        ("mixtral", decoder("mixtral", json!({"num_local_experts": 16, "num_experts_per_tok": 4}))),
        ("lfm2", decoder("lfm2", json!({"layer_types": ["conv", full], "head_dim": null, "rms_norm_eps": null, "norm_eps": 1e-5}))),
    ]
}
