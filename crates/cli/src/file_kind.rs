//! Detects a file's kind by its first bytes, and advises which command takes it.

use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use flambeau::{
    runtime::{self, Program},
    tensor::Bytes,
    wire::bundled,
    zoo::gguf::Gguf,
};

use crate::failure::hint;

/// Offset of the magic number in a tar header.
const TAR_MAGIC_AT: usize = 257;

/// Known kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Program,
    Bundled,
    Data,
    Archive,
    Gguf,
    Ggml,
    Nemo,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Program => "an ExecuTorch program",
            FileKind::Bundled => "a bundled program of ExecuTorch",
            FileKind::Data => "an ExecuTorch data file",
            FileKind::Archive => "a torch.export archive",
            FileKind::Gguf => "a GGUF file",
            FileKind::Ggml => "a model in whisper.cpp's form",
            FileKind::Nemo => "a tar archive, as .nemo files are",
        })
    }
}

impl FileKind {
    /// Detects the kind by the first bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<FileKind> {
        let has = |at: usize, magic: &[u8]| bytes.get(at..at + magic.len()) == Some(magic);
        match () {
            () if has(4, b"ET12") => Some(FileKind::Program),
            () if bundled::is_bundled(bytes) => Some(FileKind::Bundled),
            () if has(4, b"FT01") => Some(FileKind::Data),
            () if has(0, b"PK\x03\x04") => Some(FileKind::Archive),
            () if has(0, b"GGUF") => Some(FileKind::Gguf),
            () if has(0, b"lmgg") => Some(FileKind::Ggml),
            () if has(TAR_MAGIC_AT, b"ustar") => Some(FileKind::Nemo),
            () => None,
        }
    }

    /// Detects the kind of a file; `None` also if it does not exist. Compressed NeMo files are
    /// detected by their names.
    pub(crate) fn of_file(path: &Path) -> Option<FileKind> {
        let is_named = path.extension().is_some_and(|extension| extension == "nemo");
        FileKind::of(&begins(path).ok()?).or(is_named.then_some(FileKind::Nemo))
    }

    /// Advice for a file of this kind.
    pub(crate) fn advice(self, path: &Path) -> String {
        let path = path.display();
        match self {
            FileKind::Program => {
                format!("it is compiled: `flambeau run {path}`, or `flambeau inspect {path}` to see what is in it")
            }
            FileKind::Bundled => format!("it holds a program and test cases: `flambeau verify {path}` runs them"),
            FileKind::Data => format!("it holds weights of a program: `--data {path}` beside the program"),
            FileKind::Archive => format!("make a program of it: `flambeau compile {path} -o FILE.pte`"),
            FileKind::Gguf | FileKind::Ggml | FileKind::Nemo => {
                format!("make a program of it: `flambeau export {path} -o FILE.pte`")
            }
        }
    }

    /// Reads a file of this kind. For a file of another kind, the error names the right command.
    ///
    /// # Errors
    /// Runs `read`; its error names the detected kind of file.
    pub(crate) fn expect<T>(self, path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
        read().map_err(|error| match begins(path) {
            Ok(start) if start.is_empty() => anyhow::anyhow!("{} is empty, expected {self}", path.display()),
            Ok(start) => match FileKind::of(&start) {
                Some(found) if found != self => {
                    hint(anyhow::anyhow!("{} is {found}, expected {self}", path.display()), found.advice(path))
                }
                None => stand_in(path, &start).unwrap_or(error),
                _ => error,
            },
            Err(_) => error,
        })
    }
}

/// The first bytes of a file. Stdin is not inspected, since it can be read only once.
fn begins(path: &Path) -> Result<Vec<u8>> {
    if !path.is_file() {
        bail!("{} is no file", path.display());
    }
    let mut start = Vec::new();
    fs::File::open(path)?.take(TAR_MAGIC_AT as u64 + 8).read_to_end(&mut start)?;
    Ok(start)
}

/// Files of a GGUF checkpoint: the file itself, or all parts if it is a part of a split one.
///
/// # Errors
/// Fails if a part is missing.
pub(crate) fn gguf_paths(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(names) = path.file_name().and_then(|name| name.to_str()).and_then(Gguf::part_names) else {
        return Ok(vec![path.to_owned()]);
    };
    let paths: Vec<PathBuf> = names.iter().map(|name| path.with_file_name(name)).collect();
    match paths.iter().position(|path| !path.is_file()) {
        Some(at) => bail!("{} is missing, which is part {} of the {} of this model", paths[at].display(), at + 1, paths.len()),
        None => Ok(paths),
    }
}

