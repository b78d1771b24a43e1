//! Concurrent downloads of a model's files into Hugging Face's cache or a folder.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, anyhow, bail};
use glob::Pattern;

use super::{
    Hub, ModelName,
    api::{Client, Listing, Remote},
    cache::{Cached, Repository, names, target_path, unique},
    selection::{Selection, select},
    transfer::{Transfer, length, matches},
};
use crate::{disk, failure, memory::human, progress};

/// Connections at the same time, of several files or of one.
const WORKERS: usize = 4;

/// Files to download; by default the files needed to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Exact paths in the repository.
    pub(crate) files: Vec<String>,
    /// Glob patterns of paths; `*` also matches slashes.
    pub(crate) include: Vec<Pattern>,
    /// Glob patterns of paths that are left out.
    pub(crate) exclude: Vec<Pattern>,
}

impl Wanted {
    /// Whether the default files are selected.
    pub(crate) fn is_model(&self) -> bool {
        self.files.is_empty() && self.include.is_empty() && self.exclude.is_empty()
    }

    /// Selected files of a repository.
    pub(super) fn select(&self, name: &ModelName, names: &[String]) -> Result<Selection> {
        if self.is_model() {
            let selection = select(names, name.tag.as_deref()).with_context(|| name.repository())?;
            if selection.files.is_empty() {
                bail!("{} has no config, tokenizer or weights that Flambeau reads", name.repository());
            }
            return Ok(selection);
        }
        if let Some(missing) = self.files.iter().find(|file| !names.contains(file)) {
            bail!("{} has no file {missing}", name.repository());
        }
        // `--exclude` alone leaves files out of the whole repository.
        let is_all = self.files.is_empty() && self.include.is_empty();
        let is_included = |name: &&String| {
            let named = |list: &[Pattern]| list.iter().any(|pattern| pattern.matches(name));
            (is_all || named(&self.include)) && !named(&self.exclude)
        };
        if let Some(pattern) = self.include.iter().find(|pattern| !names.iter().any(|name| pattern.matches(name))) {
            bail!("{} has no file like {pattern}", name.repository());
        }
        let others = names.iter().filter(is_included).filter(|name| !self.files.contains(name));
        let files: Vec<String> = self.files.iter().chain(others).cloned().collect();
        if files.is_empty() {
            bail!("--exclude leaves no file of {}", name.repository());
        }
        Ok(Selection { files, single: None })
    }
}

impl Hub {
    /// Downloads missing files of a model into the cache.
    ///
    /// # Errors
    /// Fails if offline mode is set, the hub refuses, or the disk is full.
    pub(crate) fn download(&self, name: &ModelName, wanted: &Wanted) -> Result<Cached> {
        let client = Client::new(self, name);
        let (listing, selection) = match self.listing(&client, name, wanted)? {
            Found::Hub(listing, selection) => (listing, selection),
            Found::Cache(cached) => return Ok(cached),
        };
        let cache = self.cache.as_deref().context("there is no home folder for the cache; set HF_HUB_CACHE")?;
        let store = Store { repository: Repository::new(cache, name), locks: cache.join(".locks").join(name.folder()), hub: self };
        let snapshot = store.repository.snapshot(&listing.commit);
        fetch_all(&client, name, &listing, &selection, &store)?;
        // Only now: until then the revision means what was whole before.
        store.repository.refer(&name.revision, &listing.commit)?;
        Ok(Cached { snapshot, selection })
    }

    /// Downloads files of a model into a folder. Complete files are kept, and cached blobs are
    /// copied.
    ///
    /// # Errors
    /// Fails as [`download`](Self::download) does.
    pub(crate) fn download_to(&self, name: &ModelName, folder: &Path, wanted: &Wanted) -> Result<Vec<PathBuf>> {
        let client = Client::new(self, name);
        let (listing, selection) = match self.listing(&client, name, wanted)? {
            Found::Hub(listing, selection) => (listing, selection),
            Found::Cache(cached) => return self.copy_cached(&cached, folder),
        };
        let repository = self.cache.as_deref().map(|cache| Repository::new(cache, name));
        fetch_all(&client, name, &listing, &selection, &Folder { folder, commit: &listing.commit, repository })
    }

