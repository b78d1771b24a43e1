//! Files as shared bytes: the one place of this crate that needs `unsafe`.

#![allow(unsafe_code, reason = "mapping a file is unsafe by its nature: others can change the file")]

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use flambeau_tensor::Bytes;
use memmap2::Mmap;

use crate::{Error, Result};

/// The contents of a file, mapped if it is a regular one, else read to its end.
///
/// # Errors
/// [`Error::Io`] names the path.
pub fn map_file(path: impl AsRef<Path>) -> Result<Bytes> {
    map(path.as_ref(), |_| Ok(()))
}

/// [`map_file`] of what is read at once, and stays in memory as long as the bytes: the system neither drops nor swaps out a page of it.
///
/// # Errors
/// As [`map_file`]; [`Error::Lock`] if the system keeps no more memory for this process, as its limit on locked memory says
/// (`RLIMIT_MEMLOCK`), or knows no such thing.
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
    // SAFETY: the map is private and read-only, and lives as long as the bytes that it backs. Decoding checks every number it
    // reads at the time it reads it, so a file that another process changes meanwhile gives wrong values, not wrong memory
    // accesses; one that is cut short ends the process with a bus error, as with every mapped file.
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    // Weights are streamed from one end to the other: with small pages the walks through the page table show. What is not in
    // memory yet is then read in large pages; a system that has none is no worse off.
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
