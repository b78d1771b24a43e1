//! Tests of configs: missing keys, null, and other names of keys.

use serde_json::{Value, json};

use crate::{fields::Fields, spec::DecoderConfig};

/// A config whose sizes fit every default of [`DEFAULTS`].
fn base(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_size": 1280, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 160,
        "vocab_size": 16,
    })
}

fn read(config: &Value) -> DecoderConfig {
    super::config(&Fields::new(config.as_object().unwrap())).unwrap_or_else(|error| panic!("{config}: {error}"))
}

/// The config `base` with keys set.
fn with(family: &str, keys: &Value) -> Value {
    let mut config = base(family);
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

/// Defaults of transformers' classes for missing keys of a config.
fn defaults() -> Vec<(&'static str, Value)> {
    let yarn = json!({
        "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    });
    vec![
        ("arcee", json!({"hidden_act": "relu2"})),
        ("bitnet", json!({"hidden_act": "relu2", "num_key_value_heads": 5})),
        ("dots1", json!({"norm_topk_prob": false, "num_key_value_heads": 32})),
        ("exaone", json!({"num_key_value_heads": 8, "rope_theta": 5e5, "activation_function": "silu"})),
        ("exaone4", json!({"num_key_value_heads": 32})),
        ("exaone_moe", json!({"num_key_value_heads": 32})),
        ("gemma", json!({"num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"})),
        ("glm4_moe_lite", json!({"num_experts_per_tok": 4})),
        ("gpt_neox", json!({"hidden_act": "gelu"})),
        ("granite_swa", json!({"num_key_value_heads": 4})),
        ("helium", json!({"num_key_value_heads": 20})),
        ("hyperclovax", json!({"head_dim": 8})),
        ("internlm3", json!({"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5})),
        ("jais2", json!({"hidden_act": "relu2"})),
        ("minicpm3", json!({"v_head_dim": 8})),
        ("ministral3", json!({"rope_parameters": yarn})),
        ("nanochat", json!({"hidden_act": "relu2"})),
        ("nemotron", json!({"hidden_act": "relu2"})),
        ("phi", json!({"hidden_act": "gelu_new"})),
        ("stablelm", json!({"num_key_value_heads": 32})),
        ("starcoder2", json!({"hidden_act": "gelu_pytorch_tanh"})),
    ]
}

#[test]
fn missing_keys_have_the_defaults_of_transformers() {
    for (family, keys) in defaults() {
        assert_eq!(read(&base(family)), read(&with(family, &keys)), "{family}: {keys}");
    }
    let sizes = json!({"mamba_n_heads": 32, "mamba_d_head": 32});
    let mut stated = with("falcon_h1", &sizes);
    stated["mamba_d_ssm"] = json!(1024);
    assert_eq!(read(&with("falcon_h1", &sizes)), read(&stated));
}

#[test]
fn null_is_not_a_default_number() {
    let heads = json!({"num_key_value_heads": null, "head_dim": null});
    for family in ["cwm", "helium", "internlm3", "mixtral", "seed_oss"] {
        let stated = json!({"num_key_value_heads": 160, "head_dim": 8});
        assert_eq!(read(&with(family, &heads)), read(&with(family, &stated)), "{family}");
    }
    let [none, neutral] =
        [json!({"scale_depth": null, "dim_model_base": null}), json!({"scale_depth": 2.0, "dim_model_base": 1280})];
    assert_eq!(read(&with("minicpm3", &none)), read(&with("minicpm3", &neutral)));
    let sizes = json!({"mamba_d_ssm": null, "mamba_n_heads": 32, "mamba_d_head": 80});
    let mut stated = with("falcon_h1", &sizes);
    stated["mamba_d_ssm"] = json!(2560);
    assert_eq!(read(&with("falcon_h1", &sizes)), read(&stated));
}

#[test]
fn keys_have_the_names_of_any_release() {
    let heads = json!({"mamba_n_heads": 80, "mamba_d_head": 32, "layer_types": ["mamba", "attention", "mamba", "mamba"]});
    let [hybrid, nemotron] = ["granitemoehybrid", "nemotron_h"];
    let with_kinds = |name: &str| {
        let mut config = with(hybrid, &heads);
        let kinds = config.as_object_mut().unwrap().remove("layer_types").unwrap();
        config[name] = kinds;
        read(&config)
    };
    assert_eq!(with_kinds("layers_block_type"), with_kinds("layer_types"));
    for (family, own, other) in [
        ("ernie4_5_moe", json!({"moe_num_experts": 8, "moe_k": 2}), json!({"num_experts": 8, "num_experts_per_tok": 2})),
        ("hunyuan_v1_moe", json!({"num_experts": 8, "moe_topk": 2}), json!({"num_local_experts": 8, "num_experts_per_tok": 2})),
        ("internlm3", json!({"qkv_bias": true, "bias": true}), json!({"attention_bias": true, "mlp_bias": true})),
        ("jamba", json!({"num_experts": 6}), json!({"num_local_experts": 6})),
        ("minimax_m2", json!({"num_local_experts": 6}), json!({"num_experts": 6})),
        (nemotron, json!({"n_groups": 4, "conv_kernel": 3}), json!({"mamba_n_groups": 4, "mamba_d_conv": 3})),
        (nemotron, json!({"hybrid_override_pattern": "M-*E"}), json!({"layers_block_type": ["mamba", "mlp", "attention", "moe"]})),
        (
            nemotron,
            json!({"hybrid_override_pattern": "M*-M"}),
            json!({"layer_types": ["linear_attention", "full_attention", "mlp", "linear_attention"]}),
        ),
    ] {
        assert_eq!(read(&with(family, &own)), read(&with(family, &other)), "{family}: {other}");
    }
}

#[test]
fn layers_of_nemotron_h_are_counted_by_their_kinds() {
    let mut config = with("nemotron_h", &json!({"layers_block_type": ["mamba", "mlp", "attention"]}));
    config.as_object_mut().unwrap().remove("num_hidden_layers");
    assert_eq!(read(&config).layers.len(), 3);
}

#[test]
fn no_layer_has_experts_if_none_is_listed() {
    let experts = |config: &Value| {
        let layers = read(config).layers;
        layers.iter().filter(|layer| matches!(layer.feed_forward, crate::spec::FeedForward::Experts(_))).count()
    };
    assert_eq!(experts(&base("llama4_text")), 4);
    assert_eq!(experts(&with("llama4_text", &json!({"moe_layers": [2]}))), 1);
    assert_eq!(experts(&with("llama4_text", &json!({"moe_layers": []}))), 0);
}

#[test]
fn activations_have_the_names_of_transformers() {
    let of = |name: &str| read(&with("llama", &json!({"hidden_act": name}))).layers;
    for (name, other) in
        [("gelu_python", "gelu"), ("gelu_accurate", "gelu_new"), ("gelu_python_tanh", "gelu_fast"), ("swish", "silu")]
    {
        assert_eq!(of(name), of(other), "{name}");
    }
    // Only the name of the exact function means the approximation in Gemma's configs.
    let gemma = |name: &str| read(&with("gemma", &json!({"hidden_act": name}))).layers;
    assert_eq!(gemma("gelu"), gemma("gelu_pytorch_tanh"));
    assert_ne!(gemma("silu"), gemma("gelu"));
}

#[test]
fn a_tie_may_be_stated_in_the_text_part_alone() {
    let tied = |outer: Value, inner: Value| {
        let mut text = with("qwen2_vl_text", &json!({"tie_word_embeddings": inner}));
        text.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let mut config = json!({"model_type": "qwen2_vl", "text_config": text, "tie_word_embeddings": outer});
        config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        read(&config).tied
    };
    assert_eq!(tied(json!(false), json!(true)), Some(true));
    assert_eq!(tied(json!(true), json!(false)), Some(true));
    assert_eq!(tied(json!(false), json!(null)), Some(false));
    assert_eq!(tied(json!(null), json!(false)), Some(false));
}

#[test]
fn saved_configs_without_windows_have_no_pattern() {
    let saved = with("exaone4", &json!({"sliding_window": null, "sliding_window_pattern": 0}));
    assert_eq!(read(&saved), read(&with("exaone4", &json!({"sliding_window": null}))));
}
