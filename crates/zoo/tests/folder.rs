//! Tests of generated Hugging Face folders: every family builds, and errors name their key.

use std::collections::BTreeMap;

use flambeau_tensor::{Bytes, DType, Tensor, bf16, cast};
use flambeau_zoo::{Checkpoint, Error, MethodConstant, Model, Options, TokenizerSource, build};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

const HIDDEN: usize = 64;
const FFN: usize = 96;
const VOCAB: usize = 32;
const HEADS: usize = 4;
const KV: usize = 2;
const DIM: usize = 16;

fn config(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": DIM, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu",
    })
}

/// Names and shapes of the tensors that a family stores.
fn shapes(family: &str) -> BTreeMap<String, Vec<usize>> {
    let mut out =
        BTreeMap::from([("model.embed_tokens.weight".into(), vec![VOCAB, HIDDEN]), ("model.norm.weight".into(), vec![HIDDEN])]);
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| out.insert(format!("model.layers.{layer}.{name}"), shape.to_vec());
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        add("self_attn.o_proj.weight", &[HIDDEN, HEADS * DIM]);
        add("mlp.down_proj.weight", &[HIDDEN, FFN]);
        if family == "phi3" {
            add("self_attn.qkv_proj.weight", &[(HEADS + 2 * KV) * DIM, HIDDEN]);
            add("mlp.gate_up_proj.weight", &[2 * FFN, HIDDEN]);
            continue;
        }
        for (part, heads) in [("q", HEADS), ("k", KV), ("v", KV)] {
            add(&format!("self_attn.{part}_proj.weight"), &[heads * DIM, HIDDEN]);
            if family == "qwen2" {
                add(&format!("self_attn.{part}_proj.bias"), &[heads * DIM]);
            }
        }
        if family == "qwen3" {
            add("self_attn.q_norm.weight", &[DIM]);
            add("self_attn.k_norm.weight", &[DIM]);
        }
        add("mlp.gate_proj.weight", &[FFN, HIDDEN]);
        add("mlp.up_proj.weight", &[FFN, HIDDEN]);
    }
    out
}

/// A safetensors file with increasing elements, so a slice shows its origin.
fn weights(shapes: &BTreeMap<String, Vec<usize>>) -> Bytes {
    let ramp = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product::<usize>()).flat_map(|i| bf16::from_f32((i / HIDDEN) as f32).to_le_bytes()).collect()
    };
    let data: Vec<_> = shapes.iter().map(|(name, shape)| (name, shape, ramp(shape))).collect();
    let views =
        data.iter().map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::BF16, (*shape).clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap().into()
}

fn folder(config: &Value, weights: Bytes) -> Vec<(String, Bytes)> {
    let file = |name: &str, text: String| (format!("some/where/{name}"), Bytes::from(text.into_bytes()));
    let generation = json!({"eos_token_id": [3, 4]});
    vec![
        file("config.json", config.to_string()),
        file("generation_config.json", generation.to_string()),
        file("tokenizer.json", "{}".into()),
        ("some/where/model.safetensors".into(), weights),
    ]
}

fn built(config: &Value, options: &Options) -> Result<Model, Error> {
    let family = config["model_type"].as_str().unwrap_or_default();
    let checkpoint = Checkpoint::from_folder(folder(config, weights(&shapes(family))))?;
    build(&checkpoint, options)
}

/// The config with some keys set.
fn with(family: &str, keys: Value) -> Value {
    with_keys(config(family), keys)
}

fn with_keys(mut config: Value, keys: Value) -> Value {
    let (Value::Object(map), Value::Object(keys)) = (&mut config, keys) else { unreachable!() };
    map.extend(keys);
    config
}

