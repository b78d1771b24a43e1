//! Hugging Face's local cache: snapshots of revisions, whose files link to blobs.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value as Json;

use super::{
    ModelName,
    selection::{Selection, select},
};

/// Maximum folder depth searched in a repository.
const DEPTH: usize = 4;

/// A cached model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    /// The folder of the revision.
    pub(crate) snapshot: PathBuf,
    pub(crate) selection: Selection,
}

impl Cached {
    /// Path that opens the model: its folder or its file.
    pub(crate) fn path(&self) -> PathBuf {
        self.selection.single.as_ref().map_or_else(|| self.snapshot.clone(), |file| self.snapshot.join(file))
    }
}

/// The folder of a repository in the cache.
pub(super) struct Repository(pub(super) PathBuf);

impl Repository {
    pub(super) fn new(cache: &Path, name: &ModelName) -> Repository {
        Repository(cache.join(name.folder()))
    }

    /// The commit of a revision, which is a reference or a commit itself.
    ///
    /// # Errors
    /// Fails if the reference's contents are not a valid commit, since they become part of a path.
    pub(super) fn commit(&self, revision: &str) -> Result<String> {
        let reference = self.0.join("refs").join(revision);
        let commit = fs::read_to_string(&reference).map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
            bail!("{} names no commit", reference.display());
        }
        Ok(commit)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.0.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.0.join("blobs").join(etag)
    }

    /// Points a reference to a commit. Commits need no reference.
    pub(super) fn refer(&self, revision: &str, commit: &str) -> Result<()> {
        let reference = self.0.join("refs").join(revision);
        if revision == commit || fs::read_to_string(&reference).is_ok_and(|text| text.trim() == commit) {
            return Ok(());
        }
        let place = || format!("cannot write {}", reference.display());
        fs::create_dir_all(reference.parent().unwrap_or(&self.0)).with_context(place)?;
        fs::write(&reference, commit).with_context(place)
    }

    /// Adds a blob to a snapshot: as a link, or as the file itself where links are not supported.
    pub(super) fn link(&self, etag: &str, commit: &str, name: &str, may_link: bool) -> Result<PathBuf> {
        let (blob, file) = (self.blob(etag), target_path(&self.snapshot(commit), name)?);
        if file.is_file() {
            return Ok(file);
        }
        let place = || format!("cannot write {}", file.display());
        let up: PathBuf = (0..=name.split('/').count()).map(|_| "..").collect();
        // Another process may do the same now: the link is made beside its place, and then renamed.
        let beside = file.with_file_name(unique(&format!(".{etag}"), "link"));
        if may_link && link(&up.join("blobs").join(etag), &beside).is_ok() {
            fs::rename(&beside, &file).with_context(place)?;
        } else if fs::rename(&blob, &file).is_err() && !file.is_file() {
            bail!("cannot move {} to {}", blob.display(), file.display());
        }
        Ok(file)
    }
}

/// A unique file name: 8 hexadecimal digits between two parts.
pub(super) fn unique(start: &str, end: &str) -> String {
    format!("{start}.{:08x}.{end}", RandomState::new().hash_one(start) as u32)
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(not(unix))]
fn link(_to: &Path, _at: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// The model with this revision and tag, if the cache is complete.
///
/// # Errors
/// Fails if the reference's contents are not a valid commit.
pub(super) fn find(cache: &Path, name: &ModelName) -> Result<Option<Cached>> {
    let repository = Repository::new(cache, name);
    let snapshot = repository.snapshot(&repository.commit(&name.revision)?);
    let Ok(selection) = select(&names(&snapshot), name.tag.as_deref()) else { return Ok(None) };
    let is_whole = selection.single.is_some() || is_complete(&snapshot);
    Ok(is_whole.then_some(Cached { snapshot, selection }))
}

/// Whether a folder has a model's config and all weights.
pub(super) fn is_complete(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    let has_config = ["config.json", "params.json"].into_iter().any(has);
    let indexed = |index: &str| {
        let shards = shards(&fs::read(folder.join(index)).ok()?);
        Some(shards.is_some_and(|shards| !shards.is_empty() && shards.iter().all(|shard| has(shard))))
    };
    let single = ["model.safetensors", "consolidated.safetensors", "model.bin", "pytorch_model.bin"];
    let has_weights = indexed("model.safetensors.index.json")
        .unwrap_or_else(|| single.into_iter().any(has) || indexed("pytorch_model.bin.index.json").unwrap_or(false));
    has_config && has_weights
}

/// Files named by a weight index.
fn shards(index: &[u8]) -> Option<Vec<String>> {
    let json: Json = serde_json::from_slice(index).ok()?;
    let mut files: Vec<String> = json["weight_map"].as_object()?.values().filter_map(Json::as_str).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    files.iter().all(|file| !file.contains('/')).then_some(files)
}

/// Existing files of a snapshot, by their paths in the repository.
pub(super) fn names(snapshot: &Path) -> Vec<String> {
    let mut list = Vec::new();
    collect(snapshot, "", DEPTH, &mut list);
    list.sort();
    list
}

fn collect(folder: &Path, prefix: &str, depth: usize, list: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_file() {
            list.push(format!("{prefix}{name}"));
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, &format!("{prefix}{name}/"), depth - 1, list);
        }
    }
}

