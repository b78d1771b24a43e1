//! Packs the files of the chat page, which `scripts/build-page.sh` makes, into the binary.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, Crc, write::GzEncoder};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=page/dist");
    println!("cargo::rerun-if-changed=NOTICE");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files = vec![("licenses.txt".to_owned(), PathBuf::from("NOTICE"))];
    for entry in fs::read_dir("page/dist")? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    files.sort();
    let mut rows = String::new();
    for (name, path) in files {
        let bytes = fs::read(&path)?;
        let is_packed = !name.ends_with(".woff2");
        fs::write(out.join(&name), if is_packed { pack(&bytes)? } else { bytes.clone() })?;
        let mut sum = Crc::new();
        sum.update(&bytes);
        let path = if name == "index.html" { "" } else { &name };
        let (kind, tag) = (kind(&name)?, format!("\"{:08x}-{:x}\"", sum.sum(), bytes.len()));
        write!(rows, "File {{ path: \"/{path}\", kind: {kind:?}, tag: {tag:?}, is_packed: {is_packed}, ")?;
        writeln!(rows, "bytes: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")) }},")?;
    }
    fs::write(out.join("page.rs"), format!("/// The files of the page.\nconst FILES: &[File] = &[\n{rows}];\n"))?;
    Ok(())
}

fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes)?;
    packed.finish()
}

fn kind(name: &str) -> Result<&'static str, String> {
    match Path::new(name).extension().and_then(|end| end.to_str()) {
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        Some("txt") => Ok("text/plain; charset=utf-8"),
        Some("woff2") => Ok("font/woff2"),
        _ => Err(format!("the page has no type for {name}")),
    }
}