fn values(t: &Tensor) -> Vec<f32> {
    cast(t, DType::F32).unwrap().aligned().as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn every_family_builds() {
    let check = |family: &str, targets: &[(&str, usize)]| {
        let model = built(&config(family), &Options::default()).unwrap();
        model.methods["forward"].graph.check().unwrap();
        for &(op, want) in targets {
            let found = model.methods["forward"].graph.nodes.iter().filter(|n| n.target == format!("torch.ops.{op}")).count();
            assert_eq!(found, want, "{op} of {family}");
        }
        let logits = model.methods["forward"].graph.outputs[0].as_tensor().unwrap();
        assert_eq!(model.methods["forward"].graph.tensor(logits).unwrap().dtype, DType::BF16);
        assert!(matches!(&model.tokenizer, TokenizerSource::Files(files) if files.len() == 2));
    };
    check("llama", &[("aten.linear.default", 15), ("aten.rms_norm.default", 5)]);
    check("qwen2", &[("aten.linear.default", 15), ("aten.rms_norm.default", 5)]);
    check("qwen3", &[("aten.linear.default", 15), ("aten.rms_norm.default", 9)]);
    check("phi3", &[("aten.linear.default", 15), ("aten.rms_norm.default", 5)]);
}

#[test]
fn short_lists_of_kinds_of_layers_are_refused() {
    let mimo = |key: &str, list: Value| {
        let keys = json!({"hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "partial_rotary_factor": 0.5, "v_head_dim": DIM, "n_routed_experts": 4});
        let mut config = with("mimo_v2_flash", keys);
        config[key] = list;
        Checkpoint::from_folder(folder(&config, weights(&shapes("llama")))).err().map(|error| error.to_string())
    };
    for key in ["hybrid_layer_pattern", "moe_layer_freq"] {
        for list in [json!([0, 1]), json!([0, 1, 1]), json!([]), Value::Null] {
            assert_eq!(mimo(key, list), None, "{key}");
        }
        let said = mimo(key, json!([0])).unwrap_or_default();
        assert!(said.contains(&format!("key `{key}`: expected a list of 2 integers")), "{key}: {said}");
    }
}

#[test]
fn joined_projections_are_slices_of_the_file() {
    let model = built(&config("phi3"), &Options::default()).unwrap();
    let weight = |name: &str| model.methods["forward"].weights[&format!("model.layers.1.{name}.weight")].tensor().unwrap();
    let check = |name: &str, rows: usize, first: usize| {
        let t = weight(name);
        assert_eq!((t.shape(), values(&t)[0]), (&[rows, HIDDEN][..], first as f32), "{name}");
    };
    check("self_attn.qkv_proj.q", HEADS * DIM, 0);
    check("self_attn.qkv_proj.k", KV * DIM, HEADS * DIM);
    check("self_attn.qkv_proj.v", KV * DIM, (HEADS + KV) * DIM);
    check("mlp.gate_up_proj.gate", FFN, 0);
    check("mlp.gate_up_proj.up", FFN, FFN);
}

#[test]
fn weights_follow_the_type_of_the_activations() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let model = built(&config("llama"), &Options { dtype: Some(dtype), ..Options::default() }).unwrap();
        let weights = model.methods["forward"].weights.values().map(|w| w.tensor().unwrap());
        assert!(weights.into_iter().all(|t| t.dtype() == dtype));
    }
}

#[test]
fn scaled_frequencies_become_constants() {
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5e5});
    let longrope = json!({"type": "longrope", "short_factor": vec![1.0; 6], "long_factor": vec![2.0; 6]});
    let check = |config: &Value, names: &[&str]| {
        let mut model = built(config, &Options::default()).unwrap();
        let forward = model.methods.swap_remove("forward").unwrap();
        for name in ["rope_periods", "rope_amplitude"] {
            assert_eq!(forward.constants.contains_key(name), names.contains(&name), "{name}");
        }
        forward
    };
    let exported = check(&with("llama", json!({"rope_parameters": llama3})), &["rope_periods"]);
    let periods = values(&exported.constants["rope_periods"].tensor().unwrap());
    assert!((periods[2] * 0.001_175_188 - 1.0).abs() < 1e-5, "{periods:?}");
    let phi =
        with("phi3", json!({"rope_scaling": longrope, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64}));
    let exported = check(&phi, &["rope_periods", "rope_amplitude"]);
    let amplitude = values(&exported.constants["rope_amplitude"].tensor().unwrap());
    assert_eq!((amplitude[11] > 1.3, amplitude[12]), (true, 1.0));
    check(&config("llama"), &[]);
}

