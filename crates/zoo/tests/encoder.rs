//! Tests of text encoders: refused configs, and variants of folders.

use std::{fs, path::PathBuf};

use flambeau_tensor::{Bytes, DType};
use flambeau_zoo::{Checkpoint, KvCache, MethodConstant, Model, Options, build};
use serde_json::{Value, json};

const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
];

fn case(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(format!("embedding-{name}")).join("checkpoint")
}

/// The folder of a case, with a changed file of JSON.
fn folder(name: &str, changed: &str, change: impl Fn(&mut Value)) -> Result<Checkpoint, flambeau_zoo::Error> {
    let read = |file: &str| {
        let bytes = fs::read(case(name).join(file)).unwrap();
        if file != changed {
            return (format!("some/where/{file}"), Bytes::from(bytes));
        }
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut json);
        (file.to_owned(), Bytes::from(json.to_string().into_bytes()))
    };
    Checkpoint::from_folder(FILES.map(read).to_vec())
}

fn model(name: &str, changed: &str, change: impl Fn(&mut Value)) -> Model {
    build(&folder(name, changed, change).unwrap(), &Options::default()).unwrap()
}

fn complaint(file: &str, change: impl Fn(&mut Value)) -> String {
    folder("bert", file, change).err().map_or("nothing".into(), |error| error.to_string())
}

fn stated(model: &Model, name: &str) -> MethodConstant {
    model.metadata.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone()).unwrap()
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (key, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("hidden_act", json!("relu")),
        ("hidden_act", json!("relu2")),
        ("num_attention_heads", json!(3)),
        ("max_position_embeddings", json!(0)),
        ("use_rotary", json!(true)),
    ] {
        let said = complaint("config.json", |json| json[key] = value.clone());
        assert!(said.contains(key) || key == "num_attention_heads" && said.contains("hidden_size"), "{key}: {said}");
    }
    let with = |kind: &str| {
        let module =
            json!({ "idx": 3, "name": "3", "path": format!("3_{kind}"), "type": format!("sentence_transformers.models.{kind}") });
        complaint("modules.json", |json| json.as_array_mut().unwrap().push(module.clone()))
    };
    assert!(with("LSTM").contains("LSTM"));
    assert!(with("Dense").contains("3_Dense/config.json"));
    assert!(complaint("modules.json", |json| *json = json!({})).contains("modules.json"));
    assert!(complaint("modules.json", |json| json[1]["path"] = "2_Pooling".into()).contains("2_Pooling/config.json"));
    let pooling = |value: Value| complaint("1_Pooling/config.json", |json| *json = value.clone());
    assert!(pooling(json!({ "pooling_mode": "median" })).contains("median"));
    assert!(pooling(json!({ "pooling_mode_median_tokens": true })).contains("pooling_mode_median_tokens"));
    assert!(pooling(json!({ "pooling_mode": "mean", "include_prompt": false })).contains("include_prompt"));
    assert!(pooling(json!({})).contains("found none"));
    let lowered = complaint("sentence_bert_config.json", |json| *json = json!({ "do_lower_case": true }));
    assert!(lowered.contains("do_lower_case"), "{lowered}");
}

#[test]
fn older_folders_say_the_same() {
    let old = json!({ "word_embedding_dimension": 16, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false });
    let model = model("bert", "1_Pooling/config.json", |json| *json = old.clone());
    assert_eq!(stated(&model, "get_pooling"), MethodConstant::Text("cls".into()));
    let limited = self::model("bert", "sentence_bert_config.json", |json| *json = json!({ "max_seq_length": 7 }));
    assert_eq!(stated(&limited, "get_max_seq_len"), MethodConstant::Int(7));
    let unlimited = self::model("bert", "tokenizer_config.json", |json| json["model_max_length"] = json!(1e30));
    assert_eq!(stated(&unlimited, "get_max_seq_len"), MethodConstant::Int(42));
    // Positions of this family start after the padding token's id.
    let offset = self::model("xlm-roberta", "tokenizer_config.json", |json| json["model_max_length"] = json!(512));
    assert_eq!(stated(&offset, "get_max_seq_len"), MethodConstant::Int(40));
}

#[test]
fn several_ways_of_pooling_are_concatenated_in_a_fixed_order() {
    let flags = json!({ "pooling_mode_max_tokens": true, "pooling_mode_lasttoken": true, "pooling_mode_cls_token": true });
    let model = model("bert", "1_Pooling/config.json", |json| *json = flags.clone());
    assert_eq!(stated(&model, "get_pooling"), MethodConstant::Text("cls+max+lasttoken".into()));
    assert_eq!(stated(&model, "get_embedding_dim"), MethodConstant::Int(48));
}

