//! The C interface: its source, and how it becomes a library beside an installed MLX.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest, Sha256};

use crate::{Error, Install, ffi};

/// The shim's files in this crate; the last one includes the others.
const SOURCES: [(&str, &str); 7] = [
    ("flambeau_mlx.h", include_str!("../shim/flambeau_mlx.h")),
    ("common.h", include_str!("../shim/common.h")),
    ("core.cpp", include_str!("../shim/core.cpp")),
    ("eval.cpp", include_str!("../shim/eval.cpp")),
    ("math.cpp", include_str!("../shim/math.cpp")),
    ("neural.cpp", include_str!("../shim/neural.cpp")),
    ("shim.cpp", include_str!("../shim/shim.cpp")),
];

/// Names and texts of the shim's files, including the files generated from Rust's tables.
/// `shim.cpp` is the file to compile.
pub fn shim_sources() -> Vec<(&'static str, String)> {
    let committed = SOURCES.iter().map(|&(name, text)| (name, text.to_owned()));
    committed.chain(ffi::written_sources()).collect()
}

/// Compiler flags besides paths. An unhandled enum code in the shim is an error.
const FLAGS: [&str; 6] = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Werror=switch"];

/// Compilers to try if none is stated.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// Digest of the shim's source and of the compiler's flags, 16 hexadecimal digits. A shim that was
/// compiled ahead is called `libflambeau_mlx-VERSION-DIGEST`, with the version of MLX.
pub fn shim_digest() -> String {
    hexadecimal(digest())
}

fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

fn file_name(version: &str, digest: &str) -> String {
    format!("libflambeau_mlx-{version}-{digest}.{}", std::env::consts::DLL_EXTENSION)
}

/// The digest of source and flags.
fn digest() -> Sha256 {
    let mut hash = Sha256::new();
    for (name, text) in shim_sources() {
        hash.update(name);
        hash.update(text);
    }
    hash.update(FLAGS.join(" "));
    hash
}

/// A compiled shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub path: PathBuf,
    /// The libmlx to load before, for a shim that names none.
    pub library: Option<PathBuf>,
}

impl From<PathBuf> for Interface {
    fn from(path: PathBuf) -> Interface {
        Interface { path, library: None }
    }
}

/// Source of the shim for an installed MLX.
#[derive(Clone, Debug)]
pub struct Shim {
    /// The MLX to compile against and link to.
    pub install: Install,
    /// Folders with shims that were [compiled ahead](shim_digest), besides the folder of libmlx.
    pub ahead: Vec<PathBuf>,
    /// Folder that keeps compiled shims.
    pub cache: PathBuf,
    /// C++20 compiler; `None` tries the usual names.
    pub compiler: Option<PathBuf>,
}

impl Shim {
    /// Where the compiled shim is or will be: its name states the version of MLX and the digest of
    /// source, flags and library.
    pub fn path(&self) -> PathBuf {
        let mut hash = digest();
        hash.update(self.install.library.as_os_str().as_encoded_bytes());
        self.cache.join(file_name(&self.install.version, &hexadecimal(hash)))
    }

    /// The shim that was compiled ahead for the source, the flags and the version of MLX.
    pub fn compiled_ahead(&self) -> Option<Interface> {
        let name = file_name(&self.install.version, &shim_digest());
        let own = self.install.library.parent().map(Path::to_owned);
        let path = own.iter().chain(&self.ahead).map(|folder| folder.join(&name)).find(|path| path.is_file())?;
        Some(Interface { path, library: Some(self.install.library.clone()) })
    }

    /// Whether the shim is compiled already.
    pub fn is_built(&self) -> bool {
        self.compiled_ahead().is_some() || self.path().is_file()
    }