#[test]
fn complaints_name_the_key() {
    let check = |config: Value, want: &str| {
        let error = built(&config, &Options::default()).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    check(with("llama", json!({"model_type": "rwkv7"})), "family `rwkv7` is not supported: expected one of afmoe, apertus");
    check(with("llama", json!({"hidden_size": null})), "key `hidden_size`: expected an integer, found nothing");
    check(with("llama", json!({"hidden_size": -4})), "key `hidden_size`: expected an integer from 1");
    check(with("llama", json!({"num_key_value_heads": 3})), "key `num_key_value_heads`: expected a divisor of the 4");
    check(
        with("llama", json!({"hidden_act": "tanh"})),
        "key `hidden_act`: expected silu, gelu, gelu_pytorch_tanh, quick_gelu, relu or relu2, found tanh",
    );
    check(with("llama", json!({"rope_scaling": {"rope_type": "ntk"}})), "key `rope_scaling.rope_type`: expected default, linear");
    check(
        with("phi3", json!({"rope_scaling": {"type": "longrope", "short_factor": [1]}})),
        "key `rope_scaling.short_factor`: expected a list of 8",
    );
    check(
        with("llama", json!({"quantization_config": {"quant_method": "hqq"}})),
        "key `quantization_config.quant_method`: expected fp8, fbgemm_fp8, gptq",
    );
    check(with("llama", json!({"tie_word_embeddings": false})), "tensor `lm_head.weight` is missing");
    check(with("llama", json!({"vocab_size": 33})), "tensor `model.embed_tokens.weight`: expected shape [33, 64], found [32, 64]");
    check(with("qwen3", json!({"num_hidden_layers": 3})), "tensor `model.layers.2.input_layernorm.weight` is missing");
}

#[test]
fn options_are_held_against_the_model() {
    let check = |config: Value, options: Options, want: &str| {
        let error = built(&config, &options).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    let none = Options::default();
    check(config("llama"), Options { max_seq_len: Some(0), ..none }, "option max_seq_len");
    check(config("llama"), Options { prefill_chunk: Some(257), ..none }, "option prefill_chunk: expected 1 to 256");
    let learned = json!({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 64, "vocab_size": 8});
    check(learned, Options { max_seq_len: Some(65), ..none }, "option max_seq_len: expected 1 to 64");
    check(config("llama"), Options { dtype: Some(DType::I32), ..none }, "option dtype: expected f32, f16 or bf16");
}

/// Number of calls of an operator in a program.
fn calls(model: &Model, op: &str) -> usize {
    model.methods["forward"].graph.nodes.iter().filter(|n| n.target == format!("torch.ops.{op}")).count()
}

#[test]
fn windows_hide_keys_where_a_cache_holds_more() {
    let config = with("phi3", json!({"sliding_window": 32}));
    let masks = |positions| {
        let model = built(&config, &Options { max_seq_len: Some(positions), ..Options::default() }).unwrap();
        model.methods["forward"].graph.check().unwrap();
        (calls(&model, "aten.lt.Scalar"), calls(&model, "mlx.custom_sdpa.default"))
    };
    // One mask for both layers, and none if the window hides no keys.
    assert_eq!((masks(32), masks(33)), ((0, 2), (1, 2)));
}

#[test]
fn windows_need_no_more_rows_than_their_longest_call() {
    let config = with("phi3", json!({"sliding_window": 32}));
    let rows = |positions, chunk| {
        let options = Options { max_seq_len: Some(positions), prefill_chunk: Some(chunk), ..Options::default() };
        let model = built(&config, &options).unwrap();
        model.methods["forward"].graph.check().unwrap();
        let cache = &model.methods["forward"].constants["key_cache_1"];
        assert_eq!(calls(&model, "aten.index_copy_.default") == 4, cache.shape()[2] < positions);
        cache.shape()[2]
    };
    assert_eq!((rows(39, 8), rows(40, 8), rows(256, 8), rows(256, 1), rows(64, 64)), (39, 39, 39, 32, 64));
}

#[test]
fn keys_that_nobody_knows_are_refused() {
    let check = |keys: Value, want: &str| {
        let error = built(&with("llama", keys), &Options::default()).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    check(json!({"attn_temperature": 2.0}), "key `attn_temperature`: expected no key of unknown meaning");
    check(json!({"sliding_window": 8}), "key `sliding_window`: expected no key of unknown meaning");
    let rope = json!({"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0});
    check(json!({"rope_parameters": rope}), "key `rope_parameters.low_freq_factor`: expected no key of unknown meaning");
    let harmless = json!({"attn_temperature": null, "initializer_range": 0.02, "transformers_version": "5.0.0", "use_cache": true});
    built(&with("llama", harmless), &Options::default()).unwrap();
}

#[test]
fn matrices_of_gpt2_are_transposed_unless_mlx_did_it() {
    let config = json!({
        "model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "n_layer": 1, "n_positions": 64, "vocab_size": VOCAB,
    });
    let second = |by_mlx: bool| {
        let mut shapes =
            BTreeMap::from([("wte.weight".to_owned(), vec![VOCAB, HIDDEN]), ("wpe.weight".to_owned(), vec![64, HIDDEN])]);
        for norm in ["h.0.ln_1", "h.0.ln_2", "ln_f"] {
            shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![HIDDEN])));
        }
        let matrices = [("attn.c_attn", 3, 1), ("attn.c_proj", 1, 1), ("mlp.c_fc", 4, 1), ("mlp.c_proj", 1, 4)];
        for (name, outputs, inputs) in matrices.map(|(name, outputs, inputs)| (name, outputs * HIDDEN, inputs * HIDDEN)) {
            let shape = if by_mlx { vec![outputs, inputs] } else { vec![inputs, outputs] };
            shapes.insert(format!("h.0.{name}.weight"), shape);
            shapes.insert(format!("h.0.{name}.bias"), vec![outputs]);
        }
        let model = build(&Checkpoint::from_folder(folder(&config, weights(&shapes))).unwrap(), &Options::default()).unwrap();
        let weight = model.methods["forward"].weights["model.layers.0.self_attn.o_proj.weight"].tensor().unwrap();
        values(&weight)[1]
    };
    // Stored elements are the numbers of their rows.
    assert_eq!((second(false), second(true)), (1.0, 0.0));
}

#[test]
fn configs_that_python_wrote_are_read() {
    let mut files = folder(&config("llama"), weights(&shapes("llama")));
    let text = String::from_utf8(files[0].1.to_vec()).unwrap();
    let odd = text.replacen('{', "\u{feff}{\"initializer_range\": -Infinity, \"prefix\": \"a \\\"NaN\", \"temperature\": NaN, ", 1);
    files[0].1 = Bytes::from(odd.into_bytes());
    Checkpoint::from_folder(files).unwrap();
    let read = flambeau_zoo::parse_json(br#"{"a": [0.0, Infinity], "b": "Infinity \\", "c": NaN}"#).unwrap();
    assert_eq!(read, json!({"a": [0.0, f64::MAX], "b": "Infinity \\", "c": null}));
    let named = flambeau_zoo::parse_json(br#"[{"__float__": "Infinity"}, {"a": {"__float__": "NaN"}}]"#).unwrap();
    assert_eq!(named, json!([f64::MAX, {"a": null}]));
    assert!(flambeau_zoo::parse_json(b"{nothing}").is_err());
}

#[test]
fn text_parts_of_larger_models_are_taken_out() {
    let inner = with("llama", json!({"bos_token_id": null, "eos_token_id": 5}));
    let outer = json!({"model_type": "a_model_with_eyes", "text_config": inner, "vision_config": {"depth": 3}, "bos_token_id": 7});
    let mut tensors: BTreeMap<String, Vec<usize>> =
        shapes("llama").into_iter().map(|(name, shape)| (format!("language_model.{name}"), shape)).collect();
    tensors.insert("vision_tower.patches.weight".into(), vec![4, HIDDEN]);
    let checkpoint = Checkpoint::from_folder(folder(&outer, weights(&tensors))).unwrap();
    assert_eq!(checkpoint.unused_inputs(), ["images"]);
    let model = build(&checkpoint, &Options::default()).unwrap();
    assert!(model.methods["forward"].weights.keys().all(|name| name.starts_with("model.")));
    let bos = model.metadata.iter().find(|(name, _)| name == "get_bos_id").map(|(_, v)| v.clone());
    assert_eq!(bos, Some(MethodConstant::Int(7)));
    let unknown = with_keys(outer, json!({"mrope_of_eyes": 2}));
    let error = Checkpoint::from_folder(folder(&unknown, weights(&tensors))).unwrap_err().to_string();
    assert!(error.contains("key `mrope_of_eyes`"), "{error}");
}

#[test]
fn experts_of_their_own_become_one_weight() {
    let keys =
        json!({"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0], "head_dim": DIM});
    let config = with("qwen3_moe", keys);
    let mut tensors = shapes("qwen3");
    tensors.retain(|name, _| !name.starts_with("model.layers.1.mlp"));
    tensors.insert("model.layers.1.mlp.gate.weight".into(), vec![3, HIDDEN]);
    for expert in 0..3 {
        let mut add = |part: &str, shape: &[usize]| {
            tensors.insert(format!("model.layers.1.mlp.experts.{expert}.{part}.weight"), shape.to_vec());
        };
        add("gate_proj", &[32, HIDDEN]);
        add("up_proj", &[32, HIDDEN]);
        add("down_proj", &[HIDDEN, 32]);
    }
    let model = build(&Checkpoint::from_folder(folder(&config, weights(&tensors))).unwrap(), &Options::default()).unwrap();
    model.methods["forward"].graph.check().unwrap();
    assert_eq!((calls(&model, "mlx.gather_mm.default"), calls(&model, "aten.topk.default")), (2, 1));
    let joined = model.methods["forward"].weights["model.layers.1.mlp.experts.gate_up_proj"].tensor().unwrap();
    assert_eq!(joined.shape(), [3, 64, HIDDEN]);
    // Rows increase within each matrix: gates, then ups.
    let firsts: Vec<f32> = values(&joined).chunks_exact(HIDDEN).map(|row| row[0]).collect();
    let one: Vec<f32> = (0..32).map(|row| row as f32).collect();
    assert_eq!(firsts, one.repeat(6));
    tensors.insert("model.layers.1.mlp.experts.2.up_proj.weight".into(), vec![31, HIDDEN]);
    let error = build(&Checkpoint::from_folder(folder(&config, weights(&tensors))).unwrap(), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("matrices of one shape and type for each expert"), "{error}");
}

#[test]
fn shards_are_joined_by_their_index() {
    let all = shapes("llama");
    let (a, b): (BTreeMap<_, _>, BTreeMap<_, _>) = all.into_iter().partition(|(name, _)| name.contains("layers.0"));
    let entries =
        a.keys().map(|k| (k.clone(), json!("a.safetensors"))).chain(b.keys().map(|k| (k.clone(), json!("b.safetensors"))));
    let index = json!({"weight_map": entries.collect::<serde_json::Map<_, _>>()});
    let file = |name: &str, bytes: Bytes| (name.to_owned(), bytes);
    let config = file("config.json", config("llama").to_string().into_bytes().into());
    let index = file("model.safetensors.index.json", index.to_string().into_bytes().into());
    let (a, b) = (file("a.safetensors", weights(&a)), file("b.safetensors", weights(&b)));
    let whole = Checkpoint::from_folder(vec![config.clone(), index.clone(), a.clone(), b]).unwrap();
    build(&whole, &Options::default()).unwrap();
    let error = Checkpoint::from_folder(vec![config, index, a]).unwrap_err();
    assert_eq!(error.to_string(), "the folder has no b.safetensors");
}

#[test]
fn folders_in_mlx_quantization_keep_their_codes() {
    let mut tensors: BTreeMap<String, (Dtype, Vec<usize>)> =
        shapes("llama").into_iter().map(|(n, s)| (n, (Dtype::BF16, s))).collect();
    let up = "model.layers.0.mlp.up_proj";
    tensors.insert(format!("{up}.weight"), (Dtype::U32, vec![FFN, HIDDEN / 8]));
    tensors.insert(format!("{up}.scales"), (Dtype::BF16, vec![FFN, HIDDEN / 32]));
    tensors.insert(format!("{up}.biases"), (Dtype::BF16, vec![FFN, HIDDEN / 32]));
    let zeros = |(dtype, shape): &(Dtype, Vec<usize>)| vec![0u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let data: Vec<_> = tensors.iter().map(|(name, t)| (name, t, zeros(t))).collect();
    let views = data.iter().map(|(name, t, bytes)| (name.as_str(), TensorView::new(t.0, t.1.clone(), bytes).unwrap()));
    let bytes: Bytes = safetensors::serialize(views, None).unwrap().into();
    let packed =
        with("llama", json!({"quantization": {"group_size": 32, "bits": 4}, "quantization_config": {"group_size": 32, "bits": 4}}));
    let checkpoint = Checkpoint::from_folder(folder(&packed, bytes.clone())).unwrap();
    let model = build(&checkpoint, &Options::default()).unwrap();
    let weight = |part: &str| model.methods["forward"].weights[&format!("{up}.weight.{part}")].tensor().unwrap();
    assert_eq!((weight("words").shape(), weight("scales").dtype()), (&[FFN, HIDDEN / 8][..], DType::BF16));
    let error =
        Checkpoint::from_folder(folder(&with("llama", json!({"quantization": {"group_size": 32, "bits": 5}})), bytes.clone()))
            .unwrap_err();
    assert!(error.to_string().starts_with(&format!("tensor `{up}.weight`: expected words")), "{error}");
    let error = Checkpoint::from_folder(folder(&config("llama"), bytes)).unwrap_err();
    assert!(error.to_string().contains("no `quantization` in config.json"), "{error}");
}

#[test]
fn damaged_files_are_refused_by_name() {
    let check = |name: &str, bytes: &[u8], want: &str| {
        let mut files = folder(&config("llama"), weights(&shapes("llama")));
        for file in files.iter_mut().filter(|f| f.0.ends_with(name)) {
            file.1 = Bytes::copy_from_slice(bytes);
        }
        let error = Checkpoint::from_folder(files).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    check("/config.json", b"{", "file `config.json`");
    check("/config.json", b"[]", "file `config.json`");
    check("model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff", "file `model.safetensors`");
    check("model.safetensors", b"", "file `model.safetensors`");
    assert_eq!(Checkpoint::from_folder(Vec::new()).unwrap_err().to_string(), "the folder has no config.json");
}
