//! Checks that output files overwrite no inputs and no other outputs.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result};

use crate::{checkpoint, failure::usage, files};

/// Rejects an output whose path is also an input's or another output's. `inputs` may be model
/// folders, model names and `-`.
pub(crate) fn check<'a>(outputs: &[&Path], inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    if let Some((first, second)) = shared(outputs) {
        let (first, second) = (outputs[first].display(), outputs[second].display());
        return Err(usage(format!("cannot write two results to one file: {first} and {second} are the same")));
    }
    let read = inputs.into_iter().map(files_of).collect::<Result<Vec<_>>>()?.concat();
    let read: Vec<PathBuf> = read.iter().filter_map(|path| canonical(path)).collect();
    match outputs.iter().find(|output| canonical(output).is_some_and(|place| read.contains(&place))) {
        Some(output) => {
            Err(usage(format!("cannot write {}: it is read here, and would be lost; name another file", output.display())))
        }
        None => Ok(()),
    }
}

/// Indices of the first two equal paths.
pub(crate) fn shared(paths: &[&Path]) -> Option<(usize, usize)> {
    let places: Vec<Option<PathBuf>> = paths.iter().map(|path| canonical(path)).collect();
    let earlier = |second: usize| {
        let place = places[second].as_ref()?;
        let first = places[..second].iter().position(|other| other.as_ref() == Some(place))?;
        Some((first, second))
    };
    (1..places.len()).find_map(earlier)
}

/// Files of an input: the input itself, or a folder's model files.
fn files_of(input: &Path) -> Result<Vec<PathBuf>> {
    if input.is_dir() {
        let list = checkpoint::folder_paths(input).with_context(|| input.display().to_string())?;
        return Ok(list.into_iter().map(|(_, path)| path).collect());
    }
    Ok(vec![input.to_owned()])
}

/// Canonical path of a file, existing or not; `None` for streams and devices, which cannot be
/// overwritten.
fn canonical(path: &Path) -> Option<PathBuf> {
    if files::is_standard(path) || files::is_special(path) {
        return None;
    }
    let made = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().or_else(|_| absolute(folder)).ok()?;
        Some(folder.join(path.file_name()?))
    };
    let place = path.canonicalize().ok().or_else(made)?;
    let ignores_case = cfg!(any(windows, target_os = "macos"));
    Some(if ignores_case { place.to_string_lossy().to_lowercase().into() } else { place })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_of_one_place_are_found_however_they_are_spelled() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("there.txt"), "1").unwrap();
        let check = |outputs: &[&str], inputs: &[&str]| {
            let [outputs, inputs] = [outputs, inputs].map(|names| names.iter().map(|name| at(name)).collect::<Vec<_>>());
            super::check(&outputs.iter().map(PathBuf::as_path).collect::<Vec<_>>(), inputs.iter().map(PathBuf::as_path))
        };
        assert!(check(&["sub/../there.txt"], &["there.txt"]).is_err());
        assert!(check(&["sub/../new.txt", "new.txt"], &[]).is_err());
        assert!(check(&["new.txt", "other.txt"], &["there.txt", "missing"]).is_ok());
        fs::write(at("sub/config.json"), "{}").unwrap();
        assert!(check(&["sub/config.json"], &["sub"]).is_err(), "a file of a model");
        assert!(check(&["sub/model.pte"], &["sub"]).is_ok());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("there.txt"), at("link.txt")).unwrap();
            assert!(check(&["link.txt"], &["there.txt"]).is_err());
        }
        assert!(super::check(&[Path::new("-"), Path::new("-")], [Path::new("-")]).is_ok());
    }
}
