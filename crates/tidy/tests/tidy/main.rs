//! Checks of the sources against the promises of ARCHITECTURE.md. Each exception is listed with a
//! reason; a list must not contain obsolete exceptions.

#![forbid(unsafe_code)]

mod crates;
mod cycles;
mod environment;
mod packages;
mod prose;
mod text;
mod unsafe_rooms;

use std::collections::BTreeSet;

/// A file that may break a rule, and the reason.
type Exception = (&'static str, &'static str);

/// Asserts that only listed files break a rule. Violations are (path, line, text).
fn hold(rule: &str, found: &[(String, usize, String)], exceptions: &[Exception]) {
    let allowed = |path: &str| exceptions.iter().any(|(file, _)| *file == path);
    let broken: Vec<String> =
        found.iter().filter(|(path, ..)| !allowed(path)).map(|(path, line, what)| format!("{path}:{line}: {what}")).collect();
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
    let used: BTreeSet<&str> = found.iter().map(|(path, ..)| path.as_str()).collect();
    let idle: Vec<&str> = exceptions.iter().map(|(file, _)| *file).filter(|file| !used.contains(file)).collect();
    assert!(idle.is_empty(), "{rule}: these exceptions are none any more, take them off the list: {idle:?}");
}
