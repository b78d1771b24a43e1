//! The cache of exported programs. Beyond its size limit, the least recently used programs are
//! removed.

use std::{
    fs::{self, File, FileTimes},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result};

use crate::{environment, failure::usage, memory};

/// Length of a digest in a file name, in characters.
pub(crate) const DIGITS: usize = 16;

/// The environment variable with the size limit in GiB.
const VARIABLE: &str = "FLAMBEAU_CACHE_SIZE";

/// Default size limit in GiB.
const GIB: u64 = 64;

/// A cached program.
#[derive(Clone, Debug)]
pub(crate) struct CachedProgram {
    pub(crate) path: PathBuf,
    /// Its model: `ORG--NAME` with `+QUANT` and `@REVISION`, or the name of a folder or file.
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
}

/// The folder of exported programs.
pub(crate) fn folder() -> Result<PathBuf> {
    environment::cache("models")
}

/// Maximum total size of all programs in bytes; `None` for no limit.
///
/// # Errors
/// Fails if the variable is not a number.
pub(crate) fn limit() -> Result<Option<u64>> {
    let gib = match environment::text(VARIABLE) {
        None => GIB,
        Some(text) => text.parse().map_err(|_| usage(format!("{VARIABLE}={text}: expected a number of GiB, or 0 for no limit")))?,
    };
    Ok((gib > 0).then(|| gib.saturating_mul(1 << 30)))
}

/// The programs of a folder, least recently used first. Other files are ignored.
pub(crate) fn list(folder: &Path) -> Vec<CachedProgram> {
    let mut list: Vec<CachedProgram> =
        fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| of(&entry)).collect();
    list.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.path.cmp(&b.path)));
    list
}

fn of(entry: &fs::DirEntry) -> Option<CachedProgram> {
    let (name, facts) = (entry.file_name(), entry.metadata().ok()?);
    let label = label(name.to_str()?)?.to_owned();
    let used = [facts.accessed(), facts.modified()].into_iter().flatten().max()?;
    Some(CachedProgram { path: entry.path(), label, bytes: facts.len(), used })
}

/// The label in a file name, before its two digests.
fn label(name: &str) -> Option<&str> {
    let mut rest = name.strip_suffix(".pte")?;
    for _ in 0..2 {
        let (before, digest) = rest.rsplit_once('-')?;
        let is_digest = digest.len() == DIGITS && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        rest = is_digest.then_some(before)?;
    }
    Some(rest)
}

/// Records the use of a program. A failure only makes it look older.
pub(crate) fn touch(path: &Path) {
    let now = FileTimes::new().set_accessed(SystemTime::now());
    let _ = File::open(path).and_then(|file| file.set_times(now));
}

/// Removes programs until the rest fits the limit. One program always stays.
///
/// # Errors
/// Fails if the variable is invalid or a program cannot be removed.
pub(crate) fn make_room(folder: &Path, kept: &Path) -> Result<()> {
    let Some(limit) = limit()? else { return Ok(()) };
    for program in too_many(list(folder), kept, limit) {
        let size = memory::human(program.bytes);
        eprintln!(
            "removing the oldest program of the cache, of {} ({size}), to keep it within {}",
            program.label,
            memory::human(limit)
        );
        remove(&program)?;
    }
    Ok(())
}

/// The programs beyond a limit.
fn too_many(list: Vec<CachedProgram>, kept: &Path, limit: u64) -> Vec<CachedProgram> {
    let mut total: u64 = list.iter().map(|program| program.bytes).sum();
    let mut removed = Vec::new();
    for program in list.into_iter().filter(|program| program.path != kept) {
        if total <= limit {
            break;
        }
        total -= program.bytes;
        removed.push(program);
    }
    removed
}

pub(crate) fn remove(program: &CachedProgram) -> Result<()> {
    fs::remove_file(&program.path).with_context(|| format!("cannot remove {}", program.path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_of_programs_hold_a_label() {
        let digests = "0123456789abcdef-fedcba9876543210";
        assert_eq!(label(&format!("org--m+Q8_0-{digests}.pte")), Some("org--m+Q8_0"));
        for other in ["m.pte".to_owned(), format!("m-{digests}"), "m-0123456789abcdef.pte".into(), format!("m-x{digests}.pte")] {
            assert_eq!(label(&other), None, "{other}");
        }
    }

    #[test]
    fn the_programs_that_were_not_used_for_longest_go_first() {
        let program = |name: &str, age| CachedProgram {
            path: name.into(),
            label: name.into(),
            bytes: 10,
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(age),
        };
        let list = ["a", "b", "c", "d"].iter().enumerate().map(|(age, name)| program(name, age as u64)).collect::<Vec<_>>();
        let gone = |kept: &str, limit| {
            let removed = too_many(list.clone(), Path::new(kept), limit);
            removed.into_iter().map(|program| program.label).collect::<Vec<_>>()
        };
        assert_eq!(gone("d", 40), [""; 0]);
        assert_eq!(gone("d", 25), ["a", "b"]);
        assert_eq!(gone("a", 30), ["b"]);
        assert_eq!(gone("a", 5), ["b", "c", "d"]);
    }

    #[test]
    fn use_counts_even_where_reading_does_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(format!("{name}-0123456789abcdef-0123456789abcdef.pte")), "").unwrap();
        }
        let labels = || list(dir.path()).into_iter().map(|program| program.label).collect::<Vec<_>>();
        touch(&list(dir.path())[0].path);
        let before = labels();
        touch(&list(dir.path())[0].path);
        assert_ne!(labels(), before);
    }
}
