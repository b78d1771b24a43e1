//! Room on disks.

use std::path::Path;

/// Free bytes on the disk of a folder, which need not exist yet; `None` where the system does not
/// tell.
#[cfg(unix)]
pub(crate) fn free(folder: &Path) -> Option<u64> {
    let there =
        folder.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path }).find(|path| path.exists());
    let facts = rustix::fs::statvfs(there.unwrap_or(Path::new("."))).ok()?;
    facts.f_bavail.checked_mul(facts.f_frsize)
}

/// Free bytes on the disk of a folder; unknown on this system.
#[cfg(not(unix))]
pub(crate) fn free(_folder: &Path) -> Option<u64> {
    None
}
