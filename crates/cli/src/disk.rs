//! Free disk space.

use std::path::Path;

use anyhow::{Result, anyhow};

use crate::{failure::hint, memory::human};

/// Checks that files of this size fit the disk, before they are written.
///
/// # Errors
/// Fails if they do not fit; `advice` tells what helps.
pub(crate) fn admit(what: &str, bytes: u64, folder: &Path, advice: &str) -> Result<()> {
    match free(folder) {
        Some(free) if bytes > free => {
            let error = anyhow!("{what} takes {}, and the disk of {} has {} free", human(bytes), folder.display(), human(free));
            Err(hint(error, advice))
        }
        _ => Ok(()),
    }
}

/// Free bytes on the disk of a folder, which need not exist yet; `None` if unknown.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let there =
        folder.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path }).find(|path| path.exists());
    let facts = rustix::fs::statvfs(there.unwrap_or(Path::new("."))).ok()?;
    facts.f_bavail.checked_mul(facts.f_frsize)
}

/// Free bytes on the disk of a folder; unknown on this system.
#[cfg(not(unix))]
fn free(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("not/there");
        assert!(admit("a file", 1, &folder, "").is_ok() && free(Path::new("")).is_some());
        let error = admit("a file", u64::MAX, &folder, "take less").unwrap_err();
        assert!(error.to_string().starts_with("a file takes ") && error.to_string().contains("not/there has "), "{error}");
    }
}
