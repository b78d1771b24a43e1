//! The Hugging Face hub and its local cache.

mod download;

use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use flambeau::zoo::Checkpoint;

use crate::{environment, failure::usage, files};

/// The hub's address where the environment names no other.
const ENDPOINT: &str = "https://huggingface.co";

/// Longest wait for a connection, and for an answer to begin.
const TIMEOUT: Duration = Duration::from_secs(30);

/// `ORG/NAME@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelName {
    pub(crate) organisation: String,
    pub(crate) model: String,
    pub(crate) revision: String,
}

impl ModelName {
    /// Reads a name; anything that could be a path elsewhere is refused.
    pub(crate) fn parse(text: &str) -> Result<ModelName> {
        let bad = || usage(format!("`{text}` is no model name; expected ORG/NAME or ORG/NAME@REVISION"));
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (organisation, model) = name.split_once('/').ok_or_else(bad)?;
        let plain = |part: &str| {
            let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(safe)
        };
        if !plain(organisation) || !plain(model) || !revision.split('/').all(plain) {
            return Err(bad());
        }
        Ok(ModelName { organisation: organisation.into(), model: model.into(), revision: revision.into() })
    }

    /// Reads what names no file or folder as a model's name.
    pub(crate) fn of_no_file(text: &str) -> Result<ModelName> {
        ModelName::parse(text).map_err(|_| anyhow!("there is no file or folder {text}, and it is no model name, which is ORG/NAME"))
    }

    fn repository(&self) -> String {
        format!("{}/{}", self.organisation, self.model)
    }
}

/// Where models come from.
pub(crate) struct Hub {
    cache: Option<PathBuf>,
    endpoint: String,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    /// Reads the variables that Hugging Face's own tools read.
    pub(crate) fn from_environment() -> Hub {
        let home = environment::text("HF_HOME").map(PathBuf::from).or_else(|| Some(environment::cache_home()?.join("huggingface")));
        let cache = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().find_map(environment::text).map(PathBuf::from);
        let stored = || std::fs::read_to_string(home.as_ref()?.join("token")).ok();
        let is_set =
            |name| environment::text(name).is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.to_lowercase().as_str()));
        Hub {
            token: environment::text("HF_TOKEN").or_else(stored).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()),
            cache: cache.or_else(|| Some(home.as_ref()?.join("hub"))),
            endpoint: environment::text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned(),
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
        }
    }

    /// The folder of a model's files in the local cache, if it is there with its config or weights.
    pub(crate) fn cached(&self, name: &ModelName) -> Result<Option<PathBuf>> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let folder = cache.join(format!("models--{}--{}", name.organisation, name.model));
        let reference = folder.join("refs").join(&name.revision);
        let commit = match std::fs::read_to_string(&reference) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => name.revision.clone(),
        };
        if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
            bail!("{} names no commit", reference.display());
        }
        let snapshot = folder.join("snapshots").join(commit);
        let has_config = ["config.json", "params.json"].iter().any(|name| snapshot.join(name).is_file());
        let complete = has_config && has_weights(&snapshot);
        Ok(complete.then_some(snapshot))
    }

    /// Copies files of a cached model into a folder; those that lead out of the cache are refused.
    pub(crate) fn copy_cached(&self, snapshot: &Path, folder: &Path, wanted: &[String]) -> Result<Vec<PathBuf>> {
        let cache = self.cache.as_deref().unwrap_or(snapshot);
        let root = cache.canonicalize().with_context(|| format!("cannot read {}", cache.display()))?;
        let names = if wanted.is_empty() { standard_files(snapshot)? } else { wanted.to_vec() };
        let mut copied = Vec::new();
        for name in names {
            let (source, target) = (snapshot.join(&name), target_path(folder, &name)?);
            let real = source.canonicalize().with_context(|| format!("cannot read {}", source.display()))?;
            if !real.starts_with(&root) {
                bail!("{} leads out of the cache, to {}", source.display(), real.display());
            }
            let mut from = std::fs::File::open(&real).with_context(|| format!("cannot read {}", source.display()))?;
            files::write(&target, |out| Ok(std::io::copy(&mut from, out)?))?;
            copied.push(target);
        }
        Ok(copied)
    }
}

