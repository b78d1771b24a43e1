//! The C interface: its source, and how it becomes a library beside an installed MLX.

use std::{
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

/// Source of the shim for an installed MLX.
#[derive(Clone, Debug)]
pub struct Shim {
    /// The MLX to compile against and link to.
    pub install: Install,
    /// Folder that keeps compiled shims.
    pub cache: PathBuf,
    /// C++20 compiler; `None` tries the usual names.
    pub compiler: Option<PathBuf>,
}

impl Shim {
    /// Where the compiled shim is or will be: its name states the version of MLX and the digest of
    /// source, flags and library.
    pub fn path(&self) -> PathBuf {
        let mut hash = Sha256::new();
        for (name, text) in shim_sources() {
            hash.update(name);
            hash.update(text);
        }
        hash.update(FLAGS.join(" "));
        hash.update(self.install.library.as_os_str().as_encoded_bytes());
        let digest: String = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
        let name = format!("libflambeau_mlx-{}-{digest}.{}", self.install.version, std::env::consts::DLL_EXTENSION);
        self.cache.join(name)
    }

    /// Whether the shim is compiled already.
    pub fn is_built(&self) -> bool {
        self.path().is_file()
    }

    /// The compiled shim; compiles it first if the cache lacks it.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's message, [`Error::Io`] if the cache cannot be
    /// written.
    pub fn build(&self) -> Result<PathBuf, Error> {
        let path = self.path();
        if path.is_file() {
            return Ok(path);
        }
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        fs::create_dir_all(&self.cache).map_err(io(&self.cache))?;
        let folder = tempfile::tempdir_in(&self.cache).map_err(io(&self.cache))?;
        for (name, text) in shim_sources() {
            let file = folder.path().join(name);
            fs::write(&file, text).map_err(io(&file))?;
        }
        let output = folder.path().join("shim");
        self.compile(&folder.path().join("shim.cpp"), &output)?;
        fs::rename(&output, &path).map_err(io(&path))?;
        Ok(path)
    }

    fn compile(&self, source: &Path, output: &Path) -> Result<(), Error> {
        let stated = self.compiler.clone().map(|c| vec![c]);
        let compilers = stated.unwrap_or_else(|| COMPILERS.iter().map(PathBuf::from).collect());
        let libraries = self.install.library.parent().unwrap_or(Path::new("."));
        for compiler in &compilers {
            let mut command = Command::new(compiler);
            command.args(FLAGS).arg("-isystem").arg(&self.install.include).arg(source).arg("-o").arg(output);
            command.arg("-L").arg(libraries).arg("-lmlx").arg(format!("-Wl,-rpath,{}", libraries.display()));
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