#[test]
fn layers_after_pooling_must_fit_and_be_known() {
    let dense = |change: &dyn Fn(&mut Value)| {
        let read = |file: &str| {
            let mut bytes = fs::read(case("bert-dense").join(file)).unwrap();
            if file == "2_Dense/config.json" {
                let mut json: Value = serde_json::from_slice(&bytes).unwrap();
                change(&mut json);
                bytes = json.to_string().into_bytes();
            }
            (file.to_owned(), Bytes::from(bytes))
        };
        let files = FILES.iter().chain(&["2_Dense/config.json", "2_Dense/model.safetensors"]).map(|file| read(file)).collect();
        Checkpoint::from_folder(files).and_then(|checkpoint| build(&checkpoint, &Options::default()))
    };
    assert_eq!(stated(&dense(&|_| {}).unwrap(), "get_embedding_dim"), MethodConstant::Int(12));
    for (key, value) in [("activation_function", json!("torch.nn.Mish")), ("in_features", json!(31)), ("use_residual", json!(true))]
    {
        let said = dense(&|json| json[key] = value.clone()).unwrap_err().to_string();
        assert!(said.contains(key) || said.contains("Mish") || said.contains("32 input features"), "{key}: {said}");
    }
}

#[test]
fn layers_of_decoders_that_encoders_cannot_have_are_refused() {
    let refused = folder("qwen3", "config.json", |json| {
        json["model_type"] = "qwen3_moe".into();
        json.as_object_mut().unwrap().remove("layer_types");
    });
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("qwen3_moe") && said.contains("not supported"), "{said}");
    for (family, key, value) in
        [("qwen3", "hidden_act", json!("relu2")), ("bitnet", "hidden_act", json!("silu")), ("olmo", "clip_qkv", json!(8.0))]
    {
        let refused = folder("qwen3", "config.json", |json| {
            json["model_type"] = family.into();
            json[key] = value.clone();
            let map = json.as_object_mut().unwrap();
            let of_qwen3 = ["layer_types", "max_window_layers", "use_sliding_window", "sliding_window", "rms_norm_eps"];
            map.retain(|key, _| !of_qwen3.contains(&key.as_str()));
        });
        let said = refused.err().map_or("nothing".into(), |error| error.to_string());
        assert!(said.contains(&format!("family {family} are not supported")), "{family}: {said}");
    }
}

#[test]
fn a_folder_that_says_nothing_of_sentences_is_pooled_by_the_mean() {
    let read = |file: &str| (file.to_owned(), Bytes::from(fs::read(case("bert-cls").join(file)).unwrap()));
    let checkpoint = Checkpoint::from_folder(["config.json", "model.safetensors"].map(read).to_vec()).unwrap();
    assert!(checkpoint.is_encoder() && !checkpoint.is_speech());
    let model = build(&checkpoint, &Options::default()).unwrap();
    assert_eq!(stated(&model, "get_pooling"), MethodConstant::Text("mean".into()));
    assert_eq!(stated(&model, "is_normalized"), MethodConstant::Bool(false));
}

#[test]
fn options_are_held_against_the_model() {
    let checkpoint = folder("bert", "", |_| {}).unwrap();
    let refused = |options: Options| build(&checkpoint, &options).unwrap_err().to_string();
    assert!(refused(Options { max_seq_len: Some(43), ..Options::default() }).contains("max_seq_len"));
    assert!(refused(Options { kv_cache: KvCache::Int8, ..Options::default() }).contains("kv_cache"));
    assert!(refused(Options { dtype: Some(DType::I32), ..Options::default() }).contains("dtype"));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert!(build(&checkpoint, &Options { dtype: Some(dtype), max_seq_len: Some(42), ..Options::default() }).is_ok());
    }
}

#[test]
fn classifiers_of_tokens_state_their_labels() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints/tagger-modernbert/checkpoint");
    let read = |file: &str| (file.to_owned(), Bytes::from(fs::read(folder.join(file)).unwrap()));
    let checkpoint = Checkpoint::from_folder(["config.json", "model.safetensors"].map(read).to_vec()).unwrap();
    assert!(checkpoint.tags_tokens() && !checkpoint.gives_scores() && !checkpoint.is_encoder());
    let model = build(&checkpoint, &Options::default()).unwrap();
    let labels = json!(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]);
    assert_eq!(stated(&model, "get_token_labels"), MethodConstant::Text(labels.to_string()));
    assert!(model.metadata.iter().all(|(name, _)| name != "get_labels" && name != "get_embedding_dim"));
}

#[test]
fn experts_and_distances_are_refused_in_other_forms() {
    let refused = |name: &str, key: &str, value: Value| {
        let folder = case(name);
        let bytes = |file: &str| fs::read(folder.join(file)).unwrap();
        let mut config: Value = serde_json::from_slice(&bytes("config.json")).unwrap();
        config[key] = value;
        let files = vec![
            ("config.json".to_owned(), Bytes::from(config.to_string().into_bytes())),
            ("model.safetensors".to_owned(), Bytes::from(bytes("model.safetensors"))),
        ];
        Checkpoint::from_folder(files).unwrap_err().to_string()
    };
    assert!(refused("nomic-moe", "num_shared_experts", json!(1)).contains("num_shared_experts"));
    assert!(refused("nomic-moe", "moe_top_k", json!(5)).contains("moe_top_k"));
    assert!(refused("nomic-moe", "activation_function", json!("geglu")).contains("activation_function"));
    assert!(refused("jina-bert", "feed_forward_type", json!("original")).contains("feed_forward_type"));
    assert!(refused("nomic-first", "mlp_fc2_bias", json!(true)).contains("mlp_fc2_bias"));
}