    /// Compiles the shim ahead, for this source and version of MLX, into a folder.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn compile_ahead(&self, folder: &Path) -> Result<PathBuf, Error> {
        let path = folder.join(file_name(&self.install.version, &shim_digest()));
        self.compile_to(folder, &path, &ahead_flags())?;
        Ok(path)
    }

    /// The compiled shim in the cache; compiles it first if the cache lacks it.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's message, [`Error::Io`] if the cache cannot be
    /// written.
    pub fn build(&self) -> Result<PathBuf, Error> {
        let path = self.path();
        if path.is_file() {
            return Ok(path);
        }
        let libraries = self.install.library.parent().unwrap_or(Path::new("."));
        let flags = ["-L".into(), libraries.into(), "-lmlx".into(), rpath(libraries)];
        self.compile_to(&self.cache, &path, &flags)?;
        Ok(path)
    }

    /// Compiles the shim in a folder of its own below `beside`, and moves it to `path`.
    fn compile_to(&self, beside: &Path, path: &Path, link: &[OsString]) -> Result<(), Error> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        fs::create_dir_all(beside).map_err(io(beside))?;
        let folder = tempfile::tempdir_in(beside).map_err(io(beside))?;
        for (name, text) in shim_sources() {
            let file = folder.path().join(name);
            fs::write(&file, text).map_err(io(&file))?;
        }
        let output = folder.path().join("shim");
        self.compile(&folder.path().join("shim.cpp"), &output, link)?;
        fs::rename(&output, path).map_err(io(path))
    }

    fn compile(&self, source: &Path, output: &Path, link: &[OsString]) -> Result<(), Error> {
        let stated = self.compiler.clone().map(|c| vec![c]);
        let compilers = stated.unwrap_or_else(|| COMPILERS.iter().map(PathBuf::from).collect());
        for compiler in &compilers {
            let mut command = Command::new(compiler);
            command.args(FLAGS).arg("-isystem").arg(&self.install.include).arg(source).arg("-o").arg(output);
            command.args(link);
            let done = match command.stdin(Stdio::null()).output() {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(Error::Compile(format!("{}: {e}", compiler.display()))),
                Ok(done) => done,
            };
            if done.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&done.stderr);
            let first = said.lines().filter(|l| l.contains("error")).take(5).collect::<Vec<_>>().join("\n");
            return Err(Error::Compile(format!("{} failed with {}\n{first}", compiler.display(), done.status)));
        }
        let names = compilers.iter().map(|c| c.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(Error::Compile(format!("there is no C++ compiler; tried {names}")))
    }
}

/// The linker's flag for a folder of libraries.
fn rpath(folder: &Path) -> OsString {
    let mut flag = OsString::from("-Wl,-rpath,");
    flag.push(folder);
    flag
}

/// Flags for a library that takes its symbols from the loaded libmlx.
fn ahead_flags() -> Vec<OsString> {
    if cfg!(target_os = "macos") { vec!["-Wl,-undefined,dynamic_lookup".into()] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of MLX's library and another folder, with files of these names.
    fn compiled_in(beside: &[&str], elsewhere: &[&str]) -> Option<String> {
        let root = tempfile::tempdir().expect("a folder");
        let (lib, ahead) = (root.path().join("lib"), root.path().join("ahead"));
        for (folder, names) in [(&lib, beside), (&ahead, elsewhere)] {
            fs::create_dir(folder).expect("the folder is made");
            names.iter().for_each(|name| fs::write(folder.join(name), "").expect("the file is written"));
        }
        let library = lib.join("libmlx.so");
        let install =
            Install { found_by: "test".into(), include: root.path().into(), library: library.clone(), version: "0.31.2".into() };
        let shim = Shim { install, ahead: vec![ahead], cache: root.path().join("cache"), compiler: None };
        let found = shim.compiled_ahead();
        assert_eq!(shim.is_built(), found.is_some());
        let found = found?;
        assert_eq!(found.library, Some(library));
        Some(found.path.strip_prefix(root.path()).expect("it is below").display().to_string())
    }

    #[test]
    fn an_interface_of_the_same_source_and_version_is_chosen() {
        let name = file_name("0.31.2", &shim_digest());
        assert_eq!(compiled_in(&[], &[&name]), Some(format!("ahead/{name}")));
        assert_eq!(compiled_in(&[&name], &[&name]), Some(format!("lib/{name}")));
        assert_eq!(compiled_in(&[], &[&file_name("0.31.1", &shim_digest())]), None);
        assert_eq!(compiled_in(&[&file_name("0.31.2", "0123456789abcdef")], &["libflambeau_mlx-0.31.2.so"]), None);
    }
}
