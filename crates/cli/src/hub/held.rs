//! Cached models and their removal.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result};

use super::{
    Hub, ModelName,
    cache::{Cached, Repository, is_complete, names},
    selection::{all, select},
    shared,
};

/// A cached model.
#[derive(Clone, Debug)]
pub(crate) struct CachedModel {
    /// Its name, with a tag for a single file, and with its revision unless it is `main`.
    pub(crate) name: ModelName,
    pub(crate) model: Cached,
    /// Whether all its files are present.
    pub(crate) is_complete: bool,
    /// Total size of its files in bytes.
    pub(crate) bytes: u64,
    /// Time of the last download.
    pub(crate) fetched: Option<SystemTime>,
}

/// Cached files to remove.
#[derive(Debug)]
pub(crate) struct Removal {
    cache: PathBuf,
    repository: PathBuf,
    /// Files of snapshots.
    files: Vec<PathBuf>,
    /// Blobs without other links.
    blobs: Vec<PathBuf>,
    /// Whether the whole repository is removed.
    is_whole: bool,
    /// Freed bytes.
    pub(crate) bytes: u64,
}

impl Hub {
    /// All runnable cached models, by name.
    pub(crate) fn held(&self) -> Vec<CachedModel> {
        let entries = self.cache.iter().flat_map(|cache| fs::read_dir(cache).into_iter().flatten().flatten());
        let mut list: Vec<CachedModel> = entries
            .filter_map(|entry| Some((ModelName::of_folder(entry.file_name().to_str()?)?, Repository(entry.path()))))
            .flat_map(|(name, repository)| of_repository(&name, &repository))
            .collect();
        list.sort_by_key(|held| held.name.to_string());
        list
    }

    /// The files of a cached model: its whole repository, or only its tag or revision. `None` if
    /// there are none.
    ///
    /// # Errors
    /// Fails if the tag matches no file.
    pub(crate) fn removal(&self, name: &ModelName, revision: Option<&str>) -> Result<Option<Removal>> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let repository = Repository::new(cache, name);
        let only = revision.map(|revision| repository.commit(revision)).transpose()?;
        let (mut files, mut kept) = (Vec::new(), Vec::new());
        let mut refusal = None;
        for (commit, snapshot) in snapshots(&repository) {
            let names = names(&snapshot);
            let selected = match &name.tag {
                _ if only.as_ref().is_some_and(|only| *only != commit) => Vec::new(),
                Some(tag) => select(&names, Some(tag)).map_or_else(
                    |error| {
                        refusal = Some(error);
                        Vec::new()
                    },
                    |selection| selection.files,
                ),
                None => names.clone(),
            };
            for file in names {
                let list = if selected.contains(&file) { &mut files } else { &mut kept };
                list.push(snapshot.join(file));
            }
        }
        let is_whole = kept.is_empty() && repository.0.is_dir();
        if files.is_empty() && !is_whole {
            return refusal.map_or(Ok(None), |error| Err(error).with_context(|| name.repository()));
        }
        let used: BTreeSet<PathBuf> = kept.iter().filter_map(|file| blob(file)).collect();
        let mut blobs: BTreeSet<PathBuf> = files.iter().filter_map(|file| blob(file)).filter(|blob| !used.contains(blob)).collect();
        if is_whole {
            // Parts of downloads, too.
            blobs.extend(fs::read_dir(repository.blob("")).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        let blobs: Vec<PathBuf> = blobs.into_iter().collect();
        let real = files.iter().filter(|file| !file.is_symlink());
        let bytes = real.chain(&blobs).map(|file| fs::metadata(file).map_or(0, |facts| facts.len())).sum();
        Ok(Some(Removal { cache: cache.clone(), repository: repository.0, files, blobs, is_whole, bytes }))
    }
}

impl Removal {
    /// Whether the removal deletes files of a model.
    pub(crate) fn takes(&self, held: &CachedModel) -> bool {
        held.model.selection.files.first().is_some_and(|file| self.files.contains(&held.model.snapshot.join(file)))
    }

    /// Removes the files, and unreferenced blobs of the shared store.
    pub(crate) fn run(&self) -> Result<()> {
        for file in self.files.iter().chain(&self.blobs) {
            let shared = shared::target(&self.cache, file);
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
            if let Some(shared) = shared {
                shared::sweep(&self.cache, &shared);
            }
        }
        if self.is_whole {
            let place = || format!("cannot remove {}", self.repository.display());
            fs::remove_dir_all(&self.repository).with_context(place)?;
        }
        Ok(())
    }
}

/// The snapshots of a repository, by commit.
fn snapshots(repository: &Repository) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(repository.snapshot("")).into_iter().flatten().flatten();
    let mut list: Vec<_> = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect();
    list.sort();
    list
}

/// The blob that a snapshot's file links to.
fn blob(file: &Path) -> Option<PathBuf> {
    let target = fs::read_link(file).ok()?;
    let folder = file.parent()?.canonicalize().ok()?.join(target.parent()?).canonicalize().ok()?;
    Some(folder.join(target.file_name()?))
}

