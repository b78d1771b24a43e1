//! Tests of folders with quantized weights: small cases are read, and damaged copies are refused.

use std::{fs, path::Path};

use flambeau_tensor::Bytes;
use flambeau_zoo::{Checkpoint, Options, build};
use safetensors::{SafeTensors, tensor::TensorView};

type Files = Vec<(String, Bytes)>;

/// The files of a small case.
fn files(case: &str) -> Files {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints").join(case).join("checkpoint");
    let read = |name: &str| (name.to_owned(), Bytes::from(fs::read(folder.join(name)).unwrap()));
    vec![read("config.json"), read("model.safetensors")]
}

/// The files with `from` replaced by `to` in the config.
fn changed(mut files: Files, from: &str, to: &str) -> Files {
    let config = String::from_utf8(files[0].1.to_vec()).unwrap();
    assert!(config.contains(from), "{config}");
    files[0].1 = config.replace(from, to).into_bytes().into();
    files
}

/// The files with the tensor `name` cut to fewer rows, or removed without rows.
fn cut(mut files: Files, name: &str, rows: usize) -> Files {
    let bytes = files[1].1.clone();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut found = false;
    let views = tensors.iter().filter_map(|(key, view)| {
        if key != name {
            return Some((key.to_owned(), view));
        }
        found = true;
        let (&height, rest) = view.shape().split_first().filter(|_| rows > 0)?;
        let shape = [rows].iter().chain(rest).copied().collect();
        Some((key.to_owned(), TensorView::new(view.dtype(), shape, &view.data()[..view.data().len() / height * rows]).unwrap()))
    });
    let views: Vec<_> = views.collect();
    files[1].1 = safetensors::serialize(views, None).unwrap().into();
    assert!(found, "there is no {name}");
    files
}

fn complaint(files: Files) -> String {
    let built = Checkpoint::from_folder(files).and_then(|checkpoint| build(&checkpoint, &Options::default()));
    built.unwrap_err().to_string()
}

#[test]
fn codes_are_kept_where_groups_are_runs_of_inputs() {
    let keeps = |case: &str| {
        let model = build(&Checkpoint::from_folder(files(case)).unwrap(), &Options::default()).unwrap();
        model.methods["forward"].weights.contains_key("model.layers.0.self_attn.q_proj.weight.words")
    };
    for case in [
        "folder-gptq-4",
        "folder-gptq-4-uneven",
        "folder-awq",
        "folder-packed-4",
        "folder-packed-4-uneven",
        "folder-bytes",
        "folder-bundle-4",
        "folder-autoround-awq",
        "folder-autoround-gptq",
        "folder-eight-bits",
        "folder-gptq-varied",
        "folder-packed-mxfp4",
        "folder-bitnet",
        "folder-bitnet-divisor",
        "folder-bitnet-online",
        "folder-torchao-int4",
        "folder-torchao-int8",
    ] {
        assert!(keeps(case), "{case}");
    }
    for case in [
        "folder-gptq-4-order",
        "folder-fp8-blocks",
        "folder-fp8-exponents",
        "folder-small-floats",
        "folder-nf4",
        "folder-nf4-nested",
        "folder-nvfp4",
        "folder-nvfp4-modelopt",
        "folder-torchao-float8",
    ] {
        assert!(!keeps(case), "{case}");
    }
}