/// A program on the command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Program, as `flambeau compile` and `flambeau export` write it
    #[arg(value_name = "FILE.pte")]
    pub(crate) program: PathBuf,

    #[command(flatten)]
    weights: WeightsArgs,
}

impl ProgramArgs {
    /// Opens the program with its weights.
    pub(crate) fn open(&self) -> Result<Program> {
        self.weights.open(&self.program)
    }

    /// A program in memory, with the weights of the command line.
    pub(crate) fn of_bytes(&self, bytes: Bytes) -> Result<Program> {
        self.weights.add_to(Program::from_bytes(bytes)?)
    }

    /// The files of program and weights.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.program].into_iter().chain(&self.weights.data).map(PathBuf::as_path)
    }
}

/// Location of a program's weights on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct WeightsArgs {
    /// File with weights outside of the program
    #[arg(long, value_name = "FILE.ptd")]
    pub(crate) data: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

impl WeightsArgs {
    /// Opens a program with its weights.
    pub(crate) fn open(&self, path: &Path) -> Result<Program> {
        self.add_to(self.lock.open(path)?)
    }

    fn add_to(&self, program: Program) -> Result<Program> {
        let Some(data) = &self.data else { return Ok(program) };
        FileKind::Data.expect(data, || {
            if self.lock.mlock { program.with_locked_data(data).map_err(advise) } else { Ok(program.with_data(data)?) }
        })
    }
}

/// Whether weights may be swapped out.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct LockArgs {
    /// Read all weights at start and lock them in memory
    #[arg(long)]
    mlock: bool,
}

impl LockArgs {
    /// Opens a program.
    pub(crate) fn open(self, path: &Path) -> Result<Program> {
        FileKind::Program
            .expect(path, || if self.mlock { Program::open_locked(path).map_err(advise) } else { Ok(Program::open(path)?) })
    }
}

fn advise(error: runtime::Error) -> anyhow::Error {
    match error {
        runtime::Error::Lock { .. } => {
            hint(error, "`ulimit -l` says how many KiB a process may lock; without --mlock, any model runs")
        }
        _ => error.into(),
    }
}

impl From<LockArgs> for WeightsArgs {
    fn from(lock: LockArgs) -> WeightsArgs {
        WeightsArgs { data: None, lock }
    }
}

/// The error for a Git LFS pointer or a web page in place of a downloaded file.
fn stand_in(path: &Path, bytes: &[u8]) -> Option<anyhow::Error> {
    const POINTER: &[u8] = b"version https://git-lfs";
    const PAGES: [&[u8]; 2] = [b"<!doctype html", b"<html"];
    let start = bytes.trim_ascii_start().get(..32).unwrap_or(bytes.trim_ascii_start()).to_ascii_lowercase();
    let path = path.display();
    if start.starts_with(POINTER) {
        let error = anyhow::anyhow!("{path} is a pointer of Git LFS in the place of the file");
        return Some(hint(error, "`git lfs pull` in its folder, or `flambeau pull ORG/NAME`, fetches the file itself"));
    }
    if PAGES.iter().any(|page| start.starts_with(page)) {
        let error = anyhow::anyhow!("{path} is a web page in the place of the file");
        return Some(hint(
            error,
            "the address was that of a page about the file; `flambeau pull ORG/NAME` fetches the file itself",
        ));
    }
    None
}

/// Refuses a Git LFS pointer or a web page in place of a downloaded file.
///
/// # Errors
/// Refuses a Git LFS pointer or a web page, and explains how to get the file.
pub(crate) fn check_is_no_stand_in(path: &Path, bytes: &[u8]) -> Result<()> {
    stand_in(path, bytes).map_or(Ok(()), Err)
}

/// Reason why a file is not supported.
pub(crate) fn unknown(path: &Path, bytes: &[u8]) -> anyhow::Error {
    if bytes.is_empty() {
        return anyhow::anyhow!("{} is empty", path.display());
    }
    if let Some(error) = stand_in(path, bytes) {
        return error;
    }
    let start: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    anyhow::anyhow!("neither a .pte, .ptd, .pt2 nor GGUF file; it begins with the bytes {}", start.join(" "))
        .context(path.display().to_string())
}