    /// The selected files as listed by the hub. If the hub is unreachable, a complete cache is
    /// enough.
    fn listing(&self, client: &Client<'_>, name: &ModelName, wanted: &Wanted) -> Result<Found> {
        let failure = if self.offline {
            anyhow!("{name} is not in the local cache, and the environment forbids the network (HF_HUB_OFFLINE)")
        } else {
            match client.list() {
                Ok(listing) => {
                    let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
                    let selection = wanted.select(name, &names)?;
                    return Ok(Found::Hub(listing, selection));
                }
                Err(error) => error,
            }
        };
        let Some(cached) = self.wanted(name, wanted)? else { return Err(failure) };
        if !self.offline {
            eprintln!("{}; the files of the cache are used", failure::text(&failure));
        }
        Ok(Found::Cache(cached))
    }

    /// The selected files, if the cache has all of them.
    fn wanted(&self, name: &ModelName, wanted: &Wanted) -> Result<Option<Cached>> {
        let Some(cache) = self.cache.as_deref().filter(|_| !wanted.is_model()) else { return self.cached(name) };
        let repository = Repository::new(cache, name);
        let snapshot = repository.snapshot(&repository.commit(&name.revision)?);
        let selection = wanted.select(name, &names(&snapshot)).ok();
        Ok(selection.map(|selection| Cached { snapshot, selection }))
    }
}

/// Source of the file list.
enum Found {
    Hub(Listing, Selection),
    Cache(Cached),
}

/// Destination of files.
trait Target: Sync {
    /// The existing file.
    fn existing(&self, commit: &str, remote: &Remote) -> Result<Option<PathBuf>>;

    /// Size of the partial file of an earlier download, in bytes.
    fn begun(&self, remote: &Remote) -> u64;

    /// Downloads a missing file.
    fn fetch(&self, transfer: &Transfer<'_>, remote: &Remote) -> Result<PathBuf>;

    /// A folder on the destination's disk.
    fn disk(&self) -> &Path;
}

/// Downloads all selected files to a destination and returns their paths in the same order.
fn fetch_all(
    client: &Client<'_>,
    name: &ModelName,
    listing: &Listing,
    selection: &Selection,
    target: &dyn Target,
) -> Result<Vec<PathBuf>> {
    let remotes = selection.files.iter().filter_map(|file| listing.files.iter().find(|remote| remote.name == *file));
    let mut paths: Vec<Option<PathBuf>> = Vec::new();
    let mut missing: Vec<(usize, &Remote)> = Vec::new();
    for (i, remote) in remotes.enumerate() {
        paths.push(target.existing(&listing.commit, remote)?);
        if paths[i].is_none() {
            missing.push((i, remote));
        }
    }
    // The largest files first, so that none of them is alone at the end.
    missing.sort_by_key(|(_, remote)| std::cmp::Reverse(remote.size));
    let bytes = missing.iter().map(|(_, remote)| remote.size.unwrap_or(0).saturating_sub(target.begun(remote))).sum();
    let advice = "`flambeau pull NAME -o DIR` takes another folder, and HF_HUB_CACHE another cache";
    disk::admit(&format!("the download of {name}"), bytes, target.disk(), advice)?;
    if !missing.is_empty() && !progress::is_shown() {
        let count = missing.len();
        eprintln!("downloading {} of {name} in {count} {}", human(bytes), if count == 1 { "file" } else { "files" });
    }
    let bar = progress::bytes(missing.iter().filter_map(|(_, remote)| remote.size).sum());
    bar.set_message(format!("{name}, {} files", missing.len()));
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let connections = WORKERS / missing.len().clamp(1, WORKERS);
    let transfer = Transfer { client, commit: &listing.commit, bar: &bar, stop: &stop, connections };
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(missing.len()) {
            scope.spawn(|| {
                while let Some((i, remote)) =
                    missing.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !stop.load(Ordering::Relaxed))
                {
                    let result = target.fetch(&transfer, remote);
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only the first failure: it ends the others.
                    if result.is_ok() || !stop.swap(true, Ordering::Relaxed) {
                        results.push((*i, result));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    for (i, result) in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
        paths[i] = Some(result?);
    }
    Ok(paths.into_iter().flatten().collect())
}

/// The cache as a destination.
struct Store<'a> {
    repository: Repository,
    locks: PathBuf,
    hub: &'a Hub,
}

impl Store<'_> {
    /// Partial files of a blob from earlier downloads.
    fn parts(&self, etag: &str) -> Vec<PathBuf> {
        let is_part =
            |name: &str| name.strip_prefix(etag).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".incomplete"));
        let entries = fs::read_dir(self.repository.blob("")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_str().is_some_and(is_part)).map(|entry| entry.path()).collect()
    }

