//! Adapters that are merged into a checkpoint's weights.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};
use flambeau::{
    tensor::Bytes,
    zoo::{Adapter, Checkpoint},
};

use crate::files;

/// The flag for adapters.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LoraArgs {
    /// Merge a LoRA adapter into the weights: a folder of PEFT or mlx-lm, or a GGUF file. SCALE
    /// multiplies its strength, by default 1. May be given several times
    #[arg(help_heading = "Export", long = "lora", value_name = "PATH[:SCALE]")]
    adapters: Vec<Given>,
}

/// An adapter on the command line.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    path: PathBuf,
    strength: f32,
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Given, String> {
        let number = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        match number {
            Some((path, strength)) if !path.is_empty() && strength.is_finite() => Ok(Given { path: path.into(), strength }),
            Some(_) => Err("expected a path, or a path and a finite number".into()),
            None => Ok(Given { path: text.into(), strength: 1.0 }),
        }
    }
}

impl LoraArgs {
    pub(crate) fn is_empty(&self) -> bool {
        self.adapters.is_empty()
    }

    /// The adapters' paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.adapters.iter().map(|given| given.path.as_path())
    }

    /// Merges the adapters in their order.
    ///
    /// # Errors
    /// An adapter cannot be read, or does not fit the checkpoint.
    pub(crate) fn merge(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        for given in &self.adapters {
            let merged = read(&given.path).and_then(|adapter| Ok(checkpoint.merge(&adapter, given.strength)?));
            merged.with_context(|| format!("adapter {}", given.path.display()))?;
        }
        Ok(())
    }

    /// A text that changes with the adapters' files, for keys of a cache. Empty without adapters.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn state(&self) -> Result<String> {
        let mut state = String::new();
        for given in &self.adapters {
            let place = || format!("adapter {}", given.path.display());
            for path in adapter_files(&given.path)?.into_iter().map(|(_, path)| path) {
                let path = path.canonicalize().with_context(place)?;
                let data = fs::metadata(&path).with_context(place)?;
                let time = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
                state += &format!(" {} {} {} {}", path.display(), data.len(), time.as_nanos(), given.strength);
            }
        }
        Ok(state)
    }
}

/// Reads a folder or a GGUF file.
pub(crate) fn read(path: &Path) -> Result<Adapter> {
    let read = |(name, path): (String, PathBuf)| Ok((name, files::read(&path)?));
    if path.is_dir() {
        let files: Result<Vec<(String, Bytes)>> = adapter_files(path)?.into_iter().map(read).collect();
        return Ok(Adapter::from_folder(files?)?);
    }
    Ok(Adapter::from_gguf(files::read(path)?)?)
}

/// The file itself, or the JSON and safetensors files of a folder, by name.
fn adapter_files(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    if !path.is_dir() {
        return Ok(vec![(String::new(), path.to_owned())]);
    }
    let mut list = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let path = entry?.path();
        let is_wanted = path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors");
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| is_wanted) {
            list.push((name.to_owned(), path.clone()));
        }
    }
    list.sort();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_behind_the_last_colon_is_the_scale() {
        let given = |text: &str| text.parse::<Given>();
        let want = |path: &str, strength| Ok(Given { path: path.into(), strength });
        assert_eq!(given("style"), want("style", 1.0));
        assert_eq!(given("style:0.5"), want("style", 0.5));
        assert_eq!(given(r"C:\style"), want(r"C:\style", 1.0));
        assert_eq!(given(r"C:\style:-1"), want(r"C:\style", -1.0));
        assert!(given(":0.5").is_err());
        assert!(given("style:inf").is_err());
    }
}
