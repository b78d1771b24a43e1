//! Hugging Face's store of blobs shared by repositories: `blobs/<2 digits>/<hash>` in the cache,
//! with a manifest of links.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// The marker file of the store, and its contents.
const MARKER: (&str, &str) = (".huggingface-shared-blobs", "1\n");

/// The shared blob that a repository's blob links to.
pub(super) fn target(cache: &Path, blob: &Path) -> Option<PathBuf> {
    let store = cache.join("blobs");
    let is_store = fs::read_to_string(store.join(MARKER.0)).is_ok_and(|text| text == MARKER.1);
    // A file of a snapshot leads to a blob, and only that to the store.
    let link = fs::read_link(blob).ok().filter(|_| is_store)?;
    let target = blob.parent()?.join(link);
    let (folder, hash) = (target.parent()?.canonicalize().ok()?, target.file_name()?);
    let is_inside = folder.parent()? == store.canonicalize().ok()?;
    is_inside.then(|| folder.join(hash))
}

/// Removes a shared blob without remaining links. Without a manifest, or if removal fails, it stays
/// and only takes disk space.
pub(super) fn sweep(cache: &Path, shared: &Path) {
    let beside = |end: &str| {
        let mut name = shared.file_name().unwrap_or_default().to_owned();
        name.push(end);
        shared.with_file_name(name)
    };
    let Ok(lock) = File::options().create(true).append(true).open(beside(".lock")) else { return };
    if lock.lock().is_err() {
        return;
    }
    let Ok(manifest) = fs::read_to_string(beside(".refs")) else { return };
    let is_used = manifest.lines().any(|line| target(cache, &cache.join(line)).is_some_and(|found| found == shared));
    if !is_used && fs::remove_file(shared).is_ok() {
        let _ = fs::remove_file(beside(".refs"));
    }
}
