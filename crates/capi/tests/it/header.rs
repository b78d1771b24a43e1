//! Reads the declarations of `flambeau.h`, and compares them with the library and with the
//! interface that was published.

use std::{fs, process::Command};

use flambeau_testcases::test;
use libtest_mimic::Trial;

use crate::toolchain::{abi_version, has, library, package};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("symbols::the_library_exports_what_the_header_declares", || has("nm"), exports),
        test("symbols::the_interface_is_the_published_one", || Ok(()), published),
    ]
}

/// The header's declarations, one a line: without comments, preprocessor lines and repeated blanks.
fn declarations() -> Vec<String> {
    let mut text = fs::read_to_string(package("include/flambeau.h")).unwrap();
    while let Some(start) = text.find("/*") {
        let end = start + text[start..].find("*/").unwrap() + 2;
        text.replace_range(start..end, " ");
    }
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("extern")).collect();
    let (mut found, mut declaration, mut depth) = (Vec::new(), String::new(), 0i32);
    for word in code.join(" ").split_whitespace() {
        depth += word.matches('{').count() as i32 - word.matches('}').count() as i32;
        // The brace that ends `extern "C"`.
        if depth < 0 {
            break;
        }
        declaration += if declaration.is_empty() || declaration.ends_with('(') { "" } else { " " };
        declaration += word;
        if depth == 0 && word.ends_with(';') {
            found.push(std::mem::take(&mut declaration));
        }
    }
    found
}

/// Names of the functions that the header declares, sorted.
fn functions() -> Vec<String> {
    let name = |line: &String| {
        let head = line.strip_prefix("FLB_API")?.split_once('(')?.0;
        head.rsplit([' ', '*']).next().map(str::to_owned)
    };
    let mut names: Vec<String> = declarations().iter().filter_map(name).collect();
    names.sort();
    names
}

/// Names that the shared library gives to programs, sorted.
fn symbols() -> Vec<String> {
    let flags: &[&str] = if cfg!(target_os = "macos") { &["-gU"] } else { &["-D", "--defined-only"] };
    let output = Command::new("nm").args(flags).arg(library()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    // Names of C have an underscore before them on a Mac.
    let mut names: Vec<String> =
        names.map(|name| name.strip_prefix('_').filter(|_| cfg!(target_os = "macos")).unwrap_or(name).to_owned()).collect();
    names.sort();
    names
}

fn exports() {
    let (declared, exported) = (functions(), symbols());
    assert!(declared.len() > 20, "{declared:?}");
    let missing: Vec<_> = declared.iter().filter(|name| !exported.contains(name)).collect();
    assert!(missing.is_empty(), "flambeau.h declares what the library does not export: {missing:?}");
    if cfg!(target_os = "macos") {
        // Its linker has no way to hide what the crates inside export.
        return;
    }
    let extra: Vec<_> = exported.iter().filter(|name| !declared.contains(name)).collect();
    assert!(extra.is_empty(), "the library exports what flambeau.h does not declare: {extra:?}");
}

fn published() {
    let path = format!("tests/abi-{}.txt", abi_version());
    let text = fs::read_to_string(package(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (known, declared): (Vec<&str>, Vec<String>) = (text.lines().collect(), declarations());
    let gone: Vec<_> = known.iter().filter(|line| !declared.iter().any(|found| found == *line)).collect();
    assert!(gone.is_empty(), "compiled programs would no longer fit: raise the version of the interface, or restore {gone:#?}");
    let new: Vec<_> = declared.iter().filter(|line| !known.contains(&line.as_str())).collect();
    assert!(new.is_empty(), "{path} lacks declarations that were added: {new:#?}");
}
