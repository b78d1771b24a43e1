//! Properties of a model, from its config and the headers of its weights.

use std::{fs, path::Path};

use flambeau::zoo::gguf::{Gguf, TensorType};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value as Json, json};

use crate::{
    file_kind::{FileKind, gguf_paths},
    files,
};

/// Properties of a model; those that its files do not state are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `model_type` of the config, or the architecture of a GGUF file.
    pub(crate) family: Option<String>,
    /// Type of the weights: `bf16`, `4 bits`, `awq`.
    pub(crate) weights: Option<String>,
    /// Number of weights; unknown where codes are packed.
    pub(crate) parameters: Option<u64>,
    /// Maximum sequence length of the training, in tokens.
    pub(crate) context: Option<u64>,
    pub(crate) licence: Option<String>,
    pub(crate) has_template: bool,
}

impl Facts {
    /// Reads the properties of a folder or file.
    pub(crate) fn of(path: &Path) -> Facts {
        if path.is_dir() {
            return of_folder(path);
        }
        match FileKind::of_file(path) {
            Some(FileKind::Gguf) => of_gguf(path).unwrap_or_default(),
            Some(FileKind::Nemo) => Facts { family: Some("nemo".into()), ..Facts::default() },
            Some(FileKind::Ggml) => Facts { family: Some("whisper".into()), ..Facts::default() },
            _ => Facts::default(),
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        json!({
            "family": self.family,
            "weights": self.weights,
            "parameters": self.parameters,
            "context": self.context,
            "licence": self.licence,
            "has_chat_template": self.has_template,
        })
    }
}

fn of_folder(folder: &Path) -> Facts {
    let json = |name: &str| fs::read(folder.join(name)).ok().and_then(|text| serde_json::from_slice::<Json>(&text).ok());
    let config = json("config.json").or_else(|| json("params.json")).unwrap_or_default();
    let text = &config["text_config"];
    let first = |keys: &[&str]| keys.iter().flat_map(|key| [&config[*key], &text[*key]]).find(|value| !value.is_null()).cloned();
    let has_key = json("tokenizer_config.json").is_some_and(|config| !config["chat_template"].is_null());
    Facts {
        family: config["model_type"].as_str().map(str::to_owned),
        weights: quantization(&first(&["quantization", "quantization_config"]).unwrap_or_default())
            .or_else(|| Some(first(&["dtype", "torch_dtype"])?.as_str()?.replace("bfloat", "bf").replace("float", "f"))),
        parameters: parameters(folder),
        context: first(&["max_position_embeddings"]).and_then(|value| value.as_u64()),
        licence: fs::read_to_string(folder.join("README.md")).ok().and_then(|text| licence(&text)),
        has_template: has_key || folder.join("chat_template.jinja").is_file(),
    }
}

/// The quantization stated by a config.
fn quantization(config: &Json) -> Option<String> {
    let bits = ["bits", "w_bit"].iter().find_map(|key| config[*key].as_u64()).map(|bits| format!("{bits} bits"));
    let method = config["quant_method"].as_str().map(str::to_owned);
    match (method, bits) {
        (Some(method), Some(bits)) => Some(format!("{method}, {bits}")),
        (method, bits) => method.or(bits),
    }
}

/// The number of weights in the headers of a folder's files, if all of them are floats.
fn parameters(folder: &Path) -> Option<u64> {
    let mut count = 0;
    let mut paths: Vec<_> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let is_weights = |path: &Path| path.extension().is_some_and(|end| end == "safetensors");
    paths.retain(|path| is_weights(path) && !(path.ends_with("consolidated.safetensors") && folder.join("config.json").is_file()));
    for path in &paths {
        let bytes = files::read(path).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        for name in header.offset_keys() {
            let tensor = header.info(&name)?;
            if !matches!(tensor.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2) {
                return None;
            }
            count += tensor.shape.iter().product::<usize>() as u64;
        }
    }
    (count > 0).then_some(count)
}

/// The licence in a README's front matter.
fn licence(readme: &str) -> Option<String> {
    let front = readme.strip_prefix("---")?.split("\n---").next()?;
    let line = front.lines().find_map(|line| line.strip_prefix("license:"))?;
    Some(line.trim().trim_matches(['"', '\'']).to_owned()).filter(|text| !text.is_empty())
}

fn of_gguf(path: &Path) -> Option<Facts> {
    let parts = gguf_paths(path).ok()?;
    let files: Vec<Gguf> = parts.iter().map(|part| Gguf::parse(files::read(part).ok()?).ok()).collect::<Option<_>>()?;
    let file = files.first()?;
    let text = |key: &str| file.text(key).ok().flatten().map(str::to_owned);
    let family = text("general.architecture");
    let context = family.as_ref().and_then(|family| file.int(&format!("{family}.context_length")).ok().flatten());
    let tensors = || files.iter().flat_map(|file| file.tensors.values());
    // The type of most bytes.
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for tensor in tensors() {
        let kind = match tensor.kind {
            TensorType::Plain(dtype) => dtype.to_string(),
            _ => tensor.kind.name(),
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, bytes)) => *bytes += tensor.bytes.len(),
            None => kinds.push((kind, tensor.bytes.len())),
        }
    }
    Some(Facts {
        weights: kinds.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(kind, _)| kind),
        parameters: Some(tensors().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum()),
        context: context.and_then(|value| value.try_into().ok()),
        licence: text("general.license"),
        has_template: text("tokenizer.chat_template").is_some(),
        family,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_state_their_facts() {
        let dir = tempfile::tempdir().unwrap();
        let config = r#"{"model_type": "x", "text_config": {"max_position_embeddings": 64, "dtype": "bfloat16"}}"#;
        fs::write(dir.path().join("config.json"), config).unwrap();
        fs::write(dir.path().join("README.md"), "---\nlicense: \"mit\"\n---\nlicense: no\n").unwrap();
        fs::write(dir.path().join("chat_template.jinja"), "").unwrap();
        let facts = Facts::of(dir.path());
        let text = |text: &str| Some(text.to_owned());
        let expected = Facts {
            family: text("x"),
            weights: text("bf16"),
            parameters: None,
            context: Some(64),
            licence: text("mit"),
            has_template: true,
        };
        assert_eq!(facts, expected);
        for (config, expected) in [
            (json!({ "bits": 4, "group_size": 64 }), "4 bits"),
            (json!({ "quant_method": "awq", "bits": 4 }), "awq, 4 bits"),
            (json!({ "quant_method": "fp8" }), "fp8"),
        ] {
            assert_eq!(quantization(&config).as_deref(), Some(expected));
        }
    }

    #[test]
    fn weights_are_counted() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Facts::of(&manifest.join("../flambeau/examples/data/tiny-llama"));
        assert!(folder.parameters.is_some_and(|count| count > 1000) && folder.family.as_deref() == Some("llama"), "{folder:?}");
        let file = Facts::of(&manifest.join("../testcases/checkpoints/gguf-llama-biases/checkpoint.gguf"));
        assert!(file.parameters.is_some_and(|count| count > 1000) && file.context.is_some(), "{file:?}");
    }
}