/// The models of a repository.
fn of_repository(name: &ModelName, repository: &Repository) -> Vec<CachedModel> {
    let references = names(&repository.0.join("refs"));
    let mut list = Vec::new();
    for (commit, snapshot) in snapshots(repository) {
        let is_meant = |reference: &&String| repository.commit(reference).is_ok_and(|found| found == commit);
        let main = references.iter().find(|reference| *reference == &name.revision).filter(is_meant);
        let revision = main.or_else(|| references.iter().find(is_meant)).unwrap_or(&commit).clone();
        for selection in all(&names(&snapshot)) {
            let name = ModelName { tag: selection.label(), revision: revision.clone(), ..name.clone() };
            let facts = selection.files.iter().filter_map(|file| fs::metadata(snapshot.join(file)).ok());
            let (bytes, fetched) =
                facts.fold((0, None), |(bytes, time), facts| (bytes + facts.len(), time.max(facts.modified().ok())));
            let is_complete = selection.single.is_some() || is_complete(&snapshot);
            list.push(CachedModel { name, model: Cached { snapshot: snapshot.clone(), selection }, is_complete, bytes, fetched });
        }
    }
    list
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::hub::cache::target_path;

    /// A hub whose cache has two quantizations at two commits; one file did not change between
    /// them.
    fn hub(dir: &Path) -> Hub {
        let name = ModelName::parse("org/m").unwrap();
        let repository = Repository::new(dir, &name);
        for (commit, file, etag, text) in [
            ("c1", "m-Q4_0.gguf", "e1", "four"),
            ("c1", "m-Q8_0.gguf", "e2", "eight bits"),
            ("c2", "m-Q4_0.gguf", "e1", "four"),
            ("c2", "m-Q8_0.gguf", "e3", "eight"),
        ] {
            fs::write(target_path(&repository.blob(""), etag).unwrap(), text).unwrap();
            repository.link(etag, commit, file, true).unwrap();
        }
        repository.refer("main", "c2").unwrap();
        Hub {
            cache: Some(dir.into()),
            endpoint: String::new(),
            token: None,
            offline: true,
            links: true,
            timeout: crate::hub::TIMEOUT,
        }
    }

    #[test]
    fn models_are_listed_by_quantization_and_revision() {
        let dir = tempfile::tempdir().unwrap();
        let held = hub(dir.path()).held();
        let list: Vec<_> = held.iter().map(|held| (held.name.to_string(), held.bytes)).collect();
        let expected = [("org/m:Q4_0", 4), ("org/m:Q4_0@c1", 4), ("org/m:Q8_0", 5), ("org/m:Q8_0@c1", 10)];
        assert_eq!(list, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
    }

    #[test]
    fn blobs_stay_as_long_as_a_file_leads_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let hub = hub(dir.path());
        let remove = |name: &str, revision: Option<&str>| {
            let removal = hub.removal(&ModelName::parse(name).unwrap(), revision).unwrap().unwrap();
            removal.run().unwrap();
            removal.bytes
        };
        let blobs = || names(&dir.path().join("models--org--m/blobs"));
        assert_eq!((remove("org/m", Some("c1")), blobs()), (10, vec!["e1".to_owned(), "e3".into()]));
        assert_eq!((remove("org/m:q8_0", None), blobs()), (5, vec!["e1".to_owned()]));
        assert!(hub.removal(&ModelName::parse("org/m:Q8_0").unwrap(), None).unwrap_err().to_string().contains("org/m"));
        assert_eq!(remove("org/m:Q4_0", None), 4);
        assert!(!dir.path().join("models--org--m").exists());
        assert!(hub.removal(&ModelName::parse("org/m").unwrap(), None).unwrap().is_none());
    }

    #[test]
    fn shared_blobs_go_with_their_last_reference() {
        let dir = tempfile::tempdir().unwrap();
        let hash = "ab".repeat(32);
        let store = dir.path().join("blobs").join("ab");
        fs::create_dir_all(&store).unwrap();
        fs::write(store.join(&hash), "shared").unwrap();
        fs::write(dir.path().join("blobs/.huggingface-shared-blobs"), "1\n").unwrap();
        let mut references = String::new();
        for model in ["a", "b"] {
            let repository = Repository::new(dir.path(), &ModelName::parse(&format!("org/{model}")).unwrap());
            let blob = target_path(&repository.blob(""), "e1").unwrap();
            std::os::unix::fs::symlink(format!("../../blobs/ab/{hash}"), &blob).unwrap();
            repository.link("e1", "c1", "m.gguf", true).unwrap();
            references += &format!("models--org--{model}/blobs/e1\n");
        }
        fs::write(store.join(format!("{hash}.refs")), references).unwrap();
        let hub = Hub {
            cache: Some(dir.path().into()),
            endpoint: String::new(),
            token: None,
            offline: true,
            links: true,
            timeout: crate::hub::TIMEOUT,
        };
        for (model, is_there) in [("org/a", true), ("org/b", false)] {
            hub.removal(&ModelName::parse(model).unwrap(), None).unwrap().unwrap().run().unwrap();
            assert_eq!(store.join(&hash).exists(), is_there);
        }
    }
}
