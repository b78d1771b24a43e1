//! Finding an installed MLX: its headers and its library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::Error;

/// Places to search for MLX.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The only place to search: a Python package, a folder of packages, a virtual environment or
    /// an installation prefix.
    pub path: Option<PathBuf>,
    /// Python interpreters to ask for their `mlx` package, in order.
    pub interpreters: Vec<PathBuf>,
    /// Installation prefixes to look at after those, such as Homebrew's.
    pub prefixes: Vec<PathBuf>,
}

/// An MLX with headers and library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// The source of the path: `--mlx-path`, the Python interpreter that reported it, or `prefix`.
    pub found_by: String,
    /// Folder to compile against.
    pub include: PathBuf,
    /// The library itself.
    pub library: PathBuf,
    /// Version of the headers.
    pub version: String,
}

/// Names of the library, by platform.
const LIBRARIES: [&str; 2] = ["libmlx.so", "libmlx.dylib"];

impl Search {
    /// The first MLX found.
    ///
    /// # Errors
    /// [`Error::Incomplete`] for a given path without MLX, [`Error::Missing`] if no MLX is found.
    pub fn find(&self) -> Result<Install, Error> {
        if let Some(path) = &self.path {
            return Install::at("--mlx-path", path);
        }
        let mut looked = Vec::new();
        for (found_by, path) in self.places() {
            match Install::at(&found_by, &path) {
                Ok(install) => return Ok(install),
                Err(_) => looked.push(path),
            }
        }
        looked.extend(self.interpreters.iter().cloned());
        Err(Error::Missing(looked))
    }

    /// Every searched place, with its installation or the error.
    pub fn survey(&self) -> Vec<(PathBuf, Result<Install, Error>)> {
        let stated = self.path.iter().map(|path| ("--mlx-path".to_owned(), path.clone()));
        let places: Vec<_> = stated.chain(self.places()).collect();
        places.into_iter().map(|(found_by, path)| (path.clone(), Install::at(&found_by, &path))).collect()
    }

    fn places(&self) -> Vec<(String, PathBuf)> {
        let asked = self.interpreters.iter().flat_map(|python| {
            let name = python.display().to_string();
            packages(python).into_iter().map(move |path| (name.clone(), path))
        });
        let mut places: Vec<(String, PathBuf)> = Vec::new();
        for place in asked.chain(self.prefixes.iter().map(|p| ("prefix".to_owned(), p.clone()))) {
            if !places.iter().any(|p| p.1 == place.1) {
                places.push(place);
            }
        }
        places
    }
}

/// Folders of the interpreter's `mlx` package, without importing it.
fn packages(python: &Path) -> Vec<PathBuf> {
    const SCRIPT: &str =
        "import importlib.util as u; s = u.find_spec('mlx'); print(*(s and s.submodule_search_locations or []), sep='\\n')";
    let output = Command::new(python).args(["-c", SCRIPT]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.unwrap_or_default().lines().filter(|l| !l.is_empty()).map(PathBuf::from).collect()
}

impl Install {
    /// The MLX at a path of any of the accepted kinds.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if files are missing, [`Error::Version`] if the shim does not support
    /// the version.
    pub fn at(found_by: &str, path: &Path) -> Result<Install, Error> {
        let refuse = |what: &str| Error::Incomplete { path: path.to_owned(), what: what.to_owned() };
        let roots = roots(path);
        let with_headers = roots.iter().find(|r| r.join("include/mlx/version.h").is_file());
        let root = with_headers.ok_or_else(|| refuse("there is no include/mlx/version.h"))?;
        // The compiled shim names the library's folder, and must find it from everywhere.
        let root = root.canonicalize().map_err(|source| Error::Io { path: root.clone(), source })?;
        let library = LIBRARIES.iter().map(|name| root.join("lib").join(name)).find(|p| p.is_file());
        let library = library.ok_or_else(|| refuse("there is no lib/libmlx.so or lib/libmlx.dylib"))?;
        let include = root.join("include");
        let header = include.join("mlx/version.h");
        let text = fs::read_to_string(&header).map_err(|source| Error::Io { path: header, source })?;
        let version = version_of(&text).ok_or_else(|| refuse("its version.h states no version"))?;
        if !is_supported(&version) {
            return Err(Error::Version { path: path.to_owned(), version });
        }
        Ok(Install { found_by: found_by.to_owned(), include, library, version })
    }
}

/// Folders below a path that may be an installation.
fn roots(path: &Path) -> Vec<PathBuf> {
    let mut roots = vec![path.to_owned(), path.join("mlx")];
    for lib in fs::read_dir(path.join("lib")).into_iter().flatten().flatten() {
        roots.push(lib.path().join("site-packages/mlx"));
    }
    roots
}

/// `major.minor.patch` as the header's macros state it.
fn version_of(header: &str) -> Option<String> {
    let number = |name: &str| {
        let line = header.lines().find(|l| l.contains("#define") && l.contains(name))?;
        line.split_whitespace().last()?.parse::<u32>().ok()
    };
    let [major, minor, patch] = ["VERSION_MAJOR", "VERSION_MINOR", "VERSION_PATCH"].map(number);
    Some(format!("{}.{}.{}", major?, minor?, patch?))
}

/// Whether the shim was made for the version.
pub(crate) fn is_supported(version: &str) -> bool {
    let mut parts = version.split('.').map(|p| p.parse::<u32>().ok());
    matches!((parts.next().flatten(), parts.next().flatten()), (Some(0), Some(30..=32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_header() {
        let header = |minor| {
            format!(
                "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR {minor}\n#define MLX_VERSION_PATCH 4\n#define MLX_VERSION_NUMERIC \\\n  (1)"
            )
        };
        let check = |minor, accepted| {
            let version = version_of(&header(minor)).expect("a version");
            assert_eq!((version.as_str(), is_supported(&version)), (format!("0.{minor}.4").as_str(), accepted));
        };
        check(29, false);
        check(30, true);
        check(32, true);
        check(33, false);
        assert_eq!(version_of("no version"), None);
    }

    /// Builds a folder like an installation and checks the reported result.
    fn check(files: &[(&str, &str)], expected: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("the folder is made");
            fs::write(path, text).expect("the file is written");
        }
        let said = match Install::at("test", folder.path()) {
            Ok(install) => format!("version {}", install.version),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn installations_are_found_in_each_kind_of_folder() {
        const HEADER: &str = "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR 31\n#define MLX_VERSION_PATCH 0\n";
        const OLD: &str = "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR 2\n#define MLX_VERSION_PATCH 0\n";
        check(&[("include/mlx/version.h", HEADER), ("lib/libmlx.so", "")], "version 0.31.0");
        check(&[("mlx/include/mlx/version.h", HEADER), ("mlx/lib/libmlx.dylib", "")], "version 0.31.0");
        let packages = "lib/python3.11/site-packages/mlx";
        let (header, library) = (format!("{packages}/include/mlx/version.h"), format!("{packages}/lib/libmlx.so"));
        check(&[(&header, HEADER), (&library, "")], "version 0.31.0");
        check(&[(&header, HEADER)], "there is no lib/libmlx.so");
        check(&[("lib/libmlx.so", "")], "there is no include/mlx/version.h");
        check(&[("include/mlx/version.h", OLD), ("lib/libmlx.so", "")], "MLX 0.2.0");
    }
}
