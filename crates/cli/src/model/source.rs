//! Identity of a checkpoint, and whether its weights are quantized.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};
use flambeau::zoo::gguf::{Gguf, TensorType};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::{
    checkpoint,
    file_kind::{FileKind, gguf_paths},
    files,
    hub::ModelName,
    shelf::programs::DIGITS,
};

/// A checkpoint to export.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Its folder or file.
    pub(super) path: PathBuf,
    /// Name of its programs if it comes from the hub.
    pub(super) name: Option<String>,
}

/// Name of the programs of a model of the hub: repository, quantization of a single file, and
/// revision other than `main`.
pub(crate) fn program_name(name: &ModelName, label: Option<&str>) -> String {
    let base = ModelName { tag: None, ..name.clone() }.to_string();
    let (repository, revision) = base.split_once('@').map_or((&*base, None), |(name, revision)| (name, Some(revision)));
    let label = label.map(|label| format!("+{label}")).unwrap_or_default();
    let revision = revision.map(|revision| format!("@{}", revision.replace('/', "-"))).unwrap_or_default();
    format!("{}{label}{revision}", repository.replace('/', "--"))
}

/// Whether a program with this name belongs to a repository.
pub(crate) fn repository_programs(repository: &ModelName, name: &str) -> bool {
    let rest = name.strip_prefix(&format!("{}--{}", repository.organisation, repository.model));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '@']))
}

/// Name of a checkpoint's program in the cache.
pub(super) struct Key {
    /// The checkpoint's name, path and export options. The path of a model of the hub does not
    /// count: it has another one after each change.
    place: String,
    /// Its files' sizes and times, and the build of this program.
    state: String,
}

impl Key {
    pub(super) fn new(source: &Source, settings: &str) -> Result<Key> {
        let checkpoint = &source.path;
        let real = checkpoint.canonicalize().with_context(|| format!("cannot read {}", checkpoint.display()))?;
        let stem = if real.is_dir() { real.file_name() } else { real.file_stem() };
        let plain = |name: &OsStr| name.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        let name = source.name.clone().or_else(|| stem.map(plain)).unwrap_or_default();
        let origin = source.name.as_deref().map_or(real.as_os_str(), OsStr::new);
        let place = digest(&[origin.as_encoded_bytes(), settings.as_bytes()]);
        let mut facts = vec![env!("CARGO_PKG_VERSION").to_owned()];
        // Builds of one version may write different programs.
        let build = env::current_exe().ok();
        for path in paths(checkpoint)?.into_iter().chain(build) {
            let cannot_read = || format!("cannot read {}", path.display());
            let data = fs::metadata(&path).with_context(cannot_read)?;
            let path = path.canonicalize().with_context(cannot_read)?;
            let time = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            facts.push(format!("{} {} {}", path.display(), data.len(), time.as_nanos()));
        }
        let facts: Vec<&[u8]> = facts.iter().map(String::as_bytes).collect();
        Ok(Key { place: format!("{name}-{place}"), state: digest(&facts) })
    }

    pub(super) fn file_name(&self) -> String {
        format!("{}-{}.pte", self.place, self.state)
    }

    /// Removes programs of the checkpoint's earlier versions. Failures are ignored: they only cost
    /// disk space.
    pub(super) fn remove_superseded(&self, folder: &Path) {
        let is_older = |name: &str| {
            let state = name.strip_prefix(&self.place).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".pte"));
            state.is_some_and(|state| state.len() == DIGITS && state != self.state)
        };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_older) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The files of a checkpoint.
fn paths(checkpoint: &Path) -> Result<Vec<PathBuf>> {
    if !checkpoint.is_dir() {
        return gguf_paths(checkpoint);
    }
    Ok(checkpoint::folder_paths(checkpoint)?.into_iter().map(|(_, path)| path).collect())
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let text: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    text[..DIGITS].to_owned()
}

/// Whether a checkpoint may be a speech model with a decoder of transformer layers: a .nemo file is
/// a Parakeet, which has none and takes long to open.
pub(super) fn may_decode_speech(checkpoint: &Path) -> bool {
    FileKind::of_file(checkpoint) != Some(FileKind::Nemo)
}

