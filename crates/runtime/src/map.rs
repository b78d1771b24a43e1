//! Maps files as shared bytes. Only this file of the crate uses `unsafe`.

#![allow(unsafe_code, reason = "mapping a file is unsafe by its nature: others can change the file")]

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use flambeau_tensor::Bytes;
use memmap2::Mmap;

use crate::{Error, Result};

/// Maps a regular file, or reads any other file to its end.
///
/// # Errors
/// [`Error::Io`] names the path.
pub fn map_file(path: impl AsRef<Path>) -> Result<Bytes> {
    map(path.as_ref(), |_| Ok(()))
}

/// Like [`map_file`], but reads the file at once and locks its pages in memory while the bytes
/// exist. The system neither drops nor swaps out locked pages.
///
/// # Errors
/// As [`map_file`]. [`Error::Lock`] if the file exceeds the process's limit on locked memory
/// (`RLIMIT_MEMLOCK`), or if the system does not support locking.
pub fn map_file_locked(path: impl AsRef<Path>) -> Result<Bytes> {
    let path = path.as_ref();
    map(path, |map| lock(map).map_err(|source| Error::Lock { path: path.to_owned(), size: map.len(), source }))
}

#[cfg(unix)]
fn lock(map: &Mmap) -> io::Result<()> {
    map.lock()
}

#[cfg(not(unix))]
fn lock(_: &Mmap) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn map(path: &Path, prepare: impl FnOnce(&Mmap) -> Result<()>) -> Result<Bytes> {
    let fail = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(fail(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
    }
    if !metadata.is_file() || metadata.len() == 0 {
        return fs::read(path).map(Bytes::from).map_err(fail);
    }
    // SAFETY: the map is private and read-only, and lives as long as the bytes that it backs.
    // Decoding checks every number when it is read. If another process changes the file meanwhile,
    // values are wrong, but memory accesses stay valid. If the file is truncated, a bus error ends
    // the process, as with every mapped file.
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    // Weights are read sequentially, and with small pages the page-table walks cost time. The
    // advice makes the system load absent parts in huge pages. Systems without huge pages ignore
    // it.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    prepare(&map)?;
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_mapped_and_failures_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        for contents in [&b""[..], b"abc"] {
            fs::write(&path, contents).unwrap();
            assert_eq!(map_file(&path).unwrap(), contents);
            #[cfg(unix)]
            assert_eq!(map_file_locked(&path).unwrap(), contents);
        }
        for bad in [dir.path().join("none.bin"), dir.path().to_owned()] {
            let message = map_file(&bad).unwrap_err().to_string();
            assert!(message.contains(&bad.display().to_string()), "{message}");
        }
    }
}