    /// Creates a partial file of a blob. It takes over the longest partial file of earlier
    /// downloads.
    fn part(&self, etag: &str) -> Result<PathBuf> {
        let part = self.repository.blob(&unique(etag, "incomplete"));
        if let Some(earlier) = self.parts(etag).into_iter().max_by_key(|path| length(path)) {
            fs::rename(&earlier, &part).with_context(|| format!("cannot continue {}", earlier.display()))?;
        }
        Ok(part)
    }
}

impl Target for Store<'_> {
    fn existing(&self, commit: &str, remote: &Remote) -> Result<Option<PathBuf>> {
        let file = target_path(&self.repository.snapshot(commit), &remote.name)?;
        if file.is_file() {
            return Ok(Some(file));
        }
        let has_blob = self.repository.blob(&remote.etag).is_file();
        has_blob.then(|| self.repository.link(&remote.etag, commit, &remote.name, self.hub.links)).transpose()
    }

    fn begun(&self, remote: &Remote) -> u64 {
        self.parts(&remote.etag).iter().map(|path| length(path)).max().unwrap_or(0)
    }

    fn fetch(&self, transfer: &Transfer<'_>, remote: &Remote) -> Result<PathBuf> {
        let blob = self.repository.blob(&remote.etag);
        let place = || format!("cannot write {}", blob.display());
        fs::create_dir_all(self.repository.blob("")).and_then(|()| fs::create_dir_all(&self.locks)).with_context(place)?;
        let lock = File::create(self.locks.join(format!("{}.lock", remote.etag))).with_context(place)?;
        // Some file systems have no locks; then a file may be fetched twice.
        let is_locked = lock.lock().is_ok();
        if !blob.is_file() {
            let part = if is_locked { self.part(&remote.etag)? } else { self.repository.blob(&unique(&remote.etag, "incomplete")) };
            transfer.run(remote, &part)?;
            fs::rename(&part, &blob).with_context(place)?;
        }
        self.repository.link(&remote.etag, transfer.commit, &remote.name, self.hub.links)
    }

    fn disk(&self) -> &Path {
        &self.repository.0
    }
}

/// A user's folder as a destination.
struct Folder<'a> {
    folder: &'a Path,
    commit: &'a str,
    /// The model's folder in the cache.
    repository: Option<Repository>,
}

impl Folder<'_> {
    /// Path of a partial file. Its name contains the commit, so that a partial file of an older
    /// version is not continued.
    fn part(&self, name: &str) -> PathBuf {
        let target = self.folder.join(name);
        let file_name = target.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        target.with_file_name(format!(".{file_name}.{}.partial", self.commit))
    }
}

impl Target for Folder<'_> {
    fn existing(&self, _commit: &str, remote: &Remote) -> Result<Option<PathBuf>> {
        let target = target_path(self.folder, &remote.name)?;
        let is_there = remote.size.is_some() && target.is_file() && Some(length(&target)) == remote.size;
        Ok((is_there && matches(&target, remote)?).then_some(target))
    }

    fn begun(&self, remote: &Remote) -> u64 {
        length(&self.part(&remote.name))
    }

    fn fetch(&self, transfer: &Transfer<'_>, remote: &Remote) -> Result<PathBuf> {
        let (target, part) = (target_path(self.folder, &remote.name)?, self.part(&remote.name));
        let place = || format!("cannot write {}", target.display());
        let blob = self.repository.as_ref().map(|repository| repository.blob(&remote.etag)).filter(|blob| blob.is_file());
        // Two commands in one folder take turns.
        let lock = File::options().create(true).append(true).open(&part).with_context(place)?;
        let _ = lock.lock();
        if let Some(found) = self.existing(self.commit, remote)? {
            return Ok(found);
        }
        if let Some(blob) = blob {
            fs::copy(&blob, &part).with_context(|| format!("cannot copy {}", blob.display()))?;
        }
        transfer.run(remote, &part)?;
        fs::rename(&part, &target).with_context(place)?;
        Ok(target)
    }

    fn disk(&self) -> &Path {
        self.folder
    }
}
