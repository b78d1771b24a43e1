//! Locations of conformance cases.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Archives in the folder of shared material next to the repository, and the minimum number of
/// cases in each.
const ARCHIVES: [(&str, usize); 2] = [("ops", 712), ("models", 28)];
const CHECKPOINTS: (&str, usize) = ("checkpoints", 42);
const SPEECH: (&str, usize) = ("speech", 8);
const SESSIONS: (&str, usize) = ("sessions", 35);
const FAMILIES: (&str, usize) = ("families", 67);
const REPORTS: (&str, usize) = ("reports", 400);

/// Files that describe a case; one of them marks a case folder.
const DESCRIPTIONS: [&str; 2] = ["case.json", "session.json"];

/// A case folder, or a placeholder for the cases of a missing archive.
#[derive(Clone, Debug)]
pub struct Case {
    /// `small/NAME` for a committed case, `ARCHIVE/NAME` for an archived case, or `ARCHIVE` alone
    /// if the archive is missing.
    pub name: String,
    /// The folder, or a message about the missing archive.
    pub folder: Result<PathBuf, String>,
}

/// The committed cases, in order.
pub fn committed() -> Vec<Case> {
    cases_in("small", &Path::new(env!("CARGO_MANIFEST_DIR")).join("cases"))
}

/// The committed and archived cases.
///
/// # Panics
/// As [`archives`].
pub fn all(target: &Path) -> Vec<Case> {
    let of_archives = archives(target).into_iter().flat_map(|(name, folder)| of_archive(name, folder));
    committed().into_iter().chain(of_archives).collect()
}

/// Committed and archived checkpoints of language and speech models, with the expected results of
/// their programs.
///
/// # Panics
/// As [`archives`].
pub fn checkpoints(target: &Path) -> Vec<Case> {
    let small = cases_in("small", &Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints"));
    small.into_iter().chain(cases_of_archive(CHECKPOINTS, target)).chain(cases_of_archive(SPEECH, target)).collect()
}

/// ExecuTorch's programs of language and speech models, each with consecutive calls and the
/// expected results.
///
/// # Panics
/// As [`archives`].
pub fn sessions(target: &Path) -> Vec<Case> {
    cases_of_archive(SESSIONS, target)
}

/// Archived checkpoints of further model families.
///
/// # Panics
/// As [`archives`].
pub fn families(target: &Path) -> Vec<Case> {
    cases_of_archive(FAMILIES, target)
}

/// Archived programs from public reports and samplers.
///
/// # Panics
/// As [`archives`].
pub fn reports(target: &Path) -> Vec<Case> {
    cases_of_archive(REPORTS, target)
}

fn cases_of_archive((name, at_least): (&str, usize), target: &Path) -> Vec<Case> {
    of_archive(name, unpacked(name, at_least, target))
}

fn of_archive(name: &str, folder: Result<PathBuf, String>) -> Vec<Case> {
    match folder {
        Ok(folder) => cases_in(name, &folder),
        Err(missing) => vec![Case { name: name.to_owned(), folder: Err(missing) }],
    }
}

/// Unpacks the archives below `target`; returns the name and folder of each, or a message if it is
/// missing.
///
/// # Panics
/// Panics if an archive cannot be unpacked or holds too few cases.
pub fn archives(target: &Path) -> Vec<(&'static str, Result<PathBuf, String>)> {
    ARCHIVES.iter().map(|&(name, at_least)| (name, unpacked(name, at_least, target))).collect()
}

fn unpacked(name: &str, at_least: usize, target: &Path) -> Result<PathBuf, String> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance").join(format!("{name}.tar.xz"));
    let missing = |_| format!("{at_least} cases: ../shared/conformance/{name}.tar.xz is not there");
    // The archive's length distinguishes versions of an archive.
    let folder = target.join(format!("cases-{name}-{}", fs::metadata(&archive).map_err(missing)?.len()));
    if !folder.exists() {
        unpack(&archive, name, &folder);
    }
    // The archive of speech models stores its cases in a subfolder, next to recordings.
    let folder = Some(folder.join("cases")).filter(|cases| cases.is_dir()).unwrap_or(folder);
    let found = cases_in(name, &folder).len();
    assert!(found >= at_least, "{} holds {found} cases of {at_least}", folder.display());
    Ok(folder)
}

/// Unpacks the folder `name` of an archive with the system's `tar`.
fn unpack(archive: &Path, name: &str, folder: &Path) {
    let target = folder.parent().expect("a folder below the target folder");
    fs::create_dir_all(target).expect("the folder is made");
    let beside = tempfile::tempdir_in(target).expect("a folder beside");
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(beside.path()).status().expect("tar runs");
    assert!(status.success(), "{} does not unpack", archive.display());
    // If another process finished first, its folder is used.
    let moved = fs::rename(beside.path().join(name), folder);
    assert!(moved.is_ok() || folder.exists(), "{} holds no folder `{name}`", archive.display());
}

/// The subfolders that are cases.
fn cases_in(source: &str, folder: &Path) -> Vec<Case> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let folders = entries
        .map(|e| e.expect("the entry reads").path())
        .filter(|path| DESCRIPTIONS.iter().any(|name| path.join(name).is_file()));
    let mut cases: Vec<Case> = folders
        .map(|path| {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            Case { name: format!("{source}/{name}"), folder: Ok(path) }
        })
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}
