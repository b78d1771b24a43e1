//! API keys of the server's clients.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{environment, failure::usage};

/// The environment variable with a key.
pub(crate) const VARIABLE: &str = "FLAMBEAU_API_KEY";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// Accepted API key; repeatable. Other users of this machine can see it, unlike a file or
    /// FLAMBEAU_API_KEY
    #[arg(help_heading = "Server", long, value_name = "KEY")]
    api_key: Vec<String>,

    /// File with one API key per line; lines that start with # are comments. SIGHUP reloads it
    #[arg(help_heading = "Server", long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Allow a public address without an API key
    #[arg(help_heading = "Server", long)]
    pub(crate) insecure: bool,
}

impl KeyArgs {
    /// All given keys.
    pub(crate) fn read(&self) -> Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        keys.extend(environment::text(VARIABLE));
        if let Some(path) = &self.api_key_file {
            keys.extend(of_file(path)?);
        }
        match keys.iter().find(|key| key.is_empty() || !key.bytes().all(|c| c.is_ascii_graphic())) {
            Some(_) => Err(usage("a key is one or more printable ASCII characters without blanks")),
            None => Ok(keys),
        }
    }
}

/// Reads the keys of a file.
///
/// # Errors
/// Fails if the file is unreadable or contains no key.
pub(crate) fn of_file(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = in_file(&text);
    if found.is_empty() {
        return Err(usage(format!("{} holds no key", path.display())));
    }
    Ok(found)
}

fn in_file(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_key_a_line() {
        assert_eq!(in_file("# for the app\nsk-1 \n\n  sk-2\n"), ["sk-1", "sk-2"]);
    }

    #[test]
    fn keys_are_what_fits_a_header() {
        let read = |key: &str| KeyArgs { api_key: vec![key.into()], api_key_file: None, insecure: false }.read();
        assert_eq!(read("sk-1").unwrap(), ["sk-1"]);
        for key in ["", "a b", "é", "a\n"] {
            assert!(read(key).is_err(), "{key:?}");
        }
    }
}
