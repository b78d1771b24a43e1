//! Tests of adapters: unsupported settings and adapters of other checkpoints are refused.

use std::{fs, path::Path};

use flambeau_tensor::Bytes;
use flambeau_zoo::{Adapter, Checkpoint, MethodConstant, Options, build};

type Files = Vec<(String, Bytes)>;

/// The files of a folder in a case.
fn files(case: &str, folder: &str) -> Files {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case).join(folder);
    let read = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), Bytes::from(fs::read(entry.path()).unwrap()));
    fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap())).collect()
}

/// The adapter of a case with `from` replaced by `to` in its config.
fn changed(case: &str, from: &str, to: &str) -> Result<Adapter, flambeau_zoo::Error> {
    let mut files = files(case, "adapter");
    for (_, bytes) in files.iter_mut().filter(|(name, _)| name == "adapter_config.json") {
        let config = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(config.contains(from), "{config}");
        *bytes = config.replace(from, to).into_bytes().into();
    }
    Adapter::from_folder(files)
}

#[test]
fn settings_that_change_more_than_weights_are_refused_by_key() {
    let check = |case: &str, from: &str, to: &str, want: &str| {
        let error = changed(case, from, to).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    let peft = "adapter-peft";
    check(peft, r#""use_dora": false"#, r#""use_dora": true"#, "key `use_dora`: expected false");
    check(peft, r#""bias": "none""#, r#""bias": "all""#, "key `bias`: expected none");
    check(peft, r#""init_lora_weights": true"#, r#""init_lora_weights": "pissa_niter_4""#, "key `init_lora_weights`");
    check(peft, r#""layers.1.self_attn.q_proj": 9"#, r#""layers.*.q_proj": 9"#, "key `alpha_pattern`: expected names of modules");
    check(peft, r#""peft_type": "LORA""#, r#""peft_type": "IA3""#, "key `peft_type`: expected LORA");
    check("adapter-mlx", r#""fine_tune_type": "lora""#, r#""fine_tune_type": "dora""#, "key `fine_tune_type`: expected lora");
}

#[test]
fn incomplete_adapters_are_refused() {
    let error = |files: Files| Adapter::from_folder(files).unwrap_err().to_string();
    let without = |name: &str| files("adapter-peft", "adapter").into_iter().filter(|(found, _)| found != name).collect();
    assert!(error(without("adapter_config.json")).contains("no adapter_config.json"));
    assert!(error(without("adapter_model.safetensors")).contains("no adapter_model.safetensors or adapters.safetensors"));
    let base = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny.gguf")).unwrap();
    let error = Adapter::from_gguf(base.into()).unwrap_err().to_string();
    assert!(error.contains("key `general.type`: expected adapter"), "{error}");
}

#[test]
fn adapters_of_other_checkpoints_are_refused() {
    let adapter = |case: &str| Adapter::from_folder(files(case, "adapter")).unwrap();
    let error = |case: &str, adapter: &Adapter| {
        let mut checkpoint = Checkpoint::from_folder(files(case, "checkpoint")).unwrap();
        checkpoint.merge(adapter, 1.0).unwrap_err().to_string()
    };
    let sizes = error("folder-awq", &adapter("adapter-mlx"));
    assert!(sizes.contains("down_proj.weight`: expected shape [32, 48] for the adapter, found [32, 32]"), "{sizes}");
    let experts = error("folder-nf4-nested", &adapter("adapter-mlx"));
    assert!(experts.contains("down_proj.weight` is missing in the checkpoint"), "{experts}");
}

/// The checkpoint of a case, for adapters at run time.
fn checkpoint(case: &str) -> Checkpoint {
    Checkpoint::from_folder(files(case, "checkpoint")).unwrap()
}

#[test]
fn programs_take_the_scales_of_their_adapters() {
    let (mut checkpoint, adapter) = (checkpoint("adapter-mlx"), Adapter::from_folder(files("adapter-mlx", "adapter")).unwrap());
    let inputs =
        |checkpoint: &Checkpoint| build(checkpoint, &Options::default()).unwrap().methods["forward"].forward_arg_names.clone();
    assert_eq!(inputs(&checkpoint), ["input_ids", "cache_position"]);
    checkpoint.attach("calm", &adapter, 0.5).unwrap();
    checkpoint.attach("loud", &adapter, 1.0).unwrap();
    assert_eq!(inputs(&checkpoint), ["input_ids", "cache_position", "adapter_scales"]);
    let model = build(&checkpoint, &Options::default()).unwrap();
    let named = MethodConstant::Text(r#"[{"name":"calm","scale":0.5},{"name":"loud","scale":1.0}]"#.into());
    assert!(model.metadata.contains(&("get_lora_adapters".into(), named)), "{:?}", model.metadata);
    let factors = |layer: &str| model.floats.iter().filter(|name| name.contains(layer) && name.contains("lora_")).count();
    assert_eq!((factors("layers.0.self_attn.q_proj"), factors("layers.0.self_attn.k_proj")), (2, 0));
    // The ranks of both adapters lie side by side.
    assert_eq!(model.methods["forward"].weights["model.layers.0.self_attn.q_proj.weight.lora_a"].shape(), [8, 32]);
    let taken = checkpoint.attach("loud", &adapter, 1.0).unwrap_err().to_string();
    assert!(taken.contains("expected a new name for each adapter, found \"loud\""), "{taken}");
}

#[test]
fn adapters_at_run_time_change_linear_layers_of_their_checkpoint_alone() {
    let adapter = |case: &str| Adapter::from_folder(files(case, "adapter")).unwrap();
    let refused = |case: &str, adapter: &Adapter| checkpoint(case).attach("one", adapter, 1.0).unwrap_err().to_string();
    let sizes = refused("folder-awq", &adapter("adapter-mlx"));
    assert!(sizes.contains("down_proj.weight`: expected shape [32, 48] for the adapter, found [32, 32]"), "{sizes}");
    let whole = adapter("adapter-peft");
    assert!(whole.replaces_weights() && !adapter("adapter-mlx").replaces_weights());
    let whole = refused("adapter-peft", &whole);
    assert!(whole.contains("expected a low-rank update, for adapters at run time, found a whole weight"), "{whole}");
}
