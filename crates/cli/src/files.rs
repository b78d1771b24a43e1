//! Reads and writes files. `-` is stdin or stdout. Files are written to a temporary file and then
//! renamed.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail};
use flambeau::tensor::Bytes;
use tempfile::NamedTempFile;

/// The path for stdin or stdout.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The contents of a file, mapped where possible, or of stdin.
pub(crate) fn read(path: &Path) -> Result<Bytes> {
    if is_standard(path) {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
        return Ok(Bytes::from(bytes));
    }
    Ok(flambeau::runtime::map_file(path)?)
}

/// Writes a file atomically; stdout is written directly.
pub(crate) fn write<T>(path: &Path, produce: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    if is_standard(path) {
        return fill(BufWriter::new(io::stdout().lock()), produce, || "cannot write to stdout".to_owned());
    }
    let place = || format!("cannot write {}", path.display());
    if is_special(path) {
        // A pipe or a device is written to; a file in its place would end it.
        return fill(BufWriter::new(File::options().write(true).open(path).with_context(place)?), produce, place);
    }
    let mut file = temporary_sibling(path)?;
    let value = fill(Blocks { data: Vec::with_capacity(BLOCK), to: file.as_file_mut() }, produce, place)?;
    file.persist(path).map_err(|e| e.error).with_context(place)?;
    Ok(value)
}

/// Writes the output of `produce` and flushes it. `failure` is the context of a flush error.
fn fill<T>(mut out: impl Write, produce: impl FnOnce(&mut dyn Write) -> Result<T>, failure: impl FnOnce() -> String) -> Result<T> {
    let value = produce(&mut out)?;
    out.flush().with_context(failure)?;
    Ok(value)
}

/// Checks that [`write`] can write to a path, before long work starts.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    if !is_standard(path) && !is_special(path) {
        temporary_sibling(path)?;
    }
    Ok(())
}

/// Whether the path is neither a file nor a folder.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|facts| !facts.is_file() && !facts.is_dir())
}

/// A temporary file in the same folder as another file.
fn temporary_sibling(path: &Path) -> Result<NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".flambeau-").suffix(".partial");
    readable_by_others(&mut builder);
    if path.is_dir() {
        bail!("cannot write {}: it is a folder", path.display());
    }
    builder.tempfile_in(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!("cannot write {}: there is no folder {}", path.display(), folder.display()),
        kind => anyhow!("cannot write {}: {kind}", path.display()),
    })
}

/// Size of a large page on most systems in bytes.
const BLOCK: usize = 2 << 20;

/// Writes in whole blocks, so that the page cache can use large pages for later mappings.
struct Blocks<W> {
    data: Vec<u8>,
    to: W,
}

impl<W: Write> Write for Blocks<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.data.len() == BLOCK {
            self.flush()?;
        }
        let taken = bytes.len().min(BLOCK - self.data.len());
        self.data.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.data)?;
        self.data.clear();
        self.to.flush()
    }
}

/// Sets normal permissions: temporary files are private by default, but results should be like any
/// other file.
fn readable_by_others(builder: &mut tempfile::Builder<'_, '_>) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    #[cfg(not(unix))]
    let _ = builder;
}

/// Prints one line of output.
pub(crate) fn print_line(line: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}

/// Prints text output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    Ok(io::stdout().lock().write_all(bytes)?)
}

/// Prints JSON output.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print_line(format_args!("{value:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test writer that records the size of each write.
    struct Sizes(Vec<usize>);

    impl Write for Sizes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocks_are_written_whole() {
        let mut sizes = Sizes(Vec::new());
        let mut out = Blocks { data: Vec::new(), to: &mut sizes };
        for size in [1, BLOCK, 10, 2 * BLOCK, 7] {
            out.write_all(&vec![0; size]).unwrap();
        }
        out.flush().unwrap();
        assert_eq!(sizes.0, [BLOCK, BLOCK, BLOCK, 18]);
    }

    #[test]
    #[cfg(unix)]
    fn pipes_are_written_to_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let reader = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read(path).unwrap()
        });
        write(&path, |out| Ok(out.write_all(b"through")?)).unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(is_special(&path));
    }

    #[test]
    fn a_failed_write_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.bin");
        let failed = write(&path, |out| {
            out.write_all(b"half")?;
            anyhow::bail!("stop")
        });
        let failed: Result<()> = failed;
        assert!(failed.is_err() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
        write(&path, |out| Ok(out.write_all(b"whole")?)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }
}