/// Whether a folder has the weights of a model.
fn has_weights(folder: &Path) -> bool {
    ["model.safetensors", "model.safetensors.index.json", "consolidated.safetensors"].iter().any(|name| folder.join(name).is_file())
}

/// Whether a model needs this repository file to run: known files at the top, and
/// sentence-transformers' module files.
fn is_standard(name: &str) -> bool {
    if Checkpoint::is_module_config(name) {
        return true;
    }
    let kept = [".json", ".safetensors", ".jinja", "tokenizer.model"];
    !name.contains('/') && !name.starts_with('.') && kept.iter().any(|end| name.ends_with(end))
}

/// Tells which of a repository's files a model needs to run. Weights that are there a second time,
/// in Mistral's own form, are left out.
fn standard(names: &[&str]) -> impl Fn(&str) -> bool + use<> {
    let is_twice = names.iter().any(|name| name.starts_with("model") && name.ends_with(".safetensors"));
    move |name| is_standard(name) && !(is_twice && name.starts_with("consolidated"))
}

fn standard_files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let config = format!("{name}/config.json");
        if is_standard(&name) {
            names.push(name);
        } else if is_standard(&config) && folder.join(&config).is_file() {
            names.push(config);
        }
    }
    let keep = standard(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut names: Vec<String> = names.iter().filter(|name| keep(name)).cloned().collect();
    names.sort();
    Ok(names)
}

/// Where a repository's file goes, below the folder and nowhere else.
fn target_path(folder: &Path, name: &str) -> Result<PathBuf> {
    let inside = !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !inside {
        bail!("file name `{}` leads out of the folder", name.escape_debug());
    }
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_elsewhere() {
        let name = ModelName::parse("org/model-1.5@v2").unwrap();
        assert_eq!((name.repository().as_str(), name.revision.as_str()), ("org/model-1.5", "v2"));
        for bad in ["model", "a/b/c", "../x", "a/..", "a/b@", "a/b@../c", "a/b?c", "/b"] {
            assert!(ModelName::parse(bad).is_err(), "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(target_path(dir.path(), "a/b.json").is_ok());
        assert!(target_path(dir.path(), "../b.json").is_err() && target_path(dir.path(), "/b").is_err());
    }

    #[test]
    fn weights_are_not_fetched_twice() {
        let kept = |names: &[&str]| {
            let keep = standard(names);
            names.iter().filter(|name| keep(name)).map(|name| (*name).to_owned()).collect::<Vec<_>>()
        };
        let own = ["params.json", "consolidated.safetensors", "tekken.json"];
        assert_eq!(kept(&own), own);
        let both = ["config.json", "params.json", "consolidated.safetensors", "model-00001-of-00002.safetensors"];
        assert_eq!(kept(&both), [both[0], both[1], both[3]]);
    }

    #[test]
    fn a_cached_model_is_found_and_copied() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("models--org--m");
        let snapshot = model.join("snapshots").join("abc");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(model.join("refs")).unwrap();
        std::fs::write(model.join("refs/main"), "abc\n").unwrap();
        let hub = Hub { cache: Some(dir.path().into()), endpoint: String::new(), token: None, offline: true };
        let name = ModelName::parse("org/m").unwrap();
        assert_eq!(hub.cached(&name).unwrap(), None);
        for file in ["config.json", "model.safetensors", "README.md"] {
            std::fs::write(snapshot.join(file), file).unwrap();
        }
        assert_eq!(hub.cached(&name).unwrap().as_ref(), Some(&snapshot));
        let out = tempfile::tempdir().unwrap();
        let copied = hub.copy_cached(&snapshot, out.path(), &[]).unwrap();
        assert_eq!(copied, ["config.json", "model.safetensors"].map(|f| out.path().join(f)));
        #[cfg(unix)]
        {
            let outside = tempfile::NamedTempFile::new().unwrap();
            std::os::unix::fs::symlink(outside.path(), snapshot.join("evil.json")).unwrap();
            assert!(hub.copy_cached(&snapshot, out.path(), &[]).unwrap_err().to_string().contains("out of the cache"));
        }
    }
}
