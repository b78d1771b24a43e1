//! Environment variables, where empty ones count as absent, and default folders.

use std::{env, path::PathBuf};

use anyhow::{Context, Result};

/// A variable's text.
pub(crate) fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable's path.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The user's cache folder.
pub(crate) fn cache_home() -> Option<PathBuf> {
    path("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")))
}

/// Flambeau's cache folder with this name.
pub(crate) fn cache(name: &str) -> Result<PathBuf> {
    Ok(cache_home().context("there is no home folder for the cache; set XDG_CACHE_HOME")?.join("flambeau").join(name))
}

/// Flambeau's state file with this name, kept between sessions; `None` without a home folder.
pub(crate) fn state(name: &str) -> Option<PathBuf> {
    let home = path("XDG_STATE_HOME").or_else(|| Some(env::home_dir()?.join(".local").join("state")))?;
    Some(home.join("flambeau").join(name))
}
