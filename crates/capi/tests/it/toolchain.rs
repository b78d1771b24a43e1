//! C compilers, and the folder that they link from.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Flags that every example compiles with.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// Flags for AddressSanitizer. It watches all memory of the library, and finds handles that are
/// never freed.
pub(crate) const SANITIZER: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Whether a tool can be called.
pub(crate) fn has(tool: &str) -> Result<(), String> {
    if cfg!(windows) {
        return Err("these tests link shared libraries as Unix does".into());
    }
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if found { Ok(()) } else { Err(format!("there is no {tool}")) }
}

/// Whether a compiler can make programs that AddressSanitizer watches.
pub(crate) fn has_sanitizer(compiler: &str) -> Result<(), String> {
    has(compiler)?;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = folder.path().join("empty");
    let made = Command::new(compiler).args(SANITIZER).arg(&source).arg("-o").arg(&program).output().unwrap();
    let runs = made.status.success() && Command::new(&program).output().is_ok_and(|output| output.status.success());
    if runs { Ok(()) } else { Err(format!("{compiler} has no AddressSanitizer here")) }
}

pub(crate) fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// `FLB_ABI_VERSION` of the header.
pub(crate) fn abi_version() -> u32 {
    let header = fs::read_to_string(package("include/flambeau.h")).unwrap();
    let version = header.lines().find_map(|line| line.strip_prefix("#define FLB_ABI_VERSION "));
    version.unwrap().parse().unwrap()
}

/// The shared library that this build made, beside the tests.
pub(crate) fn library() -> PathBuf {
    let folder = env::current_exe().unwrap().with_file_name("");
    let name = if cfg!(target_os = "macos") { "libflambeau_capi.dylib" } else { "libflambeau_capi.so" };
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// Names of the library for linkers and for programs.
fn names() -> [String; 2] {
    let version = abi_version();
    if cfg!(target_os = "macos") {
        ["libflambeau.dylib".into(), format!("libflambeau.{version}.dylib")]
    } else {
        ["libflambeau.so".into(), format!("libflambeau.so.{version}")]
    }
}

/// A program in C or C++ that was compiled with warnings as errors.
pub(crate) struct Program {
    folder: TempDir,
}

impl Program {
    pub(crate) fn compile(compiler: &str, flags: &[&str], source: &Path) -> Program {
        let folder = tempfile::tempdir().unwrap();
        for name in names() {
            let to = folder.path().join(name);
            fs::hard_link(library(), &to).or_else(|_| fs::copy(library(), &to).map(drop)).unwrap();
        }
        let mut command = Command::new(compiler);
        command.args(STRICT).args(flags).arg("-I").arg(package("include")).arg(source).arg("-o").arg(folder.path().join("program"));
        command
            .arg("-L")
            .arg(folder.path())
            .args(["-lflambeau", "-pthread"])
            .arg(format!("-Wl,-rpath,{}", folder.path().display()));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {flags:?} refuses {}:\n{said}", source.display());
        Program { folder }
    }

    /// Runs the program and gives its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        self.run_with(args, "")
    }

    /// [`run`](Self::run) with a text on standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> String {
        let mut command = Command::new(self.folder.path().join("program"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}:\n{out}{err}", output.status);
        out.into_owned()
    }
}
