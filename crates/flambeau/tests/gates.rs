//! Routers and gates of a model with gated delta nets and experts stay in floating point.
#![cfg(all(feature = "cpu", feature = "zoo"))]

use flambeau::{
    compile::{Layers, Options, Scheme, SchemeName, WeightRule},
    cpu::CpuEngine,
    engine,
    ir::Checked,
    tensor::{Bytes, Tensor},
    zoo::{self, Checkpoint, Model},
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

const HIDDEN: usize = 256;
const EXPERTS: usize = 16;
const WIDTH: usize = 128;
const HEADS: usize = 16;
const KEY_HEADS: usize = 8;
const DIM: usize = 128;
const QUERIES: usize = 4;
const VOCABULARY: usize = 64;
/// Suffixes of router and gate names.
const GATES: [&str; 4] = ["mlp.gate.weight", "mlp.shared_expert_gate.weight", "in_proj_a.weight", "in_proj_b.weight"];

fn config() -> Value {
    let text = json!({
        "model_type": "qwen3_5_moe_text", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": QUERIES, "num_key_value_heads": 1,
        "head_dim": 2 * DIM, "vocab_size": VOCABULARY, "linear_num_value_heads": HEADS, "linear_num_key_heads": KEY_HEADS, "linear_key_head_dim": DIM,
        "linear_value_head_dim": DIM, "linear_conv_kernel_dim": 4, "num_experts": EXPERTS, "num_experts_per_tok": 4, "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": WIDTH, "intermediate_size": WIDTH, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": false, "max_position_embeddings": 64, "attn_output_gate": true, "attention_bias": false, "eos_token_id": 1,
        "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2, "dtype": "bfloat16",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": true
        },
    });
    json!({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text, "dtype": "bfloat16"})
}

/// Names and shapes of the weights.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let (keys, values, queries) = (KEY_HEADS * DIM, HEADS * DIM, QUERIES * 2 * DIM);
    let mut all: Vec<(String, Vec<usize>)> =
        ["model.embed_tokens", "lm_head"].map(|name| (name.into(), vec![VOCABULARY, HIDDEN])).into();
    all.push(("model.norm".into(), vec![HIDDEN]));
    for layer in 0..2 {
        let own: Vec<(&str, Vec<usize>)> = match layer {
            0 => vec![
                ("linear_attn.in_proj_qkv", vec![2 * keys + values, HIDDEN]),
                ("linear_attn.in_proj_z", vec![values, HIDDEN]),
                ("linear_attn.in_proj_a", vec![HEADS, HIDDEN]),
                ("linear_attn.in_proj_b", vec![HEADS, HIDDEN]),
                ("linear_attn.out_proj", vec![HIDDEN, values]),
                ("linear_attn.conv1d", vec![2 * keys + values, 1, 4]),
                ("linear_attn.norm", vec![DIM]),
                ("linear_attn.dt_bias", vec![HEADS]),
                ("linear_attn.A_log", vec![HEADS]),
            ],
            _ => vec![
                ("self_attn.q_proj", vec![2 * queries, HIDDEN]),
                ("self_attn.k_proj", vec![2 * DIM, HIDDEN]),
                ("self_attn.v_proj", vec![2 * DIM, HIDDEN]),
                ("self_attn.o_proj", vec![HIDDEN, queries]),
                ("self_attn.q_norm", vec![2 * DIM]),
                ("self_attn.k_norm", vec![2 * DIM]),
            ],
        };
        let both = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate", vec![EXPERTS, HIDDEN]),
            ("mlp.shared_expert_gate", vec![1, HIDDEN]),
            ("mlp.switch_mlp.gate_proj", vec![EXPERTS, WIDTH, HIDDEN]),
            ("mlp.switch_mlp.up_proj", vec![EXPERTS, WIDTH, HIDDEN]),
            ("mlp.switch_mlp.down_proj", vec![EXPERTS, HIDDEN, WIDTH]),
            ("mlp.shared_expert.gate_proj", vec![WIDTH, HIDDEN]),
            ("mlp.shared_expert.up_proj", vec![WIDTH, HIDDEN]),
            ("mlp.shared_expert.down_proj", vec![HIDDEN, WIDTH]),
        ];
        all.extend(own.into_iter().chain(both).map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    let is_bare = |name: &str| name.ends_with("A_log") || name.ends_with("dt_bias");
    all.into_iter().map(|(name, shape)| (if is_bare(&name) { name } else { format!("{name}.weight") }, shape)).collect()
}