/// Stored form of a checkpoint's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// Floats of at least 8 bits.
    Floats,
    /// Codes that a program keeps unchanged.
    Codes,
    /// 4-bit floats, which a program stores as wider floats.
    SmallFloats,
}

impl Weights {
    /// The form stated by a quantization config.
    fn of_config(config: &Json) -> Weights {
        let is = |key: &str, value: &str| config[key] == value;
        // Floats of 8 bits become floats of 16.
        let is_float = ["fp8", "fbgemm_fp8"].iter().any(|method| is("quant_method", method))
            || is("format", "float-quantized")
            || is("quant_method", "modelopt") && is("quant_algo", "FP8");
        let is_small = is("quant_method", "modelopt") || is("format", "nvfp4-pack-quantized") || config["load_in_4bit"] == true;
        match config {
            Json::Object(_) if is_float => Weights::Floats,
            Json::Object(_) if is_small => Weights::SmallFloats,
            Json::Object(_) => Weights::Codes,
            _ => Weights::Floats,
        }
    }
}

/// The stored form, by the folder's config or the file's types.
pub(super) fn weights(checkpoint: &Path) -> Result<Weights> {
    if checkpoint.is_dir() {
        let config = checkpoint.join("config.json");
        // Mistral's own folders have no codes.
        if !config.exists() && checkpoint.join("params.json").exists() {
            return Ok(Weights::Floats);
        }
        let text = fs::read(&config).with_context(|| format!("cannot read {}", config.display()))?;
        let config = flambeau::zoo::parse_json(&text).with_context(|| format!("{} is no JSON", config.display()))?;
        let stated =
            [&config, &config["text_config"]].into_iter().flat_map(|own| [&own["quantization"], &own["quantization_config"]]);
        return Ok(stated.map(Weights::of_config).find(|form| *form != Weights::Floats).unwrap_or(Weights::Floats));
    }
    if FileKind::of_file(checkpoint) == Some(FileKind::Nemo) {
        return Ok(Weights::Floats);
    }
    for part in gguf_paths(checkpoint)? {
        let file = Gguf::parse(files::read(&part)?).with_context(|| part.display().to_string())?;
        if file.tensors.values().any(|tensor| !matches!(tensor.kind, TensorType::Plain(_))) {
            return Ok(Weights::Codes);
        }
    }
    Ok(Weights::Floats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_files_and_settings_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a b.gguf");
        let source = Source { path: file.clone(), name: None };
        let key = |settings| Key::new(&source, settings).unwrap();
        fs::write(&file, "1").unwrap();
        let first = key("x");
        assert_eq!(first.file_name(), key("x").file_name());
        assert!(first.file_name().starts_with("a-b-") && first.place != key("y").place);
        fs::write(&file, "12").unwrap();
        let second = key("x");
        assert_eq!(first.place, second.place);
        assert_ne!(first.state, second.state);
    }

    #[test]
    fn programs_of_the_hub_are_named_for_their_model() {
        let dir = tempfile::tempdir().unwrap();
        let name = program_name(&ModelName::parse("org/m:q8_0@refs/pr/1").unwrap(), Some("Q8_0"));
        assert_eq!(name, "org--m+Q8_0@refs-pr-1");
        let repository = ModelName::parse("org/m").unwrap();
        assert!(repository_programs(&repository, &name) && !repository_programs(&repository, "org--m--n"));
        let keys = ["a.gguf", "b.gguf"].map(|file| {
            let path = dir.path().join(file);
            fs::write(&path, file).unwrap();
            Key::new(&Source { path, name: Some(name.clone()) }, "x").unwrap()
        });
        assert!(keys[0].file_name().starts_with("org--m+Q8_0@refs-pr-1-"));
        assert!(keys[0].place == keys[1].place && keys[0].state != keys[1].state);
    }

    #[test]
    fn only_older_programs_of_the_same_checkpoint_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key { place: "m-1".into(), state: "0123456789abcdef".into() };
        let older = "m-1-fedcba9876543210.pte";
        let others = [key.file_name(), "m-10-fedcba9876543210.pte".into(), "m-1-fed.pte".into()];
        for name in others.iter().map(String::as_str).chain([older]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        key.remove_superseded(dir.path());
        assert!(!dir.path().join(older).exists() && others.iter().all(|name| dir.path().join(name).exists()));
    }
}
