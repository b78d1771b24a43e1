//! Folders of the user that this program writes to without being asked where.

use std::{env, path::PathBuf};

use anyhow::{Context, Result};

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder of that name for what can be made again.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let home = variable("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    Ok(home.context("there is no home folder for the cache; set XDG_CACHE_HOME")?.join("flambeau").join(name))
}

/// The file of that name for what is kept from one session to the next; `None` without a home folder.
pub(crate) fn state(name: &str) -> Option<PathBuf> {
    let home = variable("XDG_STATE_HOME").or_else(|| Some(env::home_dir()?.join(".local").join("state")))?;
    Some(home.join("flambeau").join(name))
}