fn model() -> Model {
    let shapes = shapes();
    // Every element is 0.125 in bf16.
    let data: Vec<Vec<u8>> = shapes.iter().map(|(_, shape)| [0, 0x3E].repeat(shape.iter().product())).collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
        (format!("language_model.{name}"), TensorView::new(Dtype::BF16, shape.clone(), data).unwrap())
    });
    let weights: Bytes = safetensors::serialize(views, None).unwrap().into();
    let config: Bytes = config().to_string().into_bytes().into();
    let checkpoint = Checkpoint::from_folder(vec![("config.json".into(), config), ("model.safetensors".into(), weights)]).unwrap();
    zoo::build(&checkpoint, &zoo::Options { max_seq_len: Some(64), prefill_chunk: Some(16), ..zoo::Options::default() }).unwrap()
}

/// Compiles the model with four-bit linear layers, except where a rule differs, and reads its
/// graph.
fn compiled<T>(model: &Model, rules: Vec<WeightRule>, read: impl Fn(&Checked) -> T) -> T {
    let linear = Some(Scheme::from_name("4w", None).unwrap());
    let output = zoo::compile(model, Options { linear, rules, ..Options::default() }, &CpuEngine::new(Some(1))).unwrap();
    let graphs: Vec<T> = output.graphs().map(read).collect();
    assert_eq!(graphs.len(), 1);
    graphs.into_iter().next().unwrap()
}

fn names(graph: &Checked) -> Vec<String> {
    graph.names.iter().map(|(name, _)| name.clone()).collect()
}

#[test]
fn routers_and_gates_keep_their_floats() {
    let names = compiled(&model(), Vec::new(), names);
    for (name, shape) in shapes() {
        let packed = names.iter().any(|found| found.ends_with(&format!("{name}_packed")));
        let is_gate = GATES.iter().any(|gate| name.ends_with(gate));
        let is_matrix = shape.len() > 1 && !name.contains("conv1d") && !name.contains("embed_tokens");
        assert_eq!(packed, is_matrix && !is_gate, "{name}");
    }
}

#[test]
fn a_rule_by_name_may_quantize_a_router() {
    let rule = WeightRule {
        pattern: "*.mlp.gate.weight".to_owned(),
        layers: Layers::All,
        scheme: Some(Scheme::from_name("8w", None).unwrap()),
        is_optional: false,
    };
    let names = compiled(&model(), vec![rule], names);
    assert!(names.iter().any(|name| name.ends_with("mlp.gate.weight_packed")), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with("in_proj_a.weight_packed")), "{names:?}");
}

#[test]
fn the_inputs_of_all_quantized_weights_are_observed() {
    let options = Options { linear: Some(Scheme::from_name("4w", None).unwrap()), ..Options::default() };
    let mut observer = zoo::observe(&model(), &options, &CpuEngine::new(Some(1)), 128, usize::MAX).unwrap();
    let tokens: Vec<i64> = (0..16).collect();
    let inputs = [Tensor::from_slice(&tokens, &[1, 16]).unwrap(), Tensor::from_slice(&tokens, &[16]).unwrap()];
    observer.run(&inputs.map(engine::Value::Tensor)).unwrap();
    let statistics = observer.statistics(2);
    for (name, shape) in shapes() {
        let squares = statistics.get(&name).map(|inputs| inputs.squares().to_vec());
        let is_quantized = shape.len() > 1 && !name.contains("conv1d") && !name.contains("embed_tokens");
        let is_gate = GATES.iter().any(|gate| name.ends_with(gate));
        let columns = shape.last().copied().filter(|_| is_quantized && !is_gate);
        let rows = if shape.len() == 3 { EXPERTS } else { 1 };
        assert_eq!(squares.as_ref().map(Vec::len), columns.map(|columns| rows * columns), "{name}");
        // All tokens and all weights are equal, so four experts see all inputs.
        let seen = squares.iter().flatten().filter(|&&square| square > 0.0).count();
        assert_eq!(Some(seen).filter(|_| columns.is_some()), columns.map(|columns| rows.min(4) * columns), "{name}");
    }
}