#[test]
fn parts_that_lie_are_refused_by_name() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    let check = |case: &str, part: &str, rows: usize, want: &str| {
        let found = complaint(cut(files(case), &format!("{Q}.{part}"), rows));
        assert!(found.contains(want), "{case}, {part}: {found:?} does not say {want:?}");
    };
    check("folder-gptq-4", "scales", 0, "q_proj.scales` is missing");
    check("folder-gptq-4", "qzeros", 0, "q_proj.qzeros` is missing");
    check("folder-gptq-4", "qweight", 3, "q_proj.qweight`: expected whole inputs");
    check("folder-gptq-4", "g_idx", 7, "q_proj.g_idx`: expected 32 words");
    check("folder-gptq-4-uneven", "scales", 1, "q_proj.scales`: expected scales for every group");
    check("folder-awq", "qweight", 8, "q_proj.qweight`: expected groups of 16");
    check("folder-packed-4", "weight_scale", 0, "q_proj.weight_scale` is missing");
    check("folder-packed-4", "weight_shape", 1, "q_proj.weight_shape`: expected 32 rows");
    check("folder-packed-4-uneven", "weight_zero_point", 1, "q_proj.weight_zero_point`: expected 8 words");
    check("folder-fp8-blocks", "weight_scale_inv", 0, "q_proj.weight_scale_inv` is missing");
    check("folder-bytes", "weight_scale", 5, "expected scales for equal groups");
    check("folder-nf4", "weight.absmax", 0, "q_proj.weight.absmax` is missing");
    check("folder-nf4", "weight", 3, "q_proj.weight`: expected two codes of [32, 32] in a byte");
    check("folder-nf4-nested", "weight.nested_absmax", 0, "q_proj.weight.nested_absmax` is missing");
    check("folder-nf4-nested", "weight.absmax", 2, "q_proj.weight.absmax`: expected");
    check("folder-nf4", "weight.quant_state.bitsandbytes__nf4", 9, "expected a description with `quant_type`");
    check("folder-eight-bits", "SCB", 0, "q_proj.SCB` is missing");
    check("folder-nvfp4", "weight_scale", 3, "q_proj.weight_packed`: expected NVFP4 codes");
    check("folder-nvfp4-modelopt", "weight_scale_2", 0, "q_proj.weight_scale_2` is missing");
    check("folder-packed-mxfp4", "weight_scale", 3, "q_proj.weight_packed`: expected words");
    check("folder-gptq-varied", "g_idx", 0, "q_proj.g_idx` is missing");
    check("folder-gptq-varied", "g_idx", 7, "q_proj.qweight`: expected 2, 3, 4 or 8 bits");
    let part = |part: &str| format!("layers.0.self_attn.q_proj._weight_{part}");
    let found = complaint(cut(files("folder-bundle-4"), &part("zero_point"), 0));
    assert!(found.contains("q_proj._weight_zero_point` is missing"), "{found}");
    let found = complaint(cut(files("folder-bundle-8"), &part("scale"), 4));
    assert!(found.contains("expected scales and zero points of shape [32, 0]"), "{found}");
    let scales = "model.layers.0.mlp.experts.gate_up_proj_scales";
    let found = complaint(cut(files("folder-mxfp4"), scales, 1));
    assert!(found.contains("expected words, u8 scales"), "{found}");
}

#[test]
fn forms_that_are_not_read_are_named() {
    let check = |case: &str, from: &str, to: &str, want: &str| {
        let found = complaint(changed(files(case), from, to));
        assert!(found.contains(want), "{found:?} does not say {want:?}");
    };
    check("folder-awq", r#""version": "gemm""#, r#""version": "gemv""#, "quantization_config.version`: expected gemm");
    check("folder-awq", r#""quant_method": "awq""#, r#""quant_method": "hqq""#, "found hqq");
    check("folder-nvfp4-modelopt", "NVFP4", "W4A8_AWQ", "quantization_config.quant_algo`: expected FP8 or NVFP4");
    check(
        "folder-autoround-awq",
        "auto_round:auto_awq",
        "auto_round:llm_compressor",
        "quantization_config.packing_format`: expected",
    );
    check(
        "folder-bitnet",
        r#""quantization_mode": "offline""#,
        r#""quantization_mode": "later""#,
        "quantization_mode`: expected offline",
    );
    check("folder-bitnet", "autobitlinear", "bitlinear2", "quantization_config.linear_class`: expected bitlinear");
    check("folder-gptq-4", r#""bits": 4"#, r#""bits": 5"#, "quantization_config.bits`: expected 2, 3, 4, 8");
    check("folder-gptq-4", r#""group_size": 32"#, r#""group_size": 8"#, "expected scales for every group");
    check("folder-packed-4", "pack-quantized", "marlin-24", "quantization_config.format`: expected pack-quantized");
    check("folder-packed-4-uneven", r#""group_size": 16"#, r#""group_size": 8"#, "expected groups of [8] inputs");
}
