//! The Hugging Face hub and its local cache.

mod api;
mod cache;
mod download;
mod held;
mod known;
mod name;
mod pieces;
mod selection;
mod shared;
mod transfer;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use self::cache::target_path;
pub(crate) use self::{
    cache::Cached,
    download::Wanted,
    held::{CachedModel, Removal},
    known::KNOWN,
    name::ModelName,
};
use crate::{environment, files};

/// Default address of the hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Longest wait for a connection, for an answer to begin, and for its next bytes, where the
/// environment states no other.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Source of models.
pub(crate) struct Hub {
    cache: Option<PathBuf>,
    endpoint: String,
    token: Option<String>,
    offline: bool,
    /// Whether snapshots link to blobs.
    links: bool,
    /// Longest wait for the hub.
    timeout: Duration,
}

impl Hub {
    /// Reads the environment variables of Hugging Face's own tools.
    pub(crate) fn from_environment() -> Hub {
        let home = environment::text("HF_HOME").map(PathBuf::from).or_else(|| Some(environment::cache_home()?.join("huggingface")));
        let cache = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().find_map(environment::text).map(PathBuf::from);
        Hub {
            token: token(home.as_deref()),
            cache: cache.or_else(|| Some(home?.join("hub"))),
            endpoint: environment::text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned(),
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            links: !is_set("HF_HUB_DISABLE_SYMLINKS"),
            timeout: timeout().unwrap_or(TIMEOUT),
        }
    }

    /// The model in the local cache, if complete.
    pub(crate) fn cached(&self, name: &ModelName) -> Result<Option<Cached>> {
        self.cache.as_deref().map_or(Ok(None), |cache| cache::find(cache, name))
    }

    /// Copies files of a cached model into a folder. Files that link outside of the cache are
    /// rejected.
    fn copy_cached(&self, model: &Cached, folder: &Path) -> Result<Vec<PathBuf>> {
        let snapshot = &model.snapshot;
        let cache = self.cache.as_deref().unwrap_or(snapshot);
        let root = cache.canonicalize().with_context(|| format!("cannot read {}", cache.display()))?;
        let mut copied = Vec::new();
        for name in &model.selection.files {
            let (source, target) = (snapshot.join(name), target_path(folder, name)?);
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

fn is_set(name: &str) -> bool {
    environment::text(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()))
}

/// The longest wait that the environment states, in seconds.
fn timeout() -> Option<Duration> {
    let seconds = environment::text("HF_HUB_DOWNLOAD_TIMEOUT")?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero())
}

/// The user's token: a variable, or the file that a login wrote.
fn token(home: Option<&Path>) -> Option<String> {
    if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    let given = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(environment::text);
    let file = environment::path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
    let token = given.or_else(|| std::fs::read_to_string(file?).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn copies_do_not_lead_out_of_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("models--org--m/snapshots/abc");
        std::fs::create_dir_all(&snapshot).unwrap();
        for file in ["config.json", "model.safetensors", "README.md"] {
            std::fs::write(snapshot.join(file), file).unwrap();
        }
        let cache = Some(dir.path().to_owned());
        let hub = Hub { cache, endpoint: String::new(), token: None, offline: true, links: true, timeout: TIMEOUT };
        let name = ModelName::parse("org/m@abc").unwrap();
        let out = tempfile::tempdir().unwrap();
        let copied = hub.copy_cached(&hub.cached(&name).unwrap().unwrap(), out.path()).unwrap();
        assert_eq!(copied, ["README.md", "config.json", "model.safetensors"].map(|f| out.path().join(f)));
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(outside.path(), snapshot.join("evil.json")).unwrap();
        let error = hub.copy_cached(&hub.cached(&name).unwrap().unwrap(), out.path()).unwrap_err();
        assert!(error.to_string().contains("out of the cache"));
    }
}