/// Local path of a repository's file, always inside the folder. Creates its parent folders.
pub(super) fn target_path(folder: &Path, name: &str) -> Result<PathBuf> {
    let inside = !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !inside {
        bail!("file name `{}` leads out of the folder", name.escape_debug());
    }
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ModelName {
        ModelName::parse(text).unwrap()
    }

    /// A cache with a commit of `org/m` that is `main`.
    fn cache(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::new(dir.path(), &name("org/m"));
        repository.refer("main", "abc").unwrap();
        for (name, text) in files {
            fs::write(target_path(&repository.snapshot("abc"), name).unwrap(), text).unwrap();
        }
        dir
    }

    fn found(dir: &tempfile::TempDir, text: &str) -> Option<String> {
        let found = find(dir.path(), &name(text)).unwrap()?;
        Some(found.path().strip_prefix(&found.snapshot).unwrap().display().to_string())
    }

    #[test]
    fn folders_need_all_their_shards() {
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        let mut files = vec![("config.json", "{}"), ("model.safetensors.index.json", index), ("model-1.safetensors", "")];
        assert_eq!(found(&cache(&files), "org/m"), None);
        files.push(("model-2.safetensors", ""));
        assert_eq!(found(&cache(&files), "org/m").as_deref(), Some(""));
        assert_eq!(found(&cache(&files[1..]), "org/m"), None);
    }

    #[test]
    fn files_are_found_by_tag() {
        let dir = cache(&[("m-Q8_0.gguf", ""), ("Q5_0/m-Q5_0-00001-of-00002.gguf", ""), ("README.md", "")]);
        assert_eq!(found(&dir, "org/m").as_deref(), Some("m-Q8_0.gguf"));
        assert_eq!(found(&dir, "org/m:q8_0").as_deref(), Some("m-Q8_0.gguf"));
        assert_eq!(found(&dir, "org/m:q8_0@abc").as_deref(), Some("m-Q8_0.gguf"));
        assert_eq!(found(&dir, "org/m:q4_k_m"), None);
        assert_eq!(found(&dir, "org/m:q5_0"), None);
        assert_eq!(found(&dir, "org/other"), None);
    }

    #[test]
    fn paths_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(target_path(dir.path(), "a/b.json").is_ok());
        assert!(target_path(dir.path(), "../b.json").is_err() && target_path(dir.path(), "/b").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_blobs() {
        let dir = cache(&[]);
        let repository = Repository::new(dir.path(), &name("org/m"));
        fs::write(target_path(&repository.blob(""), "e1").unwrap(), "x").unwrap();
        let file = repository.link("e1", "abc", "a/b.json", true).unwrap();
        assert_eq!(fs::read_link(&file).unwrap(), Path::new("../../../blobs/e1"));
        assert_eq!(fs::read(file).unwrap(), b"x");
        let moved = repository.link("e1", "abc", "c.json", false).unwrap();
        assert!(moved.is_file() && !moved.is_symlink() && !repository.blob("e1").exists());
    }
}
