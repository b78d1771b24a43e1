//! What ARCHITECTURE.md promises of the sources, held against them. An exception stands in a list with its reason, and a list may
//! not name what is no exception any more.

#![forbid(unsafe_code)]

mod crates;
mod environment;
mod packages;
mod text;
mod unsafe_rooms;

use std::collections::BTreeSet;

/// A file that is allowed to break a rule, and why.
type Exception = (&'static str, &'static str);

/// Holds places that break a rule, as (path, line, what is there), against the files that may.
fn hold(rule: &str, found: &[(String, usize, String)], exceptions: &[Exception]) {
    let allowed = |path: &str| exceptions.iter().any(|(file, _)| *file == path);
    let broken: Vec<String> =
        found.iter().filter(|(path, ..)| !allowed(path)).map(|(path, line, what)| format!("{path}:{line}: {what}")).collect();
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
    let used: BTreeSet<&str> = found.iter().map(|(path, ..)| path.as_str()).collect();
    let idle: Vec<&str> = exceptions.iter().map(|(file, _)| *file).filter(|file| !used.contains(file)).collect();
    assert!(idle.is_empty(), "{rule}: these exceptions are none any more, take them off the list: {idle:?}");
}
